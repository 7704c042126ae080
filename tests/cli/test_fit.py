from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bad_pictures import bad_files, class_folders, picture

from dca.cli.fit import default_output
from dca.model.findings import ClassRecall, DoubtfulLabel, Findings, MoreImages
from dca.model.records import Estimate
from dca.runs.result import RunResult

KEYS = {
    "model": str, "method": str, "backbone": str, "shots": int, "seed": int, "zero_shot_accuracy": float,
    "accuracy": float, "trained_parameters": int, "seconds": float, "checkpoint_bytes": int,
}  # fmt: skip
DCA = ("--method", "dca")
QUICK = (*DCA, "--set", "epochs=1")


@pytest.fixture
def few(tmp_path: Path) -> Path:
    return class_folders(tmp_path / "few")


def test_fit_prints_one_json_object_with_the_promised_keys(dca: Any, photos: Path, tiny_folder: Path, tmp_path: Path):
    target = tmp_path / "m.dca"
    said = dca("fit", photos, "--shots", 1, "--seed", 2, "--backbone", tiny_folder, "-o", target, "--json", *QUICK)
    assert said.code == 0
    result = json.loads(said.out)
    for key, kind in KEYS.items():
        assert type(result[key]) is kind, key
    assert result["model"] == str(target)
    assert result["method"] == "dca"
    assert result["backbone"] == tiny_folder.name
    assert (result["shots"], result["seed"]) == (1, 2)
    assert 0 <= result["zero_shot_accuracy"] <= 1
    assert 0 <= result["accuracy"] <= 1
    assert result["checkpoint_bytes"] == (target / "model.safetensors").stat().st_size
    assert {"model": str(target), **json.loads((target / "result.json").read_text())} == result


def test_fit_without_test_images_has_null_accuracies(dca: Any, few: Path, tiny_folder: Path, tmp_path: Path):
    said = dca("fit", few, "--backbone", tiny_folder, "-o", tmp_path / "m.dca", "--json", *QUICK)
    result = json.loads(said.out)
    assert result["accuracy"] is None
    assert result["zero_shot_accuracy"] is None
    assert result["shots"] is None


def test_fit_says_from_which_rate_on_images_can_be_rejected(
    dca: Any, few: Path, photos: Path, tiny_folder: Path, tmp_path: Path
):
    said = dca("fit", few, "--backbone", tiny_folder, "-o", tmp_path / "m.dca")
    images = sum(1 for path in few.rglob("*") if path.is_file())
    result = json.loads((tmp_path / "m.dca" / "result.json").read_text())
    assert result["smallest_p_value"] == 1 / (images + 1)
    assert '"none of these" works from --reject 0.' in said.out
    assert f"--reject 0.05 takes 19 images, as many of each class, and these are worth {images}" in said.out
    enough = dca("fit", photos / "train", "--backbone", tiny_folder, "-o", tmp_path / "n.dca")
    assert "none of these" not in enough.out


def test_fit_learns_from_images_of_none_of_the_classes(dca: Any, photos: Path, tiny_folder: Path, tmp_path: Path):
    for name in ("fish", "house"):
        shutil.copytree(photos / "train" / name, tmp_path / "two" / name)
    shutil.copytree(photos / "train" / "guitar", tmp_path / "other" / "guitar")
    target = tmp_path / "m.dca"
    line = ("fit", tmp_path / "two", "--backbone", tiny_folder, "-o", target)
    said = dca(*line, "--other", tmp_path / "other")
    assert said.code == 0
    assert "8 training images (all of them), 4 images of none of them" in said.out
    assert json.loads((target / "result.json").read_text())["other_images"] == 4
    assert json.loads((target / "spec.json").read_text())["spec"]["other"] == "other"
    again = dca(*line)
    assert again.code == 2
    assert "other images: not the same" in again.err
    inside = dca(*line, "--overwrite", "--other", tmp_path / "two" / "fish")
    assert inside.code == 2
    assert "both of a class and of none" in inside.err
    assert "fish/000.png" in inside.err
    refused = dca(*line, "--overwrite", "--other", tmp_path / "other", "--method", "gda")
    assert refused.code == 2
    assert "leave out --other" in refused.err
    missing = dca(*line, "--overwrite", "--other", tmp_path / "none")
    assert missing.code == 2


