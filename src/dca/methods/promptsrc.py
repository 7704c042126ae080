"""PromptSRC: self-regulating prompts (Khattak et al., ICCV 2023).

Tokens are learned in both towers, at the input and before each of the next blocks, to a
depth of 9; deeper blocks see the outputs of the last ones. The first text tokens start from
"a photo of a". The features of CLIP without tokens, f° and t°, regularise them:

    z = τ cos(f, t),    z° = τ cos(f°, t°)
    L = CE(z) + 25 mean|t - t°| + 10 mean|f - f°| + 1/(B·C) Σ KL(softmax z° ‖ softmax z)

The absolute differences are means over all entries. The finished model is a weighted mean of
the E epochs' tokens, w_e ∝ exp(-(e - μ)² / 2σ²), Σ_e w_e = 1.

t° is the mean of the text features (not normalised before) of 60 sentences, whatever the dataset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dca.backbones.dual_encoder import DualEncoder, ExtraTokens
from dca.backbones.encoder import Ability
from dca.core.errors import UserError
from dca.core.options import option
from dca.methods.base import Batch, Problem, ProtocolOptions, Step, Support, describe_terms
from dca.methods.shared.prompts import check_name_lengths, fill_template, init_context, random_tokens, tokenize_names
from dca.methods.shared.text_feature_methods import TextFeatureMethod, TextFeatureOptions

EPOCHS = 50
# (μ, σ) of 50 epochs; shorter and longer runs stretch them.
EVEN, LATE = (30.0, 30.0), (45.0, 5.0)
# The authors' 60 sentences of t°, in parts: the words before "a NAME" and "the NAME" ...
BEFORE = {
    "a the": "a photo of,a bad photo of,a cropped photo of,a bright photo of,a close-up photo of,a pixelated photo of,"
    "a blurry photo of,a low resolution photo of,a sculpture of,a rendering of,a painting of,a doodle of,a sketch of,"
    "a rendition of",
    "a": "a jpeg corrupted photo of,a drawing of,a tattoo of,graffiti of,art of",
    "the": "a dark photo of,a black and white photo of,a good photo of,itap of",
}
# ... the words between "a photo of a" (or "the") and the name, and those between "a" (or "the") and the name.
IN_PHOTOS = {"a the": "hard to see,clean,dirty", "a": "large,nice,weird", "the": "cool"}
MATERIALS = {"a the": "embroidered,plastic,origami", "a": "cartoon", "the": "toy"}
LATE_DATASETS = {"stanford_cars", "oxford_flowers", "fgvc_aircraft", "dtd", "eurosat"}
CONFIGS = "PromptSRC's code: configs/trainers/PromptSRC/vit_b16_c2_ep20_batch4_4+4ctx"
BASE_TO_NEW = ProtocolOptions({"epochs": 20, "average_mean": 15.0, "average_spread": 1.0}, f"{CONFIGS}.yaml")
# One model, trained on 16 shots of all classes of ImageNet, for both protocols.
TRANSFER = ProtocolOptions(
    {"depth": 3, "epochs": 20, "average_mean": 6.0, "average_spread": 10.0}, f"{CONFIGS}_cross_datasets.yaml"
)


@dataclass(frozen=True, kw_only=True)
class PromptSRCOptions(TextFeatureOptions):
    """Options of PromptSRC."""

    epochs: int = option(EPOCHS, "E, passes over the few-shot images", low=0, source="paper")
    batch_size: int = option(4, "images per step", low=1, source="paper")
    learning_rate: float | None = option(
        0.0025, "learning rate after warm-up; none: from the gradient", low=0, empty="none", source="paper"
    )
    phrase: str | None = option(
        "a photo of a", "initial words of the first text tokens; none: random", empty="none", source="paper"
    )
    text_tokens: int = option(4, "text tokens per block if there is no phrase", low=1, high=1024, source="paper")
    visual_tokens: int = option(4, "visual tokens per block", low=0, high=4096, source="paper")
    depth: int = option(9, "blocks with tokens of their own; at most all of a tower", low=1, source="paper")
    text_weight: float = option(25.0, "weight of mean|t - t°|", low=0, source="paper")
    image_weight: float = option(10.0, "weight of mean|f - f°|", low=0, source="paper")
    logit_weight: float = option(1.0, "weight of the divergence of z from z°", low=0, source="paper")
    teacher_templates: tuple[str, ...] = option(
        (), "sentences of t°, {} for the name; none: the authors' 60", source="PromptSRC's code"
    )
    average_mean: float | None = option(
        None, "μ, epoch with the largest weight; auto: by dataset", source="PromptSRC's code"
    )
    average_spread: float | None = option(
        None, "σ, spread of the weights in epochs; auto: by dataset", low=1e-3, source="PromptSRC's code"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if wrong := [t for t in self.teacher_templates if "{}" not in t]:
            raise UserError("teacher_templates without {} for the class name", details=wrong)


def teacher_sentences() -> list[str]:
    """The authors' sentences of t°, {} for the name."""

    def with_articles(words: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        for articles, group in words.items():
            yield from product(group.split(","), articles.split())

    templates = [f"{before} {article} {{}}." for before, article in with_articles(BEFORE)]
    templates += [f"a photo of {article} {word} {{}}." for word, article in with_articles(IN_PHOTOS)]
    templates += [f"a photo of {word} {{}}." for word in ("many", "my", "one")]
    templates += [f"{article} {word} {{}}." for word, article in with_articles(MATERIALS)]
    return [*templates, "a {} in a video game.", "the {} in a video game."]


def epoch_weights(epochs: int, mean: float, spread: float) -> Tensor:
    """w_1 .. w_E of the weighted mean over epochs: (E,), float64."""
    e = torch.arange(1, epochs + 1, dtype=torch.float64)
    return (-(e - mean).square() / (2 * spread**2)).softmax(dim=0)


class PromptSRC(TextFeatureMethod):
    """Deep prompts in both towers, regularised by CLIP's own features and averaged over epochs."""

    name = "promptsrc"
    paper = "Khattak et al., Self-regulating Prompts: Foundational Model Adaptation without Forgetting, ICCV 2023"
    needs = frozenset({Ability.IMAGE_FEATURES, Ability.TEXT_PROMPTS, Ability.IMAGE_TOKENS})
    trains_on = "images"
    Options = PromptSRCOptions
    term_titles = describe_terms(text="drift of texts", image="drift of images", logits="drift of answers")
    protocol_options = MappingProxyType(
        {"base-to-new": BASE_TO_NEW, "cross-dataset": TRANSFER, "domain-shift": TRANSFER}
    )
    options: PromptSRCOptions
    average: Tensor | None

    @classmethod
    def resolve(cls, options: PromptSRCOptions, problem: Problem) -> PromptSRCOptions:
        """Fill in the weights of the epochs by dataset."""
        mean, spread = LATE if problem.dataset in LATE_DATASETS else EVEN
        share = max(options.epochs, 1) / EPOCHS
        resolved: PromptSRCOptions = super().resolve(options, problem)
        return resolved.fill_unset(average_mean=mean * share, average_spread=spread * share)

    def __init__(self, clip: DualEncoder, problem: Problem, options: PromptSRCOptions) -> None:
        super().__init__(clip, problem, options)
        text, vision = clip.text, clip.visual
        first = init_context(clip, options.phrase or options.text_tokens, self.generator("context"))
        deeper = (min(options.depth, text.layers) - 1, *first.shape)
        seen = (min(options.depth, vision.layers), options.visual_tokens, vision.width)
        self.context = nn.Parameter(first)
        self.deep = nn.Parameter(random_tokens(clip, deeper, self.generator("deep")))
        self.visual = nn.Parameter(random_tokens(clip, seen, self.generator("visual")))
        self.name_ids = tokenize_names(clip, problem.names, ".")
        check_name_lengths(clip, problem.names, self.name_ids, len(first))
        # The sum of w_e θ_e so far; in the state only during training: see `prepare` and `finish`.
        self.register_buffer("average", None)

    def encode(self, pixels: Tensor) -> Tensor:
        """f: unit image features through the visual tokens, (B, D)."""
        extra = ExtraTokens(dict(enumerate(self.visual)), position="end", before_norm=True)
        return F.normalize(self.clip.encode_image(pixels, tokens=extra), dim=-1)

    def text_contexts(self) -> Sequence[Tensor]:
        """The context of the first block."""
        return [self.context]

    def encode_text(self) -> Tensor:
        """t: unit text features, (C, D)."""
        features = self.clip.encode_prompts([self.context], self.name_ids, [dict(enumerate(self.deep, 1))])
        return F.normalize(features[0], dim=-1)

    @cached_property
    def teacher(self) -> Tensor:
        """t°: unit text features, (C, D)."""
        templates = self.options.teacher_templates or teacher_sentences()
        with torch.no_grad():
            each = [self.clip.encode_text(fill_template(self.problem.names, template)) for template in templates]
            return F.normalize(torch.stack(each).mean(dim=0), dim=-1)

    def step(self, batch: Batch) -> Step:
        """Cross-entropy, and the terms that keep text, image and probabilities near those of CLIP."""
        options = self.options
        with torch.no_grad():
            f0 = F.normalize(self.clip.encode_image(batch.inputs), dim=-1)
            z0 = self.clip.tau * f0 @ self.teacher.mT
        f, t = self.encode(batch.inputs), self.encode_text()
        z = self.clip.tau * f @ t.mT
        kl = F.kl_div(z.log_softmax(dim=-1), z0.log_softmax(dim=-1), reduction="sum", log_target=True)
        terms = {
            "cls": F.cross_entropy(z, batch.labels),
            "text": options.text_weight * (t - self.teacher).abs().mean(),
            "image": options.image_weight * (f - f0).abs().mean(),
            "logits": options.logit_weight * kl / z.numel(),
            **self.dca_terms(f, t, batch.labels),
        }
        return Step(terms, z.detach().softmax(dim=-1))

    def prepare(self, support: Support) -> None:
        """Start the average over epochs."""
        super().prepare(support)
        self.average = torch.zeros(self.count_parameters(), device=self.clip.device)

    @torch.no_grad()
    def on_epoch_end(self, epoch: int, epochs: int) -> None:
        """Add w_e θ_e to the mean; after the last epoch the mean is the model."""
        options = self.options
        assert self.average is not None
        assert options.average_mean is not None
        assert options.average_spread is not None
        weight = float(epoch_weights(epochs, options.average_mean, options.average_spread)[epoch - 1])
        self.average += weight * torch.cat([p.flatten() for p in self.parameters()])
        if epoch == epochs:
            sizes = [p.numel() for p in self.parameters()]
            for parameter, mean in zip(self.parameters(), torch.split(self.average, sizes), strict=True):
                parameter.copy_(mean.view_as(parameter))

    def finish(self, support: Support) -> None:
        """Text features of the averaged tokens; the mean itself is no longer needed."""
        self.average = None
        super().finish(support)


METHOD = PromptSRC
