"""Which methods run on which backbones, said without loading them, and as it is."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import make_clip
from dca.backbones.architectures import ARCHITECTURES
from dca.backbones.clip import CLIPConfig
from dca.backbones.clip.weights import build_without_weights
from dca.backbones.encoder import Encoder
from dca.backbones.loading import load_encoder
from dca.backbones.sources import ADAPTED, HUB_IDS
from dca.core import options as core_options
from dca.core.errors import UserError
from dca.methods import compatibility
from dca.methods.compatibility import FAMILIES, abilities_of, check_method, family_of
from dca.methods.registry import all_methods, choose_encoder

ROOT = Path(__file__).resolve().parents[2]
METHODS = [kind for kind in all_methods().values() if not kind.fits_others]


def encoders() -> dict[str, Encoder]:
    residual = CLIPConfig.from_open_clip(ARCHITECTURES["RN50"].to_open_clip(quick_gelu=True))
    return {"vit-b-16": make_clip(), "RN50": build_without_weights(residual),
            "efficientnet-lite0": load_encoder("efficientnet-lite0")}  # fmt: skip


def test_the_table_in_the_docs_is_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    script = importlib.import_module("backbone_table")
    assert script.make_table() == script.pages.read_part(script.TABLE), "run: python scripts/backbone_table.py"


def test_names_say_what_their_encoders_can_do() -> None:
    for name, encoder in encoders().items():
        assert abilities_of(name) == [encoder.abilities], name


@pytest.mark.parametrize("kind", METHODS, ids=lambda kind: kind.name)
def test_a_method_runs_where_the_table_says_so(kind: Any) -> None:
    for name, encoder in encoders().items():
        said = check_method(kind, abilities_of(name))
        if not said.runs:
            with pytest.raises(UserError, match="does not have"):
                choose_encoder(kind, encoder)
            continue
        choose_encoder(kind, encoder)
        for setting in said.settings or [""]:
            option, _, value = setting.partition("=")
            options = core_options.replace_options(kind.Options(), **({option: value} if option else {}))
            kind._require_abilities(encoder, options)
        if said.settings:
            with pytest.raises(UserError, match="for these options"):
                kind._require_abilities(encoder, kind.Options())


def test_every_short_name_has_a_family_and_nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compatibility, "load_encoder", lambda name: pytest.fail(f"{name} was loaded"))
    assert {family_of(name) for name in (*HUB_IDS, *ADAPTED, "ViT-L-14:x.pt", "RN50:x.pt", "timm:x")} <= set(FAMILIES)
    assert family_of("./folder") is family_of("owner/name") is None


def test_a_pool_runs_what_a_member_runs() -> None:
    coop = all_methods()["coop"]
    assert check_method(coop, abilities_of("mini,efficientnet-lite0")).runs
    assert not check_method(coop, abilities_of("efficientnet-lite0,efficientnet-lite1")).runs


def test_the_command_says_it(dca: Callable[..., Any]) -> None:
    said = dca("methods", "--backbone", "RN50")
    assert said.code == 0
    assert "clip_lora, with --set towers=text" in said.out
    assert "maple: needs an image tower that takes learned tokens" in said.out
    found = json.loads(dca("methods", "--backbone", "dinov2-s-14", "--json").out)
    running = [one["method"] for one in found["methods"] if one["runs"]]
    assert running == ["closed_form", "gda", "linear_probe", "tip_adapter", "tip_adapter_f"]
    assert dca("methods", "--backbone", "no-such-backbone").code == 2