def test_other_images_that_cannot_be_read_are_listed_or_left_out(
    dca: Any, photos: Path, tiny_folder: Path, tmp_path: Path
):
    shutil.copytree(photos / "train" / "guitar", tmp_path / "other")
    for name in ("fish", "house"):
        shutil.copytree(photos / "train" / name, tmp_path / "two" / name)
    (tmp_path / "other" / "bad.jpg").write_bytes(b"no image")
    line = ("fit", tmp_path / "two", "--backbone", tiny_folder, "-o", tmp_path / "m.dca", "--other", tmp_path / "other")
    said = dca(*line)
    assert said.code == 2
    assert "bad.jpg" in said.err
    left_out = dca(*line, "--skip-bad")
    assert left_out.code == 0
    assert "4 images of none of them" in left_out.out


def test_fit_ends_with_the_comparison_the_cost_and_the_next_command(
    dca: Any, photos: Path, tiny_folder: Path, tmp_path: Path
):
    target = tmp_path / "my model.dca"
    said = dca("fit", photos, "--shots", 1, "--backbone", tiny_folder, "-o", target, *QUICK)
    assert said.code == 0
    for part in ("zero-shot CLIP", "points)", "parameters with dca in", "kB)"):
        assert part in said.out
    assert f"dca predict '{target}' IMAGE" in said.out
    again = dca("fit", photos, "--shots", 1, "--backbone", tiny_folder, "-o", target, *QUICK)
    assert again.code == 0
    assert "finished already" in again.err
    assert again.out == said.out


