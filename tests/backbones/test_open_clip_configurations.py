"""The 181 configurations of open_clip: computed exactly, or refused by the name of a key.

144 are in the installed release. The 37 others are those that open_clip's repository (MIT licence) had in June 2026
besides: audio, flexible resolutions, generative towers; `open_clip_unreleased.json` holds them.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch.nn import functional as F

from dca.backbones.clip import CLIP, CLIPConfig
from dca.backbones.clip.weights import QUICK_GELU_REPOSITORIES
from dca.backbones.siglip.config import SigLIPConfig
from dca.backbones.siglip.weights import TIMM_NAME
from dca.core.errors import UserError
from helpers.references import photos, shake, texts

UNRELEASED = Path(__file__).with_name("open_clip_unreleased.json")
LAYERS = 2
LIMIT = 2e-5


@cache
def configurations() -> dict[str, dict[str, Any]]:
    """All of them by name."""
    open_clip = pytest.importorskip("open_clip", reason="needs open_clip")
    # What comes with open_clip: other tests may add names to its list.
    folder = Path(open_clip.__file__).parent / "model_configs"
    released = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
    return released | json.loads(UNRELEASED.read_text(encoding="utf-8"))


def refused_keys(raw: dict[str, Any]) -> tuple[str, ...]:
    """The keys that the reader of its family refuses; none if this package computes the configuration itself."""
    try:
        if is_siglip(raw):
            with pytest.raises(KeyError, match=r"visual\.trunk"):  # it reads sizes off tensors, which are not here
                SigLIPConfig.from_open_clip(raw, {})
        else:
            CLIPConfig.from_open_clip(raw)
    except UserError as error:
        return tuple(line.partition(":")[0] for line in error.details)
    return ()


def is_siglip(raw: dict[str, Any]) -> bool:
    return TIMM_NAME.match(str(raw.get("vision_cfg", {}).get("timm_model_name"))) is not None


def is_residual(raw: dict[str, Any]) -> bool:
    return isinstance(raw["vision_cfg"].get("layers"), list) if "vision_cfg" in raw else False


def native() -> list[str]:
    """Those with a plain ViT."""
    found = [name for name, raw in configurations().items() if not is_residual(raw) and not refused_keys(raw)]
    return [name for name in found if not is_siglip(configurations()[name])]


def test_every_configuration_is_computed_or_refused_by_the_name_of_a_key() -> None:
    """As docs/backbones.md says: 66 by this package, 78 through open_clip, 37 by no release of it."""
    released, ways = set(configurations()) - set(json.loads(UNRELEASED.read_text(encoding="utf-8"))), Counter[str]()
    for name, raw in configurations().items():
        if keys := refused_keys(raw):
            ways["through open_clip" if name in released else "refused"] += 1
        else:
            ways["ResNet" if is_residual(raw) else "SigLIP" if is_siglip(raw) else "ViT"] += 1
        for key in keys:
            section, _, inner = key.rpartition(".")
            assert inner in (raw[section] if section else raw), f"{name}: {key}"
    assert ways == {"ViT": 31, "ResNet": 10, "SigLIP": 25, "through open_clip": 78, "refused": 37}


def shrink(raw: dict[str, Any]) -> dict[str, Any]:
    """The same keys with two layers, two heads and 2x2 patches."""
    vision, text = dict(raw["vision_cfg"]), dict(raw["text_cfg"])
    vision |= {"layers": LAYERS, "width": 2 * vision.get("head_width", 64), "image_size": 2 * vision["patch_size"]}
    text |= {"layers": LAYERS, "width": 2 * text["width"] // text["heads"], "heads": 2}
    return raw | {"embed_dim": 24, "vision_cfg": vision, "text_cfg": text}


def save_open_clip(model: Any, raw: dict[str, Any], folder: Path, **preprocess: Any) -> Path:
    """The files of a repository of open_clip."""
    folder.mkdir()
    save_file(
        {name: tensor.contiguous() for name, tensor in model.state_dict().items()},
        folder / "open_clip_model.safetensors",
    )
    values = {"mean": [0.48, 0.46, 0.41], "std": [0.27, 0.26, 0.28], **preprocess}
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": raw, "preprocess_cfg": values}))
    return folder


def compare(clip: CLIP, folder: Path) -> float:
    """The largest difference of unit features of images and texts, ours and open_clip's from the same folder."""
    import open_clip

    model, preprocess = open_clip.create_model_from_pretrained(f"local-dir:{folder}")
    tokenize = open_clip.get_tokenizer(f"local-dir:{folder}")
    with torch.no_grad():
        images = model.encode_image(torch.stack([preprocess(image) for image in photos()]), normalize=True)
        words = model.encode_text(tokenize(texts()), normalize=True)
        own_images = F.normalize(clip.encode_image(photos()), dim=-1)
        own_words = F.normalize(clip.encode_text(texts()), dim=-1)
    return max(float((images - own_images).abs().max()), float((words - own_words).abs().max()))


@pytest.mark.parametrize("name", [
    "ViT-B-16", "ViT-B-16-quickgelu", "ViT-B-16-plus-240", "ViT-B-32-256", "ViT-L-14-336", "ViT-H-14", "ViT-g-14",
    "ViT-e-14", "ViT-bigG-14", "ViT-M-32-alt", "ViT-S-16-alt",
])  # fmt: skip
def test_a_small_model_of_a_configuration_agrees(tmp_path: Path, name: str) -> None:
    assert agreement(tmp_path, shrink(configurations()[name])) < LIMIT


