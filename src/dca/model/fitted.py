"""What every fitted classifier holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from dca.core.errors import UserError
from dca.core.progress import silent
from dca.data.dataset import Item
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
