"""`dca serve`: a model behind a page in the browser and a JSON API, with corrections and refits."""

from __future__ import annotations

from importlib.util import find_spec

from dca.core.errors import UserError


def require_packages() -> None:
    """Raise unless the packages of the server are installed."""
    if missing := [name for name in ("starlette", "uvicorn") if find_spec(name) is None]:
        raise UserError(f"serving needs {' and '.join(missing)}.", hint="pip install 'dca-prompt[serve]'")
