"""The backbone of a saved model."""

from __future__ import annotations

from pathlib import Path

from dca.clip import CLIP
from dca.clip.places import find_backbone
from dca.core.actions import choose_backbone
from dca.core.errors import UserError
from dca.engine.session import Session
from dca.model.checkpoint import Record


def backbone_of(
    folder: Path, record: Record, given: str | Path | CLIP | None, session: Session, precision: str
) -> tuple[str | Path | CLIP, CLIP]:
    """Where the backbone of the model in `folder` is, and the backbone: the given one, or found by name and hash.

    Raises:
        UserError: If it cannot be loaded.
    """
    if given is not None:
        return given, session.backbone(given, precision)
    source = find_backbone(source=record.backbone["source"], digest=record.backbone["digest"])
    try:
        return source, session.backbone(source, precision)
    except UserError as error:
        problem = f"the backbone of {folder} cannot be loaded: {error.problem}"
        raise UserError(problem, details=error.details, hint=choose_backbone()) from None
