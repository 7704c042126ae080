from __future__ import annotations

import dataclasses
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from dca.backbones.clip import CLIP
from dca.backbones.dual_encoder import compute_digest
from dca.core.errors import UserError
from dca.core.files import partial_folder
from dca.datasets.dataset import Dataset
from dca.runs.run import run
from dca.runs.spec import FitSpec
from dca.training import loop, resume
from helpers.processes import PATIENCE, start_process, wait_until

EPOCHS = 3
FILES = {"manifest.json", "README.md", "config.json", "metrics.jsonl", "model.safetensors", "result.json", "spec.json"}
# Two batches an epoch, so that an epoch can be left in its middle.
OPTIONS = {"epochs": EPOCHS, "batch_size": 4, "warmup_epochs": 1}


@pytest.fixture(scope="module")
def few(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four of the classes."""
    folder = tmp_path_factory.mktemp("few") / "few"
    for part in ("train", "test"):
        for name in ("cactus", "fish", "guitar", "house"):
            shutil.copytree(photos / part / name, folder / part / name)
    return folder


@pytest.fixture(scope="module")
def spec(few: Path, tiny_folder: Path) -> FitSpec:
    return FitSpec(data=str(few), method="dca", shots=2, backbone=str(tiny_folder), options=dict(OPTIONS))


@pytest.fixture(scope="module")
def straight(spec: FitSpec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(spec, tmp_path_factory.mktemp("straight") / "m.dca").folder


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def rows(folder: Path) -> list[dict[str, float]]:
    """The metrics without the times."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def require_same(folder: Path, straight: Path) -> None:
    assert weights(folder) == weights(straight)
    assert rows(folder) == rows(straight)
    assert {p.name for p in folder.iterdir()} == FILES
    assert not partial_folder(folder).exists()


def stopping(error: BaseException, epoch: int, step: int) -> Callable[[str, int, int, str], None]:
    """A progress that raises at a step of an epoch."""

    def progress(stage: str, done: int, total: int, note: str) -> None:
        if stage == "training" and done == 2 * (epoch - 1) + step:
            raise error

    return progress


def test_the_selection_reaches_the_method(photos: Path, tiny_folder: Path, tmp_path: Path) -> None:
    for mode in ("strict", "paper"):
        spec = FitSpec(data=str(photos), method="tip_adapter", shots=1, backbone=str(tiny_folder), rules=mode)
        outcome = run(spec, tmp_path / mode, device="cpu")
        assert outcome.classifier is not None
        assert outcome.classifier.method_.options.rules == mode


def test_the_same_seed_twice_gives_the_same_weights_and_another_seed_others(
    spec: FitSpec, straight: Path, tmp_path: Path
):
    run(spec, tmp_path / "again.dca")
    require_same(tmp_path / "again.dca", straight)
    other = FitSpec(data=spec.data, method="dca", shots=2, seed=2, backbone=spec.backbone, options=spec.options)
    run(other, tmp_path / "other.dca")
    assert weights(tmp_path / "other.dca") != weights(straight)


def test_training_changes_every_prompt_and_no_bit_of_the_backbone(spec: FitSpec, tiny_folder: Path, tmp_path: Path):
    clip = CLIP.from_pretrained(tiny_folder)
    before = compute_digest(clip)
    model = spec.classifier().set_params(backbone=clip).fit(spec.data)
    assert model.method_.clip is clip
    assert compute_digest(clip) == before == compute_digest(CLIP.from_pretrained(tiny_folder))
    untouched = FitSpec(data=spec.data, method="dca", shots=2, backbone=spec.backbone, options={**OPTIONS, "epochs": 0})
    first = untouched.classifier().fit(spec.data).method_.state_dict()
    for name, tensor in model.method_.named_parameters():
        assert not tensor.equal(first[name]), name


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("epoch", range(1, EPOCHS + 1))
@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("power cut")], ids=["interrupt", "crash"])
def test_interrupted_at_any_epoch_and_resumed_it_is_the_straight_run(
    spec: FitSpec,
    straight: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    epoch: int,
    step: int,
):
    if isinstance(error, RuntimeError):  # what no code can react to: only the states written before count
        monkeypatch.setattr(loop, "SAVE_EVERY", 0.0)
    target = tmp_path / "m.dca"
    with pytest.raises(type(error)):
        run(spec, target, progress=stopping(error, epoch, step))
    assert not target.exists()
    saved = partial_folder(target) / resume.STATE
    assert saved.exists() == (epoch > 1), "the epochs before are kept, the broken one is not"
    ran: list[int] = []
    run(spec, target, progress=lambda stage, done, total, note: ran.append(done) if stage == "training" else None)
    assert min(ran) == 2 * (epoch - 1) + 1, "only what was not saved is done again"
    require_same(target, straight)


