"""Encoders through other libraries: a small random checkpoint of each, in the form that people have, gives the same."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from dca.backbones.adapters import LibraryEncoder
from dca.backbones.encoder import Ability
from dca.backbones.loading import load_encoder
from dca.backbones.sources import ADAPTED, find_backbone, is_public_name, recorded_location
from dca.core.errors import UserError
from dca.runs.spec import _backbone_name
from helpers.references import photos, shake, texts

LIMIT = 2e-5
pytestmark = pytest.mark.filterwarnings("ignore")
TEXT = {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 2}
VISION = {"image_size": 32, "layers": 2, "width": 64, "head_width": 32, "patch_size": 16}


def timm_tower(name: str, size: int, pool: str = "", **more: Any) -> dict[str, Any]:
    return {"timm_model_name": name, "timm_model_pretrained": False, "timm_pool": pool, "timm_proj": "linear",
            "image_size": size, **more}  # fmt: skip


# One small model of each family that open_clip runs.
FAMILIES: dict[str, dict[str, Any]] = {
    "CLIPA": {
        "vision_cfg": {**VISION, "no_ln_pre": True, "pool_type": "avg", "final_ln_after_pool": True},
        "text_cfg": {**TEXT, "context_length": 32, "pool_type": "last", "no_causal_mask": True},
    },
    "CoCa": {
        "custom_text": True,
        "vision_cfg": {**VISION, "attentional_pool": True, "attn_pooler_heads": 2, "output_tokens": True},
        "text_cfg": {**TEXT, "context_length": 76, "embed_cls": True, "output_tokens": True},
        "multimodal_cfg": {"context_length": 76, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 1,
                           "attn_pooler_heads": 2},
    },
    "layer scale": {"vision_cfg": {**VISION, "ls_init_value": 0.1}, "text_cfg": TEXT},
    "SigLIP": {
        "custom_text": True, "init_logit_bias": -10,
        "vision_cfg": timm_tower("test_vit", 160, "map", timm_proj="none"),
        "text_cfg": {**TEXT, "no_causal_mask": True, "pool_type": "last", "proj_bias": True,
                     "norm_kwargs": {"eps": 1e-6}, "act_kwargs": {"approximate": "tanh"}},
    },
    "PE-Core": {"custom_text": True, "vision_cfg": timm_tower("vit_pe_core_tiny_patch16_384", 384), "text_cfg": TEXT},
    "EVA": {"custom_text": True, "vision_cfg": timm_tower("eva02_tiny_patch14_224", 224, "token"), "text_cfg": TEXT},
    "ConvNeXt": {"vision_cfg": timm_tower("test_convnext", 160), "text_cfg": TEXT},
    "MobileCLIP": {
        "custom_text": True, "vision_cfg": timm_tower("fastvit_t8", 256, "avg"),
        "text_cfg": {**TEXT, "no_causal_mask": True},
    },
}  # fmt: skip


def create_open_clip(raw: dict[str, Any]) -> Any:
    """The class that open_clip takes for this configuration, with shaken weights."""
    open_clip = pytest.importorskip("open_clip", reason="needs open_clip")
    config = json.loads(json.dumps(raw))
    custom = config.pop("custom_text", False) or "hf_model_name" in config["text_cfg"]
    kind = open_clip.CoCa if "multimodal_cfg" in config else open_clip.CustomTextCLIP if custom else open_clip.CLIP
    return shake(kind(**config))


def save_open_clip(model: Any, raw: dict[str, Any], folder: Path, **preprocess: Any) -> Path:
    folder.mkdir(parents=True)
    state = {name: tensor.contiguous().clone() for name, tensor in model.state_dict().items()}
    save_file(state, folder / "open_clip_model.safetensors")
    values = {"mean": [0.5, 0.4, 0.45], "std": [0.3, 0.25, 0.28], **preprocess}
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": raw, "preprocess_cfg": values}))
    return folder


def open_clip_features(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit features of the photos and texts, by open_clip alone."""
    import open_clip

    model, preprocess = open_clip.create_model_from_pretrained(f"local-dir:{folder}")
    tokenize = open_clip.get_tokenizer(f"local-dir:{folder}")
    model.eval()
    with torch.no_grad():
        images = model.encode_image(torch.stack([preprocess(image) for image in photos()]), normalize=True)
        return images, model.encode_text(tokenize(texts()), normalize=True)


