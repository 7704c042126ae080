"""A backbone folder with wrong content is refused in words, never with a traceback."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from dca.backbones.clip import CLIP
from dca.core.errors import UserError

FILES = ("config.json", "preprocessor_config.json", "vocab.json")
STRANGE = [None, True, 0, -1, 10**12, 10**30, 1.5, float("nan"), "", "gelu", [], [1], [0.5, 0.5], ["a"] * 3, {}]


@pytest.fixture
def folder(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to damage. Other tests must not be led to it: where a backbone was last loaded from is remembered."""
    monkeypatch.setenv("DCA_CACHE", str(tmp_path / "cache"))
    return Path(shutil.copytree(tiny_folder, tmp_path / "clip"))


@pytest.mark.parametrize(
    ("file", "where", "value", "part"),
    [
        ("config.json", ["vision_config", "hidden_size"], "32", "width: '32', a whole number"),
        ("config.json", ["text_config", "num_hidden_layers"], 10**9, "layers: 1000000000"),
        ("config.json", ["text_config", "num_attention_heads"], 0, "heads: 0"),
        ("config.json", ["text_config", "layer_norm_eps"], None, "eps: None, a number expected"),
        ("config.json", ["vision_config", "patch_size"], 64, "patches of 64 px in images of 32 px"),
        ("config.json", ["text_config"], [1], "the configuration is damaged"),
        ("config.json", ["projection_dim"], -4, "embed_dim: -4"),
        ("config.json", ["model_type"], "bert", "type 'bert'"),
        ("preprocessor_config.json", ["image_mean"], [0.5], "the configuration is damaged"),
        ("preprocessor_config.json", ["image_std"], [0.5, 0, 0.5], "std not 0"),
        ("preprocessor_config.json", ["resample"], 77, "filter number 77"),
        ("preprocessor_config.json", ["size"], 10**9, "px"),
        ("vocab.json", ["a"], 10**6, "the tokenizer"),
    ],
)
def test_a_wrong_value_is_named(folder: Path, file: str, where: list[str], value: Any, part: str):
    raw = json.loads((folder / file).read_text())
    target = raw
    for key in where[:-1]:
        target = target[key]
    target[where[-1]] = value
    (folder / file).write_text(json.dumps(raw))
    with pytest.raises(UserError) as caught:
        CLIP.from_pretrained(folder)
    assert part in str(caught.value)


def places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of the values inside a JSON value."""
    inside = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    return [here] * bool(here) + [place for key, part in list(inside)[:40] for place in places(part, (*here, key))]


@settings(
    max_examples=120, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_no_change_to_a_backbone_escapes_as_anything_but_an_error_for_the_user(
    data: st.DataObject, folder: Path, tiny_folder: Path
):
    for name in FILES:
        shutil.copy(tiny_folder / name, folder / name)
    file = data.draw(st.sampled_from(FILES))
    raw = json.loads((folder / file).read_text())
    where = data.draw(st.sampled_from(places(raw)))
    target = raw
    for key in where[:-1]:
        target = target[key]
    target[where[-1]] = data.draw(st.sampled_from(STRANGE))
    (folder / file).write_text(json.dumps(raw))
    try:
        clip = CLIP.from_pretrained(folder)
        clip.encode_image([Image.new("RGB", (40, 50))])
        clip.encode_text(["a cat"])
    except UserError:
        pass
