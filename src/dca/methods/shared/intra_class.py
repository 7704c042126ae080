"""What DCA's L_in holds images to: the centres of their classes, measured by the classes' covariances."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from dca.clip import CLIP
from dca.methods.interface import Support
from dca.methods.shared import gaussian, losses
from dca.methods.shared.gaussian import Gaussian
from dca.methods.shared.metric import Covariance
from dca.methods.shared.shots import Shots


@dataclass(frozen=True)
class Within:
    """Constants of L_in, Eq. 11. centers: (C, D). covariances: a batch (C,)."""

    centers: Tensor
    covariances: Covariance

    @classmethod
    def of(cls, features: Tensor, labels: Tensor, names: tuple[str, ...], head: Gaussian) -> Within:
        """From unit features (N, D) of all training images, before any training."""
        shots = Shots.group(features, labels, len(names))
        with gaussian.naming_classes(names):
            return cls(shots.means(), gaussian.of_every_class(shots, head).to(features.dtype))

    @classmethod
    def of_backbone(cls, support: Support, clip: CLIP, names: tuple[str, ...], head: Gaussian) -> Within:
        """From what CLIP itself says of the training images."""
        return cls.of(F.normalize(support.frozen_features(clip), dim=-1), support.labels, names, head)

    def __call__(self, f: Tensor, labels: Tensor, form: str = "mahalanobis", reduction: str = "element") -> Tensor:
        """L_in of unit features f (B, D) with labels (B,)."""
        cov = self.covariances[labels] if form == "mahalanobis" else None
        return losses.intra_class(f, self.centers[labels], cov, form=form, reduction=reduction)
