"""Models on the hub, against a stand-in of its API on loopback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
from hub_stand_in import TOKEN, Hub, stand_in
from huggingface_hub import ModelCard, constants

from conftest import Said, make_clip, save_hf
from dca.core.errors import UserError
from dca.core.questions import asking
from dca.datasets.dataset import Dataset
from dca.model import checkpoint, hub
from dca.model.classifier import Classifier
from dca.model.gallery import GALLERY

# The hub's client uses an argument of its HTTP library that is going to be renamed.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
SENT = {"manifest.json", "config.json", "model.safetensors", "README.md"}


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A stand-in that the hub's client of this process talks to, with an empty cache."""
    with stand_in() as server:
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        huggingface_hub.utils.disable_progress_bars()
        yield server
        huggingface_hub.close_session()


@pytest.fixture(scope="module")
def model(sample: Dataset) -> Classifier:
    return Classifier("gda", seed=3, backbone=make_clip(), device="cpu", views=0, estimate=True).fit(sample)


def test_a_pushed_model_is_read_back(there: Hub, model: Classifier, sample: Dataset) -> None:
    url = model.push_to_hub("someone/photos", token=TOKEN, commit_message="First")
    assert url.startswith(f"{there.url}/someone/photos/commit/")
    assert set(there.repos["someone/photos"][-1]) == SENT
    assert there.messages == ["First"]
    assert any(line.startswith("PUT /lfs/") for line in there.asked), "weights go the way of large files"
    again = Classifier.from_pretrained("someone/photos", backbone=make_clip(), device="cpu")
    images = [item.image for item in sample.test[:5]]
    assert np.array_equal(again.predict_proba(images), model.predict_proba(images))  # type: ignore[arg-type]
    asked = len(there.asked)
    Classifier.from_pretrained("someone/photos", backbone=make_clip(), device="cpu", local_files_only=True)
    assert len(there.asked) == asked, "from the cache alone"


def test_revisions_and_the_cache_folder(there: Hub, model: Classifier, tmp_path: Path) -> None:
    first = model.push_to_hub("someone/photos", token=TOKEN).rpartition("/")[2]
    renamed = model.rename_class("fish", "trout", label_only=True)
    renamed.push_to_hub("someone/photos", token=TOKEN)
    options = {"backbone": make_clip(), "device": "cpu", "cache_dir": tmp_path / "mine"}
    old = Classifier.from_pretrained("someone/photos", revision=first, **options)  # type: ignore[arg-type]
    new = Classifier.from_pretrained("someone/photos", **options)  # type: ignore[arg-type]
    assert "fish" in old.classes_.tolist()
    assert "trout" in new.classes_.tolist()
    assert any((tmp_path / "mine").iterdir())
    with pytest.raises(UserError, match="cannot be fetched from the hub"):
        Classifier.from_pretrained("someone/photos", revision="nowhere", **options)  # type: ignore[arg-type]


def test_images_are_sent_only_if_asked_for(there: Hub, model: Classifier, tmp_path: Path) -> None:
    folder = tmp_path / "photos.dca"
    model.save_pretrained(folder)
    assert (folder / GALLERY).is_file()
    (folder / "corrections" / "fish").mkdir(parents=True)
    (folder / "corrections" / "fish" / "1.png").write_bytes(b"private")
    (folder / "corrections" / "fish" / ".2.png.0123abcd-1-0.new").write_bytes(b"half of a")  # of a killed server
    (folder / "notes.txt").write_text("mine")
    hub.push_folder(folder, "someone/plain", token=TOKEN)
    assert set(there.repos["someone/plain"][-1]) == SENT
    (folder / "README.md").unlink()  # a missing card is written again
    hub.push_folder(folder, "someone/whole", token=TOKEN, include_images=True)
    assert set(there.repos["someone/whole"][-1]) == SENT | {GALLERY, "corrections/fish/1.png"}
    model.push_to_hub("someone/with", token=TOKEN, include_images=True)
    assert set(there.repos["someone/with"][-1]) == SENT | {GALLERY}


