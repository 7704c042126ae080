"""Methods with one text feature per class, and the distances and losses of DCA for them.

They are trained as in their papers; the finished model can use the distance of DCA instead of the
cosine. The DCA paper shows in this way that covariances help other methods, too ("baseline + d_m").
With `alpha_in` or `beta_ts` the terms of DCA are added to their loss:

    L + α L_in + β L_ts
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from dca.clip import CLIP
from dca.core.errors import UserError
from dca.core.options import opt
from dca.methods.interface import Problem, Support
from dca.methods.recipe import Recipe
from dca.methods.shared import gaussian, losses
from dca.methods.shared.heads import Head, LinearHead, PromptHead
from dca.methods.shared.intra_class import IntraClass
from dca.methods.shared.kept_shots import KeepsShots
from dca.methods.shared.mahalanobis_head import MahalanobisHead
from dca.methods.shared.metric import Metric
from dca.methods.shared.shots import Shots, shots_problems


@dataclass(frozen=True, kw_only=True)
class TextHeadOptions(Recipe):
    """A recipe, and how the finished model compares image with text."""

    test_metric: Metric = opt("cosine", "distance between image and text in the finished model")
    covariance: gaussian.Covariance = opt(
        "class",
        "of d_m: one covariance per class, shrunk by γ, or one for all",
        source="DCA",
    )
    center: Literal["text", "visual"] = opt("text", "centre of the covariance of a class", source="DCA")
    gamma1: float | None = opt(None, "γ1, shrinkage toward the identity; auto: by shots", low=0, source="DCA")
    gamma2: float | None = opt(None, "γ2, shrinkage of the off-diagonal; auto: by shots", low=0, source="DCA")
    floor: float = opt(0.0, gaussian.FLOOR_HELP, low=0, high=1)
    alpha_in: float = opt(0.0, "α, weight of DCA's L_in, which pulls images to the centre of their class", low=0)
    beta_ts: float = opt(0.0, "β, weight of DCA's L_ts, which pushes texts apart", low=0)


class TextHead(KeepsShots):
    """A method with one unit text feature per class; it adds its parameters, `encode_text` and `step`.

    A step adds `dca_terms` to its own terms.
    """

    # Whether text features are learned; otherwise L_ts would be a constant.
    learns_text: ClassVar[bool] = True
    head_options = ("gamma1", "gamma2", "floor", "covariance", "center")

    options: TextHeadOptions

    @classmethod
    def resolve(cls, chosen: Any, problem: Problem) -> Any:
        """γ1 and γ2 by shots."""
        gamma1, gamma2 = gaussian.gammas(problem.shots)
        return chosen.settled(gamma1=gamma1, gamma2=gamma2)

    def __init__(self, clip: CLIP, problem: Problem, chosen: Any) -> None:
        super().__init__(clip, problem, chosen)
        idle = [("alpha_in", "image features")] if chosen.alpha_in and self.frozen_images else []
        idle += [("beta_ts", "text features")] if chosen.beta_ts and not self.learns_text else []
        if idle:
            raise UserError(
                f"{self.name} has no use for {' and '.join(name for name, _ in idle)}",
                details=[f"{name}: it does not learn {what}" for name, what in idle],
                hint=f"leave {' and '.join(name for name, _ in idle)} at 0",
            )

    @property
    def keeps_shots(self) -> bool:
        """Only covariances need them."""
        return self.options.test_metric == "mahalanobis"

    @property
    def changeable_options(self) -> tuple[str, ...]:
        """All belong to covariances."""
        return self.head_options if self.keeps_shots else ()

    def prepare(self, support: Support) -> None:
        """The constants of L_in."""
        if self.options.alpha_in:
            self._intra_class = IntraClass.of_backbone(support, self.problem.names, self.problem.shots)

    def dca_terms(self, f: Tensor, t: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """α L_in of unit image features f (B, D) and β L_ts of unit text features t (C, D), where not 0."""
        terms = {}
        if self.options.alpha_in:
            terms["in"] = self.options.alpha_in * self._intra_class(f, labels)
        if self.options.beta_ts:
            terms["ts"] = self.options.beta_ts * losses.text_separation(t)
        return terms

    def finish(self, support: Support) -> None:
        """Text features and, for covariances, the training images through the finished image tower."""
        C, text = len(self.problem.names), self.encode_text().detach()
        shots = Shots.none(C, text)
        if self.keeps_shots:
            shots = Shots.group(self.encode_all(support), support.labels, C)
        self.keep(text, shots)

    def make_head(self) -> Head:
        """Softmax of τ cos, or of τ / (d + ε) with the chosen distance d."""
        u, tau, chosen = self.text_features[None], self.clip.tau, self.options
        if chosen.test_metric == "cosine":
            return LinearHead.cosine(self.text_features, tau)
        if chosen.test_metric == "euclidean":
            return PromptHead.of(u, tau, "euclidean")
        family = gaussian.dca(
            chosen.gamma1, chosen.gamma2, self.problem.shots, covariance=chosen.covariance, floor=chosen.floor
        )
        with gaussian.naming_classes(self.problem.names):
            return MahalanobisHead.of(u, self.shots, family, tau=tau, center=chosen.center)

    def check_results(self, state: Mapping[str, Tensor]) -> list[str]:
        """One text feature per class; training features if the metric needs them."""
        expected = C, D = len(self.problem.names), self.clip.config.embed_dim
        found = tuple(state["text_features"].shape)
        problems = [] if found == expected else [f"text_features: shape {found}, expected {expected}"]
        if self.keeps_shots:
            return problems + shots_problems(state, C, D)
        kept = sum(state[name].numel() for name in ("shot_features", "rest_features", "rest_counts"))
        kept += int(state["shot_counts"].abs().sum())
        return problems + (["shot_features: none expected"] if kept else [])
