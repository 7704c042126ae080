"""The closed form over feature vectors: Gaussian head, text and kernel ridge, weighed by exact leave-one-out."""

from __future__ import annotations

import torch
from torch import Tensor

from dca.estimators.base import FeatureHead
from dca.estimators.text import Text, text_vectors
from dca.methods.shared.pooled_choice import Experts, Fixed, Numbers, choose
from dca.methods.shared.pooled_head import PooledHead
from dca.methods.shared.text_gaussian import TextGaussian


class GaussianTextHead(FeatureHead):
    """A Gaussian head whose class means are informed by text: the head of the method `closed_form`.

    Values that are None are chosen by exact leave-one-out on the training rows, in closed form; `docs/closed-form.md`
    has the equations. Without text, class means move towards their common mean instead.

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
        kernel_images: Most rows for kernel ridge; it is left out where there are more.

    Attributes:
        numbers_: k, g, the three scales and the ridge of the kernel, given or chosen.

    Example:
        >>> from dca.estimators import GaussianTextHead
        >>> head = GaussianTextHead({"right": [1, 0], "up": [0, 1]})
        >>> head = head.fit([[1, 0.2], [1, 0], [0.1, 1], [0, 1]], ["right", "right", "up", "up"])
        >>> head.predict([[0.9, 0.2]]).tolist()
        ['right']
    """

    numbers_: Numbers

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

    def _make_head(self, features: Tensor, labels: Tensor) -> PooledHead:
        text = text_vectors(self.text, self.classes_, features.shape[1])
        scales = (self.gaussian_scale, self.text_scale, self.kernel_scale)
        fixed = Fixed(self.text_shots, self.ridge, self.kernel_ridge, scales)
        gaussian = TextGaussian.of(features, labels, text)
        experts = Experts.of(gaussian, self.tau, fixed, width=self.kernel_width, most=self.kernel_images)
        self.numbers_ = choose(experts)
        return PooledHead.of_experts(experts, self.numbers_, torch.float64)
