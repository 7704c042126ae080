"""Cross-Modal adaptation (Lin et al., CVPR 2023): sentences are training samples, too.

One linear layer without bias classifies unit image features and unit text features; half of
each batch are images, half are sentences (all sentences, if there are fewer than that):

    p(y | x) = softmax_y( τ w_y · x ),    x = f of an image or t of a sentence
    L = mean over both halves of CE(p, y)

w_c starts at the normalised mean text feature of its class and is not normalised afterwards. An
image has two views, the centre crop and its mirror image. In the linear form f is CLIP's own. With
`form` = partial the end of the image tower is trained together with W, starting at CLIP's values:

    f = unit( P ln_post( block_L(h)_CLS ) ),    h: the rows that enter the last block, frozen

The text tower stays frozen, so sentences affect the end of the image tower only through W. The state that is
best on the few-shot validation images is kept, W and the end of the tower together; without such images
the last state is. With `wise` = w the finished head is (1 - w) W + w W_0, W_0 the text features
(WiSE-FT; the paper's w is 0.5). As in the authors' code, only heads are mixed, never towers.

PAPER: rate, weight decay and batch are swept on the few-shot validation images (linear: 1e-3, 1e-4 ×
0, 0.01, 1e-4 × 8, 32; partial: 1e-5, 1e-6, 1e-7 × 0, 1e-3, 1e-5 × 8), and the linear form starts at random
weights. `search` = grid and `init` = random do the same; the defaults are one point of each grid and the text
features. The 50 warm-up iterations are one epoch here. An epoch has at least 100 iterations, the interval after
which the authors validate.

**Analytic steps.** Steps of the linear form have the gradient in closed form (`LinearSteps`):

    L = mean_i CE(W x_i, y_i),    dL/dW = 1/R Σ_i (p_i - e_{y_i}) x_iᵀ

The batches of all steps are gathered before the first, and losses are computed after the last: of one step only two
matrix products and a softmax are left. The operations are those of backpropagation, so gradients equal them to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector

from dca.backbones.encoder import Ability, Encoder
from dca.core.errors import UserError
from dca.core.options import option, replace_options
from dca.methods.base import Batch, Head, OptimizerName, Problem, ScheduleUnit, Step, Support, TrainedMethod
from dca.methods.shared.frozen_features import FrozenMethod, FrozenOptions, accuracy, check_shapes, select_templates
from dca.methods.shared.heads import LinearHead
from dca.methods.shared.prompts import alphabetical_order

ITERATIONS, BETWEEN_VALIDATIONS = 12800, 100
# Validation images that pass the end of the tower at once: bounds memory, not results.
IMAGES = 64
# Values of options that are None. Half of the authors' batch are images, so 16 and 4 are their 32 and 8.
DEFAULTS_BY_FORM: Mapping[str, Mapping[str, Any]] = {
    "linear": {"batch_size": 16, "learning_rate": 1e-4, "weight_decay": 0.01},
    "partial": {"batch_size": 4, "learning_rate": 1e-5, "weight_decay": 1e-3, "tau": math.exp(4.0)},
}
# The authors' grids, in their order.
GRIDS: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "linear": {"learning_rate": (1e-3, 1e-4), "weight_decay": (0.0, 0.01, 1e-4), "batch_size": (4, 16)},
    "partial": {"learning_rate": (1e-5, 1e-6, 1e-7), "weight_decay": (0.0, 1e-3, 1e-5), "batch_size": (4,)},
}


@dataclass(frozen=True, kw_only=True)
class CrossModalOptions(FrozenOptions):
    """Options of Cross-Modal adaptation."""

    form: Literal["linear", "partial"] = option(
        "linear", "partial: the end of the image tower is trained, too", source="paper"
    )
    init: Literal["zeroshot", "random"] = option(
        "zeroshot", "initial weights: text features, or random as in the authors' script of the linear form"
    )
    search: Literal["none", "grid"] = option(
        "none",
        "grid: as published, train every point of the authors' grid (linear 12, partial 9) and keep the best on "
        "the validation images; learning rate, weight decay and batch size are not searched if they are set",
    )
    keep: Literal["best", "last"] = option(
        "best", "keep the best state on validation images, or the last", source="paper"
    )
    wise: float = option(0.0, "share of the text features in the finished head", low=0, high=1, source="paper")
    tau: float | None = option(
        None, "τ, scale of the softmax; auto: the checkpoint's, partial e⁴", low=0, source="Cross-Modal's code"
    )
    epochs: int | None = option(
        None, "passes over the training images; auto: as many as 12,800 iterations need", low=0, source="paper"
    )
    optimizer: OptimizerName = option("adamw", "optimiser", source="paper")
    batch_size: int | None = option(
        None, "images per step, and as many sentences; auto: 16, partial 4", low=1, source="paper's grid"
    )
    learning_rate: float | None = option(
        None, "learning rate after warm-up; auto: 1e-4, partial 1e-5", low=0, source="paper's grid"
    )
    # A number in every other method; `resolve` makes it one before it is used.
    weight_decay: float | None = option(  # type: ignore[assignment]
        None, "weight decay of every trained tensor; auto: 0.01, partial 1e-3", low=0, source="paper's grid"
    )
    schedule: ScheduleUnit = option(
        "step", "whether the cosine schedule advances per epoch or per step", source="paper"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.search == "grid" and self.keep == "last":
            raise UserError("search=grid compares the best states of its points, so keep=last cannot be combined")


def batches_in_grid(sizes: Sequence[int], sentences: int, rows: int) -> list[int]:
    """Batch sizes below the numbers of sentences and images, as in the authors' code; else the smallest."""
    return [size for size in sizes if size < min(sentences, rows)] or [min(sizes)]


