"""Heads for scikit-learn: classifiers over feature vectors that were computed before, by CLIP or anything else.

Every class is a thin wrapper of the functions that the methods use. `docs/estimators.md` shows them in pipelines and
searches.

**Sample weights.** A row with a weight of 2 counts as two equal rows, and one with a weight of 0 as none, in the heads
whose `fit` has `sample_weight`. The others choose numbers by leaving rows out, and a row whose copy stays is not left
out: there, a row that is repeated is not a row that weighs more.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, Literal, Protocol, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn import functional as F

from dca.core.errors import MissingPackageError, UserError
from dca.methods.gda import Estimate, GDAOptions, gaussian_weights, gda_head
from dca.methods.linear_probe import solve
from dca.methods.shared import gaussian
from dca.methods.shared.class_features import ClassFeatures
from dca.methods.shared.experts import KernelRidge, LandmarkRidge, TextGaussian, has_peers, subsample
from dca.methods.shared.heads import CacheHead, LinearHead
from dca.methods.shared.product_of_experts import (
    Experts,
    ExpertsHead,
    FixedHyperparameters,
    Hyperparameters,
    build_kernel_ridge,
    class_weights,
    fit_scales,
    select_hyperparameters,
)
from dca.methods.tip_adapter import MEDIANS

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError:
    raise MissingPackageError(
        "dca.estimators needs scikit-learn, which is not installed.", hint="pip install 'dca-prompt[sklearn]'"
    ) from None

__all__ = ["GDAHead", "GaussianTextHead", "KernelRidgeHead", "LinearProbeHead", "NearestMeanHead", "TipAdapterHead"]

# Text vectors of the classes: one row per class, or a dictionary from label to vector.
Text = ArrayLike | Mapping[Any, ArrayLike] | None
# Smallest and largest value of every number that a head takes: others give no finite, or no meaningful, logits.
LIMITS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "tau": (1e-6, 1e6),
        "alpha": (0, 1e6),
        "beta": (0, 1e3),
        "rho": (1e-6, 1),
        "c": (1e-9, 1e9),
        "iterations": (1, 1e9),
        "text_shots": (0, 1e6),
        "ridge": (1e-9, 1e9),
        "gaussian_scale": (0, 1e6),
        "text_scale": (0, 1e6),
        "kernel_scale": (0, 1e6),
        "kernel_ridge": (1e-9, 1e9),
        "kernel_width": (1e-6, 1e3),
        "kernel_images": (0, 20_000),
        "width": (1e-6, 1e3),
        "scale": (1e-6, 1e6),
        "images": (2, 20_000),
    }
)
# Sizes of raw features between which logistic regression is solved: the ridge, which does not know of their scale,
# decides all of it below, and none of it above.
LEAST_SIZE, MOST_SIZE = 1e-6, 1e6
# Sums of weights between which a covariance can be estimated and inverted.
TOTAL_WEIGHTS = (2.0, 1e12)
# Most rows by which `KernelRidgeHead` chooses its scale.
MOST_VOTERS = 4096


class InputError(UserError, ValueError):
    """A `UserError` that is also a ValueError, which scikit-learn expects for wrong values."""


class LogitHead(Protocol):
    """A finished head whose probabilities are the softmax of its logits."""

    @property
    def max_batch_size(self) -> int:
        """Most rows per call of `logits`."""

    def logits(self, f: Tensor) -> Tensor:
        """Features f (B, D) -> logits (B, C)."""


class FeatureHead(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Base class: checks arrays, numbers the classes, and predicts with the head that a subclass makes.

    Attributes:
        classes_: Labels in the order of the columns of `predict_proba`.
        n_features_in_: D, length of a feature vector.
        head_: The head.
    """

    classes_: NDArray[Any]
    head_: LogitHead

    @abstractmethod
    def _make_head(self, features: Tensor, labels: Tensor, weights: Tensor) -> LogitHead:
        """Make the head from features (n, D) as `_prepare` gives them, labels (n,), indices of `classes_`, and weights.

        weights: (n,), all 1 unless the head is a `WeightedHead`.
        """

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit the head.

        Args:
            X: Features (n, D).
            y: Labels (n,) of at least two classes.

        Returns:
            The estimator itself.

        Raises:
            ValueError: If the arrays or the arguments of the estimator cannot be used.
        """
        return self._fit(X, y, None)

    def _fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None) -> Self:
        features, targets = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(targets)
        self._check_arguments()
        weights = check_weights(sample_weight, len(features))
        features, targets, weights = features[weights > 0], targets[weights > 0], weights[weights > 0]
        self.classes_, labels = np.unique(targets, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(f"y has one class, {self.classes_.tolist()[0]!r}; a classifier needs at least 2 classes")
        with torch.no_grad():
            rows = self._prepare(features)
            self.head_ = self._make_head(rows, torch.from_numpy(labels), torch.from_numpy(weights))
        return self

    def _check_arguments(self) -> None:
        """Raise for a number that is not within `LIMITS`."""
        usual = type(self)().get_params()
        for name, value in self.get_params().items():
            if name not in LIMITS or (value is None and usual[name] is None):
                continue
            low, high = LIMITS[name]
            whole = isinstance(usual[name], int)
            if not _is_number(value, whole=whole) or not low <= value <= high:
                word = "a whole number" if whole else "a number"
                raise InputError(f"{name} is {value!r}", hint=f"{word} from {low:g} to {high:g}")

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Compute logits; their softmax is the probabilities.

        Args:
            X: Features (n, D).

        Returns:
            Logits (n, C); for two classes their difference (n,), as scikit-learn expects.
        """
        logits = self._logits(X).numpy()
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Predict probabilities of the classes.

        Args:
            X: Features (n, D).

        Returns:
            Probabilities (n, C), columns in the order of `classes_`.
        """
        return self._logits(X).softmax(dim=-1).numpy()

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Predict the most probable label.

        Args:
            X: Features (n, D).

        Returns:
            Labels (n,).
        """
        best: NDArray[np.int64] = self._logits(X).argmax(dim=-1).numpy()
        return self.classes_[best]

    def _logits(self, X: ArrayLike) -> Tensor:
        check_is_fitted(self)
        rows = self._prepare(validate_data(self, X, dtype=np.float64, reset=False))
        with torch.no_grad():
            return torch.cat([self.head_.logits(part) for part in torch.split(rows, self.head_.max_batch_size)])

    def _prepare(self, X: NDArray[np.float64]) -> Tensor:
        """Unit vectors (n, D) in float64, as heads over CLIP features expect them."""
        return unit_vectors(X)