def test_saving_pushes_if_asked(there: Hub, model: Classifier, tmp_path: Path) -> None:
    assert model.save_pretrained(tmp_path / "photos") is None
    url = model.save_pretrained(tmp_path / "photos", push_to_hub=True, token=TOKEN, private=True)
    assert url is not None
    assert set(there.repos["tester/photos"][-1]) == SENT, "the name of the folder; no thumbnails"
    assert there.private["tester/photos"] == "private"
    model.save_pretrained(tmp_path / "photos", push_to_hub=True, repo_id="someone/other", token=TOKEN)
    assert "someone/other" in there.repos
    assert "discussions" in model.push_to_hub("someone/other", token=TOKEN, create_pr=True)


def test_the_card_holds_figures_in_the_format_of_the_hub(there: Hub, model: Classifier) -> None:
    model.push_to_hub("someone/photos", token=TOKEN)
    text = there.repos["someone/photos"][-1]["README.md"].decode()
    card = ModelCard(text)
    assert 'from_pretrained("someone/photos")' in text
    assert model.estimate_ is not None
    (figure,) = card.data.eval_results
    assert (figure.task_type, figure.metric_type) == ("image-classification", "accuracy")
    assert figure.metric_value == model.estimate_.accuracy
    assert figure.metric_name == "Accuracy, estimated by leave-one-out"
    assert card.data.tags == ["clip", "few-shot", "gda"]
    assert card.data.library_name == "dca-prompt"


def test_the_card_of_a_run_holds_its_test_accuracy(fitted: Path) -> None:
    result = json.loads((fitted / "result.json").read_text())
    figures = ModelCard((fitted / "README.md").read_text()).data.eval_results
    found = [(f.dataset_name, f.dataset_split, f.metric_value) for f in figures]
    assert (result["dataset"], "test", result["accuracy"]) in found


def test_damaged_models_are_not_sent_and_not_used(there: Hub, model: Classifier, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "m")
    weights = tmp_path / "m" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    with pytest.raises(UserError, match="has changed since it was written"):
        hub.push_folder(tmp_path / "m", "someone/photos", token=TOKEN)
    assert there.repos == {}
    model.push_to_hub("someone/photos", token=TOKEN)
    there.repos["someone/photos"][-1]["model.safetensors"] = weights.read_bytes()
    with pytest.raises(UserError, match="has changed since it was written"):
        Classifier.from_pretrained("someone/photos", backbone=make_clip(), device="cpu")


def test_only_the_files_of_a_model_are_fetched(there: Hub, model: Classifier) -> None:
    model.push_to_hub("someone/photos", token=TOKEN)
    there.repos["someone/photos"][-1] |= {"evil.pkl": b"x", "code.py": b"x"}
    Classifier.from_pretrained("someone/photos", backbone=make_clip(), device="cpu")
    fetched = {line.rpartition("/")[2] for line in there.asked if "/resolve/" in line}
    assert fetched == SENT


@pytest.fixture
def stranger(there: Hub, model: Classifier, tmp_path: Path) -> Path:
    """A model folder that names a backbone on the hub."""
    clip = save_hf(make_clip(), tmp_path / "clip")
    there.repos["someone/clip"] = [{path.name: path.read_bytes() for path in clip.iterdir()}]
    model.save_pretrained(tmp_path / "stranger")
    raw = json.loads((tmp_path / "stranger" / "config.json").read_text())
    raw["backbone"]["source"] = "someone/clip"
    (tmp_path / "stranger" / "config.json").write_text(json.dumps(raw))
    checkpoint.write_manifest(tmp_path / "stranger")
    there.asked.clear()
    return tmp_path / "stranger"


def test_a_backbone_that_only_a_model_names_is_not_fetched_unasked(
    there: Hub, stranger: Path, dca: Callable[..., Said], sample: Dataset, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="names the backbone someone/clip of the Hugging Face hub") as caught:
        Classifier.from_pretrained(stranger, device="cpu")
    assert "backbone='someone/clip'" in caught.value.hint
    assert "DCA_ALLOW_DOWNLOADS=1" in caught.value.hint
    told = dca("predict", stranger, tmp_path)
    assert told.code == 2
    with asking(lambda question: "someone/clip" not in question), pytest.raises(UserError, match="names the backbone"):
        Classifier.from_pretrained(stranger, device="cpu")
    assert there.asked == [], "nothing was asked of the hub"


