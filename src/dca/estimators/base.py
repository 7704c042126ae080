"""Base class of the estimators: checks arrays, numbers the classes, and asks a finished head."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor
from torch.nn import functional as F

from dca.core.errors import UserError


class InputError(UserError, ValueError):
    """A `UserError` that scikit-learn knows as a wrong value."""


class LogitHead(Protocol):
    """A finished head whose probabilities are the softmax of its logits."""

    @property
    def images_at_once(self) -> int:
        """Most rows that a call should be given."""

    def logits(self, f: Tensor) -> Tensor:
        """Features f (B, D) -> logits (B, C)."""


class FeatureHead(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier over feature vectors; subclasses make the head.

    Attributes:
        classes_: Labels in the order of the columns of `predict_proba`.
        n_features_in_: D, length of a feature vector.
        head_: The finished head.
    """

    classes_: NDArray[Any]
    head_: LogitHead

    @abstractmethod
    def _make_head(self, features: Tensor, labels: Tensor) -> LogitHead:
        """The head of features (n, D), in the form of `_prepared`, and labels (n,), numbers of `classes_`."""

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Make the head.

        Args:
            X: Features (n, D).
            y: Labels (n,) of at least two classes.

        Returns:
            The estimator itself.

        Raises:
            ValueError: If the arrays cannot be used.
        """
        features, given = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(given)
        self.classes_, labels = np.unique(given, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(f"y has one class, {self.classes_.tolist()[0]!r}; a classifier needs at least 2 classes")
        with torch.no_grad():
            self.head_ = self._make_head(self._prepared(features), torch.from_numpy(labels))
        return self

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Logits: the probabilities are their softmax.

        Args:
            X: Features (n, D).

        Returns:
            Logits (n, C); for two classes their difference (n,), as scikit-learn expects it.
        """
        logits = self._logits(X).numpy()
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Probabilities of classes.

        Args:
            X: Features (n, D).

        Returns:
            Probabilities (n, C), columns in the order of `classes_`.
        """
        return self._logits(X).softmax(dim=-1).numpy()

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most probable label.

        Args:
            X: Features (n, D).

        Returns:
            Labels (n,).
        """
        best: NDArray[np.int64] = self._logits(X).argmax(dim=-1).numpy()
        return self.classes_[best]

    def _logits(self, X: ArrayLike) -> Tensor:
        check_is_fitted(self)
        rows = self._prepared(validate_data(self, X, dtype=np.float64, reset=False))
        with torch.no_grad():
            return torch.cat([self.head_.logits(some) for some in torch.split(rows, self.head_.images_at_once)])

    def _prepared(self, X: NDArray[np.float64]) -> Tensor:
        """Unit vectors (n, D), as heads over CLIP features expect them, in float64."""
        return F.normalize(torch.tensor(X), dim=-1)
