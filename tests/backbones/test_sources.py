from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from conftest import make_clip, save_hf
from dca.backbones.clip import CLIP
from dca.backbones.sources import (
    HUB_IDS,
    LOCATIONS_FILE,
    find_backbone,
    hub_id,
    mini_folder,
    record_location,
    recorded_location,
)
from dca.core.errors import UserError

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
    assert recorded_location(clip.digest) == folder.resolve()
    assert find_backbone(clip.source, clip.digest) == folder.resolve()
    assert CLIP.from_pretrained(find_backbone(clip.source, clip.digest)).digest == clip.digest

    elsewhere = shutil.move(folder, tmp_path / "elsewhere")
    assert recorded_location(clip.digest) is None
    assert find_backbone(clip.source, clip.digest) == "my clip"
    CLIP.from_pretrained(elsewhere)
    assert recorded_location(clip.digest) == (tmp_path / "elsewhere").resolve()


def test_a_state_dict_file_is_found_again(cache: Path, tmp_path: Path) -> None:
    weights = save_hf(make_clip(), tmp_path / "clip") / "model.safetensors"
    clip = CLIP.from_pretrained(weights)
    assert clip.source == "model.safetensors"
    assert recorded_location(clip.digest) == weights.resolve()


def test_a_relative_path_is_stored_whole_but_named_short(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_hf(make_clip(), tmp_path / "clip")
    monkeypatch.chdir(folder)
    clip = CLIP.from_pretrained(".")
    assert clip.source == "clip"
    assert recorded_location(clip.digest) == folder.resolve()


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
    record_location(DIGEST, tmp_path)
    for source in ("mini", "vit-b-16", "openai/clip-vit-base-patch32"):
        assert find_backbone(source, DIGEST) == source
    assert find_backbone("some folder", DIGEST) == tmp_path.resolve()
    assert find_backbone("some folder", "cd" * 32) == "some folder"


def test_the_location_of_the_embedded_backbone_is_not_recorded(cache: Path) -> None:
    for source in ("mini", mini_folder()):
        assert recorded_location(CLIP.from_pretrained(source).digest) is None
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
    (cache / LOCATIONS_FILE).write_text(content, encoding="utf-8")
    assert recorded_location(DIGEST) is None
    record_location(DIGEST, tmp_path)
    assert recorded_location(DIGEST) == tmp_path.resolve()


def test_a_cache_folder_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    monkeypatch.setenv("DCA_CACHE", str(tmp_path / "file" / "cache"))
    record_location(DIGEST, tmp_path)
    assert recorded_location(DIGEST) is None
    folder = save_hf(make_clip(), tmp_path / "clip")
    assert CLIP.from_pretrained(folder).source == "clip"


def test_what_is_known_is_not_written_again(cache: Path, tmp_path: Path) -> None:
    record_location(DIGEST, tmp_path)
    record_location("cd" * 32, tmp_path)
    before = (cache / LOCATIONS_FILE).stat().st_mtime_ns, (cache / LOCATIONS_FILE).stat().st_ino
    record_location(DIGEST, tmp_path)
    assert ((cache / LOCATIONS_FILE).stat().st_mtime_ns, (cache / LOCATIONS_FILE).stat().st_ino) == before
    assert set(json.loads((cache / LOCATIONS_FILE).read_text(encoding="utf-8"))) == {DIGEST, "cd" * 32}


def test_without_network_the_error_names_the_files_and_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="openai/clip-vit-base-patch16") as caught:
        CLIP.from_pretrained("vit-b-16", cache_dir=str(tmp_path))
    text = str(caught.value)
    assert str(tmp_path) in text
    assert "model.safetensors" in text
    assert "backbone=FOLDER" in text
    assert "--backbone FOLDER" in caught.value.render("cli")


def test_a_cached_hub_repository_is_found_offline(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = tmp_path / "models--openai--clip-vit-base-patch16"
    shutil.copytree(tiny_folder, repo / "snapshots" / ("0" * 40))
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    clip = CLIP.from_pretrained("vit-b-16", cache_dir=str(tmp_path))
    assert clip.source == "vit-b-16"
    assert clip.digest == CLIP.from_pretrained(tiny_folder).digest


def test_unknown_backbones_suggest_the_nearest() -> None:
    with pytest.raises(UserError, match="vit-b-16"):
        CLIP.from_pretrained("vit-b16")
    with pytest.raises(UserError, match="no such file or folder"):
        CLIP.from_pretrained("./nowhere/clip")
    assert all("/" in repo for repo in HUB_IDS.values())