@pytest.mark.parametrize("way", ["argument", "variable", "answer"])
def test_a_backbone_is_fetched_where_the_user_allows_it(
    there: Hub, stranger: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = list[str]()

    def ask(question: str) -> bool:
        questions.append(question)
        return way == "answer"

    if way == "variable":
        monkeypatch.setenv("DCA_ALLOW_DOWNLOADS", "1")
    with asking(ask):
        backbone = "someone/clip" if way == "argument" else None
        loaded = Classifier.from_pretrained(stranger, backbone=backbone, device="cpu")
    assert loaded.method_.clip.source == "someone/clip"
    assert any("/someone/clip/resolve/" in line for line in there.asked)
    wanted = f"{stranger} needs the backbone someone/clip: fetch it from the Hugging Face hub?"
    assert questions == ([wanted] if way == "answer" else [])
    monkeypatch.delenv("DCA_ALLOW_DOWNLOADS", raising=False)
    Classifier.from_pretrained(stranger, device="cpu")  # on this machine already


def test_a_wrong_token_is_an_error_with_a_way_out(there: Hub, model: Classifier) -> None:
    with pytest.raises(UserError, match="the model cannot be sent to someone/photos") as caught:
        model.push_to_hub("someone/photos", token="hf_wrong")
    assert "hf auth login" in str(caught.value)
    with pytest.raises(UserError, match="someone/none is not a folder here, and cannot be fetched"):
        Classifier.from_pretrained("someone/none")


def test_a_hub_that_does_not_answer_is_an_error(there: Hub, model: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match="check the name and the connection"):
        model.push_to_hub("someone/photos", token=TOKEN)


@pytest.mark.parametrize("name", ["{}/photos.dca", "./photos.dca", "~/x", "a/b/c", "photos.dca"])
def test_names_of_folders_are_not_looked_for_on_the_hub(name: str, there: Hub, tmp_path: Path) -> None:
    for given in (name.format(tmp_path), Path("someone/photos")):
        with pytest.raises(UserError, match="no such model folder"):
            Classifier.from_pretrained(given)
    assert there.asked == []


def test_a_text_whose_first_part_is_a_folder_is_local(
    there: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    with pytest.raises(UserError, match="no such model folder"):
        Classifier.from_pretrained("models/photos")
    assert there.asked == []


def test_the_conventions_of_the_hubs_mixin_are_kept() -> None:
    import inspect

    mixin = huggingface_hub.ModelHubMixin
    for name, left_out in {
        "from_pretrained": {"model_kwargs"},
        "save_pretrained": {"config", "model_card_kwargs"},
        "push_to_hub": {"config", "model_card_kwargs", "allow_patterns", "ignore_patterns", "delete_patterns"},
    }.items():
        theirs = set(inspect.signature(getattr(mixin, name)).parameters) - left_out
        assert theirs <= set(inspect.signature(getattr(Classifier, name)).parameters), name


def test_the_command_pushes_through_the_environment(fitted: Path, tmp_path: Path) -> None:
    """As a user has it: HF_ENDPOINT and HF_TOKEN, in a process of its own."""
    with stand_in() as server:
        own = {"HF_ENDPOINT": server.url, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1"}
        command = [sys.executable, "-m", "dca", "push", str(fitted), "someone/photos", "--json"]
        done = subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["url"].startswith(f"{server.url}/someone/photos/commit/")
    assert set(server.repos["someone/photos"][-1]) == SENT


def test_the_command_says_where_the_model_is(
    there: Hub, fitted: Path, tmp_path: Path, dca: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    shutil.copytree(fitted, tmp_path / "m")
    said = dca("push", tmp_path / "m", "someone/photos", "--private", "--message", "Hello")
    assert said.code == 0, said.err
    assert said.out.splitlines()[0].startswith(f"{tmp_path / 'm'}: sent to {there.url}/someone/photos/commit/")
    assert said.out.splitlines()[1] == 'next  Classifier.from_pretrained("someone/photos")'
    assert there.messages == ["Hello"]
    assert there.private["someone/photos"] == "private"
    assert (tmp_path / "m" / checkpoint.CARD).read_text() == (fitted / checkpoint.CARD).read_text()