def test_the_whole_way_works_from_a_process_of_its_own(dca: Any, photos: Path, tiny_folder: Path, tmp_path: Path):
    line = [sys.executable, "-m", "dca", "fit", photos, "--shots", "2", "--backbone", tiny_folder, "--json", *QUICK]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(line, capture_output=True, cwd=tmp_path, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    fit = json.loads(done.stdout)
    assert fit["model"] == "photos.dca"
    measured = json.loads(dca("eval", tmp_path / "photos.dca", photos, "--json").out)
    assert measured["accuracy"] == fit["accuracy"]
    predicted = json.loads(dca("predict", tmp_path / "photos.dca", photos / "test", "--json").out)
    right = [Path(row["path"]).parent.name == row["label"] for row in predicted]
    assert sum(right) / len(right) == fit["accuracy"]


def test_every_unreadable_image_of_training_and_test_is_listed_before_training(
    dca: Any, tiny_folder: Path, tmp_path: Path
):
    class_folders(tmp_path / "few" / "train")
    class_folders(tmp_path / "few" / "test")
    names = bad_files(tmp_path / "few" / "train" / "cat") + bad_files(tmp_path / "few" / "test" / "dog")
    said = dca("fit", tmp_path / "few", "--backbone", tiny_folder, "-o", tmp_path / "m.dca", *QUICK)
    assert said.code == 2
    assert said.out == ""
    assert "Traceback" not in said.err
    assert "14 of 22 images cannot be read" in said.err
    for name in names:
        assert said.err.count(name) == 2
    for reason in ("decompression bomb", "0 bytes", "not an image", "truncated", "not opened", "times the other"):
        assert said.err.count(reason) >= 2
    assert "fix:" in said.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["few"]


def test_a_broken_link_among_the_images_is_named(dca: Any, few: Path, tiny_folder: Path, tmp_path: Path):
    (few / "cat" / "gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
    said = dca("fit", few, "--backbone", tiny_folder, "-o", tmp_path / "m.dca", *QUICK)
    assert said.code == 2
    assert "gone.jpg: a broken link" in said.err


def test_every_class_with_too_few_images_is_listed(dca: Any, tiny_folder: Path, tmp_path: Path):
    class_folders(tmp_path / "few", ("ant", "bee"), 2)
    class_folders(tmp_path / "few", ("cow",), 5)
    said = dca("fit", tmp_path / "few", "--shots", 4, "--backbone", tiny_folder, "-o", tmp_path / "m.dca")
    assert said.code == 2
    assert "2 of 3 classes have fewer than 4" in said.err
    assert "ant: 2" in said.err
    assert "bee: 2" in said.err
    assert "--shots 2" in said.err


def test_the_images_of_a_draw_are_not_called_all(dca: Any, photos: Path, tiny_folder: Path, tmp_path: Path):
    assert dca("datasets", "draw", photos, "--shots", 2, "-o", tmp_path / "two.json").code == 0
    common = ("--backbone", tiny_folder, "-o", tmp_path / "m.dca", *QUICK)
    said = dca("study", "run", photos, "--draw", tmp_path / "two.json", *common)
    assert said.code == 0
    assert "20 training images (those of two.json)" in said.out
    assert "40 training images (all of them)" in dca("fit", photos, "--overwrite", *common).out


def test_images_that_are_held_out_are_not_called_trained_on(dca: Any, photos: Path, tiny_folder: Path, tmp_path: Path):
    options = ("--method", "zero_shot", "--hold-out", "0.25", "--backbone", tiny_folder, "-o", tmp_path / "m.dca")
    lines = dca("fit", photos / "train", *options).out.splitlines()
    assert lines[0] == "clip, 32 px"
    assert lines[1] == "train: 10 classes, 30 training images (all but the 10 held out)"
    assert "accuracy on 10 test images" in lines


def test_a_public_dataset_that_was_recognised_is_said():
    from dca.cli.fit import format_result

    result = RunResult(
        dataset="eurosat", public="eurosat", split="public split file split_zhou_EuroSAT.json", classes=10, images=10,
        shots=1, seed=1, selected_on="", trained_parameters=0, seconds=1.0, backbone="vit-b-16", image_size=224,
        method="gda", checkpoint_bytes=5, findings=Findings((), (), None, ()),
    )  # fmt: skip
    said = "recognised as eurosat (public split file split_zhou_EuroSAT.json)"
    assert format_result(result, "m.dca", "photos/")[0] == "vit-b-16, 224 px"
    assert format_result(result, "m.dca", "photos/")[2].startswith(said)
    rough = dataclasses.replace(result, feature_precision="bfloat16")
    line = "vit-b-16, 224 px, frozen features in bfloat16 (--precision fp32: in float32)"
    assert format_result(rough, "m.dca", "photos/")[0] == line
    unknown = dataclasses.replace(result, public="")
    assert "recognised" not in "\n".join(format_result(unknown, "m.dca", "photos/"))
    for gain, said in ((0.051, "5 points more"), (0.012, "1 point more"), (0.004, "hardly more")):
        found = Findings((), (), MoreImages(2, 0.9, 0.8, 0.95, gain), ())
        line = f"more photos: with 2 per class about 90 % is expected, {said} (95 % interval of the accuracy: 80 to 95)"
        assert line in format_result(dataclasses.replace(result, findings=found), "m.dca", "photos/")
    unequal = Findings(
        (), (), MoreImages(5, 0.9, 0.8, 0.95, 0.1), (), (ClassRecall("a", 3, 4, 4), ClassRecall("b", 1, 1, 1))
    )
    said = "more photos: with 5 per class on the mean about 90 % is expected, 10 points more"
    assert said in "\n".join(format_result(dataclasses.replace(result, findings=unequal), "m.dca", "photos/"))
    doubt = DoubtfulLabel(0, "a/1.jpg", "a", "b", 0.9, 0.01)
    doubtful = dataclasses.replace(result, findings=Findings((doubt,), (), None, ()))
    lines = format_result(doubtful, "m", "my photos/")
    assert "labels to check: 1 image; all of them: dca check-labels 'my photos/'" in lines


def test_the_screen_names_rare_and_weak_classes_with_their_recall():
    from dca.cli.fit import format_result

    recall = [ClassRecall(f"c{n}", 15, 16, 16) for n in range(4)]
    recall += [ClassRecall("beagle", 1, 2, 2), ClassRecall("pug", 0, 3, 3), ClassRecall("setter", 0, 0, 1)]
    result = RunResult(
        dataset="dogs", public="", split="", classes=8, images=86, shots=None, seed=1, selected_on="",
        trained_parameters=0, seconds=1.0, backbone="vit-b-16", image_size=224, method="closed_form",
        findings=Findings((), (), None, (), (*recall, ClassRecall("poodle", 2, 16, 16))),
    )  # fmt: skip
    lines = format_result(result, "m.dca")
    rare = "setter (1 photo: cannot be measured), beagle 1 of 2, pug 0 of 3"
    assert f"rare classes, held-out images recognised: {rare}" in lines
    assert "weak classes, held-out images recognised: poodle 2 of 16" in lines, "pug is named once"
    few = dataclasses.replace(result, findings=Findings((), (), None, (), tuple(recall[:4])))
    assert not any("recognised:" in line for line in format_result(few, "m.dca"))
    many = tuple(ClassRecall(f"r{n}", 0, 1, 1) for n in range(9))
    lines = format_result(dataclasses.replace(result, findings=Findings((), (), None, (), (*recall, *many))), "m.dca")
    assert any(line.startswith("rare classes") and line.endswith(", and 7 more") for line in lines)


def test_json_has_the_scores_of_every_class(dca: Any, photos: Path, tiny_folder: Path, tmp_path: Path):
    said = dca("fit", photos / "train", "--backbone", tiny_folder, "-o", tmp_path / "m.dca", "--json")
    found = json.loads(said.out)["findings"]
    recall, scores = found["recall"], found["scores"]
    assert len(recall) == len(scores) == 10
    assert all((row["n"], row["images"]) == (4, 4) and 0 <= row["right"] <= 4 for row in recall)
    assert [one["recall"] for one in scores.values()] == [row["right"] / row["n"] for row in recall]
    areas = json.loads((tmp_path / "m.dca" / "config.json").read_text())["held_out_auc"]
    assert [one["roc_auc"] for one in scores.values()] == areas
    assert all(0 <= area <= 1 for area in areas)
    assert found["mean_scores"]["roc_auc"] == pytest.approx(sum(areas) / 10)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("coop", ("--set", "epochs=1", "--set", "warmup_epochs=0")),
        ("gda", ("--set", "views=0", "--set", "shrinkage=oas")),
    ],
)
def test_an_estimate_needs_no_test_images(
    dca: Any, photos: Path, tiny_folder: Path, tmp_path: Path, method: str, settings: tuple[str, ...]
):
    line = ("fit", photos / "train", "--method", method, "--shots", 2, "--backbone", tiny_folder, *settings)
    said = dca(*line, "--estimate", "-o", tmp_path / "m.dca")
    assert said.code == 0, said.err
    pattern = (
        r"estimated accuracy on new images, mean over classes \(2-fold cross-validation on 20 training images\)\n"
        rf"  zero-shot CLIP +[\d.]+ %\n  {method} +[\d.]+ %   \(95 % interval: [\d.]+ to [\d.]+\)\n"
    )
    assert re.search(pattern, said.out)
    assert "not measured" not in said.out
    assert json.loads((tmp_path / "m.dca" / "result.json").read_text())["temperature"] != 1.0
    said = dca(*line, "--estimate", "--no-calibrate", "-o", tmp_path / "plain.dca", "--json")
    result = json.loads(said.out)
    assert result["temperature"] == 1.0
    assert set(result["estimate"]) == {field.name for field in dataclasses.fields(Estimate)}


