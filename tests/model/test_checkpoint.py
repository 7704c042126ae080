from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file, save_file

from dca.backbones.clip import CLIP
from dca.core.errors import UserError
from dca.model import checkpoint
from dca.model.card import model_card
from dca.model.classifier import Classifier
from dca.model.records import TrainingImage
from dca.runs.run import run
from dca.runs.spec import FitSpec

Edit = Callable[[dict[str, Any]], None]


@pytest.fixture
def model(fitted: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(fitted, tmp_path / "model.dca"))


@pytest.fixture(scope="session")
def own_clip(tiny_folder: Path) -> CLIP:
    return CLIP.from_pretrained(tiny_folder)


def edit_config(model: Path, edit: Edit) -> None:
    raw = json.loads((model / "config.json").read_text())
    edit(raw)
    (model / "config.json").write_text(json.dumps(raw))


def edit_tensors(model: Path, edit: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(model / "model.safetensors")
    edit(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, model / "model.safetensors")


def resign(model: Path) -> None:
    """Make the hashes of a changed model its own, so that what they protect is looked at itself."""
    checkpoint.write_manifest(model)


def refusal(model: Path, clip: CLIP) -> UserError:
    with pytest.raises(UserError) as caught:
        Classifier.from_pretrained(model, backbone=clip)
    return caught.value


def test_a_model_loaded_in_a_new_process_gives_the_same_bits(fitted: Path, photos: Path):
    # Sums of floats depend on how many threads share them, so both sides use as many.
    code = (
        f"import sys, torch; torch.set_num_threads({torch.get_num_threads()}); from dca import Classifier\n"
        "sys.stdout.buffer.write(Classifier.from_pretrained(sys.argv[1]).predict_proba(sys.argv[2]).tobytes())"
    )
    line = [sys.executable, "-c", code, str(fitted), str(photos / "test")]
    elsewhere = subprocess.run(line, capture_output=True, check=True, timeout=300).stdout
    here = Classifier.from_pretrained(fitted).predict_proba(photos / "test")
    assert here.shape == (30, 10)
    assert elsewhere == here.tobytes()


def test_a_saved_model_holds_no_backbone_weights_and_loads_as_it_was(photos: Path, clip: CLIP, tmp_path: Path):
    model = Classifier("dca", shots=1, backbone=clip, epochs=1).fit(photos)
    model.save_pretrained(tmp_path / "m.dca")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.dca"]
    names = set(load_file(tmp_path / "m.dca" / "model.safetensors"))
    assert names == set(model.method_.state_dict())
    assert not names & set(clip.state_dict())
    loaded = Classifier.from_pretrained(tmp_path / "m.dca", backbone=clip)
    assert loaded.predict_proba(photos / "test").tobytes() == model.predict_proba(photos / "test").tobytes()
    assert list(loaded.classes_) == list(model.classes_)
    loaded.save_pretrained(tmp_path / "again.dca")
    for name in ("config.json", "model.safetensors", "README.md"):
        assert (tmp_path / "again.dca" / name).read_bytes() == (tmp_path / "m.dca" / name).read_bytes()


def test_saving_replaces_a_model_and_nothing_else(fitted: Path, own_clip: CLIP, model: Path, tmp_path: Path):
    loaded = Classifier.from_pretrained(fitted, backbone=own_clip)
    (model / "model.safetensors").write_bytes(b"old")
    loaded.save_pretrained(model)
    assert (model / "model.safetensors").read_bytes() == (fitted / "model.safetensors").read_bytes()
    (tmp_path / "diary").mkdir()
    (tmp_path / "diary" / "monday.txt").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text("{cut")
    (tmp_path / "other" / "model.safetensors").write_bytes(b"weights of another program")
    (tmp_path / "other" / "README.md").write_text("# Another program's model")
    for place in ("diary", "other"):
        with pytest.raises(UserError, match="is not a dca model"):
            loaded.save_pretrained(tmp_path / place)
    assert (tmp_path / "other" / "model.safetensors").read_bytes() == b"weights of another program"


def test_a_save_that_fails_leaves_the_old_model_and_no_rubbish(
    fitted: Path, own_clip: CLIP, model: Path, monkeypatch: pytest.MonkeyPatch
):
    loaded = Classifier.from_pretrained(fitted, backbone=own_clip)
    (model / "model.safetensors").write_bytes(b"old")
    monkeypatch.setattr(checkpoint, "write_json", lambda *_: (_ for _ in ()).throw(RuntimeError("power cut")))
    with pytest.raises(RuntimeError):
        loaded.save_pretrained(model)
    assert (model / "model.safetensors").read_bytes() == b"old"
    assert [p.name for p in model.parent.iterdir()] == [model.name]


def test_a_model_on_another_backbone_is_refused(fitted: Path, clip: CLIP, tiny_folder: Path, tmp_path: Path):
    other = Path(shutil.copytree(tiny_folder, tmp_path / "other"))
    tensors = load_file(other / "model.safetensors")
    name = next(iter(tensors))
    tensors[name].view(-1)[0] += 1e-3
    save_file(tensors, other / "model.safetensors")
    with pytest.raises(UserError, match="is a different one") as caught:
        Classifier.from_pretrained(fitted, backbone=other)
    assert "--backbone" in caught.value.render("cli")


def test_a_model_whose_backbone_is_gone_says_how_to_name_it(
    model: Path, own_clip: CLIP, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DCA_CACHE", str(tmp_path / "of another machine"))
    edit_config(model, lambda raw: raw["backbone"].update(source="/moved/away"))
    resign(model)
    with pytest.raises(UserError, match="/moved/away") as caught:
        Classifier.from_pretrained(model)
    assert "--backbone PLACE" in caught.value.render("cli")
    Classifier.from_pretrained(model, backbone=own_clip)


def lie_about_length(data: bytes) -> bytes:
    return struct.pack("<Q", 1 << 60) + data[8:]


def header_edit(data: bytes, edit: Callable[[dict[str, Any]], None]) -> bytes:
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    edit(header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


def beyond(header: dict[str, Any]) -> None:
    header["text_features"]["data_offsets"] = [0, 1 << 40]


def huge(header: dict[str, Any]) -> None:
    header["text_features"]["shape"] = [1 << 31, 1 << 31, 4]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:5],
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2],
        lambda data: data + b"x",
        lie_about_length,
        lambda data: b"\x80\x04\x95" + data,
        lambda data: struct.pack("<Q", 2) + b"[]",
        lambda data: header_edit(data, beyond),
        lambda data: header_edit(data, huge),
    ],
    ids=["empty", "stump", "short", "half", "long", "length", "pickle", "array", "offsets", "shape"],
)
def test_a_damaged_tensor_file_is_refused_by_name(model: Path, own_clip: CLIP, damage: Callable[[bytes], bytes]):
    path = model / "model.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    error = refusal(model, own_clip)
    assert str(path) in error.problem
    assert "safetensors" in error.problem
    assert error.hint


