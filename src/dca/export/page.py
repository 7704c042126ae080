"""The page of an export: static files that classify an image in the browser with onnxruntime-web.

The runtime is fetched once with npm, in the version that this code was tested with, and kept in the cache folder.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from dca.core.errors import UserError
from dca.core.files import atomic_folder, cache_folder, explain_write_errors, write_bytes
from dca.core.hints import omit, set_flag
from dca.core.progress import Progress

VERSION = "1.30.0"
PACKAGE = "onnxruntime-web"
RUNTIME_FILES = ("ort.wasm.min.js", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
NOTICE = "NOTICE.txt"
RUNTIME = "ort"
# Our own files.
PARTS = ("index.html", "style.css", "resample.js", "app.js")
# What the page adds to the folder of an export.
PAGE = (*PARTS, RUNTIME)
SECONDS = 600
# Pillow's filters that resample.js has: nearest, lanczos, bilinear, bicubic, box, hamming.
FILTERS = range(6)


def runtime_for(preprocess: Mapping[str, Any], progress: Progress) -> Path:
    """The folder with the runtime of a page for a model with this preprocessing.

    Raises:
        UserError: If the page cannot resize images as the model needs it, or the runtime cannot be fetched.
    """
    if (number := preprocess["resample"]) not in FILTERS:
        problem = f"the page does not have Pillow's filter {number}, with which the backbone resizes images"
        raise UserError(problem, hint=omit("web"))
    return fetch_runtime(progress)


def fetch_runtime(progress: Progress) -> Path:
    """The folder with onnxruntime-web's files, from the cache or from npm.

    Raises:
        UserError: If npm is missing or cannot fetch the package.
    """
    kept = cache_folder() / f"{PACKAGE}-{VERSION}"
    if all((kept / name).is_file() for name in (*RUNTIME_FILES, NOTICE)):
        return kept
    npm = shutil.which("npm")
    if npm is None:
        raise UserError(
            f"the page needs {PACKAGE}, which npm fetches, and npm is not installed",
            hint=["install Node.js, which brings npm", omit("web")],
        )
    progress(f"fetching {PACKAGE}", 0, 1, "")
    with tempfile.TemporaryDirectory() as scratch, atomic_folder(kept) as made:
        _unpack(_packed(npm, Path(scratch)), made)
    progress(f"fetching {PACKAGE}", 1, 1, "")
    return kept


def _packed(npm: str, folder: Path) -> Path:
    """Let npm fetch the package into a folder; npm checks its hash. Returns the file."""
    command = [npm, "pack", f"{PACKAGE}@{VERSION}", "--silent", "--fetch-retries=1", "--pack-destination", str(folder)]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
        said = done.stderr or done.stdout
    except subprocess.TimeoutExpired:
        said = f"no answer in {SECONDS} s"
    found = list(folder.glob("*.tgz"))
    if not found:
        raise UserError(
            f"npm cannot fetch {PACKAGE} {VERSION}",
            details=said.strip().splitlines()[-5:],
            hint=["connect to the internet once; it is then kept in the cache", omit("web")],
        )
    return found[0]


def _unpack(packed: Path, folder: Path) -> None:
    """Take the files that the page needs out of the package, by name, and say where they are from."""
    with tarfile.open(packed) as archive:
        about = json.loads(_content(archive, "package/package.json"))
        for name in RUNTIME_FILES:
            write_bytes(folder / name, _content(archive, f"package/dist/{name}"))
    url = about["repository"]["url"]
    notice = f"{about['name']} {about['version']}, licence {about['license']}, from {url} by npm.\n"
    write_bytes(folder / NOTICE, notice.encode())


def _content(archive: tarfile.TarFile, name: str) -> bytes:
    """The content of a file of an archive."""
    file = archive.extractfile(name)
    assert file is not None, f"{name} is not a file"
    return file.read()


def write_page(folder: Path, runtime: Path) -> None:
    """Add the page to the folder of an export.

    Raises:
        UserError: If the model has a second file because it is larger than 2 GB, which a browser cannot load.
    """
    if any(folder.glob("*.data")):
        raise UserError("the model is too large for a browser", hint=[set_flag("int8"), omit("web")])
    own = files("dca.export") / "web"
    for name in PARTS:
        write_bytes(folder / name, (own / name).read_bytes())
    with explain_write_errors(folder / RUNTIME):
        shutil.copytree(runtime, folder / RUNTIME)
