"""What every fitted classifier holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dca.core.errors import UserError
from dca.core.progress import Progress, shown, silent
from dca.data.dataset import ImageLike, Item
from dca.engine.evaluate import probabilities
from dca.engine.session import Session
from dca.methods.interface import Method
from dca.model.estimate import Estimate
from dca.model.gallery import Gallery
from dca.model.inputs import label_array


class Fitted:
    """The state of a fitted `Classifier`, which explains the attributes."""

    settings: dict[str, Any]
    method_: Method
    classes_: NDArray[Any]
    draw_: list[dict[str, Any]]
    results_: dict[str, Any]
    lineage_: list[dict[str, Any]]
    estimate_: Estimate | None
    gallery_: Gallery | None
    _session: Session
    _training: Sequence[Item] = ()

    def _adopt(self, method: Method, session: Session, labels: Sequence[Any]) -> None:
        self.method_, self._session = method, session.with_progress(silent)
        self.classes_ = label_array(labels)

    def gallery(self) -> Gallery | None:
        """Thumbnails and features of the training images, made on first use.

        Returns:
            The gallery; None for a model that was saved without one.

        Raises:
            UserError: If the classifier is not fitted, or a training image cannot be read any more.
        """
        method = self._require_fitted()
        if self.gallery_ is None and self._training:
            self.gallery_ = Gallery.of(self._training, self.draw_, self._session, method.clip)
        return self.gallery_

    def _require_fitted(self) -> Method:
        if not hasattr(self, "method_"):
            raise UserError(
                "this classifier is not fitted yet", hint="call fit(...) or Classifier.from_pretrained(...)"
            )
        return self.method_

    def _probabilities(
        self, method: Method, images: Sequence[ImageLike], progress: Progress | None, *, stored: bool, public: str = ""
    ) -> NDArray[np.float64]:
        with shown(progress, len(images)) as receiver:
            session = self._session.with_progress(receiver).reading(public, method.problem.selection)
            return probabilities([method], images, session, stored=stored)[0]

    def _count_seen(self, images: Sequence[ImageLike]) -> int:
        """How many of the images the model was trained on, compared by content."""
        known = {row["sha256"] for row in self.draw_}
        return sum(sha256 in known for sha256 in self._session.sha256_all(images)) if known else 0