def repeats_per_epoch(rows: int, batch: int) -> int:
    """How often an epoch repeats the rows, so that it has at least 100 iterations."""
    return max(1, math.ceil(BETWEEN_VALIDATIONS * batch / rows))


@torch.no_grad()
def load_vector(module: nn.Module, vector: Tensor) -> None:
    """Set all values of a module from one vector: the reverse of `parameters_to_vector`."""
    parameters = list(module.parameters())
    for p, values in zip(parameters, torch.split(vector, [p.numel() for p in parameters]), strict=True):
        p.copy_(values.view_as(p))


class CrossModal(FrozenMethod, TrainedMethod):
    """A linear layer trained on images and on sentences."""

    name = "cross_modal"
    paper = "Lin et al., Multimodality Helps Unimodality: Cross-Modal Few-Shot Learning, CVPR 2023"
    needs = frozenset({Ability.IMAGE_FEATURES, Ability.TEXT_FEATURES})
    trains_on = "features"
    validation = "few"
    Options = CrossModalOptions
    kept_defaults = MappingProxyType({
        "search": "grid was chosen, as published; it trains twelve times, which a first try need not do",
    })  # fmt: skip
    class_rows = frozenset({"weight", "final_weight"})
    # Weights of the finished model, and their accuracy on the validation images (-1: unknown).
    results = MappingProxyType({"final_weight": torch.float32, "validated": torch.float32})
    options: CrossModalOptions
    final_weight: Tensor
    validated: Tensor
    best_end: Tensor | None

    @classmethod
    def resolve(cls, options: CrossModalOptions, problem: Problem) -> CrossModalOptions:
        """Fill in defaults of the form, and the number of epochs nearest to the paper's 12,800 iterations."""
        options = options.fill_unset(**DEFAULTS_BY_FORM[options.form])
        batch, rows = options.batch_size or 1, 2 * len(problem.names) * problem.shots
        epochs = round(ITERATIONS * batch / (rows * repeats_per_epoch(rows, batch)))
        return options.fill_unset(epochs=max(epochs, 1))

    @classmethod
    def candidate_options(cls, options: CrossModalOptions, problem: Problem) -> list[CrossModalOptions]:
        """The points of the grid, over options that are not set."""
        if options.search == "none":
            return [options]
        axes = {name: values for name, values in GRIDS[options.form].items() if getattr(options, name) is None}
        if "batch_size" in axes:
            C = len(problem.names)
            sentences = C * len(select_templates(problem, options.templates, cls.imagenet_templates))
            axes["batch_size"] = batches_in_grid(axes["batch_size"], sentences, 2 * C * problem.shots)
        points = product(*axes.values())
        return [replace_options(options, **dict(zip(axes, point, strict=True))) for point in points]

    @classmethod
    def needs_with(cls, options: CrossModalOptions) -> frozenset[Ability]:
        """The end of the image tower, too, where it is trained."""
        return cls.needs | ({Ability.IMAGE_END} if options.form == "partial" else set())

    @property
    def validation_accuracy(self) -> float:
        """Accuracy of the state that was kept; -1 without validation images."""
        return float(self.validated)

    def options_for_folds(self, options: CrossModalOptions) -> CrossModalOptions:
        """The point of the grid that was selected."""
        selected = {name: getattr(self.options, name) for name in GRIDS[options.form]}
        return replace_options(options, search="none", **selected) if options.search == "grid" else options

    def notes(self) -> list[str]:
        """Whether a search had nothing to select on."""
        if self.options.search == "none" or float(self.validated) >= 0:
            return []
        return ["search=grid had no validation images to select on, so one fixed point of the grid was trained."]

    def __init__(self, encoder: Encoder, problem: Problem, options: CrossModalOptions) -> None:
        super().__init__(encoder, problem, options)
        self.weight = nn.Parameter(torch.zeros(len(problem.names), encoder.feature_dim, device=encoder.device))
        # Of a ViT its last block, last norm and projection.
        partial = options.form == "partial"
        self.end = self.clip.visual.copy_end().requires_grad_(True) if partial else None
        # The best end so far, in the state of an unfinished run; in a finished model it is the parameters.
        self.register_buffer("best_end", None)

    @property
    def tau(self) -> float:
        """τ, the scale of the softmax."""
        return self.encoder.tau if self.options.tau is None else self.options.tau

    @property
    def has_frozen_image_tower(self) -> bool:
        """Only the linear form leaves the image tower unchanged."""
        return self.end is None

    def _end_vector(self) -> Tensor:
        """All values of the end as one vector."""
        assert self.end is not None
        return parameters_to_vector(self.end.parameters()).detach()

    def rows(self, pixels: Tensor) -> Tensor:
        """Computed once per image: unit features (B, D), or what enters the end of the tower, (B, ...)."""
        if self.end is None:
            return super().encode(pixels)
        return self.clip.encode_until_end(pixels)

    def _encode_rows(self, support: Support, *, mirrored: bool = False) -> Tensor:
        """`rows` of all images, or of their mirror images."""
        if self.end is None:
            return self.adapt_features(support.frozen_features(mirrored=mirrored))
        return support.map(lambda pixels: self.rows(pixels.flip(-1) if mirrored else pixels))

    def features(self, rows: Tensor) -> Tensor:
        """Unit image features (B, D) of `rows`. The trained end computes in float32, as in the authors' code."""
        return rows if self.end is None else F.normalize(self.end(rows), dim=-1)

    def encode(self, pixels: Tensor) -> Tensor:
        """f: unit image features, (B, D)."""
        return self.features(self.rows(pixels))

    def training_rows(self, support: Support) -> tuple[Tensor, Tensor]:
        """Rows of the images and of their mirror images, (R, ...), repeated to fill an epoch."""
        rows = torch.cat([self._encode_rows(support), self._encode_rows(support, mirrored=True)])
        times = repeats_per_epoch(len(rows), self.options.batch_size or 1)
        # The rows of one image take 0.6 MB for a ViT-B/16: avoid a copy if they are not repeated.
        repeated = rows if times == 1 else torch.cat([rows] * times)
        return repeated, support.labels.repeat(2 * times)

    def prepare(self, support: Support) -> None:
        """Initial weights, the sentences as samples, and the validation images."""
        texts = self.texts()
        self._text = first = F.normalize(texts.mean(dim=0), dim=-1)
        order = torch.tensor(alphabetical_order(self.problem.names), device=texts.device)
        self._sentences = F.normalize(texts[:, order].flatten(0, 1), dim=-1)
        self._sentence_labels = order.repeat(len(texts))
        if self.options.init == "random":
            bound = 1 / math.sqrt(texts.shape[2])
            drawn = torch.empty(texts.shape[1:]).uniform_(-bound, bound, generator=self.generator("weight"))
            first = drawn.to(texts.device)
        self._validation = None
        if self.options.keep == "best" and (validation := support.validation) is not None:
            self._validation = (self._encode_rows(validation), validation.labels)
            self.best_end = None if self.end is None else self._end_vector()
        with torch.no_grad():
            self.weight.copy_(first)
        self.final_weight, self.validated = first.clone(), first.new_tensor(-1.0)

    def step(self, batch: Batch) -> Step:
        """Cross-entropy of the images and of as many sentences, or of all sentences."""
        drawn = torch.randperm(len(self._sentences), generator=batch.generator)[: len(batch.labels)]
        drawn = drawn.to(self._sentences.device)
        x = torch.cat([self.features(batch.inputs), self._sentences[drawn]])
        labels = torch.cat([batch.labels, self._sentence_labels[drawn]])
        logits = self.tau * x @ self.weight.T
        probabilities = logits[: len(batch.labels)].detach().softmax(dim=-1)
        return Step({"cls": F.cross_entropy(logits, labels)}, probabilities)

    @property
    def analytic_steps(self) -> Callable[[Batch], LinearSteps] | None:
        """Only the linear form's gradient is simple."""
        return self._linear_steps if self.end is None else None

    def _linear_steps(self, batches: Batch) -> LinearSteps:
        """The same steps with the same draws. Inputs (S, B, D), labels (S, B)."""
        S, B = batches.labels.shape
        order = torch.stack([torch.randperm(len(self._sentences), generator=batches.generator)[:B] for _ in range(S)])
        drawn = order.to(self._sentences.device)
        x = torch.cat([batches.inputs, self._sentences[drawn]], dim=1)
        return LinearSteps(
            self.weight, self.tau * x, torch.cat([batches.labels, self._sentence_labels[drawn]], dim=1), B
        )

    @torch.no_grad()
    def on_epoch_end(self, epoch: int, epochs: int) -> None:
        """Keep the state if it is the best so far on the validation images."""
        if self._validation is None:
            return
        rows, labels = self._validation
        features = torch.cat([self.features(part) for part in torch.split(rows, IMAGES)])
        # As a tensor of the same type, so that an equally good state never looks better by rounding.
        score = self.validated.new_tensor(accuracy(features @ self.weight.T, labels))
        if score > self.validated:
            self.final_weight, self.validated = self.weight.detach().clone(), score
            self.best_end = None if self.end is None else self._end_vector()

    def finish(self, support: Support) -> None:
        """The best state, or the last if none was kept; then WiSE-FT of the head."""
        best = self.weight.detach() if float(self.validated) < 0 else self.final_weight
        self.final_weight = (1 - self.options.wise) * best + self.options.wise * self._text
        if self.end is not None and self.best_end is not None:
            load_vector(self.end, self.best_end)
        self.best_end = self._validation = None

    def make_head(self) -> Head:
        """Softmax of τ W f."""
        return LinearHead.cosine(self.final_weight, self.tau)

    def check_results(self, state: Mapping[str, Tensor]) -> list[str]:
        """One weight vector per class, and one accuracy."""
        C, D = len(self.problem.names), self.encoder.feature_dim
        return check_shapes(state, {"final_weight": (C, D), "validated": ()})


