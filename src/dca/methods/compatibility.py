"""Which methods run on which backbones: the abilities of every family of encoders, and what each method needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dca.backbones.architectures import ARCHITECTURES, split_architecture
from dca.backbones.clip.resnet import ResNetTower
from dca.backbones.clip.vision import VisionTower
from dca.backbones.dual_encoder import TEXT_ABILITIES
from dca.backbones.encoder import Ability
from dca.backbones.loading import load_encoder, split_names
from dca.backbones.siglip.vision import SigLIPVisionTower
from dca.backbones.sources import ADAPTED, HUB_IDS, MINI, PACKAGED, split_prefix
from dca.core import options as core_options
from dca.methods.base import Method


@dataclass(frozen=True)
class Family:
    """Encoders that can do the same.

    title: in words. names: some of its names. abilities: what they can do.
    """

    title: str
    names: str
    abilities: frozenset[Ability]


IMAGES = frozenset({Ability.IMAGE_FEATURES})
TEXTS = IMAGES | {Ability.TEXT_FEATURES}
VIT = Family("CLIP with a ViT", "mini, vit-b-16, ViT-B/16, laion-vit-b-16", VisionTower.abilities | TEXT_ABILITIES)
RESNET = Family("CLIP with a ResNet", "RN50, RN101, RN50x4", ResNetTower.abilities | TEXT_ABILITIES)
SIGLIP = Family("SigLIP, SigLIP 2", "siglip2-b-16, siglip-b-16", SigLIPVisionTower.abilities | TEXT_ABILITIES)
WITH_TEXTS = Family(
    "other models with texts", "pe-core-b-16, open_clip:NAME@TAG, transformers:PLACE", TEXTS
)  # fmt: skip
WITHOUT_TEXTS = Family(
    "image encoders", "efficientnet-lite0, dinov2-s-14, timm:NAME", IMAGES
)  # fmt: skip
FAMILIES = (VIT, RESNET, SIGLIP, WITH_TEXTS, WITHOUT_TEXTS)


@dataclass(frozen=True)
class Compatibility:
    """Whether a method runs: with these settings besides the defaults (none for most), or what is missing."""

    method: str
    runs: bool
    settings: Sequence[str] = ()
    missing: Sequence[str] = ()


def family_of(name: str) -> Family | None:
    """The family of an encoder that is known by its name alone; None for one that has to be loaded to know."""
    name = ADAPTED.get(name, name)
    library, place = split_prefix(name)
    if library == "timm" or name in PACKAGED or (library == "transformers" and "dino" in place):
        return WITHOUT_TEXTS
    if library == "open_clip":
        return WITH_TEXTS
    architecture = split_architecture(name)[0] or (name if name in ARCHITECTURES else None)
    if architecture is not None:
        return RESNET if architecture.startswith("RN") else VIT
    if name == MINI or name in HUB_IDS:
        return SIGLIP if "siglip" in name else VIT
    return None


def abilities_of(source: str | Path) -> list[frozenset[Ability]]:
    """What a backbone can do, of a pool also what each member can do; it is loaded only where its name does not say it.

    Raises:
        UserError: If there is no such backbone.
    """
    members = []
    for name in split_names(source):
        family = family_of(name)
        members.append(load_encoder(name).abilities if family is None else family.abilities)
    return members if len(members) == 1 else [frozenset.union(*members) & TEXTS, *members]


def check_method(kind: type[Method], abilities: Sequence[frozenset[Ability]]) -> Compatibility:
    """Whether a method runs on a backbone of these abilities (of a pool: on it, or on one of its members)."""
    defaults: Any = kind.Options()
    fitting = [own for own in abilities if kind.needs <= own]
    if not fitting:
        return Compatibility(kind.name, runs=False, missing=sorted(kind.needs - abilities[0]))
    if any(kind.needs_with(defaults) <= own for own in fitting):
        return Compatibility(kind.name, runs=True)
    options: Any = kind.Options
    allowed = core_options.choices(options)
    others = [
        f"{field.name}={value}"
        for field in dataclasses.fields(defaults)
        for value in allowed[field.name]
        if kind.needs_with(core_options.replace_options(defaults, **{field.name: value})) <= fitting[0]
    ]
    missing = sorted(kind.needs_with(defaults) - fitting[0])
    return Compatibility(kind.name, runs=bool(others), settings=others, missing=() if others else missing)


def compatibility_table(kinds: Sequence[type[Method]]) -> str:
    """Methods x families, in Markdown."""
    head = ["method", *(family.title for family in FAMILIES)]
    rows = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for kind in kinds:
        cells = [_format(check_method(kind, [family.abilities])) for family in FAMILIES]
        rows.append(f"| `{kind.name}` | {' | '.join(cells)} |")
    names = ["names", *(family.names for family in FAMILIES)]
    return "\n".join([*rows, f"| {' | '.join(names)} |"])


def _format(found: Compatibility) -> str:
    if not found.runs:
        return "–"
    return "yes" if not found.settings else " or ".join(f"`{setting}`" for setting in found.settings)
