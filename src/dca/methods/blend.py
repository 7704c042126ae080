"""The closed form and a trained method, multiplied; the weight of the trained method is found on the training images.

    p(c | x) ∝ p_closed(c | x)^a  p_trained(c | x)^b,      a, b >= 0

Trained prompts know something else than statistics of frozen features. a and b have the least log-loss on training
images that were left out: one at a time for the closed form (exactly), in folds for the trained method. Every class has
the same weight, and labels are smoothed as for the closed form. Folds are fitted first, so that a method which is not
worth it is not fitted again: then b = 0 and the model is the closed form alone.

The trained method is only taken in if it lowers that loss by more than noise: by more than 1/√2 standard errors of the
paired differences of the images' losses. Since b is fitted on the same images, the difference is not zero where the
method is worthless. There, with z the standardised slope of the loss at b = 0, the step to the minimum gains z² / 2 in
all, and the images' differences scatter by |z|: the gain is z / 2 standard errors. So the rule asks for z > √2, which
is Akaike's criterion: one more parameter must gain more than it is expected to lose on new images. A worthless method
passes once in 13 times.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dca.backbones.encoder import Encoder
from dca.core.errors import UserError
from dca.core.hints import list_methods
from dca.core.options import option, replace_options
from dca.methods.base import (
    CurvePoint,
    Head,
    HeldOutPredictions,
    Method,
    Problem,
    Support,
    TrainingOptions,
    ValidationUse,
    check_state,
)
from dca.methods.closed_form import ClosedForm
from dca.methods.registry import choose_encoder, get_method
from dca.methods.shared.frozen_features import check_shapes
from dca.methods.shared.product_of_experts import class_weights, fit_scales
from dca.stats.calibration import FLOOR
from dca.stats.conformal import ClassRanks
from dca.stats.intervals import macro_accuracy

Rows = NDArray[np.float64]
# Standard errors that the second model must gain to be taken in.
ERRORS = 0.5**0.5


@dataclass(frozen=True, kw_only=True)
class BlendOptions(TrainingOptions):
    """Options of the blend; those of the closed form are its defaults."""

    trained: str = option("dca", "name of the method that is trained")
    trained_options: TrainingOptions | None = option(
        None, "its options, by name; on the command line every other --set is one of them"
    )
    epochs: int | None = option(None, "its passes over the training images; auto: as that method decides", low=0)
    folds: int = option(5, "most folds in which it is weighed; each is one more fit", low=2, high=1000)

    def inner(self) -> tuple[type[Method], Any]:
        """The trained method and its options."""
        kind = get_method(self.trained)
        return kind, kind.Options() if self.trained_options is None else self.trained_options

    def with_inner(self, name: str, inner: Any) -> BlendOptions:
        """The same with this trained method and its options."""
        return replace_options(self, trained=name, trained_options=inner, epochs=None)


class Blend(Method):
    """The closed form and a trained method, multiplied."""

    name = "blend"
    paper = "this library, 2026: docs/your-own-images.md"
    trains_on = "nothing"
    fits_others = True
    has_cheap_held_out = True
    calibrated = True
    learns_other = True
    Options = BlendOptions
    results = MappingProxyType({"weights": torch.float64})
    options: BlendOptions
    weights: Tensor
    _held: HeldOutPredictions | None = None

    def __init__(self, encoder: Encoder, problem: Problem, options: BlendOptions) -> None:
        super().__init__(encoder, problem, options)
        kind, inner = options.inner()
        self.closed = ClosedForm.build(encoder, problem, ClosedForm.Options())
        self.trained: Method | None = kind.build(choose_encoder(kind, encoder), problem, inner)

    @classmethod
    def parse_options(
        cls, values: Mapping[str, Any] | Iterable[str], *, defaults: Mapping[str, Any] = MappingProxyType({})
    ) -> BlendOptions:
        """Read and check the options, with those of the trained method.

        Args:
            values: Values by name, where `trained_options` are the options of the trained method by name; or
                `key=value` texts, where all but `trained` and `folds` are options of the trained method.
            defaults: As for `Method`.

        Returns:
            The options, where `trained_options` is an object of the trained method.

        Raises:
            UserError: As for `Method`, and if the trained method cannot be blended.
        """
        inner: Any
        if isinstance(values, Mapping):
            values = {**defaults, **values}
            inner = values.pop("trained_options", None) or {}
        else:
            texts = list(values)
            values = [text for text in texts if text.partition("=")[0].strip() in ("trained", "folds")]
            inner = [text for text in texts if text not in values]
        options: BlendOptions = super().parse_options(values)
        kind = get_method(options.trained)
        if kind.fits_others or kind is ClosedForm:
            raise UserError(f"{kind.name} cannot be blended with the closed form", hint=list_methods())
        if options.epochs is not None:
            given = vars(inner) if isinstance(inner, TrainingOptions) else inner
            inner = {**given, "epochs": options.epochs}
        return options.with_inner(kind.name, inner if isinstance(inner, kind.Options) else kind.parse_options(inner))

    @classmethod
    def validation_for(cls, options: BlendOptions) -> ValidationUse:
        """As for the trained method alone."""
        kind, inner = options.inner()
        return kind.validation_for(inner)

    @property
    def blend_weights(self) -> BlendWeights:
        """Exponents, and what the trained method contributes."""
        return BlendWeights(*self.weights.tolist())

    def finish(self, support: Support) -> None:
        """Fit the closed form, weigh the trained method in folds, and fit it if it has a weight."""
        self.closed.finish(support)
        self.closed.build_head()
        self._held, weights = self.closed.predict_held_out(support), BlendWeights()
        if self.closed.can_hold_out:
            self._held, weights = self._fit_weights(support, self._held)
        self.weights = torch.tensor(astuple(weights), dtype=torch.float64, device=self.encoder.device)
        self.trained = self._fit_trained(support) if weights.second else None

    def _fit_weights(self, support: Support, own: HeldOutPredictions) -> tuple[HeldOutPredictions, BlendWeights]:
        """Fit the weights to held-out predictions of both methods; returns them and the predictions of the blend."""
        if support.fitter is None:
            raise ValueError("a blend needs Support.fitter to fit the trained method")
        other, exact = support.fitter.predict_held_out(*self.options.inner(), self.options.folds), self.closed
        weights = fit_blend_weights(
            exact.leave_one_out().probabilities, other.probabilities, support.labels.cpu().numpy()
        )
        if not weights.second:
            return own, weights
        how = " and ".join(dict.fromkeys([own.how, other.how]))
        both = multiply_probabilities(own.probabilities, other.probabilities, weights)
        shortages = [one.shortage for one in (own, other) if one.shortage is not None]
        return HeldOutPredictions(
            both, how, np.maximum.reduce(shortages) if shortages else None, own.occasions
        ), weights

    def _fit_trained(self, support: Support) -> Method:
        """The trained method, fitted on all training images; the values that it chose become options."""
        assert support.fitter is not None
        trained = support.fitter.fit(*self.options.inner())
        trained.zero_grad(set_to_none=True)
        self.options = self.options.with_inner(trained.name, trained.options)
        return trained

    def predict_held_out(self, support: Support) -> HeldOutPredictions | None:
        """Those of `finish`, with the weights held fixed."""
        return self._held

    def make_head(self) -> Head:
        """The product of both heads, or the head of the closed form."""
        first, weights = self.closed.build_head().head, self.blend_weights
        if self.trained is None:
            return first
        return ProductHead(first, self.trained.build_head().head, self._size, weights.first, weights.second)

    @property
    def _size(self) -> int:
        """Size of the features of the closed form; those of the trained method follow."""
        return self.encoder.feature_dim

    @property
    def has_frozen_image_tower(self) -> bool:
        """Whether the trained method leaves the image tower as it is, or is left out."""
        return self.trained is None or self.trained.has_frozen_image_tower

    def encode(self, pixels: Tensor) -> Tensor:
        """Unit features of the frozen backbone, and those of the trained method: (B, D) or (B, 2 D)."""
        if self.trained is None or self.trained.has_frozen_image_tower:
            return super().encode(pixels)
        own = self.encoder.take_pixels(self.trained.encoder, pixels)
        return torch.cat([self.closed.encode(pixels), self.trained.encode(own)], dim=-1)

    def adapt_features(self, features: Tensor) -> Tensor:
        """The features of `encode`, where the image tower is unchanged."""
        own = self.closed.adapt_features(features)
        if self.trained is None:
            return own
        others = self.encoder.take_features(self.trained.encoder, features)
        return torch.cat([own, self.trained.adapt_features(others)], dim=-1)

    def text_contexts(self) -> Sequence[Tensor]:
        """Those of the trained method."""
        return () if self.trained is None else self.trained.text_contexts()

    def prompt_features(self) -> Tensor | None:
        """Those of the trained method, or of the closed form if that is alone."""
        return (self.trained or self.closed).prompt_features()

    def p_values(self, features: Tensor) -> Tensor | None:
        """Those of the closed form."""
        return self.closed.p_values(features[:, : self._size])

    def smallest_p_value(self) -> float | None:
        """That of the closed form."""
        return self.closed.smallest_p_value()

    def learn_other(self, support: Support) -> None:
        """The p-values are those of the closed form."""
        self.closed.learn_other(support)

    def keep_other(self, kept: Sequence[bool]) -> None:
        """The p-values are those of the closed form."""
        self.closed.keep_other(kept)

    def class_ranks(self, features: Tensor) -> ClassRanks | None:
        """Those of the closed form if it is alone."""
        return self.closed.class_ranks(features) if self.trained is None else None

    def learning_curve(self, accuracy: float) -> list[CurvePoint]:
        """That of the closed form if it is alone."""
        return self.closed.learning_curve(accuracy) if self.trained is None else []

    def notes(self) -> list[str]:
        """What the trained method brought."""
        name, weights = self.options.trained, self.blend_weights
        if not self.closed.can_hold_out:
            note = f"{name} was not trained: with so few images per class, none can be left out to weigh it."
        elif self.trained is None:
            note = f"{name} brought nothing here: its weight is zero, and the model is the closed form alone."
        else:
            gain = f"{100 * weights.points:+.1f} points and a log-loss that is {weights.loss:.3f} lower"
            exponents = f"weights: closed form {weights.first:.2f}, {name} {weights.second:.2f}"
            note = f"{name} brought {gain}, for training images that were left out ({exponents})."
        return [*self.closed.notes(), note]

    def with_class(self, name: str, images: Support) -> Self:
        """One more class for both, with the same weights."""
        return self._rebuild(
            self.closed.with_class(name, images), self.trained and self.trained.with_class(name, images)
        )

    def without_class(self, index: int) -> Self:
        """One class less for both, with the same weights."""
        return self._rebuild(self.closed.without_class(index), self.trained and self.trained.without_class(index))

    def with_name(self, index: int, name: str) -> Self:
        """Another name for both, with the same weights."""
        return self._rebuild(self.closed.with_name(index, name), self.trained and self.trained.with_name(index, name))

    def _rebuild(self, closed: ClosedForm, trained: Method | None) -> Self:
        """A blend of these two with the same weights, and its head."""
        options = self.options if trained is None else self.options.with_inner(trained.name, trained.options)
        other = type(self)(self.encoder, closed.problem, options)
        other.closed, other.trained, other.weights = closed, trained, self.weights
        return other.build_head()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Load a saved `state_dict`: weights, the closed form, and the trained method if it has a weight."""
        own, closed, trained = _split_state(state)
        problems = check_state({}, self.results, own) or self.check_results(own)
        if not problems:
            self.weights = own["weights"].to(self.encoder.device)
            self.trained = self.trained if self.blend_weights.second else None
            problems = _restore_part("closed", self.closed, closed) + _restore_part("trained", self.trained, trained)
        if problems:
            raise UserError(f"the saved tensors are not those of a '{self.name}' model", details=problems)
        self.build_head()

    def check_results(self, state: Mapping[str, Tensor]) -> list[str]:
        """Four numbers, of which the exponents are not negative."""
        weights = state["weights"]
        problems = check_shapes(state, {"weights": (len(dataclasses.fields(BlendWeights)),)})
        if not problems and weights[:2].min() < 0:
            problems.append("weights: exponents of at least 0 expected")
        return problems