def differences(encoder: Any, images: torch.Tensor, words: torch.Tensor | None) -> float:
    own = F.normalize(encoder.encode_image(photos()), dim=-1)
    found = float((own - images).abs().max())
    if words is not None:
        found = max(found, float((F.normalize(encoder.encode_text(texts()), dim=-1) - words).abs().max()))
    assert own.shape[1] == encoder.feature_dim
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_open_clip_s_families_agree_from_a_folder(tmp_path: Path, family: str) -> None:
    raw = {"embed_dim": 24, **FAMILIES[family]}
    how = {"resize_mode": "squash", "interpolation": "bilinear"} if family in ("PE-Core", "CLIPA") else {}
    folder = save_open_clip(create_open_clip(raw), raw, tmp_path / "a model", **how)
    encoder = load_encoder(f"open_clip:{folder}")
    assert differences(encoder, *open_clip_features(folder)) < LIMIT
    assert encoder.abilities == {Ability.IMAGE_FEATURES, Ability.TEXT_FEATURES}
    assert encoder.source == "open_clip:./a model" == _backbone_name(f"open_clip:{folder}")
    assert recorded_location(encoder.digest) == f"open_clip:{folder}"
    again = load_encoder(find_backbone(encoder.source, encoder.digest))
    assert again.digest == encoder.digest
    assert encoder.tau == pytest.approx(1 / 0.07, rel=1e-4)