@pytest.mark.slow
def test_small_models_of_all_that_are_computed_agree(tmp_path: Path) -> None:
    different = {
        name: found
        for name in native()
        if (found := agreement(tmp_path / name, shrink(configurations()[name]))) > LIMIT
    }
    assert different == {}


def agreement(folder: Path, raw: dict[str, Any], **preprocess: Any) -> float:
    import open_clip

    folder.mkdir(exist_ok=True)
    model = shake(open_clip.model.CLIP(**json.loads(json.dumps(raw))))
    saved = save_open_clip(model, raw, folder / "clip", **preprocess)
    return compare(CLIP.from_pretrained(saved), saved)


@pytest.mark.parametrize("preprocess", [
    {"resize_mode": "squash"}, {"interpolation": "bilinear"}, {"size": 32, "mode": "RGB", "fill_color": 0},
], ids=str)  # fmt: skip
def test_preprocessing_agrees(tmp_path: Path, preprocess: dict[str, Any]) -> None:
    assert agreement(tmp_path, shrink(configurations()["ViT-B-16"]), **preprocess) < LIMIT


def test_epsilon_of_the_norms_is_honoured(tmp_path: Path) -> None:
    raw = shrink(configurations()["ViT-B-16"])
    raw["vision_cfg"] |= {"norm_kwargs": {"eps": 0.5}}
    raw["text_cfg"] |= {"norm_kwargs": {"eps": 0.25}}
    assert agreement(tmp_path, raw) < LIMIT


@pytest.mark.parametrize(("section", "key", "value"), [
    ("text_cfg", "no_causal_mask", True), ("text_cfg", "pool_type", "last"), ("text_cfg", "pool_type", "first"),
    ("vision_cfg", "pool_type", "avg"), ("vision_cfg", "act_kwargs", {"approximate": "tanh"}),
    ("text_cfg", "act_kwargs", {"approximate": "tanh"}), ("vision_cfg", "norm_kwargs", {"bias": False}),
    ("vision_cfg", "no_ln_pre", True), ("vision_cfg", "ls_init_value", 1e-5), ("vision_cfg", "attentional_pool", True),
    ("vision_cfg", "qk_norm", True), ("text_cfg", "embed_cls", True), ("text_cfg", "proj_bias", True),
    ("text_cfg", "hf_tokenizer_name", "bert-base-uncased"), ("text_cfg", "tokenizer_kwargs", {"clean": "canonicalize"}),
    ("text_cfg", "a_key_of_tomorrow", None), ("", "multimodal_cfg", {}), ("", "init_logit_bias", -10),
])  # fmt: skip
def test_what_would_change_features_is_refused_by_name(section: str, key: str, value: Any) -> None:
    raw = json.loads(json.dumps(configurations()["ViT-B-16"]))
    (raw[section] if section else raw)[key] = value
    with pytest.raises(UserError) as caught:
        CLIPConfig.from_open_clip(raw, "open_clip:FOLDER")
    assert key in str(caught.value)
    if key != "norm_kwargs":
        assert "--backbone open_clip:FOLDER" in caught.value.render("cli")


def test_quick_gelu_is_settled_for_every_name_that_was_trained_with_it() -> None:
    """As open_clip's own list of published weights says, which its users' files may not say."""
    pytest.importorskip("open_clip", reason="needs open_clip")
    from open_clip.pretrained import _PRETRAINED

    tags = [cfg for name, entries in _PRETRAINED.items() for cfg in entries.values() if cfg.get("hf_hub")]
    quick = {cfg["hf_hub"].strip("/") for cfg in tags if cfg.get("quick_gelu")}
    assert quick == QUICK_GELU_REPOSITORIES
    assert not {cfg["hf_hub"].strip("/") for cfg in tags if not cfg.get("quick_gelu")} & QUICK_GELU_REPOSITORIES


@pytest.mark.parametrize("says", [None, False], ids=["says nothing", "says no"])
def test_a_repository_is_computed_with_the_activation_it_was_trained_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: bool | None
) -> None:
    import open_clip

    raw = shrink(configurations()["ViT-B-16"]) | {"quick_gelu": True}
    model = shake(open_clip.model.CLIP(**raw))
    repository = tmp_path / "models--apple--DFN2B-CLIP-ViT-B-16"
    (repository / "snapshots").mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    snapshot = save_open_clip(model, raw, repository / "snapshots" / ("0" * 40))
    said = raw | {"quick_gelu": says} if says is not None else {k: v for k, v in raw.items() if k != "quick_gelu"}
    text = (snapshot / "open_clip_config.json").read_text()
    content = json.loads(text) | {"model_cfg": said}
    (snapshot / "open_clip_config.json").write_text(json.dumps(content))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    by_name = CLIP.from_pretrained("apple/DFN2B-CLIP-ViT-B-16", cache_dir=str(tmp_path))
    assert by_name.config.vision.activation == by_name.config.text.activation == "quick_gelu"
    assert CLIP.from_pretrained(snapshot).digest == by_name.digest
    image = [Image.new("RGB", (40, 30), "red")]
    plain = CLIP.from_pretrained(save_open_clip(model, said, tmp_path / "elsewhere"))
    assert plain.config.vision.activation == "gelu"
    assert not torch.equal(plain.encode_image(image), by_name.encode_image(image))