def test_with_test_images_both_numbers_are_printed(dca: Any, photos: Path, tiny_folder: Path, tmp_path: Path):
    said = dca("fit", photos, "--method", "zero_shot", "--backbone", tiny_folder, "-o", tmp_path / "m.dca")
    assert "accuracy on 30 test images" in said.out
    assert "estimated accuracy " in said.out
    assert "zero-shot predictions on 40 training images)" in said.out


def test_one_image_per_class_is_fitted_and_said_not_to_be_estimated(
    dca: Any, few: Path, tiny_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    line = ("fit", few, "--method", "tip_adapter", "--shots", 1, "--backbone", tiny_folder, "--estimate")
    said = dca(*line, "-o", tmp_path / "m.dca")
    assert said.code == 0
    assert "accuracy not measured: every class has one photo, or copies or a series of one: add a second" in said.out
    assert "not estimated: nothing can be held out: every class has one training image" in caplog.text


def test_unicode_class_names_come_back_as_they_were(dca: Any, tiny_folder: Path, tmp_path: Path):
    names = ("日本の猫", "naïve café", "🐶 dog", "Ωmega")
    class_folders(tmp_path / "few", names)
    fit = dca("fit", tmp_path / "few", "--backbone", tiny_folder, "-o", tmp_path / "m.dca", "--json", *QUICK)
    assert fit.code == 0
    said = dca("eval", tmp_path / "m.dca", tmp_path / "few", "--json")
    assert set(json.loads(said.out)["per_class"]) == set(names)


def test_a_class_name_that_is_no_text_is_refused(dca: Any, few: Path, tiny_folder: Path, tmp_path: Path):
    strange = Path(os.fsdecode(os.fsencode(few) + b"/caf\xe9"))
    (few / "cat").rename(strange)
    said = dca("fit", few, "--backbone", tiny_folder, "-o", tmp_path / "m.dca", *QUICK)
    assert said.code == 2
    assert "UTF-8" in said.err


def test_a_file_name_that_is_no_text_does_no_harm(dca: Any, few: Path, tiny_folder: Path, tmp_path: Path):
    (few / "cat" / "0.jpg").rename(os.fsdecode(os.fsencode(few / "cat") + b"/caf\xe9.jpg"))
    fit = dca("fit", few, "--backbone", tiny_folder, "-o", tmp_path / "m.dca", "--json", *QUICK)
    assert fit.code == 0
    said = dca("predict", tmp_path / "m.dca", few, "--json")
    assert os.fsencode(json.loads(said.out)[1]["path"]).endswith(b"caf\xe9.jpg")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--method", "dcaa"], ["unknown method 'dcaa'", "Did you mean 'dca'?"]),
        ([*DCA, "--set", "epoch=3", "--set", "alfa=1"], ["Did you mean 'epochs'?", "Did you mean 'alpha'?"]),
        ([*DCA, "--set", "epochs=-1", "--set", "momentum=2"], ["epochs=-1: at least 0", "momentum=2.0: at most 1"]),
        (
            [*DCA, "--set", "epochs=many", "--set", "augment=perhaps"],
            ["a whole number expected", "true or false expected"],
        ),
        ([*DCA, "--set", "alpha=nan", "--set", "beta=inf"], ["alpha=nan: a finite", "beta=inf: a finite"]),
        ([*DCA, "--set", "batch_size=99999999999999999999"], ["batch_size", "at most"]),
        (["--set", "epochs"], ["'epochs' is not key=value"]),
        (["--method", "gda", "--set", "epochs=50"], ["gda is not trained in steps", "epochs=50", "methods show gda"]),
        (["--method", "coop", "--set", "epochs=abc"], ["epochs=abc: a whole number", "`dca methods show coop`"]),
        ([*DCA, "--set", "test_metric=mahalanobi"], ["test_metric=mahalanobi: one of mahalanobis"]),
        ([*DCA, "--set", "recipe=paper"], ["no values for data that is no public dataset", "recipe=own"]),
        (["--backbone", "vit-b-61"], ["unknown backbone 'vit-b-61'", "Did you mean 'vit-b-16'?"]),
        (["--backbone", "./nowhere"], ["./nowhere: no such file or folder"]),
        (["--backbone", "x" * 5000], ["File name too long"]),
        (["--device", "gpu"], ["device 'gpu' cannot be used", "--device auto"]),
        (["--precision", "fp8"], ["unknown precision 'fp8'", "bf16"]),
        (["--shots", "0"], ["--shots", "0"]),
        (["--shot", "2"], ["--shots"]),
        (["--seed", "-1"], ["--seed"]),
    ],
)
def test_wrong_options_exit_2_with_a_way_out(
    dca: Any, few: Path, tiny_folder: Path, tmp_path: Path, arguments: list[str], parts: list[str]
):
    given = arguments if "--backbone" in arguments else ["--backbone", str(tiny_folder), *arguments]
    said = dca("fit", few, "-o", tmp_path / "m.dca", *given)
    assert said.code == 2
    assert said.out == ""
    assert "Traceback" not in said.err
    for part in parts:
        assert part in said.err
    assert not (tmp_path / "m.dca").exists()