def save_bert(folder: Path) -> Path:
    """A small BERT with its tokenizer, as towers of BiomedCLIP's kind name one."""
    transformers = pytest.importorskip("transformers")
    folder.mkdir()
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "a",
        "photo",
        "of",
        "dog",
        "cat",
        ".",
        "##s",
        "table",
        "flower",
    ]
    (folder / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
        max_position_embeddings=128,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(folder)
    return folder


def test_a_text_tower_of_transformers_agrees(tmp_path: Path) -> None:
    bert = save_bert(tmp_path / "bert")
    text = {"hf_model_name": str(bert), "hf_tokenizer_name": str(bert), "hf_proj_type": "mlp",
            "hf_pooler_type": "mean_pooler", "context_length": 64}  # fmt: skip
    raw = {"embed_dim": 24, "vision_cfg": VISION, "text_cfg": text}
    folder = save_open_clip(create_open_clip(raw), raw, tmp_path / "clip")
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(bert / name, folder / name)
    (folder / "config.json").write_text((bert / "config.json").read_text())
    assert differences(load_encoder(f"open_clip:{folder}"), *open_clip_features(folder)) < LIMIT


@pytest.fixture
def listed(tmp_path: Path) -> str:
    """The name of a small model in open_clip's list."""
    open_clip = pytest.importorskip("open_clip", reason="needs open_clip")
    raw = {"embed_dim": 24, **FAMILIES["layer scale"]}
    (tmp_path / "list").mkdir()
    (tmp_path / "list" / "tiny-scaled.json").write_text(json.dumps(raw))
    open_clip.add_model_config(tmp_path / "list" / "tiny-scaled.json")
    return "tiny-scaled"


def test_a_name_with_a_file_of_weights_agrees(tmp_path: Path, listed: str) -> None:
    import open_clip

    model = create_open_clip(open_clip.get_model_config(listed))
    path = tmp_path / "weights.pt"
    torch.save({"state_dict": model.state_dict()}, path)
    encoder = load_encoder(f"open_clip:{listed}@{path}")
    _, preprocess = open_clip.create_model_from_pretrained(listed, pretrained=str(path))
    with torch.no_grad():
        images = model.encode_image(torch.stack([preprocess(image) for image in photos()]), normalize=True)
        words = model.encode_text(open_clip.get_tokenizer(listed)(texts()), normalize=True)
    assert differences(encoder, images, words) < LIMIT
    assert encoder.source == f"open_clip:{listed}@./weights.pt" == _backbone_name(f"open_clip:{listed}@{path}")
    assert load_encoder(find_backbone(encoder.source, encoder.digest)).digest == encoder.digest


def test_open_clip_is_told_of_quick_gelu_where_its_list_wants_it(
    tmp_path: Path, listed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights of DFN under `ViT-B-16` are a warning in open_clip, and wrong features."""
    import open_clip

    raw = open_clip.get_model_config(listed) | {"quick_gelu": True}
    model = create_open_clip(raw)
    torch.save(model.state_dict(), tmp_path / "open_clip_pytorch_model.bin")
    published = {"quick_gelu": True, "hf_hub": "apple/DFN/"}
    monkeypatch.setattr(open_clip, "list_pretrained_tags_by_model", lambda name: ["dfn"])
    for place in ("open_clip", "open_clip.factory"):
        monkeypatch.setattr(f"{place}.get_pretrained_cfg", lambda name, tag: published if tag == "dfn" else {})
    path = str(tmp_path / "open_clip_pytorch_model.bin")
    monkeypatch.setattr("open_clip.factory.download_pretrained", lambda *a, **b: path)
    encoder = load_encoder(f"open_clip:{listed}@dfn")
    pixels = encoder.preprocess(photos())
    with torch.no_grad():
        assert torch.equal(encoder.encode_image(pixels), model.encode_image(pixels))


# timm: no texts.


def save_timm(name: str, folder: Path, **config: Any) -> Any:
    timm = pytest.importorskip("timm", reason="needs timm")
    from timm.models import save_for_hf

    model = shake(timm.create_model(name, num_classes=5))
    save_for_hf(
        model,
        folder,
        model_config={"pretrained_cfg": {**model.pretrained_cfg, **config}} if config else None,
        safe_serialization=True,
    )
    return model


@pytest.mark.parametrize("name", ["test_vit", "test_convnext", "test_efficientnet", "test_resnet"])
@pytest.mark.parametrize("config", [{}, {"crop_pct": 1.0, "crop_mode": "squash"}, {"crop_pct": 0.9}], ids=str)
def test_timm_s_models_agree_from_a_folder(tmp_path: Path, name: str, config: dict[str, Any]) -> None:
    timm = pytest.importorskip("timm", reason="needs timm")
    save_timm(name, tmp_path / "net", **config)
    encoder = load_encoder(f"timm:{tmp_path / 'net'}")
    model = timm.create_model(f"local-dir:{tmp_path / 'net'}", pretrained=True, num_classes=0).eval()
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model), is_training=False)
    with torch.no_grad():
        images = F.normalize(model(torch.stack([transform(image) for image in photos()])), dim=-1)
    assert differences(encoder, images, None) < LIMIT
    assert encoder.abilities == {Ability.IMAGE_FEATURES}
    with pytest.raises(UserError, match="knows no texts"):
        encoder.encode_text(["a cat"])


def test_timm_s_padding_is_refused(tmp_path: Path) -> None:
    save_timm("test_vit", tmp_path / "net", crop_mode="border")
    with pytest.raises(UserError, match="preprocessing"):
        load_encoder(f"timm:{tmp_path / 'net'}")


# transformers


SMALL: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
MEAN, STD = [0.5, 0.4, 0.45], [0.3, 0.25, 0.28]


def save_image_model(kind: str, folder: Path) -> tuple[Any, Any]:
    """A small image model and its processor of `transformers`, saved; both are returned."""
    t = pytest.importorskip("transformers")
    crop: dict[str, Any] = {"size": {"shortest_edge": 40}, "crop_size": {"height": 28, "width": 28}, "resample": 3}
    exact: dict[str, Any] = {"size": {"height": 28, "width": 28}, "resample": 2}
    normal = {"image_mean": MEAN, "image_std": STD}
    sizes = {"image_size": 28, "patch_size": 14}
    models = {
        "dinov2": lambda: (t.Dinov2Model(t.Dinov2Config(**SMALL, **sizes)), t.BitImageProcessor(**crop, **normal)),
        "dinov2_with_registers": lambda: (
            t.Dinov2WithRegistersModel(t.Dinov2WithRegistersConfig(**SMALL, **sizes)),
            t.BitImageProcessor(**crop, **normal),
        ),
        "vit": lambda: (t.ViTModel(t.ViTConfig(**SMALL, **sizes)), t.ViTImageProcessor(**exact, **normal)),
        "convnext": lambda: (
            t.ConvNextModel(t.ConvNextConfig(hidden_sizes=[16, 24, 32, 48], depths=[1, 1, 1, 1])),
            t.ConvNextImageProcessor(size={"shortest_edge": 64}, crop_pct=0.875, resample=3, **normal),
        ),
        "resnet": lambda: (
            t.ResNetModel(t.ResNetConfig(embedding_size=16, hidden_sizes=[16, 24, 32, 48], depths=[1, 1, 1, 1])),
            t.ConvNextImageProcessor(size={"shortest_edge": 64}, crop_pct=0.875, resample=3, **normal),
        ),
    }  # fmt: skip
    model, processor = models[kind]()
    shake(model).save_pretrained(folder)
    processor.save_pretrained(folder)
    return model, processor


def pillow_pixels(folder: Path) -> torch.Tensor:
    """Pixels by the processor of `transformers` that works on Pillow's images."""
    import transformers

    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    return processor(photos(), return_tensors="pt")["pixel_values"]


@pytest.mark.parametrize("kind", ["dinov2", "dinov2_with_registers", "vit", "convnext", "resnet"])
def test_image_models_of_transformers_agree_from_a_folder(tmp_path: Path, kind: str) -> None:
    model, _ = save_image_model(kind, tmp_path / "net")
    encoder = load_encoder(f"transformers:{tmp_path / 'net'}")
    with torch.no_grad():
        output = model(pixel_values=pillow_pixels(tmp_path / "net"))
    images = output.pooler_output.flatten(1) if kind in ("convnext", "resnet") else output.last_hidden_state[:, 0]
    assert differences(encoder, F.normalize(images, dim=-1), None) < LIMIT
    assert encoder.abilities == {Ability.IMAGE_FEATURES}


@pytest.mark.parametrize("kind", ["clip", "altclip-like padding"])
def test_two_towers_of_transformers_agree_from_a_folder(tmp_path: Path, tiny_folder: Path, kind: str) -> None:
    t = pytest.importorskip("transformers")
    folder = Path(shutil.copytree(tiny_folder, tmp_path / "clip"))
    model = shake(t.CLIPModel.from_pretrained(folder))
    model.save_pretrained(folder)
    tokenizer = t.CLIPTokenizerFast.from_pretrained(folder)
    encoder = load_encoder(f"transformers:{folder}")
    with torch.no_grad():
        ids = tokenizer(texts(), return_tensors="pt", padding=True, truncation=True, max_length=77)
        words = model.get_text_features(**ids)
        images = model.get_image_features(pixel_values=pillow_pixels(folder))
    found = [x if isinstance(x, torch.Tensor) else x.pooler_output for x in (images, words)]
    assert differences(encoder, *(F.normalize(x, dim=-1) for x in found)) < LIMIT
    native = load_encoder(folder)
    torch.testing.assert_close(native.encode_image(photos()), encoder.encode_image(photos()), atol=1e-5, rtol=0)


def test_a_type_that_we_do_not_know_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "sam"}))
    with pytest.raises(UserError, match="unknown type of model for transformers 'sam'"):
        load_encoder(f"transformers:{tmp_path}")


