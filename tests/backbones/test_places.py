from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from conftest import make_clip, save_hf
from dca.backbones.clip import CLIP
from dca.backbones.clip.weights import mini_folder
from dca.backbones.sources import FILE, find_backbone, hub_id, recall, remember

DIGEST = "ab" * 32


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache" / "of" / "dca"
    monkeypatch.setenv("DCA_CACHE", str(folder))
    return folder


def test_a_backbone_loaded_from_a_folder_is_found_again(cache: Path, tmp_path: Path) -> None:
    folder = save_hf(make_clip(), tmp_path / "user" / "my clip")
    clip = CLIP.from_pretrained(folder)
    assert clip.source == "my clip"
    assert recall(clip.digest) == folder.resolve()
    assert find_backbone(clip.source, clip.digest) == folder.resolve()
    assert CLIP.from_pretrained(find_backbone(clip.source, clip.digest)).digest == clip.digest

    elsewhere = shutil.move(folder, tmp_path / "elsewhere")
    assert recall(clip.digest) is None
    assert find_backbone(clip.source, clip.digest) == "my clip"
    CLIP.from_pretrained(elsewhere)
    assert recall(clip.digest) == (tmp_path / "elsewhere").resolve()


def test_a_state_dict_file_is_found_again(cache: Path, tmp_path: Path) -> None:
    weights = save_hf(make_clip(), tmp_path / "clip") / "model.safetensors"
    clip = CLIP.from_pretrained(weights)
    assert clip.source == "model.safetensors"
    assert recall(clip.digest) == weights.resolve()


def test_a_relative_path_is_stored_whole_but_named_short(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_hf(make_clip(), tmp_path / "clip")
    monkeypatch.chdir(folder)
    clip = CLIP.from_pretrained(".")
    assert clip.source == "clip"
    assert recall(clip.digest) == folder.resolve()


@pytest.mark.parametrize("name", ["vit-b-16", "mini"])
def test_a_folder_that_has_a_short_name_is_not_taken_for_the_public_backbone(
    cache: Path, tmp_path: Path, name: str
) -> None:
    folder = save_hf(make_clip(), tmp_path / name)
    clip = CLIP.from_pretrained(folder)
    assert clip.source == f"./{name}"
    assert hub_id(clip.source) is None
    assert find_backbone(clip.source, clip.digest) == folder.resolve()


def test_names_and_hub_ids_stay_as_they_are(cache: Path, tmp_path: Path) -> None:
    remember(DIGEST, tmp_path)
    for source in ("mini", "vit-b-16", "openai/clip-vit-base-patch32"):
        assert find_backbone(source, DIGEST) == source
    assert find_backbone("some folder", DIGEST) == tmp_path.resolve()
    assert find_backbone("some folder", "cd" * 32) == "some folder"


def test_the_embedded_backbone_is_not_remembered(cache: Path) -> None:
    for source in ("mini", mini_folder()):
        assert recall(CLIP.from_pretrained(source).digest) is None
    assert not cache.exists()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("vit-b-16", "openai/clip-vit-base-patch16"),
        ("laion/CLIP-ViT-B-16-laion2B-s34B-b88K", "laion/CLIP-ViT-B-16-laion2B-s34B-b88K"),
        ("mini", None),
        ("my clip", None),
        ("./vit-b-16", None),
        ("~/clip", None),
        ("/home/user/clip", None),
        ("", None),
    ],
)
def test_hub_ids(source: str, expected: str | None) -> None:
    assert hub_id(source) == expected


@pytest.mark.parametrize("content", ["not json", "[1, 2]", json.dumps({DIGEST: 3}), json.dumps({DIGEST: "a\0b"}), ""])
def test_a_damaged_list_is_replaced_and_never_an_error(cache: Path, tmp_path: Path, content: str) -> None:
    cache.mkdir(parents=True)
    (cache / FILE).write_text(content, encoding="utf-8")
    assert recall(DIGEST) is None
    remember(DIGEST, tmp_path)
    assert recall(DIGEST) == tmp_path.resolve()


def test_a_cache_folder_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    monkeypatch.setenv("DCA_CACHE", str(tmp_path / "file" / "cache"))
    remember(DIGEST, tmp_path)
    assert recall(DIGEST) is None
    folder = save_hf(make_clip(), tmp_path / "clip")
    assert CLIP.from_pretrained(folder).source == "clip"


def test_what_is_known_is_not_written_again(cache: Path, tmp_path: Path) -> None:
    remember(DIGEST, tmp_path)
    remember("cd" * 32, tmp_path)
    before = (cache / FILE).stat().st_mtime_ns, (cache / FILE).stat().st_ino
    remember(DIGEST, tmp_path)
    assert ((cache / FILE).stat().st_mtime_ns, (cache / FILE).stat().st_ino) == before
    assert set(json.loads((cache / FILE).read_text(encoding="utf-8"))) == {DIGEST, "cd" * 32}