class WeightedHead(FeatureHead):
    """A head whose rows may have weights."""

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the head.

        Args:
            X: Features (n, D).
            y: Labels (n,) of at least two classes.
            sample_weight: How many times each row counts (n,): 0, 1, 2, or anything between. None: once.

        Returns:
            The estimator itself.

        Raises:
            ValueError: If the arrays or the arguments of the estimator cannot be used.
        """
        return self._fit(X, y, sample_weight)


class GaussianTextHead(FeatureHead):
    """A Gaussian head whose class means are informed by text: the head of the method `closed_form`.

    Parameters that are None are chosen by exact leave-one-out on the training rows, in closed form
    (`docs/closed-form.md` has the equations). Without text, class means shrink towards their common mean instead.

    Args:
        text: Text vectors (C, D) in the order of the sorted labels, or a dictionary from label to vector. None: images
            alone.
        tau: Scale of text, `CLIP.tau` of the backbone.
        text_shots: k, how many images the text of a class counts as.
        ridge: g, ridge of the covariance in units of its mean variance.
        gaussian_scale: a, scale of the Gaussian head.
        text_scale: b, scale of zero-shot text.
        kernel_scale: s, scale of kernel ridge; 0 leaves it out.
        kernel_ridge: Ridge of the kernel in units of its mean eigenvalue.
        kernel_width: w of exp(-w (1 - x·x') / mean(1 - x·x')).
        kernel_images: Most rows for exact kernel ridge; with more, over half as many landmarks. 0 leaves it out.

    Attributes:
        numbers_: k, g, the three scales and the ridge of the kernel, as given or chosen.

    Example:
        >>> from dca.estimators import GaussianTextHead
        >>> head = GaussianTextHead({"right": [1, 0], "up": [0, 1]})
        >>> head = head.fit([[1, 0.2], [1, 0], [0.1, 1], [0, 1]], ["right", "right", "up", "up"])
        >>> head.predict([[0.9, 0.2]]).tolist()
        ['right']
    """

    numbers_: Hyperparameters

    def __init__(
        self,
        text: Text = None,
        *,
        tau: float = 100.0,
        text_shots: float | None = None,
        ridge: float | None = None,
        gaussian_scale: float | None = None,
        text_scale: float | None = None,
        kernel_scale: float | None = None,
        kernel_ridge: float | None = None,
        kernel_width: float = 2.0,
        kernel_images: int = 3000,
    ) -> None:
        self.text = text
        self.tau = tau
        self.text_shots = text_shots
        self.ridge = ridge
        self.gaussian_scale = gaussian_scale
        self.text_scale = text_scale
        self.kernel_scale = kernel_scale
        self.kernel_ridge = kernel_ridge
        self.kernel_width = kernel_width
        self.kernel_images = kernel_images

    def _make_head(self, features: Tensor, labels: Tensor, weights: Tensor) -> ExpertsHead:
        text = text_vectors(self.text, self.classes_, features.shape[1])
        scales = (self.gaussian_scale, self.text_scale, self.kernel_scale)
        fixed = FixedHyperparameters(self.text_shots, self.ridge, self.kernel_ridge, scales)
        gaussian = TextGaussian.from_features(features, labels, text)
        experts = Experts.build(gaussian, self.tau, fixed, width=self.kernel_width, most=self.kernel_images)
        self.numbers_ = select_hyperparameters(experts)
        return ExpertsHead.from_experts(experts, self.numbers_, torch.float64)


class GDAHead(WeightedHead):
    """Gaussian discriminant analysis beside zero-shot text: the head of the method `gda`.

    Shrinkage decreases as the number of rows grows. With weights that number is their sum, so only relative weights,
    which sum to 1, are refused.

    Args:
        text: Text vectors (C, D) in the order of the sorted labels, or a dictionary from label to vector. None: images
            alone.
        tau: Scale of text, `CLIP.tau` of the backbone.
        alpha: α, weight of the Gaussian part beside text; without text it changes no prediction.
        shrinkage: Estimate of the inverse covariance: "gda", "ledoit_wolf", "oas" or "convex".
        rho: ρ, for shrinkage="convex".

    Example:
        >>> from dca.estimators import GDAHead
        >>> GDAHead().fit([[1, 0], [2, 0.1], [0, 1], [0.1, 3]], [0, 0, 1, 1]).predict([[0.2, 0.9]]).tolist()
        [1]
    """

    def __init__(
        self,
        text: Text = None,
        *,
        tau: float = 100.0,
        alpha: float = 1.0,
        shrinkage: Estimate = "gda",
        rho: float = 0.1,
    ) -> None:
        self.text = text
        self.tau = tau
        self.alpha = alpha
        self.shrinkage = shrinkage
        self.rho = rho

    def _make_head(self, features: Tensor, labels: Tensor, weights: Tensor) -> LinearHead:
        low, high = TOTAL_WEIGHTS
        if not low <= (total := float(weights.sum())) <= high:
            raise InputError(
                f"sample_weight sums to {total:.3g}, the number of rows that decides how much the covariance is shrunk",
                hint=f"scale the weights to a mean of 1: sums from {low:g} to {high:g} are taken",
            )
        options = GDAOptions(shrinkage=self.shrinkage, rho=self.rho)
        W, b = gaussian_weights(features, labels, len(self.classes_), options, weights)
        return gda_head(text_vectors(self.text, self.classes_, features.shape[1]), W, b, self.tau, self.alpha)


class TipAdapterHead(WeightedHead):
    """A cache of the training features beside zero-shot text: the head of the method `tip_adapter`.

    Args:
        text: Text vectors (C, D) in the order of the sorted labels, or a dictionary from label to vector. None: the
            cache alone.
        tau: Scale of text, `CLIP.tau` of the backbone.
        alpha: α, weight of the cache.
        beta: β, sharpness of the cache.

    Example:
        >>> from dca.estimators import TipAdapterHead
        >>> TipAdapterHead(beta=5.0).fit([[1, 0], [0, 1]], ["right", "up"]).predict([[0.9, 0.2]]).tolist()
        ['right']
    """

    def __init__(self, text: Text = None, *, tau: float = 100.0, alpha: float = MEDIANS[0], beta: float = 1.0) -> None:
        self.text = text
        self.tau = tau
        self.alpha = alpha
        self.beta = beta

    def _make_head(self, features: Tensor, labels: Tensor, weights: Tensor) -> CacheHead:
        text = text_vectors(self.text, self.classes_, features.shape[1])
        return CacheHead.from_keys(text, features, labels, self.tau, self.alpha, self.beta, weights)


class LinearProbeHead(WeightedHead):
    """Logistic regression, solved to its minimum: the head of the method `linear_probe`.

    Args:
        c: Weight of the data against ½‖W‖².
        features: "raw" as they are, or "unit".
        iterations: Most iterations of the solver.

    Example:
        >>> from dca.estimators import LinearProbeHead
        >>> LinearProbeHead(c=10.0).fit([[1, 0], [0, 1]], ["right", "up"]).predict([[0.9, 0.2]]).tolist()
        ['right']
    """

    def __init__(self, *, c: float = 0.316, features: Literal["raw", "unit"] = "raw", iterations: int = 1000) -> None:
        self.c = c
        self.features = features
        self.iterations = iterations

    def _make_head(self, features: Tensor, labels: Tensor, weights: Tensor) -> LinearHead:
        if 0 < (size := float(features.abs().max())) < LEAST_SIZE:
            raise self._size_error(size)
        C = len(self.classes_)
        return LinearHead(*solve(features, labels, C, self.c, iterations=self.iterations, weights=weights))

    def _prepare(self, X: NDArray[np.float64]) -> Tensor:
        if self.features not in ("raw", "unit"):
            raise InputError(f"features is {self.features!r}", hint="'raw' or 'unit'")
        if self.features == "unit":
            return super()._prepare(X)
        if (size := float(np.abs(X).max(initial=0))) > MOST_SIZE:
            raise self._size_error(size)
        return torch.tensor(X)

    def _size_error(self, size: float) -> InputError:
        return InputError(
            f"the largest number of X is {size:.3g}, and a ridge on raw features depends on their scale",
            hint=["scale them to about 1, e.g. with StandardScaler", "use features='unit'"],
        )


class KernelRidgeHead(FeatureHead):
    """Kernel ridge regression to one-hot labels, the third expert of the method `closed_form`.

    Args:
        ridge: ρ, ridge of the kernel in units of its mean eigenvalue.
        width: w of exp(-w (1 - x·x') / mean(1 - x·x')).
        scale: Scale of the logits. None: the one with the least log-loss of leave-one-out predictions; 1 if every
            class has a single row.
        images: Most rows for the exact solution, which takes time n³ and memory n²; with more, the solution over half
            as many landmarks, drawn among the rows, whose time and memory grow with n.

    Attributes:
        scale_: The scale that is used.

    Example:
        >>> from dca.estimators import KernelRidgeHead
        >>> KernelRidgeHead().fit([[1, 0], [0, 1]], ["right", "up"]).predict([[0.9, 0.2]]).tolist()
        ['right']
    """

    scale_: float

    def __init__(
        self, *, ridge: float = 0.1, width: float = 2.0, scale: float | None = None, images: int = 3000
    ) -> None:
        self.ridge = ridge
        self.width = width
        self.scale = scale
        self.images = images

    def _make_head(self, features: Tensor, labels: Tensor, weights: Tensor) -> ExpertsHead:
        C, D = len(self.classes_), features.shape[1]
        source = TextGaussian.from_features(features, labels, features.new_zeros(C, D))
        kernel = build_kernel_ridge(source, self.width, self.images)
        self.scale_ = leave_one_out_scale(kernel, self.ridge) if self.scale is None else self.scale
        weight, bias = features.new_zeros(C, D), features.new_zeros(C)
        return ExpertsHead.from_parameters(
            weight, bias, kernel, self.scale_ * kernel.coefficients(self.ridge), torch.float64
        )


class NearestMeanHead(WeightedHead):
    """The class with the nearest mean of unit features.

    Args:
        metric: "cosine" to means of unit length, or "euclidean" distance to the means as they are.
        tau: Scale of the logits; it changes no prediction.

    Example:
        >>> from dca.estimators import NearestMeanHead
        >>> NearestMeanHead().fit([[1, 0], [0, 1]], ["right", "up"]).predict([[0.9, 0.2]]).tolist()
        ['right']
    """

    def __init__(self, *, metric: Literal["cosine", "euclidean"] = "cosine", tau: float = 100.0) -> None:
        self.metric = metric
        self.tau = tau

    def _make_head(self, features: Tensor, labels: Tensor, weights: Tensor) -> LinearHead:
        if self.metric not in ("cosine", "euclidean"):
            raise InputError(f"metric is {self.metric!r}", hint="'cosine' or 'euclidean'")
        shots = ClassFeatures.group(features, labels, len(self.classes_))
        means = gaussian.Gaussian("identity", unit_means=self.metric == "cosine")
        W, b = gaussian.linear_weights(shots, means, weights=weights[labels.argsort(stable=True)])
        return LinearHead(self.tau * W, self.tau * b)


def leave_one_out_scale(kernel: KernelRidge | LandmarkRidge, ridge: float) -> float:
    """The scale with the least log-loss of leave-one-out predictions; labels are smoothed, so that it is finite."""
    rows = has_peers(kernel.labels, kernel.groups).nonzero()[:, 0]
    if not len(rows):
        return 1.0
    rows = rows[subsample(len(rows), MOST_VOTERS)]
    predictions, y = kernel.held_out(ridge, rows), kernel.labels[rows]
    scales = fit_scales(predictions[None], y, class_weights(y), smoothing=1 / (len(kernel.labels) + 2)).values
    # A scale of 0 would make all classes equal, also where the order of the predictions means something.
    return max(float(scales[0]), 1.0)


def text_vectors(text: Text, classes: NDArray[Any], D: int) -> Tensor:
    """Unit text vectors (C, D) in float64, in the order of the classes; zero where there is no text."""
    if text is None:
        return torch.zeros(len(classes), D, dtype=torch.float64)
    rows = np.asarray(_by_class(text, classes) if isinstance(text, Mapping) else text, dtype=np.float64)
    if rows.shape != (len(classes), D):
        raise InputError(
            f"text has shape {rows.shape}, but {len(classes)} classes and {D} features need {(len(classes), D)}",
            hint=["give one row per class, in the order of the sorted labels", "give a dictionary: label to vector"],
        )
    if not np.isfinite(rows).all():
        raise InputError("text has values that are NaN or infinite")
    return unit_vectors(rows)


def unit_vectors(X: NDArray[np.float64]) -> Tensor:
    """Rows of length 1 (n, D) in float64, however large or small they were; a row of zeros stays one."""
    # Halved or doubled, which loses nothing, until no square overflows or vanishes.
    _, exponents = np.frexp(np.abs(X).max(axis=1, keepdims=True, initial=0))
    return F.normalize(torch.tensor(np.ldexp(X, -exponents)), dim=-1)


def _is_number(value: Any, *, whole: bool) -> bool:
    """Whether a value is a number, also one of NumPy's; booleans are none."""
    return isinstance(value, Integral if whole else Real) and not isinstance(value, bool)


def check_weights(weights: ArrayLike | None, rows: int) -> NDArray[np.float64]:
    """Weights (n,) of the rows in float64: 1 where none are given."""
    if weights is None:
        return np.ones(rows)
    found = np.asarray(weights, dtype=np.float64)
    if found.shape != (rows,):
        raise InputError(f"sample_weight has shape {found.shape}, but X has {rows:,} rows", hint="one number per row")
    if not np.isfinite(found).all() or found.min() < 0 or found.max() == 0:
        raise InputError("sample_weight has values that are negative or not finite, or no value above zero")
    return found


def _by_class(text: Mapping[Any, ArrayLike], classes: NDArray[Any]) -> list[ArrayLike]:
    """The vector of each class."""
    if missing := [label for label in classes.tolist() if label not in text]:
        raise InputError("text has no vector for some labels of y", details=[repr(label) for label in missing])
    return [text[label] for label in classes.tolist()]