# Safety and errors.


class Evil:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, ("owned",)


def hostile_tokenizer(folder: Path) -> str:
    raw = {"embed_dim": 24, "vision_cfg": VISION, "text_cfg": {**TEXT, "hf_tokenizer_name": "x",
           "tokenizer_kwargs": {"trust_remote_code": True}}}  # fmt: skip
    folder.mkdir()
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": raw, "preprocess_cfg": {}}))
    (folder / "tokenization.py").write_text("import os; os.mkdir('owned')\nclass Evil: pass\n")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"auto_map": {"AutoTokenizer": ["tokenization.Evil", None]}})
    )
    return f"open_clip:{folder}"


def hostile_model(folder: Path) -> str:
    save_image_model("dinov2", folder)
    raw = json.loads((folder / "config.json").read_text())
    raw |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}}
    (folder / "config.json").write_text(json.dumps(raw))
    (folder / "evil.py").write_text("import os; os.mkdir('owned')\nclass Config: pass\nclass Model: pass\n")
    return f"transformers:{folder}"


def hostile_text_tower(folder: Path) -> str:
    """open_clip itself says nothing about remote code to transformers."""
    bert = hostile_model(folder / "bert").partition(":")[2]
    text = {"hf_model_name": bert, "hf_proj_type": "mlp", "hf_pooler_type": "mean_pooler"}
    raw = {"embed_dim": 24, "vision_cfg": VISION, "text_cfg": text}
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": raw, "preprocess_cfg": {}}))
    return f"open_clip:{folder}"


