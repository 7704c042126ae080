"""Predictions that may say "none of these", or name several classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dca.core.actions import fit_estimate
from dca.core.calibration import FLOOR
from dca.core.errors import UserError
from dca.core.progress import Progress, shown
from dca.data.dataset import ImageLike
from dca.engine.evaluate import classified, features_of, features_of_crops
from dca.methods.shared.prediction_sets import least_images, p_values, threshold_sets, with_best
from dca.model.fitted import Fitted
from dca.model.inputs import Images, as_images


@dataclass(frozen=True)
class Answers:
    """All that a model says about n images.

    Attributes:
        probabilities: (n, C), columns in the order of `classes_`.
        p_values: (n,), small for images of none of the classes; None if the model cannot tell.
        sets: One list of labels per image, the most probable first; None unless asked for.
    """

    probabilities: NDArray[np.float64]
    p_values: NDArray[np.float64] | None
    sets: list[list[Any]] | None


class Uncertain(Fitted):
    """The part of `Classifier` that answers with a doubt."""

    def answers(self, X: Images, *, coverage: float | None = None, progress: Progress | None = None) -> Answers:
        """Probabilities, p-values and prediction sets of images, which are opened once.

        Args:
            X: As for `predict_proba`; n images.
            coverage: Of the prediction sets; None for no sets.
            progress: As for `predict_proba`.

        Returns:
            Probabilities; p-values where the model has any; sets where they are asked for.

        Raises:
            UserError: As for `prediction_sets`.

        Example:
            >>> from dca import Classifier
            >>> from dca.data.sources.sample import load_sample
            >>> sample = load_sample(per_class_train=4, per_class_test=1)
            >>> model = Classifier("closed_form", device="cpu").fit(sample)
            >>> model.answers([item.image for item in sample.test]).probabilities.shape
            (10, 10)
        """
        return self._answers(*self._seen(X, progress), coverage)

    def answers_for_crops(self, crops: Tensor, *, coverage: float | None = None) -> Answers:
        """As `answers`, for images that are decoded and cropped.

        Args:
            crops: uint8 (n, 3, S, S), as `clip.preprocess.crop` gives them.
            coverage: As for `answers`.

        Returns:
            As `answers`.

        Raises:
            UserError: As for `prediction_sets`.
        """
        return self._answers(*features_of_crops(self._require_fitted(), crops), coverage)

    def answers_of(self, features: Tensor) -> Answers:
        """Probabilities and p-values of encoded images.

        Args:
            features: Features (n, D) of `method_.encode`.

        Returns:
            Probabilities; p-values where the model has any.
        """
        return self._answers(features, classified(self._require_fitted(), features), None)

    @property
    def has_p_values(self) -> bool:
        """Whether the model can tell images of none of its classes."""
        method = self._require_fitted()
        nothing = torch.zeros(0, method.clip.config.embed_dim, device=method.clip.device)
        return method.p_values(nothing) is not None or any("held_out" in row for row in self.draw_)

    def _answers(self, features: Tensor, probs: NDArray[np.float64], coverage: float | None) -> Answers:
        return Answers(
            probs,
            self._p_values(features, probs) if self.has_p_values else None,
            None if coverage is None else self._sets(features, probs, coverage),
        )

    def p_values(self, X: Images, *, progress: Progress | None = None) -> NDArray[np.float64]:
        """How usual images are among the training images; small values mean "none of these classes".

        If images are like the training images of their classes, a share P of them has a p-value of at most P.

        Args:
            X: As for `predict_proba`; n images.
            progress: As for `predict_proba`.

        Returns:
            p-values (n,), from 1 / (training images + 1) to 1.

        Raises:
            UserError: If the model was fitted without held-out predictions, or an image cannot be read.

        Example:
            >>> from dca import Classifier
            >>> from dca.data.sources.sample import load_sample
            >>> sample = load_sample(per_class_train=4, per_class_test=1)
            >>> model = Classifier("closed_form", device="cpu").fit(sample)
            >>> bool(0 < model.p_values(sample.test[0].image)[0] <= 1)
            True
        """
        return self._p_values(*self._seen(X, progress))

    def prediction_sets(self, X: Images, *, coverage: float = 0.9, progress: Progress | None = None) -> list[list[Any]]:
        """Sets of labels that contain the right one with a stated probability.

        Args:
            X: As for `predict_proba`; n images.
            coverage: Wanted probability c. The default method guarantees 2c - 1 for new images that are
                like the training images (jackknife+) and reaches about c; other methods only aim at c.
            progress: As for `predict_proba`.

        Returns:
            One list of labels per image, the most probable first; never empty.

        Raises:
            UserError: As for `p_values`, or if there are too few training images for this coverage.

        Example:
            >>> from dca import Classifier
            >>> from dca.data.sources.sample import load_sample
            >>> sample = load_sample(per_class_train=4, per_class_test=1)
            >>> model = Classifier("closed_form", device="cpu").fit(sample)
            >>> len(model.prediction_sets(sample.test[0].image, coverage=0.8))
            1
        """
        return self._sets(*self._seen(X, progress), coverage)

    def _seen(self, X: Images, progress: Progress | None) -> tuple[Tensor, NDArray[np.float64]]:
        """Features (n, D) and probabilities (n, C) of images."""
        method = self._require_fitted()
        images: Sequence[ImageLike] = as_images(X)
        with shown(progress, len(images)) as receiver:
            return features_of(method, images, self._session.with_progress(receiver))

    def _held(self, key: str) -> Tensor:
        """The value `key` of all held-out predictions, (N,)."""
        found = [row["held_out"][key] for row in self.draw_ if "held_out" in row]
        if not found:
            raise UserError(
                f"this {self._require_fitted().name} model does not know how it does on images it has not seen",
                hint=fit_estimate(),
            )
        return torch.tensor(found, dtype=torch.float64)

    def _p_values(self, features: Tensor, probs: NDArray[np.float64]) -> NDArray[np.float64]:
        own = self._require_fitted().p_values(features)
        if own is None:
            own = p_values(-self._held("probability"), -torch.from_numpy(probs).amax(dim=-1))
        found: NDArray[np.float64] = own.cpu().double().numpy()
        return found

    def _sets(self, features: Tensor, probs: NDArray[np.float64], coverage: float) -> list[list[Any]]:
        if not 0 < coverage < 1:
            raise UserError(f"coverage is {coverage}", hint="give a number between 0 and 1, such as 0.9")
        found = self._require_fitted().prediction_sets(features, coverage)
        if found is None:
            held, p = self._held("own"), torch.from_numpy(probs)
            least = least_images(coverage)
            if len(held) < least:
                raise UserError(
                    f"a coverage of {coverage} needs {least} training images that can be held out; {len(held)} can be",
                    hint="ask for less coverage, or fit with more images",
                )
            scores, known = -p.clamp_min(FLOOR).log(), -held.clamp_min(FLOOR).log()
            found = with_best(threshold_sets(known, scores, coverage), p)
        labels, order = self.classes_.tolist(), (-probs).argsort(axis=1, kind="stable")
        return [[labels[c] for c in row if kept[c]] for row, kept in zip(order, found.cpu().numpy(), strict=True)]