def set_to(name: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda tensors: tensors.update({name: make(tensors[name])})


def nan(tensor: torch.Tensor) -> torch.Tensor:
    tensor.view(-1)[3] = float("nan")
    return tensor


@pytest.mark.parametrize(
    ("edit", "part"),
    [
        (set_to("text_features", nan), "text_features: holds NaN"),
        (set_to("visual.tokens", nan), "visual.tokens: holds NaN"),
        (set_to("train_features", lambda t: t / 0), "train_features: holds NaN or infinite"),
        (set_to("text_features", lambda t: t[:, 1:]), "text_features: shape (4, 9, 16), expected (4, 10, 16)"),
        (set_to("visual.tokens", lambda t: t[1:]), "visual.tokens: shape (15, 32), expected (16, 32)"),
        (set_to("train_counts", lambda t: t * 0), "train_counts"),
        (set_to("train_counts", lambda t: t + 100), "train_features: shape (20, 16), expected (1020, 16)"),
        (set_to("train_counts", lambda t: t.float()), "train_counts: type torch.float32, expected torch.int64"),
        (set_to("text_features", lambda t: t.double()), "text_features: type torch.float64"),
        (set_to("text_features", lambda t: t.long()), "text_features: type torch.int64"),
        (set_to("visual.tokens", lambda t: t.to(torch.float8_e4m3fn)), "visual.tokens: type torch.float8_e4m3fn"),
        (set_to("train_features", lambda t: t.flatten()), "train_features: shape"),
        (lambda tensors: tensors.pop("train_features"), "missing train_features"),
        (lambda tensors: tensors.update(bias=torch.zeros(2)), "unexpected bias"),
    ],
)
def test_wrong_tensors_are_listed_by_name(model: Path, own_clip: CLIP, edit: Any, part: str):
    edit_tensors(model, edit)
    assert part in str(refusal(model, own_clip))


def test_all_wrong_tensors_are_listed_at_once(model: Path, own_clip: CLIP):
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        tensors["extra"] = torch.zeros(1)
        tensors["visual.tokens"] = tensors["visual.tokens"][1:]
        nan(tensors["text_features"])
        del tensors["train_counts"]

    edit_tensors(model, edit)
    details = "\n".join(refusal(model, own_clip).details)
    for part in ("extra", "visual.tokens", "text_features", "train_counts"):
        assert part in details


def test_extreme_but_finite_tensors_never_become_a_prediction(model: Path, own_clip: CLIP):
    edit_tensors(model, lambda tensors: tensors["text_features"].fill_(3e38))
    resign(model)
    with pytest.raises(UserError, match="extreme values"):
        Classifier.from_pretrained(model, backbone=own_clip)


def flip_last_bit(model: Path) -> None:
    path = model / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_a_single_flipped_bit_of_the_tensors_is_noticed(model: Path, own_clip: CLIP):
    flip_last_bit(model)
    error = refusal(model, own_clip)
    assert f"{model / 'model.safetensors'}: its content has changed since it was written" in error.problem
    assert error.hint


def test_no_path_of_this_machine_is_in_a_model(model: Path, photos: Path, tiny_folder: Path):
    for path in sorted(model.iterdir()):
        for place in (photos, tiny_folder, model, Path.cwd(), Path.home()):
            assert os.fsencode(place.parent if place.parent.name else place) not in path.read_bytes(), path.name


def test_an_unfinished_run_is_called_that(model: Path, own_clip: CLIP):
    for name in ("config.json", "result.json"):
        (model / name).unlink()
    error = refusal(model, own_clip)
    assert "is an unfinished run" in error.problem
    assert "give the command that began it again" in error.render("cli")


def test_the_card_names_a_hub_id_or_none(model: Path):
    record = checkpoint.read_record(model)
    assert "base_model" not in model_card(record), "a local folder is no hub id"
    for source, base in (("vit-b-16", "openai/clip-vit-base-patch16"), ("me/clip", "me/clip"), ("mini", None)):
        text = model_card(dataclasses.replace(record, backbone=dataclasses.replace(record.backbone, source=source)))
        assert (f"base_model: {base}\n" in text) == (base is not None)
        assert ("base_model" in text) == (base is not None)


def test_the_card_of_many_classes_is_written_at_once(model: Path):
    """It counted the images of each class anew: 0.9 s for 2,100 classes."""
    record = checkpoint.read_record(model)
    labels = tuple(f"class {n}" for n in range(5000))
    images = tuple(TrainingImage(n, "x", "0") for n in range(5000) for _ in range(4))
    many = dataclasses.replace(record, labels=labels, training_images=images)
    began = time.process_time()  # other programs do not count
    assert "4 training images per class" in model_card(many)
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "[" * 100_000, '{"a":' * 100_000, "\x00", '{"library": "dca-prompt"', "9" * 10_000],
    ids=["empty", "open", "array", "null", "deep", "deep objects", "nul", "cut", "long number"],
)
def test_a_config_that_is_no_json_object_is_refused(model: Path, own_clip: CLIP, text: str):
    (model / "config.json").write_text(text)
    told = refusal(model, own_clip)
    assert "config.json" in told.problem
    assert "fit" in told.hint


