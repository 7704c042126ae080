"""Fits of other methods inside a fit, for methods that are made of others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dca.clip import CLIP
from dca.data.dataset import Dataset
from dca.data.protocols import Selection
from dca.engine.fit import fit, naming
from dca.engine.held_out import Folds
from dca.engine.session import Session
from dca.engine.training_images import TrainingImages
from dca.methods.interface import HeldOut, Method
from dca.methods.recipe import Recipe


@dataclass(frozen=True)
class NestedFits:
    """Fits on the training images of one fit; see `methods.problem.Nested`. The fields are those of `engine.fit`.

    The state of a nested fit is that of the run: `folder` holds one of them, and the folds beside it.
    """

    source: Dataset
    session: Session
    clip: CLIP
    seed: int
    selection: Selection = "strict"
    folder: Path | None = None

    def fit(self, kind: type[Method], chosen: Recipe) -> Method:
        """The finished method `kind`, fitted on all training images."""
        session = self._named(kind)
        method, _ = fit(
            kind,
            chosen,
            self.source,
            session,
            self.clip,
            seed=self.seed,
            selection=self.selection,
            folder=self.folder,
        )
        return method

    def held_out(self, kind: type[Method], chosen: Recipe, folds: int) -> HeldOut:
        """Predictions by the method's own way where it has one, else by cross-validation in at most `folds` folds."""
        session = self._named(kind)
        images = TrainingImages(self.source.train, session, self.clip, self.seed)
        own = None if kind.held_out is Method.held_out else self.fit(kind, chosen).held_out(images)
        if own is not None:
            return own
        each = Folds(kind, chosen, self.source, session, self.clip, self.seed, self.selection, self.folder)
        return each.predictions(images, folds)

    def _named(self, kind: type[Method]) -> Session:
        return self.session.with_progress(naming(self.session.progress, kind.name))