def test_a_missing_folder_and_a_single_class_are_refused(dca: Any, tiny_folder: Path, tmp_path: Path):
    said = dca("fit", tmp_path / "nowhere", "--backbone", tiny_folder)
    assert said.code == 2
    assert "no such folder" in said.err
    class_folders(tmp_path / "one", ("cat",))
    said = dca("fit", tmp_path / "one", "--backbone", tiny_folder)
    assert said.code == 2
    assert "at least 2 classes" in said.err


def test_every_empty_class_is_listed(dca: Any, few: Path, tiny_folder: Path):
    for name in ("elk", "fox"):
        (few / name).mkdir()
    said = dca("fit", few, "--backbone", tiny_folder)
    assert said.code == 2
    assert "elk" in said.err
    assert "fox" in said.err


def test_every_bad_row_of_a_list_is_named_with_its_line(dca: Any, few: Path, tiny_folder: Path, tmp_path: Path):
    (few / "list.csv").write_text("path,label\ncat/0.jpg,cat\ncat/9.jpg,cat\ndog/0.jpg,\ndog/1.jpg\n")
    said = dca("fit", few / "list.csv", "--backbone", tiny_folder, "-o", tmp_path / "m.dca")
    assert said.code == 2
    for line in ("line 3", "line 4", "line 5"):
        assert line in said.err


