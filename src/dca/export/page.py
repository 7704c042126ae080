"""The page of an export: static files that classify images in the browser with onnxruntime-web.

The runtime is fetched once with npm, in the version that this code was tested with, and kept in the cache folder.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
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
# Files of this package.
PAGE_FILES = ("index.html", "style.css", "resample.js", "answers.js", "app.js")
# Everything that the page adds to the folder of an export.
PAGE_NAMES = (*PAGE_FILES, RUNTIME)
# Time limit of npm.
SECONDS = 600
# Pillow's filters that resample.js implements: nearest, lanczos, bilinear, bicubic, box, hamming.
FILTERS = range(6)


def fetch_runtime_for(inputs: Sequence[Mapping[str, Any]], progress: Progress) -> Path:
    """Return the folder with the runtime of a page for a model with these inputs (`ModelDescription.inputs`).

    Raises:
        UserError: If the page cannot resize images as the model needs it, or the runtime cannot be fetched.
    """
    for given in inputs:
        if (number := given["preprocess"]["resample"]) not in FILTERS:
            problem = f"the page does not have Pillow's filter {number}, with which the backbone resizes images"
            raise UserError(problem, hint=omit("web"))
    return fetch_runtime(progress)


def fetch_runtime(progress: Progress) -> Path:
    """Return the folder with onnxruntime-web's files, from the cache or fetched with npm.

    Raises:
        UserError: If npm is missing or cannot fetch the package.
    """
    folder = cache_folder() / f"{PACKAGE}-{VERSION}"
    if all((folder / name).is_file() for name in (*RUNTIME_FILES, NOTICE)):
        return folder
    npm = shutil.which("npm")
    if npm is None:
        raise UserError(
            f"the page needs {PACKAGE}, which npm fetches, and npm is not installed",
            hint=["install Node.js, which brings npm", omit("web")],
        )
    progress(f"fetching {PACKAGE}", 0, 1, "")
    with tempfile.TemporaryDirectory() as scratch, atomic_folder(folder, "export", wait=SECONDS) as unfinished:
        _unpack(_fetch_package(npm, Path(scratch)), unfinished)
    progress(f"fetching {PACKAGE}", 1, 1, "")
    return folder


def _fetch_package(npm: str, folder: Path) -> Path:
    """Fetch the package into a folder with npm, which checks its hash; returns the file."""
    command = [npm, "pack", f"{PACKAGE}@{VERSION}", "--silent", "--fetch-retries=1", "--pack-destination", str(folder)]
    try:
        process = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
        message = process.stderr or process.stdout
    except subprocess.TimeoutExpired:
        message = f"no answer in {SECONDS} s"
    packages = list(folder.glob("*.tgz"))
    if not packages:
        raise UserError(
            f"npm cannot fetch {PACKAGE} {VERSION}",
            details=message.strip().splitlines()[-5:],
            hint=["connect to the internet once; it is then kept in the cache", omit("web")],
        )
    return packages[0]


def _unpack(package: Path, folder: Path) -> None:
    """Extract the files that the page needs, and write a notice of their origin."""
    with tarfile.open(package) as archive:
        about = json.loads(_read_member(archive, "package/package.json"))
        for name in RUNTIME_FILES:
            write_bytes(folder / name, _read_member(archive, f"package/dist/{name}"))
    url = about["repository"]["url"]
    notice = f"{about['name']} {about['version']}, licence {about['license']}, from {url} by npm.\n"
    write_bytes(folder / NOTICE, notice.encode())


def _read_member(archive: tarfile.TarFile, name: str) -> bytes:
    """Read a file of an archive."""
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
    for name in PAGE_FILES:
        write_bytes(folder / name, (own / name).read_bytes())
    with explain_write_errors(folder / RUNTIME):
        shutil.copytree(runtime, folder / RUNTIME)
