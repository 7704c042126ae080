"""All settings of a pretraining run, read from one TOML file."""

from __future__ import annotations

import dataclasses
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dca.backbones.clip.config import CLIPConfig, TextConfig, VisionConfig
from dca.core.errors import UserError, unknown_name
from dca.core.options import check_limits, from_dict, option

ATTENTION = ("flash", "mem_efficient", "cudnn", "math")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which images and texts are learned from, and how often."""

    pack: str = option("pack", "folder with SOURCE.bin and SOURCE.jsonl.gz")
    prepared: str = option("prepared", "folder for decoded images and token ids")
    tokenizer: str = option("", "folder with the tokenizer files; empty: those of the embedded model")
    lexicon: str = option("", "gzipped JSONL of nouns (wnid, lemmas, gloss, hypernyms); empty: none")
    teacher: str = option("", "folder of a sentence encoder in Hugging Face layout; empty: none")
    leave_out: str = option("", "JSON object or list of ids of images to leave out; empty: none")
    validation: str = option("tiny_imagenet", "source whose 'val' split is kept for validation; empty: none")
    most_validation: int = option(2000, "images of that split to measure during training", low=0)
    drawn: int = option(24000, "procedurally drawn images added as source 'drawn'", low=0)
    side: int = option(80, "stored images are squares of this many pixels", low=16)
    power: float = option(0.75, "a source of n images is sampled in proportion to n**power", low=0, high=1)

    def __post_init__(self) -> None:
        check_limits(self)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes of the two towers."""

    image_size: int = option(64, "side of the square the image tower sees, pixels", low=8)
    resize: int = option(0, "short side of an image in use before its middle is cut out, pixels; 0: image_size", low=0)
    patch_size: int = option(8, "side of a patch, pixels", low=2)
    width: int = option(256, "W of both towers", low=8)
    layers: int = option(9, "blocks of the image tower", low=1)
    text_layers: int = option(4, "blocks of the text tower", low=1)
    heads: int = option(4, "attention heads of both towers", low=1)
    context: int = option(32, "longest text, tokens", low=4)
    embed: int = option(256, "D, joint size", low=4)

    def __post_init__(self) -> None:
        check_limits(self)

    def clip(self, vocab_size: int) -> CLIPConfig:
        """The same sizes as a configuration of the backbone."""
        return CLIPConfig(
            vision=VisionConfig(
                width=self.width,
                layers=self.layers,
                heads=self.heads,
                hidden=4 * self.width,
                image_size=self.image_size,
                patch_size=self.patch_size,
            ),
            text=TextConfig(
                width=self.width,
                layers=self.text_layers,
                heads=self.heads,
                hidden=4 * self.width,
                vocab_size=vocab_size,
                context_length=self.context,
                sot_id=vocab_size - 2,
                eot_id=vocab_size - 1,
            ),
            embed_dim=self.embed,
        )


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """Random changes of training images."""

    scale: float = option(0.3, "smallest share of the area that a crop keeps", low=0.01, high=1)
    ratio: float = option(1.33, "largest change of the aspect ratio", low=1)
    colour: float = option(0.3, "strength of brightness, contrast and saturation changes", low=0, high=1)
    balance: float = option(0.06, "strength of the per-channel gain", low=0, high=1)
    grey: float = option(0.05, "share of images made black and white, which their texts mention", low=0, high=1)
    blurry: float = option(0.05, "share of images blurred, which their texts mention", low=0, high=1)
    cutmix: float = option(0.4, "share of images that get a rectangle of another image", low=0, high=1)
    calm: float = option(0.85, "progress from which crops are milder and nothing is mixed", low=0, high=1)
    calm_scale: float = option(0.5, "smallest share of the area from then on", low=0.01, high=1)

    def __post_init__(self) -> None:
        check_limits(self)


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """The terms and their weights."""

    soft: float = option(0.15, "share of the target given to texts the teacher finds similar", low=0, high=1)
    soft_temperature: float = option(0.07, "temperature of the teacher's similarities", low=1e-3)
    relation_temperature: float = option(0.05, "temperature of the teacher in the text-to-text term", low=1e-3)
    relation: float = option(0.5, "weight of the text-to-text term", low=0)
    lexicon_batch: int = option(512, "lexicon texts per step", low=0)
    instance: float = option(0.3, "weight of the loss over two views of each image; 0: one view", low=0)
    instance_temperature: float = option(0.1, "temperature of that term", low=1e-3)

    def __post_init__(self) -> None:
        check_limits(self)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Optimisation, schedule and bookkeeping."""

    out: str = option("run", "folder of the run: log.jsonl, state.safetensors, model/")
    start: str = option("", "model to begin from, e.g. of an earlier run; empty: random weights")
    seed: int = option(1, "seed of everything drawn at random")
    device: str = option("auto", "cpu, cuda, or auto")
    batch: int = option(4096, "image-text pairs per step", low=2)
    steps: int = option(0, "steps of the whole schedule; 0: by the clock, see seconds", low=0)
    seconds: float = option(1200.0, "training time of the whole schedule when steps is 0", low=1)
    lr: float = option(1.2e-3, "peak learning rate", low=0)
    warmup: float = option(0.03, "share of the schedule with rising learning rate", low=0, high=1)
    decay: float = option(0.1, "weight decay of matrices", low=0)
    beta2: float = option(0.98, "second moment of AdamW", low=0, high=1)
    average: float = option(0.9995, "decay of the running average of the weights", low=0, high=1)
    keep: tuple[float, ...] = option((0.5, 0.75, 1.0), "share of the patches that the image tower gets, phase by phase")
    until: tuple[float, ...] = option((0.5, 0.8, 1.0), "progress at which each phase ends")
    text_length: int = option(20, "tokens of a text in most steps; every eighth step takes them all", low=4)
    compile: bool = option(True, "compile the blocks (on a GPU)")
    attention: Literal["auto", "flash", "mem_efficient", "cudnn", "math"] = option(
        "auto", "attention kernel (on a GPU)"
    )
    log_every: int = option(50, "steps between log lines", low=1)
    save_every: float = option(120.0, "seconds between checkpoints", low=0)

    def __post_init__(self) -> None:
        check_limits(self)
        if len(self.keep) != len(self.until) or sorted(self.until) != list(self.until) or self.until[-1] != 1:
            raise UserError(
                f"keep={self.keep} and until={self.until} do not describe phases",
                hint="as many shares as ends, the ends rising, the last one 1.0",
            )


@dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """One run: data, model, augmentation, loss, training, and per-source tables."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    kinds: dict[str, str] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain nested dictionary, for records."""
        return dataclasses.asdict(self)


SECTIONS: dict[str, type[Any]] = {
    "data": DataConfig,
    "model": ModelConfig,
    "augment": AugmentConfig,
    "loss": LossConfig,
    "train": TrainConfig,
}


def read_config(path: Path) -> PretrainConfig:
    """Settings of a TOML file; relative paths in it are taken from the current folder."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{path}: not readable TOML ({error})") from None
    tables = [*SECTIONS, "kinds", "weights"]
    for name in raw:
        if name not in tables:
            raise unknown_name("table", name, tables)
    sections = {name: from_dict(cls, raw.get(name, {})) for name, cls in SECTIONS.items()}
    return PretrainConfig(**sections, kinds=raw.get("kinds", {}), weights=raw.get("weights", {}))