def test_interrupted_again_and_again_it_is_the_straight_run(spec: FitSpec, straight: Path, tmp_path: Path):
    for epoch in range(1, EPOCHS + 1):
        with pytest.raises(KeyboardInterrupt):
            run(spec, tmp_path / "m.dca", progress=stopping(KeyboardInterrupt(), epoch, 2))
    run(spec, tmp_path / "m.dca")
    require_same(tmp_path / "m.dca", straight)


def test_killed_at_a_random_point_and_resumed_it_is_the_straight_run(spec: FitSpec, tmp_path: Path):
    options = {**OPTIONS, "epochs": 400}
    killed, whole = tmp_path / "killed.dca", tmp_path / "whole.dca"
    code = (
        "import sys; from pathlib import Path; from dca.training import loop\n"
        "from dca.runs.run import run; from dca.runs.spec import FitSpec\n"
        "loop.SAVE_EVERY = 0.0\n"
        f"options = {options!r}\n"
        "spec = FitSpec(data=sys.argv[1], method='dca', shots=2, backbone=sys.argv[2], options=options)\n"
        "run(spec, Path(sys.argv[3]))"
    )
    command = [sys.executable, "-c", code, spec.data, spec.backbone, killed]
    state = partial_folder(killed) / resume.STATE
    with start_process(command, env={**os.environ, "OMP_NUM_THREADS": "1"}) as process:
        wait_until(state.exists, process)
        with pytest.raises(UserError, match="another fit or server is writing"):
            run(spec_of(spec, options), killed)
        assert process.poll() is None, "it was left in peace"
        time.sleep(random.uniform(0, 0.5))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "it was still running"
    assert not killed.exists()
    # The rest of 400 epochs would be long: what is compared is the epoch after the one it was killed in.
    done = len(resume.read_metrics(partial_folder(killed)))
    assert 0 < done < 400
    more = spec_of(spec, options)
    for target in (killed, whole):
        with pytest.raises(KeyboardInterrupt):
            run(more, target, progress=stopping(KeyboardInterrupt(), done + 2, 1))
    assert rows(partial_folder(killed)) == rows(partial_folder(whole))
    resumed, straight = load_file(state), load_file(partial_folder(whole) / resume.STATE)
    assert resumed.keys() == straight.keys()
    assert all(resumed[name].equal(straight[name]) for name in straight)


def test_killed_in_the_second_fold_and_resumed_it_is_the_straight_run(spec: FitSpec, tmp_path: Path):
    """The estimate, too: folds that were finished are not fitted again."""
    options = {"epochs": 2, "warmup_epochs": 0, "n_tokens": 2}
    arguments = {"method": "coop", "shots": 3, "backbone": spec.backbone, "estimate": True, "options": options}
    killed, whole = tmp_path / "killed.dca", tmp_path / "whole.dca"
    code = (
        "import os, signal, sys; from dca.training import loop\n"
        "from dca.runs.run import run; from dca.runs.spec import FitSpec\n"
        "loop.SAVE_EVERY = 0.0\n"
        "def die(stage, done, total, note):\n"
        "    if note.startswith('fold 2/3  training  epoch 2'):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        f"run(FitSpec(data=sys.argv[1], **{arguments!r}), sys.argv[2], progress=die)"
    )
    line = [sys.executable, "-c", code, spec.data, str(killed)]
    done = subprocess.run(line, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False, timeout=PATIENCE)
    assert done.returncode == -signal.SIGKILL
    assert not killed.exists()
    again = FitSpec(data=spec.data, **arguments)  # type: ignore[arg-type]
    notes: list[str] = []
    run(again, killed, progress=lambda stage, done, total, note: notes.append(note))
    assert not any(note.startswith(("epoch", "fold 1/3", "fold 2/3  training  epoch 1")) for note in notes)
    assert any(note.startswith("fold 3/3  training") for note in notes)
    straight = run(again, whole)
    require_same(killed, whole)
    results = [json.loads((folder / "result.json").read_text()) for folder in (killed, whole)]
    for name in ("estimate", "temperature", "accuracy"):
        assert results[0][name] == results[1][name]
    assert straight.result.estimate.how == "3-fold cross-validation"
    drawn = [json.loads((folder / "config.json").read_text())["training_images"] for folder in (killed, whole)]
    assert drawn[0] == drawn[1]
    assert "held_out" in drawn[0][0]