def test_an_interrupt_exits_130_and_says_how_to_continue(
    dca: Any, few: Path, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    line = ("fit", few, "--backbone", tiny_folder, "-o", tmp_path / "m.dca", *QUICK)
    with monkeypatch.context() as patched:
        patched.setattr("dca.training.loop.Trainer._epoch", interrupt)
        said = dca(*line)
    assert (said.code, said.err) == (130, "interrupted\n"), "nothing to continue from"
    assert list(tmp_path.glob("m.dca*")) == []
    with monkeypatch.context() as patched:
        patched.setattr("dca.runs.run.evaluate", interrupt)
        said = dca(*line)
    assert said.code == 130
    assert "the same command continues" in said.err
    assert str(tmp_path / "m.dca.partial") in said.err
    assert not (tmp_path / "m.dca").exists()
    assert not list(tmp_path.glob(".*")), "nobody is kept out"
    assert dca(*line).code == 0
    assert (tmp_path / "m.dca").is_dir()
    assert not (tmp_path / "m.dca.partial").exists()


@pytest.mark.parametrize("form", [(), ("--json",), ("--quiet",)])
def test_a_log_is_told_how_far_it_is(
    dca: Any, few: Path, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: tuple[str, ...]
):
    monkeypatch.setattr("dca.core.progress.LINE_EVERY", 0.0)
    said = dca("fit", few, "--backbone", tiny_folder, "-o", tmp_path / "m.dca", *QUICK, *form)
    assert ("\ntraining 1/1  epoch 1/1  loss" in said.err) == (form != ("--quiet",))
    assert "training 1/1" not in said.out


def test_a_resumed_fit_says_so_on_stderr(
    dca: Any, few: Path, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    line = [str(part) for part in ("fit", few, "--backbone", tiny_folder, "-o", tmp_path / "m.dca", *QUICK)]
    with monkeypatch.context() as patched:
        patched.setattr("dca.runs.folder.atomic_replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert dca(*line).code == 130
    done = subprocess.run([sys.executable, "-m", "dca", *line], capture_output=True, check=True, text=True, timeout=300)
    assert done.stderr == f"{tmp_path / 'm.dca.partial'}: continuing after epoch 1 of 1\n"


def test_the_default_output_is_named_after_the_data(few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (few / "list.csv").touch()
    assert default_output(str(few)) == Path("few.dca")
    assert default_output(f"{few}/") == Path("few.dca")
    assert default_output(str(few / "list.csv")) == Path("list.dca")
    assert default_output("sample") == Path("sample.dca")
    monkeypatch.chdir(few)
    assert default_output(".") == Path("../few.dca")


def test_a_model_is_never_put_among_the_images_it_learns_from(dca: Any, few: Path, tiny_folder: Path):
    said = dca("fit", few, "--backbone", tiny_folder, "-o", few / "m.dca", *QUICK)
    assert said.code == 2
    assert "taken for a class" in said.err
    assert sorted(p.name for p in few.iterdir()) == ["cat", "dog"]


@pytest.mark.parametrize("output", [".", "..", "/"])
def test_a_folder_that_is_no_name_for_a_model_is_refused(
    dca: Any, few: Path, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str
):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    said = dca("fit", few, "--backbone", tiny_folder, "-o", output, *QUICK)
    assert said.code == 2
    assert "is not a name for a new folder" in said.err


def test_what_is_not_a_model_is_never_overwritten(dca: Any, few: Path, tiny_folder: Path, tmp_path: Path):
    (tmp_path / "diary").mkdir()
    (tmp_path / "diary" / "monday.txt").write_text("rain")
    (tmp_path / "note").write_text("rain")
    for name in ("diary", "note"):
        said = dca("fit", few, "--backbone", tiny_folder, "-o", tmp_path / name, "--overwrite", *QUICK)
        assert said.code == 2
        assert "exists and is" in said.err
    assert (tmp_path / "diary" / "monday.txt").read_text() == "rain"
    assert (tmp_path / "note").read_text() == "rain"


def test_diverging_training_names_the_rate_to_try(dca: Any, few: Path, tiny_folder: Path, tmp_path: Path):
    settings = (*DCA, "--set", "learning_rate=1e38", "--set", "epochs=3", "--set", "warmup_epochs=0")
    said = dca("fit", few, "--backbone", tiny_folder, "-o", tmp_path / "m.dca", *settings)
    assert said.code == 2
    assert "training diverged" in said.err
    assert "--set learning_rate=1e+37" in said.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["few"], "nothing is left to trip over"


def test_images_that_cannot_be_read_are_left_out_before_the_draw(dca: Any, tiny_folder: Path, tmp_path: Path):
    data = class_folders(tmp_path / "zoo", ("cat", "dog"), 4)
    names = bad_files(data / "cat")
    arguments = ("fit", data, "--backbone", tiny_folder, "--method", "gda", "--shots", 4, "-o", tmp_path / "m.dca")
    refused = dca(*arguments)
    assert refused.code == 2
    assert "--skip-bad" in refused.err
    said = dca(*arguments, "--skip-bad", "--json")
    assert said.code == 0
    found = json.loads(said.out)
    assert found["images"] == 8
    assert found["skipped"]
    assert {line.partition(":")[0] for line in found["skipped"]} <= {f"cat/{name}" for name in names}
    assert all(f"skipped {line}" in said.err for line in found["skipped"])
    config = json.loads((tmp_path / "m.dca" / "config.json").read_text(encoding="utf-8"))
    named = sorted(row["name"] for row in config["training_images"])
    assert named == [f"{c}/{n}.jpg" for c in ("cat", "dog") for n in range(4)]
    again = dca(*arguments, "--skip-bad")
    assert again.code == 0
    assert "finished already" in again.err


def test_a_class_without_a_readable_image_is_an_error(dca: Any, tiny_folder: Path, tmp_path: Path):
    data = class_folders(tmp_path / "zoo", ("cat", "dog"), 2)
    (data / "owl").mkdir()
    bad_files(data / "owl")
    said = dca("fit", data, "--backbone", tiny_folder, "--skip-bad", "-o", tmp_path / "m.dca")
    assert said.code == 2
    assert "classes without training images" in said.err
    assert "owl" in said.err


def test_larger_images_can_be_allowed_and_smaller_ones_refused(dca: Any, tiny_folder: Path, tmp_path: Path):
    data = tmp_path / "zoo"
    for n, name in enumerate(("cat", "dog") * 2):  # of a size whose features no other test has stored
        (data / name).mkdir(parents=True, exist_ok=True)
        picture(n, 71).save(data / name / f"{n}.jpg")
    arguments = ("fit", data, "--backbone", tiny_folder, "--method", "zero_shot", "-o", tmp_path / "m.dca")
    said = dca(*arguments, "--max-megapixels", 0.0001)
    assert said.code == 2
    assert "4 of 4 images cannot be read" in said.err
    assert "--max-megapixels N" in said.err
    assert dca(*arguments).code == 0