class LinearSteps:
    """S steps for weights W (C, D); see `AnalyticSteps`.

    x: rows (S, R, D). labels: (S, R). images: how many rows of each step, from the first, are images.
    """

    def __init__(self, weight: Tensor, x: Tensor, labels: Tensor, images: int) -> None:
        S, R = labels.shape
        self.weight, self.labels, self.images = weight.detach(), labels, images
        self.logs = x.new_empty(S, R, len(weight))
        # What backpropagation hands to the logarithm of the softmax.
        outer = torch.zeros_like(self.logs).scatter_(2, labels[:, :, None], -1 / R)
        self._steps = list(zip(x, self.logs, outer, strict=True))

    @torch.no_grad()
    def gradients(self, number: int) -> tuple[Tensor]:
        """The gradient (C, D) of one step at the present weights."""
        x, logs, outer = self._steps[number]
        torch.log_softmax(x @ self.weight.T, dim=-1, out=logs)
        inner = torch.ops.aten._log_softmax_backward_data(outer, logs, -1, logs.dtype)
        return (inner.T @ x,)

    def summarize(self) -> tuple[dict[str, Tensor], Tensor]:
        """The loss and the number of correct images of each step, (S,)."""
        correct = self.logs[:, : self.images].argmax(dim=-1) == self.labels[:, : self.images]
        losses = -self.logs.gather(2, self.labels[:, :, None]).mean(dim=(1, 2))
        return {"cls": losses}, correct.sum(dim=1)


METHOD = CrossModal
