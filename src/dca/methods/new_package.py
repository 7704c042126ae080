"""A package with a new method, to begin with. Its files are in `new_package_files/`, with $name and other words."""

from __future__ import annotations

import datetime
import keyword
import re
from importlib.resources import files
from pathlib import Path
from string import Template

from dca.core.errors import UserError
from dca.core.files import atomic_folder, encode_utf8, write_bytes
from dca.core.hints import choose_output, list_methods
from dca.core.text import normalize_name
from dca.methods.registry import all_methods

# File of a package, by the name of its template.
TEMPLATES = {
    "pyproject.toml.txt": "pyproject.toml",
    "README.md.txt": "README.md",
    "method.py.txt": "$module.py",
    "test.py.txt": "test_$module.py",
}


def write_package(name: str, folder: Path | None = None) -> Path:
    """Write a package with a small method that works, its entry point and its test.

    Args:
        name: Name of the method: lower-case letters, digits and "_".
        folder: The package's folder, which must not exist; by default `dca-NAME` in the working folder.

    Returns:
        The folder.

    Raises:
        UserError: If the name cannot be one, another method has it, or the folder exists.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        hint = "lower-case letters, digits and _, a letter first: my_method"
        raise UserError(f"{name!r} cannot be the name of a method", hint=hint)
    if normalize_name(name) in {normalize_name(known) for known in all_methods()}:
        raise UserError(f"there is a method called {name}", hint=["choose another name", list_methods()])
    words = {
        "name": name,
        "module": f"dca_{name}",
        "distribution": f"dca-{name.strip('_').replace('_', '-')}",
        "cls": "".join(part.capitalize() for part in name.split("_")),
        "year": str(datetime.date.today().year),
    }
    target = Path(words["distribution"]) if folder is None else folder
    if target.exists():
        raise UserError(f"{target} exists", hint=choose_output())
    templates = files("dca.methods").joinpath("new_package_files")
    with atomic_folder(target) as unfinished:
        for template, path in TEMPLATES.items():
            text = Template(templates.joinpath(template).read_text(encoding="utf-8")).substitute(words)
            write_bytes(unfinished / Template(path).substitute(words), encode_utf8(text))
    return target
