"""SigLIP and SigLIP 2 beside transformers and open_clip, in the files that people have."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from dca.backbones.blocks import NORMS
from dca.backbones.clip import CLIP
from dca.backbones.dual_encoder import ExtraTokens
from dca.backbones.encoder import Ability
from dca.backbones.loading import load_encoder
from dca.backbones.siglip import SigLIP
from dca.core.errors import UserError
from dca.core.files import write_json
from helpers.families import gemma, gemma_tables, sentence_piece
from helpers.references import photos, shake, texts

# Largest difference of unit features.
CLOSE = 2e-5
LENGTH = 24


class Kind(NamedTuple):
    """A released kind of SigLIP: its tokenizer, and how transformers cleans a text for it."""

    make_tokenizer: Callable[[], Tokenizer]
    config: dict[str, Any]
    clean: Callable[[str], str]
    resample: int


class Reference(NamedTuple):
    """A model of a reference library, and its folder; images and texts give its unit features."""

    model: Any
    folder: Path
    kind: Kind
    images: Callable[[], Tensor]
    texts: Callable[[Tensor], Tensor]
    clean: Callable[[str], str]

    def ids(self, sentences: list[str]) -> Tensor:
        """Padded ids (N, T)."""
        tokenizer = self.kind.make_tokenizer()
        eot, pad = (tokenizer.token_to_id(self.kind.config[name]) for name in ("eos_token", "pad_token"))
        rows = [tokenizer.encode(self.clean(s), add_special_tokens=False).ids[: LENGTH - 1] for s in sentences]
        return torch.tensor([[*row, eot, *[pad] * (LENGTH - 1 - len(row))] for row in rows])


def canonicalize(text: str) -> str:
    """What big_vision does with a text, step by step."""
    text = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return re.sub(r"\s+", " ", text).strip()


ENGLISH = Kind(
    sentence_piece,
    {"tokenizer_class": "SiglipTokenizer", "eos_token": "</s>", "pad_token": "</s>", "model_max_length": 64},
    canonicalize,
    3,
)
GEMMA = Kind(
    gemma,
    {
        "tokenizer_class": "GemmaTokenizer",
        "add_bos_token": False,
        "add_eos_token": True,
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "padding_side": "right",
    },
    str.lower,
    2,
)
KINDS = {"siglip": ENGLISH, "siglip2": GEMMA}
TINY = {"width": 48, "layers": 2, "heads": 3, "hidden": 96, "size": 32, "patch": 8}
TRUE = {"width": 768, "layers": 12, "heads": 12, "hidden": 3072, "size": 224, "patch": 16}


def enliven(model: Any) -> Any:
    """Larger weights in attention and its pooling, so that features of different inputs are not nearly the same."""
    with torch.no_grad():
        for name, parameter in shake(model).named_parameters():
            if parameter.dim() == 2 and "embed" not in name:
                parameter.mul_(1.5 / (parameter.std() * parameter.shape[1] ** 0.5))
            elif "embed" in name or name.endswith(("probe", "latent")):
                parameter.mul_(1 / parameter.std())
    return model.requires_grad_(False)


def write_tokenizer(kind: Kind, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    kind.make_tokenizer().save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", kind.config)


def hf_reference(folder: Path, kind: Kind, sizes: dict[str, int]) -> Reference:
    """A random SiglipModel in a folder as its hub repositories have it; SigLIP 2 of fixed resolution is one, too."""
    from transformers import SiglipConfig, SiglipModel
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    torch.manual_seed(0)
    tower = {
        "hidden_size": sizes["width"],
        "intermediate_size": sizes["hidden"],
        "num_hidden_layers": sizes["layers"],
        "num_attention_heads": sizes["heads"],
    }
    vocabulary = len(kind.make_tokenizer().get_vocab())
    text = tower | {"vocab_size": vocabulary, "max_position_embeddings": LENGTH, "projection_size": sizes["width"]}
    vision = tower | {"image_size": sizes["size"], "patch_size": sizes["patch"]}
    model = enliven(SiglipModel(SiglipConfig(text_config=text, vision_config=vision)))
    model.save_pretrained(folder)
    write_tokenizer(kind, folder)
    square = {"height": sizes["size"], "width": sizes["size"]}
    processor = {
        "do_normalize": True, "do_rescale": True, "do_resize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
        "image_processor_type": "SiglipImageProcessor", "processor_class": "SiglipProcessor",
        "resample": kind.resample, "rescale_factor": 1 / 255, "size": square,
    }  # fmt: skip
    write_json(folder / "preprocessor_config.json", processor)

    def images() -> Tensor:
        pixels = SiglipImageProcessorPil(size=square, resample=kind.resample)(photos(), return_tensors="pt")
        return F.normalize(model.get_image_features(**pixels).pooler_output, dim=-1)

    def of_ids(ids: Tensor) -> Tensor:
        return F.normalize(model.get_text_features(input_ids=ids).pooler_output, dim=-1)

    return Reference(model, folder, kind, images, of_ids, kind.clean)


def open_clip_reference(
    folder: Path, kind: Kind, sizes: dict[str, int], name: str, monkeypatch: pytest.MonkeyPatch
) -> Reference:
    """A random SigLIP of open_clip in a folder as its hub repositories have it."""
    open_clip, timm = (pytest.importorskip(name, reason=f"needs {name}") for name in ("open_clip", "timm"))
    from open_clip.tokenizer import _clean_canonicalize
    from open_clip.transform import image_transform

    smaller = {"embed_dim": sizes["width"], "depth": sizes["layers"], "num_heads": max(sizes["width"] // 64, 1)}
    monkeypatch.setattr(timm, "create_model", partial(timm.create_model, img_size=sizes["size"], **smaller))
    torch.manual_seed(0)
    text = {
        "context_length": LENGTH, "vocab_size": len(kind.make_tokenizer().get_vocab()), "width": sizes["width"],
        "heads": sizes["heads"], "layers": sizes["layers"], "no_causal_mask": True, "proj_bias": True,
        "pool_type": "last", "norm_kwargs": {"eps": 1e-6},
    }  # fmt: skip
    if kind is GEMMA:
        text["act_kwargs"] = {"approximate": "tanh"}
    vision = {
        "image_size": sizes["size"], "timm_model_name": name, "timm_model_pretrained": False, "timm_pool": "map",
        "timm_proj": "none",
    }  # fmt: skip
    config = {"embed_dim": sizes["width"], "init_logit_bias": -10, "vision_cfg": vision, "text_cfg": text}
    model = enliven(open_clip.CustomTextCLIP(**config).eval())
    write_tokenizer(kind, folder)
    state = {n: t.contiguous() for n, t in model.state_dict().items()}
    save_file(state, folder / "open_clip_model.safetensors")
    more = {"hf_tokenizer_name": "timm/ViT-B-16-SigLIP", "tokenizer_kwargs": {"clean": "canonicalize"}}
    described = {**config, "custom_text": True, "text_cfg": {**text, **more}}
    half = [0.5, 0.5, 0.5]
    preprocess = {"mean": half, "std": half, "interpolation": "bicubic", "resize_mode": "squash"}
    write_json(folder / "open_clip_config.json", {"model_cfg": described, "preprocess_cfg": preprocess})

    def images() -> Tensor:
        transform = image_transform(
            sizes["size"], is_train=False, mean=half, std=half, resize_mode="squash", interpolation="bicubic"
        )
        pixels = torch.stack([transform(photo) for photo in photos()])
        return F.normalize(model.encode_image(pixels), dim=-1)

    def of_ids(ids: Tensor) -> Tensor:
        return F.normalize(model.encode_text(ids), dim=-1)

    return Reference(model, folder, kind, images, of_ids, _clean_canonicalize)


@pytest.fixture(scope="module", params=["siglip", "siglip2", "siglip in open_clip", "siglip2 in open_clip"])
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    name, _, library = request.param.partition(" in ")
    folder = tmp_path_factory.mktemp("siglip") / name
    if not library:
        yield hf_reference(folder, KINDS[name], TINY)
        return
    with pytest.MonkeyPatch.context() as monkeypatch:
        sizes = TINY | {"width": 64, "heads": 2, "hidden": 256, "patch": 16, "size": 64}
        timm_name = "vit_base_patch16_siglip_224" if name == "siglip" else "vit_so400m_patch16_siglip_256"
        if name == "siglip2":
            sizes |= {"width": 1024, "heads": 16, "layers": 1}  # 16 heads, as all of this size
        yield open_clip_reference(folder, KINDS[name], sizes, timm_name, monkeypatch)


@pytest.fixture(scope="module")
def ours(reference: Reference) -> SigLIP:
    loaded = load_encoder(reference.folder)
    assert isinstance(loaded, SigLIP)
    return loaded


def assert_same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(F.normalize(found, dim=-1), expected, atol=CLOSE, rtol=0)
    apart = torch.cdist(expected, expected)[~torch.eye(len(expected), dtype=torch.bool)]
    assert apart.min() > 100 * CLOSE  # so that the comparison can fail


def test_features_equal_the_reference(reference: Reference, ours: SigLIP) -> None:
    assert_same(ours.encode_image(photos()), reference.images())
    assert_same(ours.encode_text(texts()), reference.texts(reference.ids(texts())))
    assert ours.tau == pytest.approx(float(reference.model.logit_scale.exp()))
    assert float(ours.logit_bias) == pytest.approx(float(reference.model.logit_bias))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_features_equal_transformers_in_the_shape_of_b_16(tmp_path: Path, kind: str) -> None:
    reference = hf_reference(tmp_path / kind, KINDS[kind], TRUE)
    ours = SigLIP.from_pretrained(reference.folder)
    assert_same(ours.encode_image(photos()), reference.images())
    assert_same(ours.encode_text(texts()), reference.texts(reference.ids(texts())))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_features_equal_open_clip_in_the_shape_of_b_16(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    reference = open_clip_reference(tmp_path / kind, KINDS[kind], TRUE, "vit_base_patch16_siglip_224", monkeypatch)
    ours = SigLIP.from_pretrained(reference.folder)
    assert_same(ours.encode_image(photos()), reference.images())
    assert_same(ours.encode_text(texts()), reference.texts(reference.ids(texts())))


def test_a_learned_context_is_what_the_reference_makes_of_the_same_embeddings(
    reference: Reference, ours: SigLIP
) -> None:
    names = ["cat", "fire engine", "a dog on a table"]
    ids = [[*ours.tokenizer.encode(name, continued=True), ours.tokenizer.eot_id] for name in names]
    contexts = 0.5 * torch.randn(2, 5, ours.text.width, generator=torch.Generator().manual_seed(1))
    found = ours.encode_prompts([contexts[0], contexts[1][:3]], ids)
    table = (
        reference.model.text_model.embeddings.token_embedding
        if hasattr(reference.model, "text_model")
        else reference.model.text.token_embedding
    )
    for m, context in enumerate((contexts[0], contexts[1][:3])):
        rest = LENGTH - len(context)
        padded = torch.tensor([[0] * len(context) + own + [ours.tokenizer.pad_id] * (rest - len(own)) for own in ids])
        with replaced_rows(table, context):
            assert_same(found[m], reference.texts(padded))


class replaced_rows:  # noqa: N801
    """A context in which an embedding layer gives these rows for the first tokens of every sequence."""

    def __init__(self, table: Any, context: Tensor) -> None:
        def put(module: Any, inputs: Any, output: Tensor) -> Tensor:
            return torch.cat([context.expand(len(output), -1, -1), output[:, len(context) :]], dim=1)

        self.handle = table.register_forward_hook(put)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.handle.remove()


def test_words_in_the_place_of_a_context_are_the_sentence(ours: SigLIP) -> None:
    """So a context that starts from "a photo of a" starts at zero-shot."""
    words = ours.text.embed(ours.tokenizer.encode("a photo of a"))
    name = [*ours.tokenizer.encode("cat", continued=True), ours.tokenizer.eot_id]
    whole = ours.encode_text(["a photo of a cat"])
    torch.testing.assert_close(ours.encode_prompts([words], [name])[0], whole, atol=1e-5, rtol=1e-4)
    rows = torch.cat([words, ours.text.embed(name)])
    torch.testing.assert_close(ours.encode_embedded_text([rows]), whole, atol=1e-5, rtol=1e-4)


def test_contexts_per_class_deep_tokens_and_chunks_agree(ours: SigLIP) -> None:
    draw = torch.Generator().manual_seed(2)
    ids = [[*ours.tokenizer.encode(name), ours.tokenizer.eot_id] for name in ("cat", "dog", "a flower")]
    shared = torch.randn(4, ours.text.width, generator=draw)
    plain = ours.encode_prompts([shared], ids)
    torch.testing.assert_close(ours.encode_prompts([shared.expand(3, -1, -1)], ids), plain)
    torch.testing.assert_close(ours.encode_prompts(shared[None], ids), plain)
    with ours._autocast(None):
        torch.testing.assert_close(ours.text.encode_prompts([shared], ids, chunk_size=2), plain)
    last = ours.text.layers - 1
    deep = {last: torch.randn(4, ours.text.width, generator=draw)}
    changed = ours.encode_prompts([shared], ids, [deep])
    assert not torch.allclose(changed, plain)
    per_class = {last: deep[last].expand(3, -1, -1)}
    torch.testing.assert_close(ours.encode_prompts([shared], ids, [per_class]), changed)


def test_visual_tokens_stand_among_the_rows_and_reach_pooling(ours: SigLIP) -> None:
    pixels = ours.preprocess(photos()[:2])
    tokens = torch.randn(3, ours.visual.width, generator=torch.Generator().manual_seed(3))
    front = ours.encode_image(pixels, tokens=ExtraTokens({0: tokens}))
    behind = ours.encode_image(pixels, tokens=ExtraTokens({0: tokens}, position="end", before_norm=True))
    assert not torch.allclose(front, ours.encode_image(pixels))
    torch.testing.assert_close(front, behind, atol=1e-5, rtol=1e-4)  # no row has a place of its own
    tower = ours.visual
    rows = torch.cat([tokens.expand(2, -1, -1), tower.embed(pixels)], dim=1)
    for block in tower.blocks:
        a = torch.nn.functional.layer_norm(rows, (tower.width,), block.ln_1.weight, block.ln_1.bias, block.ln_1.eps)
        q, k, v = block.attn.project(a)
        rows = rows + block.attn.merge_heads(F.scaled_dot_product_attention(q, k, v))
        rows = rows + block.mlp(block.ln_2(rows))
    torch.testing.assert_close(front, tower.pool(tower.ln_post(rows)), atol=1e-5, rtol=1e-4)


def test_updates_change_every_layer_that_they_name(ours: SigLIP) -> None:
    pixels, plain = ours.preprocess(photos()[:2]), ours.encode_image(ours.preprocess(photos()[:2]))
    text = ours.encode_text(["cat"])
    for name in ("0.q", "0.k", "0.v", "0.out", "0.fc", "0.proj", *(f"0.{norm}" for norm in NORMS)):
        width = ours.config.vision.hidden if name == "0.fc" else ours.visual.width
        update = {f"visual.{name}": lambda x, width=width: torch.linspace(-1, 1, width)}
        assert not torch.allclose(ours.encode_image(pixels, updates=update), plain), name
        width = ours.config.text.hidden if name == "0.fc" else ours.text.width
        update = {f"text.{name}": lambda x, width=width: torch.linspace(-1, 1, width)}
        assert not torch.allclose(ours.encode_text(["cat"], updates=update), text), name
    for name in ours.visual.outside_norms:
        update = {f"visual.{name}": lambda x: torch.linspace(-1, 1, ours.visual.width)}
        assert not torch.allclose(ours.encode_image(pixels, updates=update), plain), name
    with pytest.raises(ValueError, match="expected a name"):
        ours.encode_image(pixels, updates={"visual.ln_pre": lambda x: x})


def test_the_end_and_the_abilities(ours: SigLIP) -> None:
    pixels = ours.preprocess(photos()[:2])
    found = ours.visual.copy_end()(ours.encode_until_end(pixels))
    torch.testing.assert_close(found, ours.encode_image(pixels), atol=1e-5, rtol=1e-4)
    assert set(Ability) - ours.abilities == {Ability.PROJECTION, Ability.PATCHES}
    seen: dict[str, Tensor] = {}
    ours.encode_image(pixels, on_block=seen.__setitem__)
    assert list(seen) == [f"visual.{layer}" for layer in range(ours.visual.layers)]


def test_gemmas_texts_are_in_lower_case_as_transformers_makes_them() -> None:
    from transformers import Siglip2Tokenizer

    vocabulary, merges = gemma_tables()
    theirs = Siglip2Tokenizer(vocab=vocabulary, merges=merges)
    for text in ("A photo of a Cat.", "Dog", "a  cat"):
        expected = theirs(text, add_special_tokens=False)["input_ids"]
        assert gemma().encode(GEMMA.clean(text), add_special_tokens=False).ids == expected, text


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return hf_reference(tmp_path_factory.mktemp("small") / "siglip", ENGLISH, TINY)


@pytest.mark.parametrize(
    ("file", "path", "value", "message"),
    [
        ("config.json", ["vision_config", "vision_use_head"], False, "vision_use_head"),
        ("config.json", ["model_type"], "siglip2", "fixed resolution"),
        ("config.json", ["text_config", "rope_theta"], 1.0, "rope_theta"),
        ("config.json", ["text_config", "hidden_act"], "relu", "activation 'relu'"),
        ("config.json", ["text_config", "projection_size"], 40, "both are to agree"),
        ("config.json", ["text_config", "vocab_size"], 9, "gives ids up to"),
        ("tokenizer_config.json", ["padding_side"], "left", "other sequences"),
        ("tokenizer_config.json", ["eos_token"], "<end>", "no <end> token"),
        ("preprocessor_config.json", ["size"], {"height": 40, "width": 40}, "40 px"),
        ("preprocessor_config.json", ["image_processor_type"], "Siglip2ImageProcessor", "another family"),
    ],
)
def test_what_it_would_compute_wrongly_is_refused(
    tmp_path: Path, small: Reference, file: str, path: list[str], value: Any, message: str
) -> None:
    for name in small.folder.iterdir():
        (tmp_path / name.name).symlink_to(name)
    raw = json.loads((small.folder / file).read_text())
    part = raw
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    (tmp_path / file).unlink()
    write_json(tmp_path / file, raw)
    with pytest.raises(UserError) as caught:
        load_encoder(tmp_path)
    assert message in str(caught.value)


def test_a_clip_reader_names_the_way_for_a_siglip(small: Reference) -> None:
    with pytest.raises(UserError, match="siglip"):
        CLIP.from_pretrained(small.folder)


def test_the_digest_depends_on_cleaning_and_bias(small: Reference, tmp_path: Path) -> None:
    first = SigLIP.from_pretrained(small.folder)
    assert SigLIP.from_pretrained(small.folder).digest == first.digest
    for name in small.folder.iterdir():
        (tmp_path / name.name).symlink_to(name)
    from safetensors.torch import load_file

    (tmp_path / "model.safetensors").unlink()
    state = load_file(small.folder / "model.safetensors")
    save_file(state | {"logit_bias": state["logit_bias"] + 1}, tmp_path / "model.safetensors")
    assert SigLIP.from_pretrained(tmp_path).digest != first.digest