def _split_state(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Split a state into the tensors of the blend, of the closed form and of the trained method."""
    closed, trained = (
        {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
        for prefix in ("closed.", "trained.")
    )
    return {name: t for name, t in state.items() if not name.startswith(("closed.", "trained."))}, closed, trained


def _restore_part(part: str, method: Method | None, state: Mapping[str, Tensor]) -> list[str]:
    """Restore one of the two methods; returns its errors."""
    if method is None:
        return [f"unexpected {part}.{name}" for name in state]
    try:
        method.restore(state)
    except UserError as error:
        return [f"{part}: {line}" for line in error.details or [error.problem]]
    return []


@dataclass(frozen=True)
class BlendWeights:
    """Exponents of the two models, and what the second one contributes.

    first, second: a and b; 1 and 0 if the second is left out. points: change of the accuracy, a fraction.
    loss: how much lower the log-loss is; both for images that were left out, against the first model alone.
    """

    first: float = 1.0
    second: float = 0.0
    points: float = 0.0
    loss: float = 0.0


def log_product(first: Tensor, second: Tensor, a: float, b: float) -> Tensor:
    """Inputs of the softmax, float64: a log p₁ + b log p₂ of probabilities (B, C)."""
    return a * _clamped_log(first) + b * _clamped_log(second)


def multiply_probabilities(first: Rows, second: Rows, weights: BlendWeights) -> Rows:
    """Probabilities (N, C) of the product; rows of NaN where one of the models has no prediction."""
    logits = log_product(torch.from_numpy(first), torch.from_numpy(second), weights.first, weights.second)
    probabilities: Rows = logits.softmax(dim=-1).numpy()
    return probabilities


def fit_blend_weights(first: Rows, second: Rows, labels: NDArray[np.int64]) -> BlendWeights:
    """Fit the exponents to probabilities (N, C) by models that have not seen the images.

    labels: (N,). Rows of NaN do not count.
    """
    known = np.isfinite(first).all(axis=1) & np.isfinite(second).all(axis=1)
    if not known.any():
        return BlendWeights()
    y = torch.from_numpy(labels[known])
    scores = torch.stack([_clamped_log(torch.from_numpy(rows[known])) for rows in (first, second)])
    weights, smoothing = class_weights(y), 1 / (len(y) + 2)
    alone = fit_scales(scores[:1], y, weights, smoothing=smoothing).values
    both = fit_scales(scores, y, weights, smoothing=smoothing).values
    before, after = alone[0] * scores[0], torch.einsum("e,enc->nc", both, scores)
    gains = _smoothed_losses(before, y, smoothing) - _smoothed_losses(after, y, smoothing)
    gain = (weights * gains).sum()
    error = (weights * (gains - gain)).square().sum().sqrt()
    if both[1] <= 0 or not gain > ERRORS * error:
        return BlendWeights()
    points = _mean_accuracy(after, y) - _mean_accuracy(scores[0], y)
    return BlendWeights(float(both[0]), float(both[1]), points, float(gain))


def _clamped_log(p: Tensor) -> Tensor:
    return p.double().clamp_min(FLOOR).log()


def _smoothed_losses(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Log-loss of each image, (N,), with smoothed labels: logits (N, C), labels (N,)."""
    logs = logits.log_softmax(dim=-1)
    own = logs.gather(1, labels[:, None])[:, 0]
    return -(1 - smoothing) * own - smoothing * logs.mean(dim=-1)


def _mean_accuracy(logits: Tensor, labels: Tensor) -> float:
    return macro_accuracy((logits.argmax(dim=-1) == labels).numpy(), labels.numpy())[0]


@dataclass(frozen=True)
class ProductHead(Head):
    """Product of two heads. The first `size` features of an image are those of the first head. a, b: exponents."""

    first: Head
    second: Head
    size: int
    a: float
    b: float

    def __call__(self, f: Tensor) -> Tensor:
        """Image features f (B, D₁ + D₂) -> probabilities (B, C)."""
        logits = log_product(self.first(f[:, : self.size]), self.second(f[:, self.size :]), self.a, self.b)
        return logits.softmax(dim=-1).to(f.dtype)

    @property
    def max_batch_size(self) -> int:
        """Most images that both heads take."""
        return min(self.first.max_batch_size, self.second.max_batch_size)


METHOD = Blend
