"""The real data, where it is at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"


@pytest.fixture
def shared() -> Path:
    """Real images, split files and published draws, if they lie beside the repository."""
    if not SHARED.is_dir():
        pytest.skip("no ../shared/data beside the repository: real images and published draws are not here")
    return SHARED
