"""Finding a backbone again: short names, hub ids, and where local checkpoints are on this machine.

A stored model names its backbone without a path, so that no folder of the user's machine travels with
it. This machine keeps its own list, digest -> place, in the user's cache folder. The list is a
convenience: without it, or with the place gone, the user passes the backbone.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from dca.core.errors import UserError
from dca.core.files import cache_folder, read_json, write_json

MINI = "mini"
HUB_IDS = {
    "vit-b-16": "openai/clip-vit-base-patch16",
    "vit-b-32": "openai/clip-vit-base-patch32",
    "vit-l-14": "openai/clip-vit-large-patch14",
    "vit-l-14-336": "openai/clip-vit-large-patch14-336",
    "laion-vit-b-16": "laion/CLIP-ViT-B-16-laion2B-s34B-b88K",
    "laion-vit-b-32": "laion/CLIP-ViT-B-32-laion2B-s34B-b79K",
    "laion-vit-l-14": "laion/CLIP-ViT-L-14-laion2B-s32B-b82K",
    "laion-vit-h-14": "laion/CLIP-ViT-H-14-laion2B-s32B-b79K",
}
FILE = "backbones.json"


def is_hub_id(source: str) -> bool:
    """Whether `source` has the form owner/name and is not a relative path such as ./name."""
    parts = source.split("/")
    return len(parts) == 2 and all(parts) and not source.startswith((".", "~"))


def hub_id(source: str) -> str | None:
    """The hub id of a backbone: "vit-b-16" -> "openai/clip-vit-base-patch16"; None for `mini` and local folders."""
    if source in HUB_IDS:
        return HUB_IDS[source]
    return source if is_hub_id(source) else None


def local_source(path: Path) -> str:
    """What a CLIP from a local path is called: the folder's or file's name, without the path to it.

    A name that is also a short name gets a leading "./", so that nobody takes it for the public backbone.
    """
    name = path.resolve().name
    return f"./{name}" if name == MINI or name in HUB_IDS else name


def find_backbone(source: str, digest: str) -> str | Path:
    """What to load for a recorded backbone.

    Args:
        source: the recorded `CLIP.source`.
        digest: the recorded `CLIP.digest`.

    Returns:
        `source` itself if it is a short name or a hub id; else where a backbone with this digest was last
        loaded from on this machine; else `source`.
    """
    if source == MINI or hub_id(source) is not None:
        return source
    return recall(digest) or source


def backbones() -> dict[str, str | None]:
    """Short names of backbones, each with the folder it is in now; None for one that is fetched on first use."""
    from huggingface_hub import try_to_load_from_cache

    from dca.backbones.clip.weights import mini_folder

    places: dict[str, str | None] = {MINI: str(mini_folder()) if mini_folder().is_dir() else None}
    for name, repo in HUB_IDS.items():
        found = try_to_load_from_cache(repo, "config.json")
        places[name] = str(Path(found).parent) if isinstance(found, str) else None
    return places


def remember(digest: str, folder: Path) -> None:
    """Note that the backbone with this digest is in `folder`; does nothing if the list cannot be written."""
    place, known = str(folder.resolve()), _read()
    if known.get(digest) == place:
        return
    with suppress(OSError, UserError):
        file = _file()
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {**known, digest: place})


def recall(digest: str) -> Path | None:
    """Where the backbone with this digest was last loaded from; None if unknown or no longer there."""
    place = _read().get(digest)
    with suppress(OSError, ValueError):
        if isinstance(place, str) and Path(place).exists():
            return Path(place)
    return None


def _read() -> dict[str, Any]:
    """The list; empty if it is missing, unreadable or damaged."""
    try:
        return read_json(_file())
    except (UserError, OSError, RuntimeError):
        return {}


def _file() -> Path:
    return cache_folder() / FILE