def hostile_weights_of_open_clip(folder: Path) -> str:
    raw = {"embed_dim": 24, **FAMILIES["CLIPA"]}
    save_open_clip(create_open_clip(raw), raw, folder)
    (folder / "open_clip_model.safetensors").unlink()
    torch.save({"state_dict": {"x": Evil()}}, folder / "open_clip_pytorch_model.bin")
    return f"open_clip:{folder}"


def hostile_weights_of_timm(folder: Path) -> str:
    save_timm("test_vit", folder)
    (folder / "model.safetensors").unlink()
    torch.save({"state_dict": {"x": Evil()}}, folder / "pytorch_model.bin")
    return f"timm:{folder}"


def hostile_weights_of_transformers(folder: Path) -> str:
    save_image_model("dinov2", folder)
    (folder / "model.safetensors").unlink()
    torch.save({"x": Evil()}, folder / "pytorch_model.bin")
    return f"transformers:{folder}"


@pytest.mark.parametrize("attack", [
    hostile_tokenizer, hostile_model, hostile_text_tower, hostile_weights_of_open_clip, hostile_weights_of_timm,
    hostile_weights_of_transformers,
])  # fmt: skip
def test_nothing_in_a_checkpoint_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attack: Callable[[Path], str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    source = attack(tmp_path / "evil")
    with pytest.raises(UserError):
        load_encoder(source)
    assert not list(tmp_path.rglob("owned"))


def test_a_missing_library_is_said_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "timm", None)
    with pytest.raises(UserError, match="needs the library timm") as caught:
        load_encoder("timm:vit_base_patch16_224")
    assert "dca-prompt[timm]" in caught.value.hint


@pytest.mark.parametrize(("source", "part"), [
    ("open_clip:ViT-B-61@openai", "unknown model of open_clip"), ("open_clip:ViT-B-32@laion3b", "unknown weights of"),
    ("timm:vit_huge_nothing", "unknown model of timm"), ("transformers:nowhere", "no such folder"),
])  # fmt: skip
def test_unknown_names_are_said(source: str, part: str) -> None:
    with pytest.raises(UserError, match=part):
        load_encoder(source)