def test_a_config_that_is_no_text_is_refused(model: Path, own_clip: CLIP):
    (model / "config.json").write_bytes(b"\xff\xfe{}")
    assert "config.json" in refusal(model, own_clip).problem


@pytest.mark.parametrize(
    ("edit", "part"),
    [
        (lambda raw: raw.update(library="other"), "was not written by dca"),
        (lambda raw: raw.update(format=99), "format 99 is newer"),
        (lambda raw: raw.update(format="1"), "its format is '1'"),
        (lambda raw: raw.update(format=True), "its format is True"),
        (lambda raw: raw.update(method="dcaa"), "unknown method 'dcaa'. Did you mean 'dca'?"),
        (lambda raw: raw.update(method=["dca"]), "method: a JSON string expected"),
        (lambda raw: raw.pop("problem"), "problem: a JSON object expected"),
        (lambda raw: raw.update(options=None), "options: a JSON object expected"),
        (lambda raw: raw["options"].update(alfa=1), "Did you mean 'alpha'?"),
        (lambda raw: raw["options"].update(seed=1), "unknown option 'seed'"),
        (lambda raw: raw["options"].update(n_prompts="4"), "n_prompts='4': int expected"),
        (lambda raw: raw["options"].update(n_prompts=10**9), "n_prompts=1000000000: at most"),
        (lambda raw: raw["options"].update(visual_tokens=10**12), "visual_tokens=1000000000000: at most"),
        (lambda raw: raw["options"].update(gamma1=float("nan")), "gamma1=nan: a finite number"),
        (lambda raw: raw["options"].update(test_metric="taxi"), "test_metric=taxi: one of"),
        (lambda raw: raw["options"].update(phrases=[["a"]]), "phrases"),
        (lambda raw: raw["problem"].update(names=["only"]), "at least two names"),
        (lambda raw: raw["problem"].update(names="cat"), "at least two names"),
        (lambda raw: raw["problem"]["names"].append("owl"), "labels: 11 expected, one per class name"),
        (lambda raw: raw["labels"].__setitem__(0, None), "labels: None is not text or a number"),
        (lambda raw: raw["fit_arguments"].update(options={"seed": 1}), "unknown option 'seed'"),
        (lambda raw: raw["fit_arguments"].pop("options"), "fit_arguments.options: a JSON object expected"),
        (lambda raw: raw["fit_arguments"].update(estimate=1), "fit_arguments.estimate: true or false expected"),
        (lambda raw: raw["fit_arguments"].update(speed=1), "fit_arguments.speed: unknown"),
        (lambda raw: raw.update(temperature="warm"), "temperature: a JSON number expected"),
        (lambda raw: raw.update(temperature=0.0), "temperature: a number above 0 expected"),
        (lambda raw: raw.update(temperature=float("nan")), "temperature: a number above 0 expected"),
        (lambda raw: raw.update(estimate={"how": "by ear"}), "estimate.accuracy: another type expected"),
        (lambda raw: raw["training_images"][0].update(held_out={"predicted": 1}), "predicted, probability and own"),
        (lambda raw: raw.update(held_out_auc=0.5), "held_out_auc: a JSON array expected"),
        (lambda raw: raw.update(held_out_auc=[0.5]), "held_out_auc: a number from 0 to 1, or null, of each class"),
        (lambda raw: raw.update(held_out_auc=[None] * 9 + [1.5]), "held_out_auc: a number"),
        (lambda raw: raw.update(held_out_auc=["0.5"] * 10), "held_out_auc: a number"),
        (lambda raw: raw.update(held_out_auc=[True] * 10), "held_out_auc: a number"),
        (lambda raw: raw.update(format=0), "its format is 0"),
        (lambda raw: raw["problem"]["names"].__setitem__(0, "moth"), "config.json: its content has changed"),
        (lambda raw: raw["problem"]["names"].reverse(), "config.json: its content has changed"),
        (lambda raw: raw["options"].update(gamma1=501.0), "config.json: its content has changed"),
        (lambda raw: raw["problem"]["names"].__setitem__(0, "\ud800"), "is not a readable name"),
        (lambda raw: raw["problem"]["names"].__setitem__(0, "\x1b[2J"), "is not a readable name"),
        (lambda raw: raw["problem"].update(shots=2.5), "problem.shots: a whole number expected"),
        (lambda raw: raw["problem"].update(colour="red"), "problem.colour: unknown"),
        (lambda raw: raw["backbone"].update(digest=5), "backbone.digest: a text expected"),
        (lambda raw: raw.update(training_images=5), "training_images: a JSON array expected"),
        (lambda raw: raw.update(training_images=[5]), "training_images: label, name and sha256"),
        (lambda raw: raw.update(results=[1]), "results: a JSON object expected"),
        (lambda raw: raw.update(package=5), "package: a JSON string expected"),
        (lambda raw: raw["results"].update(accuracy="high"), "results.accuracy: a number expected"),
    ],
)
def test_a_config_with_wrong_content_is_refused_with_the_place(model: Path, own_clip: CLIP, edit: Edit, part: str):
    edit_config(model, edit)
    assert part in str(refusal(model, own_clip))