def test_an_interrupt_in_a_fold_keeps_what_is_finished(spec: FitSpec, tmp_path: Path):
    """Also for a method without a training state of its own."""
    folded = {"views": 0, "shrinkage": "oas"}  # which has no leave-one-out of its own
    few = FitSpec(data=spec.data, method="gda", shots=2, backbone=spec.backbone, estimate=True, options=folded)

    def stop_second(stage: str, done: int, total: int, note: str) -> None:
        if note.startswith("fold 2/2"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(few, tmp_path / "m.dca", progress=stop_second)
    assert (partial_folder(tmp_path / "m.dca") / "folds" / "1-of-2" / "predicted.safetensors").is_file()
    notes: list[str] = []
    outcome = run(few, tmp_path / "m.dca", progress=lambda stage, done, total, note: notes.append(note))
    assert not any(note.startswith("fold 1/2") for note in notes)
    assert outcome.result.estimate.n == 8
    assert {p.name for p in (tmp_path / "m.dca").iterdir()} == FILES - {"metrics.jsonl"}


def spec_of(spec: FitSpec, options: dict[str, Any]) -> FitSpec:
    return FitSpec(data=spec.data, method="dca", shots=spec.shots, backbone=spec.backbone, options=options)


END_PHASE = [
    "dca.runs.run.evaluate",
    "dca.runs.run.checkpoint.write",
    "dca.model.checkpoint.write_json",
    "dca.runs.folder.atomic_replace",
]


@pytest.mark.parametrize("where", END_PHASE)
@pytest.mark.parametrize("replacing", [False, True])
def test_a_failure_at_the_end_leaves_no_half_model_and_can_be_resumed(
    spec: FitSpec,
    straight: Path,
    fitted: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    replacing: bool,
):
    target = tmp_path / "m.dca"
    if replacing:
        shutil.copytree(fitted, target)

    def fail(*args: Any) -> None:
        raise RuntimeError("power cut")

    with monkeypatch.context() as patched:
        patched.setattr(where, fail)
        with pytest.raises(RuntimeError, match="power cut"):
            run(spec, target, overwrite=replacing)
    if replacing:
        assert weights(target) == weights(fitted), "the old model stays until the new one is whole"
    else:
        assert not target.exists()
    stages: list[str] = []
    run(spec, target, overwrite=replacing, progress=lambda stage, *_: stages.append(stage))
    assert "training" not in stages, "the trained state was kept"
    require_same(target, straight)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.dca"]


def test_a_failed_replacement_puts_the_old_model_back(
    spec: FitSpec, fitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    target = tmp_path / "m.dca"
    shutil.copytree(fitted, target)
    real = os.replace

    def refuse(source: Any, destination: Any) -> None:
        if Path(source) == partial_folder(target):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(source, destination)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(UserError, match="cannot be written"):
        run(spec, target, overwrite=True)
    assert weights(target) == weights(fitted)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_second_fit_into_the_same_folder_is_refused_and_touches_nothing(
    spec: FitSpec, straight: Path, tmp_path: Path, overwrite: bool
):
    target = tmp_path / "m.dca"
    other = FitSpec(data=spec.data, method="dca", shots=1, backbone=spec.backbone, options=spec.options)
    refused: list[UserError] = []

    def second(stage: str, done: int, total: int, note: str) -> None:
        if stage == "training" and not refused:
            with pytest.raises(UserError, match="another fit or server is writing") as caught:
                run(other, target, overwrite=overwrite)
            refused.append(caught.value)

    run(spec, target, progress=second)
    assert "-o DIR" in refused[0].render("cli")
    require_same(target, straight)
    assert [p.name for p in tmp_path.iterdir()] == ["m.dca"], "the lock is gone, too"


def test_a_fit_that_ended_meanwhile_is_not_run_again(
    spec: FitSpec, straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from dca.core.files import exclusive_lock

    target = tmp_path / "m.dca"

    def late(folder: Path) -> Any:
        shutil.copytree(straight, target)
        return exclusive_lock(folder)

    monkeypatch.setattr("dca.runs.run.exclusive_lock", late)
    assert run(spec, target).classifier is None


def test_a_finished_run_is_not_run_again(spec: FitSpec, straight: Path):
    before = {p: p.stat().st_mtime_ns for p in straight.iterdir()}
    stages: list[str] = []
    outcome = run(spec, straight, progress=lambda stage, *_: stages.append(stage))
    assert outcome.result.to_dict() == json.loads((straight / "result.json").read_text())
    assert set(stages) <= {"backbone"}
    assert {p: p.stat().st_mtime_ns for p in straight.iterdir()} == before


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model.safetensors", lambda data: data[:-7]),
        ("model.safetensors", lambda data: data[:-1] + bytes([data[-1] ^ 1])),
        ("result.json", lambda data: data[:-7]),
        ("config.json", lambda data: data[:-7]),
        ("config.json", lambda data: b""),
        ("config.json", lambda data: b"{}"),
    ],
    ids=["cut weights", "flipped bit", "cut result", "cut config", "empty config", "config of nothing"],
)
def test_a_damaged_finished_run_is_not_called_finished(
    spec: FitSpec, straight: Path, tmp_path: Path, name: str, damage: Callable[[bytes], bytes]
):
    target = Path(shutil.copytree(straight, tmp_path / "m.dca"))
    (target / name).write_bytes(damage((target / name).read_bytes()))
    with pytest.raises(UserError, match="a finished model, but damaged") as caught:
        run(spec, target)
    assert str(target / name) in caught.value.problem
    assert "--overwrite" in caught.value.render("cli")
    run(spec, target, overwrite=True)
    require_same(target, straight)


def test_a_finished_run_without_its_config_can_be_replaced(spec: FitSpec, straight: Path, tmp_path: Path):
    target = Path(shutil.copytree(straight, tmp_path / "m.dca"))
    (target / "config.json").unlink()
    with pytest.raises(UserError, match="a finished model, but damaged"):
        run(spec, target)
    run(spec, target, overwrite=True)
    require_same(target, straight)


def test_a_finished_run_that_was_moved_is_reported_where_it_lies(spec: FitSpec, straight: Path, tmp_path: Path):
    moved = Path(shutil.copytree(straight, tmp_path / "moved.dca"))
    assert run(spec, moved).folder == moved


def test_a_finished_model_of_another_run_is_refused_unless_overwritten(spec: FitSpec, fitted: Path, tmp_path: Path):
    target = tmp_path / "m.dca"
    shutil.copytree(fitted, target)
    with pytest.raises(UserError, match="another run") as caught:
        run(spec, target)
    assert "--overwrite" in caught.value.render("cli")
    assert weights(target) == weights(fitted)
    run(spec, target, overwrite=True)
    assert weights(target) != weights(fitted)


def test_a_model_of_another_run_says_what_differs(spec: FitSpec, straight: Path):
    other = dataclasses.replace(spec, seed=2, shots=1, options={**OPTIONS, "epochs": 1})
    with pytest.raises(UserError, match="another run") as caught:
        run(other, straight)
    said = caught.value.details
    assert {"shots: 2 there, 1 here", "seed: 1 there, 2 here", "option epochs: 3 there, 1 here"} <= set(said)
    assert "training images: not the same" in said
    assert not any(line.startswith(("backbone", "method", "classes")) for line in said)


def test_other_validation_images_are_another_run(few: Path, tiny_folder: Path, tmp_path: Path):
    """`linear_probe` selects on them, so the model depends on them."""
    from PIL import Image

    data = Path(shutil.copytree(few, tmp_path / "data"))
    shutil.copytree(few / "test", data / "val")
    spec = FitSpec(data=str(data), method="linear_probe", shots=2, backbone=str(tiny_folder))
    run(spec, tmp_path / "m.dca")
    assert run(spec, tmp_path / "m.dca").classifier is None, "nothing has changed: finished already"
    for path in sorted((data / "val").rglob("*.*")):
        Image.new("RGB", (48, 48), (90, 20, 10)).save(path)
    with pytest.raises(UserError, match="another run") as caught:
        run(spec, tmp_path / "m.dca")
    assert caught.value.details == ("validation images: not the same",)
    assert run(spec, tmp_path / "m.dca", overwrite=True).classifier is not None


def test_an_interrupted_run_of_another_precision_or_device_is_started_over(
    spec: FitSpec, straight: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    target = tmp_path / "m.dca"
    with pytest.raises(KeyboardInterrupt):
        run(dataclasses.replace(spec, precision="bf16"), target, progress=stopping(KeyboardInterrupt(), 3, 1))
    record = json.loads((partial_folder(target) / "spec.json").read_text())
    assert (record["identity"]["precision"], record["identity"]["device"]) == ("bfloat16", "cpu")
    record["identity"]["device"] = "cuda"
    (partial_folder(target) / "spec.json").write_text(json.dumps(record))
    run(spec, target, device="cpu")
    require_same(target, straight)
    (said,) = caplog.messages
    assert "precision: 'bfloat16' there, 'float32' here; device: 'cuda' there, 'cpu' here" in said


def test_other_test_images_are_another_run(tiny_folder: Path, tmp_path: Path):
    from PIL import Image

    for part in ("train", "test"):
        for n, name in enumerate(("cat", "dog")):
            (tmp_path / "data" / part / name).mkdir(parents=True)
            Image.new("RGB", (32, 32), (80 * n, 40, 90)).save(tmp_path / "data" / part / name / "0.png")
    spec = FitSpec(data=str(tmp_path / "data"), method="dca", backbone=str(tiny_folder), options={"epochs": 1})
    run(spec, tmp_path / "m.dca")
    Image.new("RGB", (32, 32)).save(tmp_path / "data" / "test" / "cat" / "1.png")
    with pytest.raises(UserError, match="another run"):
        run(spec, tmp_path / "m.dca")
    assert run(spec, tmp_path / "m.dca", overwrite=True).result.test_images == 3


def test_a_row_without_its_state_is_not_kept_twice(spec: FitSpec, straight: Path, tmp_path: Path):
    """Metrics are written before the state: an end between the two leaves one row too many."""
    target = tmp_path / "m.dca"
    with pytest.raises(KeyboardInterrupt):
        run(spec, target, progress=stopping(KeyboardInterrupt(), 3, 1))
    metrics = partial_folder(target) / resume.METRICS
    metrics.write_text(
        metrics.read_text() + metrics.read_text().splitlines()[-1].replace('"epoch": 2', '"epoch": 3') + "\n"
    )
    run(spec, target)
    require_same(target, straight)


def test_an_interrupted_run_of_another_kind_is_started_over(spec: FitSpec, straight: Path, tmp_path: Path):
    target = tmp_path / "m.dca"
    other = FitSpec(data=spec.data, method="dca", shots=1, backbone=spec.backbone, options=spec.options)
    with pytest.raises(KeyboardInterrupt):
        run(other, target, progress=lambda stage, *_: stop() if stage.startswith("testing") else None)
    run(spec, target)
    require_same(target, straight)


def stop() -> None:
    raise KeyboardInterrupt


def test_what_is_continued_and_what_is_discarded_is_said(
    spec: FitSpec, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    target = tmp_path / "m.dca"
    with pytest.raises(KeyboardInterrupt):
        run(spec, target, progress=stopping(KeyboardInterrupt(), 3, 1))
    assert caplog.messages == []
    with pytest.raises(KeyboardInterrupt):
        run(spec, target, progress=stopping(KeyboardInterrupt(), 3, 1))
    assert caplog.messages == [f"{partial_folder(target)}: continuing after epoch 2 of 3"]
    caplog.clear()
    run(FitSpec(data=spec.data, method="dca", shots=1, backbone=spec.backbone, options=spec.options), target)
    (said,) = caplog.messages
    assert said.startswith(f"{partial_folder(target)}: discarding an unfinished run (shots: 2 there, 1 here")
    assert "training images: not the same" in said


def test_a_folder_in_the_way_is_never_emptied(spec: FitSpec, tmp_path: Path):
    partial = partial_folder(tmp_path / "m.dca")
    partial.mkdir()
    (partial / "diary.txt").write_text("rain")
    with pytest.raises(UserError, match="in the way"):
        run(spec, tmp_path / "m.dca")
    assert (partial / "diary.txt").read_text() == "rain"


@pytest.mark.parametrize("damage", ["state", "metrics", "fewer rows", "epochs", "shape"])
def test_a_damaged_interrupted_run_is_named_with_the_way_out(spec: FitSpec, tmp_path: Path, damage: str):
    from safetensors.torch import save_file

    target = tmp_path / "m.dca"
    with pytest.raises(KeyboardInterrupt):
        run(spec, target, progress=stopping(KeyboardInterrupt(), 3, 1))
    state, metrics = partial_folder(target) / resume.STATE, partial_folder(target) / resume.METRICS
    tensors = load_file(state)
    if damage == "state":
        state.write_bytes(state.read_bytes()[:-7])
    elif damage == "metrics":
        metrics.write_text('{"epoch": 1\n')
    elif damage == "fewer rows":
        metrics.write_text(metrics.read_text().splitlines()[0] + "\n")
    elif damage == "epochs":
        save_file(tensors, state, metadata={"epochs_done": "77", "learning_rate": "0.1"})
    else:
        wrong = {name: tensor.flatten()[:1].clone() for name, tensor in tensors.items()}
        save_file(wrong, state, metadata={"epochs_done": "2", "learning_rate": "0.1"})
    with pytest.raises(UserError) as caught:
        run(spec, target)
    assert str(partial_folder(target)) in str(caught.value)
    assert "delete" in caught.value.hint
    assert not target.exists()


def test_a_full_disk_is_said_and_leaves_nothing_half_written(
    spec: FitSpec, straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(UserError, match="No space left on device") as caught:
            run(spec, tmp_path / "m.dca")
    assert "free space" in caught.value.hint
    assert [p.name for p in tmp_path.rglob("*")] == ["m.dca.partial"]
    run(spec, tmp_path / "m.dca")
    require_same(tmp_path / "m.dca", straight)


def test_a_place_that_cannot_be_written_is_said_before_training(
    spec: FitSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").touch()
    monkeypatch.setattr("dca.model.classifier.Classifier._fit_drawn", lambda *_, **__: pytest.fail("trained"))
    with pytest.raises(UserError, match="cannot be written"):
        run(spec, tmp_path / "file" / "m.dca")


def test_a_run_holds_only_figures_that_json_knows_and_the_card_says_them(straight: Path):
    result = json.loads((straight / "result.json").read_text())
    card = (straight / "README.md").read_text()
    assert f"{100 * result['accuracy']:.1f} %" in card
    assert f"{100 * result['zero_shot_accuracy']:.1f} %" in card
    assert [row["epoch"] for row in rows(straight)] == [1, 2, 3]


def test_a_run_on_pictures_in_memory_needs_no_files(sample: Dataset, clip: CLIP):
    from dca.model.classifier import Classifier

    model = Classifier("dca", shots=1, backbone=clip, epochs=1).fit(sample)
    assert {image.name for image in model.training_images_} == {"in memory"}
    assert len(model.history_) == 1


def test_a_share_can_be_held_out_where_there_is_no_test_part(photos: Path, tiny_folder: Path, tmp_path: Path) -> None:
    spec = FitSpec(data=str(photos / "train"), hold_out=0.25, backbone=str(tiny_folder), method="zero_shot")
    result = run(spec, tmp_path / "held.dca").result
    assert (result.images, result.test_images) == (30, 10)
    assert result.accuracy is not None


def test_a_finished_run_without_its_result_is_told_from_another_run(photos: Path, tiny_folder: Path, tmp_path: Path):
    spec = FitSpec(data=str(photos), method="dca", shots=1, backbone=str(tiny_folder), options={"epochs": 0})
    target = run(spec, tmp_path / "m.dca").folder
    (target / "result.json").write_text('{"model": "m.d')
    with pytest.raises(UserError, match=r"result\.json: not readable JSON") as caught:
        run(spec, target)
    assert "--overwrite" in caught.value.render("cli")
    (target / "result.json").unlink()
    with pytest.raises(UserError, match=r"damaged: .*result\.json: cannot be read") as caught:
        run(spec, target)
    assert "--overwrite" in caught.value.render("cli")
    with pytest.raises(UserError, match="a model of another run"):
        run(dataclasses.replace(spec, seed=2), target)


def test_a_fit_says_what_it_does_and_ends_every_stage(photos: Path, tiny_folder: Path, tmp_path: Path):
    seen: dict[str, tuple[int, int]] = {}
    order: list[str] = []

    def progress(stage: str, done: int, total: int, note: str) -> None:
        seen[stage] = done, total
        order.append(stage)

    run(FitSpec(data=str(photos), backbone=str(tiny_folder)), tmp_path / "m.dca", device="cpu", progress=progress)
    for stage in ("backbone", "fitting", "estimating", "testing on photos"):
        assert stage in seen
    assert order[0] == "backbone"
    assert all(done == total for done, total in seen.values())
