"""Constants of DCA's intra-class loss L_in: class centres and covariances."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from dca.methods.interface import Support
from dca.methods.shared import gaussian, losses
from dca.methods.shared.class_precisions import ClassPrecisions
from dca.methods.shared.shots import Shots


@dataclass(frozen=True)
class IntraClass:
    """Constants of L_in, Eq. 11. centers: (C, D). precisions: Σ̂⁻¹ of the C classes."""

    centers: Tensor
    precisions: ClassPrecisions

    @classmethod
    def of(cls, features: Tensor, labels: Tensor, names: tuple[str, ...], per_class: int) -> IntraClass:
        """From unit features (N, D) of all training images, before any training.

        per_class: Shots; they decide γ, whatever the options of the head: those must not change training.
        """
        shots = Shots.group(features, labels, len(names))
        family = gaussian.dca(*gaussian.gammas(per_class), per_class)
        with gaussian.naming_classes(names):
            return cls(shots.means(), ClassPrecisions.of(shots, family, features.dtype))

    @classmethod
    def of_backbone(cls, support: Support, names: tuple[str, ...], per_class: int) -> IntraClass:
        """From the features that CLIP itself gives the training images."""
        return cls.of(F.normalize(support.frozen_features(), dim=-1), support.labels, names, per_class)

    def __call__(self, f: Tensor, labels: Tensor, form: str = "mahalanobis", reduction: str = "element") -> Tensor:
        """L_in of unit features f (B, D) with labels (B,)."""
        own = self.precisions[labels] if form == "mahalanobis" else None
        return losses.intra_class(f, self.centers[labels], own, form=form, reduction=reduction)