def test_options_that_are_not_those_of_the_tensors_are_refused_with_the_place(model: Path, own_clip: CLIP):
    edit_config(model, lambda raw: raw["options"].update(n_prompts=5))
    resign(model)
    assert "text.contexts.4" in str(refusal(model, own_clip))


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, photos: Path, tiny_folder: Path) -> Path:
    """A finished run with all files that a manifest names."""
    spec = FitSpec(data=str(photos), method="closed_form", shots=2, backbone=str(tiny_folder), options={})
    return run(spec, tmp_path_factory.mktemp("whole") / "photos.dca", gallery=True).folder


def test_the_manifest_names_what_decides_and_nothing_else(whole: Path):
    named = json.loads((whole / "manifest.json").read_text())["files"]
    assert set(named) == set(checkpoint.MANIFESTED)
    assert all(hashlib.sha256((whole / name).read_bytes()).hexdigest() == sha256 for name, sha256 in named.items())


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "gallery.safetensors", "manifest.json"])
def test_a_changed_file_is_refused_by_name_wherever_it_changed(whole: Path, own_clip: CLIP, tmp_path: Path, name: str):
    size = (whole / name).stat().st_size
    for n, place in enumerate([*range(0, size, size // 8), size - 1]):
        model = Path(shutil.copytree(whole, tmp_path / str(n)))
        flip(model / name, place)
        error = refusal(model, own_clip)
        assert str(model / name) in str(error)
        assert error.hint


def test_a_changed_option_is_refused(whole: Path, own_clip: CLIP, tmp_path: Path):
    model = Path(shutil.copytree(whole, tmp_path / "model.dca"))
    config = json.loads((model / "config.json").read_text())
    config["temperature"] *= 2
    (model / "config.json").write_text(json.dumps(config, indent=2))
    error = refusal(model, own_clip)
    assert error.problem == f"{model / 'config.json'}: its content has changed since it was written"
    assert error.hint == "copy the model again from a complete copy, or fit again"


@pytest.mark.parametrize("name", ["spec.json", "result.json"])
def test_a_changed_record_of_a_run_is_not_taken_for_a_finished_run(whole: Path, tmp_path: Path, name: str):
    model = Path(shutil.copytree(whole, tmp_path / "model.dca"))
    checkpoint.require_intact(model)
    (model / name).write_text((model / name).read_text() + " ")
    with pytest.raises(UserError, match=f"{name}: its content has changed"):
        checkpoint.require_intact(model)


def test_a_manifest_in_which_a_hash_was_changed_is_refused(whole: Path, own_clip: CLIP, tmp_path: Path):
    model = Path(shutil.copytree(whole, tmp_path / "model.dca"))
    flip(model / "gallery.safetensors", -1)
    raw = json.loads((model / "manifest.json").read_text())
    raw["files"]["gallery.safetensors"] = hashlib.sha256((model / "gallery.safetensors").read_bytes()).hexdigest()
    (model / "manifest.json").write_text(json.dumps(raw))
    assert "manifest.json: its content has changed" in refusal(model, own_clip).problem
    (model / "manifest.json").unlink()
    assert "manifest.json missing" in refusal(model, own_clip).problem


def test_files_of_the_user_and_files_that_were_left_out_are_no_change(whole: Path, own_clip: CLIP, tmp_path: Path):
    model = Path(shutil.copytree(whole, tmp_path / "model.dca"))
    (model / "README.md").write_text("My own words")
    (model / "notes.txt").write_text("mine")
    for name in ("gallery.safetensors", "result.json", "spec.json"):
        (model / name).unlink()
    assert Classifier.from_pretrained(model, backbone=own_clip).gallery_ is None


def test_a_gallery_of_another_model_is_refused(whole: Path, own_clip: CLIP, tmp_path: Path):
    other = Path(shutil.copytree(whole, tmp_path / "other.dca"))
    (other / "gallery.safetensors").unlink()
    checkpoint.write_manifest(other)
    shutil.copy(whole / "gallery.safetensors", other)
    error = refusal(other, own_clip)
    assert "gallery.safetensors is of another model" in error.problem
    assert "delete it" in error.hint


def test_a_method_that_is_not_installed_is_named_with_model_and_package(model: Path, own_clip: CLIP):
    edit_config(model, lambda raw: raw.update(method="task_res", package="dca_task_res"))
    told = refusal(model, own_clip)
    assert told.problem == f"{model / 'config.json'}: unknown method 'task_res'."
    assert "install the package that has the module 'dca_task_res'" in told.hint
    edit_config(model, lambda raw: raw.update(package=""))
    assert "install the package that it comes from" in refusal(model, own_clip).hint


def test_options_left_out_of_a_config_are_settled_as_at_the_fit(model: Path, own_clip: CLIP, fitted: Path):
    edit_config(model, lambda raw: [raw["options"].pop(name) for name in ("gamma1", "gamma2", "alpha")])
    resign(model)
    picture = Image.new("RGB", (32, 32), "red")
    bare = Classifier.from_pretrained(model, backbone=own_clip).predict_proba(picture)
    assert (bare == Classifier.from_pretrained(fitted, backbone=own_clip).predict_proba(picture)).all()


def test_all_wrong_fields_are_listed_at_once(model: Path, own_clip: CLIP):
    edit_config(model, lambda raw: raw["problem"].update(names=[], shots="2", seed=None))
    assert len(refusal(model, own_clip).details) == 3


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_folder_without_its_files_is_no_model(model: Path, own_clip: CLIP, name: str):
    (model / name).unlink()
    assert f"{name} missing" in refusal(model, own_clip).problem
    assert "no such model folder" in refusal(model / "nowhere", own_clip).problem


def places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values inside a JSON value."""
    inside = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    found = [here] if here else []
    for key, part in list(inside)[:40]:
        found += places(part, (*here, key))
    return found


THOROUGH = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,  # the same cases every time: a gate must not fail by luck
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(10**30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=4,
)


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_no_change_to_a_config_escapes_as_anything_but_an_error_for_the_user(
    data: st.DataObject, model: Path, own_clip: CLIP, fitted: Path
):
    raw = json.loads((fitted / "config.json").read_text())
    where = data.draw(st.sampled_from(places(raw)))
    target = raw
    for key in where[:-1]:
        target = target[key]
    if data.draw(st.booleans()):
        target[where[-1]] = data.draw(JSON)
    elif isinstance(target, dict):
        target[data.draw(st.text(max_size=6))] = target.pop(where[-1])
    else:
        target.insert(0, copy.deepcopy(target[where[-1]]))
    (model / "config.json").write_text(json.dumps(raw))
    if data.draw(st.booleans()):
        with suppress(Exception):
            resign(model)
    try:
        loaded = Classifier.from_pretrained(model, backbone=own_clip)
        assert loaded.predict(Image.new("RGB", (32, 32))) in loaded.classes_
        loaded.save_pretrained(model.parent / "saved.dca")
    except UserError:
        pass


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_no_flipped_byte_of_the_tensors_escapes_as_anything_but_an_error_for_the_user(
    data: st.DataObject, model: Path, own_clip: CLIP, fitted: Path
):
    content = bytearray((fitted / "model.safetensors").read_bytes())
    header = 8 + struct.unpack("<Q", content[:8])[0]
    for _ in range(data.draw(st.integers(1, 4))):
        end = data.draw(st.sampled_from([8, header, len(content)]))
        content[data.draw(st.integers(0, end - 1))] = data.draw(st.integers(0, 255))
    (model / "model.safetensors").write_bytes(content)
    resign(model)  # the hash would notice every one
    try:
        probabilities = Classifier.from_pretrained(model, backbone=own_clip).predict_proba(Image.new("RGB", (32, 32)))
        assert abs(probabilities.sum() - 1) < 1e-4
    except UserError:
        pass
