"""Tip-Adapter's cache over feature vectors."""

from __future__ import annotations

from torch import Tensor

from dca.estimators.base import FeatureHead
from dca.estimators.text import Text, text_vectors
from dca.methods.shared.heads import CacheHead
from dca.methods.tip_adapter import MEDIANS


class TipAdapterHead(FeatureHead):
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

    def _make_head(self, features: Tensor, labels: Tensor) -> CacheHead:
        text = text_vectors(self.text, self.classes_, features.shape[1])
        return CacheHead.of(text, features, labels, self.tau, self.alpha, self.beta)