def test_short_names_are_those_of_the_libraries() -> None:
    open_clip = pytest.importorskip("open_clip", reason="needs open_clip")
    timm = pytest.importorskip("timm", reason="needs timm")
    for name, source in ADAPTED.items():
        assert is_public_name(name)
        assert is_public_name(source)
        library, _, place = source.partition(":")
        model, at, tag = place.partition("@")
        if library == "open_clip" and at:
            assert tag in open_clip.list_pretrained_tags_by_model(model), source
        elif library == "timm":
            assert place in timm.list_models(pretrained=True), source


def test_views_share_weights_and_devices_do_not_change_the_original(tmp_path: Path) -> None:
    save_timm("test_vit", tmp_path / "net")
    encoder = LibraryEncoder.from_pretrained(f"timm:{tmp_path / 'net'}")
    coarse = encoder.with_dtype(torch.bfloat16)
    assert (coarse.dtype, encoder.dtype) == (torch.bfloat16, torch.float32)
    assert coarse.digest == encoder.digest
    first, second = (next(e.model.parameters()) for e in (encoder, coarse))
    assert first is second
    cosine = F.cosine_similarity(coarse.encode_image(photos()), encoder.encode_image(photos()))
    assert cosine.min() > 0.99
    moved = encoder.to_device("meta")
    assert (moved.device.type, encoder.device.type) == ("meta", "cpu")
    assert encoder.to_device("cpu") is encoder
    assert isinstance(encoder.model, nn.Module)


def test_a_fit_through_an_adapter_is_saved_and_predicts(tmp_path: Path, photos: Path, dca: Callable[..., Any]) -> None:
    raw = {"embed_dim": 24, **FAMILIES["CLIPA"]}
    folder = save_open_clip(create_open_clip(raw), raw, tmp_path / "clipa")
    model = tmp_path / "m.dca"
    said = dca("fit", photos, "--backbone", f"open_clip:{folder}", "--shots", 2, "-o", model, "-q")
    assert said.code == 0, said.err
    assert dca("predict", model, next((photos / "test").rglob("*.png"))).code == 0
    said = dca("fit", photos, "--backbone", f"open_clip:{folder}", "--method", "coop", "-o", tmp_path / "n.dca", "-q")
    assert said.code == 2
    assert "a text tower that takes learned prompts" in said.err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MobileCLIP2-S0", "ViT-B-32-quickgelu"])
def test_models_of_open_clip_s_list_agree_in_true_size(tmp_path: Path, name: str) -> None:
    open_clip = pytest.importorskip("open_clip", reason="needs open_clip")
    model = shake(open_clip.create_model(name))
    path = tmp_path / "weights.safetensors"
    save_file({key: tensor.contiguous().clone() for key, tensor in model.state_dict().items()}, path)
    _, preprocess = open_clip.create_model_from_pretrained(name, pretrained=str(path))
    with torch.no_grad():
        images = model.encode_image(torch.stack([preprocess(image) for image in photos()]), normalize=True)
        words = model.encode_text(open_clip.get_tokenizer(name)(texts()), normalize=True)
    assert differences(load_encoder(f"open_clip:{name}@{path}"), images, words) < LIMIT


@pytest.mark.slow
def test_dino_of_timm_agrees_in_true_size(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm", reason="needs timm")
    save_timm("vit_small_patch16_dinov3", tmp_path / "net")
    encoder = load_encoder(f"timm:{tmp_path / 'net'}")
    model = timm.create_model(f"local-dir:{tmp_path / 'net'}", pretrained=True, num_classes=0).eval()
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model), is_training=False)
    with torch.no_grad():
        images = F.normalize(model(torch.stack([transform(image) for image in photos()])), dim=-1)
    assert differences(encoder, images, None) < LIMIT
