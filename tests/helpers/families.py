"""Small checkpoints of other families, in the files that people have: a CLIP with a ResNet, a SigLIP 2."""

from __future__ import annotations

import string
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE, Unigram

from conftest import make_clip, small_vocabulary, tiny_config
from dca.backbones.clip import CLIPConfig, ResNetConfig, VisionConfig
from dca.backbones.clip.resnet import EPS
from dca.backbones.clip.weights import RESNET_CONVOLUTION, batch_norm_of, openai_source
from dca.backbones.dual_encoder import DualEncoder
from dca.backbones.preprocess import Preprocess
from dca.backbones.siglip import SigLIP, SigLIPConfig, SigLIPTextConfig, SigLIPTokenizer
from dca.backbones.siglip.weights import hf_source
from dca.core.files import write_json

WORDS = "a photo of cat dog flower accordion on table in 1999 more painting the an".split()


def sentence_piece() -> Tokenizer:
    """A tokenizer like SigLIP's: pieces with a score, one of which ends and fills a text."""
    pieces = [("<unk>", 0.0), ("</s>", 0.0), *((c, -6.0) for c in string.ascii_lowercase + string.digits + "▁ß")]
    pieces += [("▁" + word, -2.0) for word in WORDS] + [("flow", -3.0), ("er", -3.0)]
    tokenizer = Tokenizer(Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["</s>", "<unk>"])
    return tokenizer


def gemma_tables() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges in the manner of Gemma's: case matters, and spaces are parts of tokens."""
    letters = string.ascii_letters + string.digits + string.punctuation + "▁ß"
    merges = [("▁", "a"), ("▁", "o"), ("▁o", "f"), ("c", "a"), ("ca", "t"), ("▁", "cat"), ("p", "h"), ("D", "o")]
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *letters, *(a + b for a, b in merges)]
    return {token: n for n, token in enumerate(dict.fromkeys(tokens))}, merges


def gemma() -> Tokenizer:
    vocabulary, merges = gemma_tables()
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    tokenizer.add_special_tokens(["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"])
    return tokenizer


def random_weights(encoder: DualEncoder, seed: int = 0) -> DualEncoder:
    """Random values in every parameter, so that different images and texts have different features."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            norm = ".ln_" in name or ".norm." in name
            size = 0.1 if name.endswith("bias") else 1.0 if parameter.dim() < 2 else parameter[0].numel() ** -0.5
            parameter.copy_((1 if norm and name.endswith("weight") else 0) + (0.1 if norm else size) * noise)
        encoder.logit_scale.fill_(3.0)
    return encoder.freeze()


def save_resnet(folder: Path) -> Path:
    """A small CLIP with a ResNet as an OpenAI state dict with its configuration, as on open_clip's hub repositories."""
    vision = ResNetConfig(width=8, stages=(1, 1, 1, 1), heads=4, image_size=64)
    clip = make_clip(CLIPConfig(vision=vision, text=tiny_config().text, embed_dim=16))
    state = {k: v for name, tensor in clip.state_dict().items() for k, v in openai_source(name).write(tensor).items()}
    for name in filter(RESNET_CONVOLUTION.match, list(state)):
        bias, norm = state.pop(name.replace(".weight", ".bias")), batch_norm_of(name.removesuffix(".weight"))
        ones = torch.ones_like(bias)
        state |= {f"{norm}.weight": ones, f"{norm}.bias": bias, f"{norm}.running_mean": 0 * ones}
        state |= {f"{norm}.running_var": ones - EPS, f"{norm}.num_batches_tracked": torch.tensor(7)}
    folder.mkdir(parents=True)
    save_file(state, folder / "open_clip_model.safetensors")
    text = clip.config.text
    config = {
        "embed_dim": 16,
        "quick_gelu": True,
        "vision_cfg": {"image_size": 64, "layers": [1, 1, 1, 1], "width": 8, "patch_size": None},
        "text_cfg": {
            "context_length": text.context_length, "vocab_size": text.vocab_size, "width": text.width,
            "heads": text.heads, "layers": text.layers, "mlp_ratio": text.hidden / text.width,
        },
    }  # fmt: skip
    preprocess = {"mean": clip.preprocess.mean, "std": clip.preprocess.std, "interpolation": "bicubic"}
    write_json(folder / "open_clip_config.json", {"model_cfg": config, "preprocess_cfg": preprocess})
    vocabulary, merges = small_vocabulary(text.vocab_size)
    write_json(folder / "vocab.json", vocabulary)
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(f"{a} {b}" for a, b in merges), encoding="utf-8")
    return folder


def make_siglip() -> SigLIP:
    """A small SigLIP 2."""
    tower = {"layers": 2, "heads": 2, "activation": "gelu_tanh", "eps": 1e-6}
    vision = VisionConfig(**tower, width=32, hidden=64, image_size=32, patch_size=8)  # type: ignore[arg-type]
    text = SigLIPTextConfig(
        **tower,
        width=24,
        hidden=48,
        vocab_size=len(gemma().get_vocab()),
        context_length=48,  # type: ignore[arg-type]
    )
    tokenizer = SigLIPTokenizer(gemma(), 48, "lower", eot="<eos>", pad="<pad>")
    preprocess = Preprocess(size=32, resize=None, resample=2, mean=(0.5,) * 3, std=(0.5,) * 3)
    made = SigLIP(SigLIPConfig(vision=vision, text=text, embed_dim=32), tokenizer, preprocess, "siglip")
    random_weights(made)
    return made


def save_siglip(folder: Path) -> Path:
    """A small SigLIP 2 in the layout of transformers."""
    siglip = make_siglip()
    folder.mkdir(parents=True)
    state = {k: v for name, tensor in siglip.state_dict().items() for k, v in hf_source(name).write(tensor).items()}
    save_file(state, folder / "model.safetensors")

    def tower(c: VisionConfig | SigLIPTextConfig) -> dict[str, object]:
        return {
            "hidden_size": c.width, "intermediate_size": c.hidden, "num_hidden_layers": c.layers,
            "num_attention_heads": c.heads,
        }  # fmt: skip

    vision, text = siglip.config.vision, siglip.config.text
    sizes = {"vocab_size": text.vocab_size, "max_position_embeddings": text.context_length}
    config = {
        "model_type": "siglip",
        "vision_config": tower(vision) | {"image_size": vision.image_size, "patch_size": vision.patch_size},
        "text_config": tower(text) | sizes | {"projection_size": siglip.config.embed_dim},
    }
    write_json(folder / "config.json", config)
    gemma().save(str(folder / "tokenizer.json"))
    names = {"eos_token": "<eos>", "pad_token": "<pad>", "add_bos_token": False, "add_eos_token": True}
    write_json(folder / "tokenizer_config.json", names)
    processor = {
        "image_processor_type": "SiglipImageProcessor", "size": {"height": 32, "width": 32}, "resample": 2,
        "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
    }  # fmt: skip
    write_json(folder / "preprocessor_config.json", processor)
    return folder
