"""Models on the Hugging Face hub: sent in one commit, read back with the same checks as a local folder.

Only the files of a model travel. Images do not, unless asked for: thumbnails of the training images
(`gallery.safetensors`) and corrected images (`corrections/`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dca.backbones.sources import is_hub_id
from dca.core.errors import UserError
from dca.core.files import encode_utf8
from dca.core.hints import set_token
from dca.datasets.corrections import CORRECTIONS
from dca.datasets.walk import list_files
from dca.model import checkpoint
from dca.model.card import PLACEHOLDER, model_card
from dca.model.gallery import GALLERY
from dca.model.records import LIBRARY

# What is sent and fetched; a gallery only where the repository has one.
WANTED = (checkpoint.CONFIG, checkpoint.WEIGHTS, checkpoint.MANIFEST, checkpoint.CARD)
MESSAGE = "Upload a dca model"


@dataclass(frozen=True)
class HubOptions:
    """How a repository is fetched; the names are those of `huggingface_hub.snapshot_download`."""

    revision: str | None = None
    token: str | bool | None = None
    cache_dir: str | Path | None = None
    local_files_only: bool = False
    force_download: bool = False


def find_model(name: str | Path, options: HubOptions) -> Path:
    """Find the folder of a model: the local one, or that of a hub repository, fetched into the hub's cache.

    A `Path`, and a text whose first part is a folder here, is never looked for on the hub.

    Raises:
        UserError: If the repository cannot be fetched.
    """
    path = Path(name)
    if isinstance(name, Path) or path.exists() or not is_hub_id(name) or path.parent.is_dir():
        return path
    from huggingface_hub import snapshot_download

    with _explain_hub_errors(f"{name} is not a folder here, and cannot be fetched from the hub"):
        return Path(snapshot_download(name, allow_patterns=[*WANTED, GALLERY], **asdict(options)))


def push_folder(
    folder: Path,
    repo_id: str,
    *,
    commit_message: str = MESSAGE,
    private: bool | None = None,
    token: str | None = None,
    branch: str | None = None,
    create_pr: bool = False,
    include_images: bool = False,
) -> str:
    """Send a model folder to the hub in one commit; the arguments are those of `Classifier.push_to_hub`.

    Returns the address of the commit, or of the pull request.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    record, card = checkpoint.read_record(folder), folder / checkpoint.CARD
    checkpoint.require_intact(folder)
    text = card.read_text(encoding="utf-8") if card.is_file() else model_card(record)
    contents: dict[str, Path | bytes] = {name: folder / name for name in WANTED}
    contents[checkpoint.CARD] = encode_utf8(text.replace(PLACEHOLDER, repo_id))
    contents |= {path.relative_to(folder).as_posix(): path for path in _image_files(folder) if include_images}
    with _explain_hub_errors(f"the model cannot be sent to {repo_id}"):
        api = HfApi(token=token, library_name=LIBRARY)
        target = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        parts = [CommitOperationAdd(name, str(c) if isinstance(c, Path) else c) for name, c in contents.items()]
        done = api.create_commit(target, parts, commit_message=commit_message, revision=branch, create_pr=create_pr)
    return str(done.pr_url or done.commit_url)


def _image_files(folder: Path) -> list[Path]:
    """The files of a model folder that hold images of the user."""
    corrections = list_files(folder / CORRECTIONS) if (folder / CORRECTIONS).is_dir() else []
    return [path for path in (folder / GALLERY,) if path.is_file()] + corrections


@contextmanager
def _explain_hub_errors(problem: str) -> Iterator[None]:
    """Turn what the hub's client raises into a UserError."""
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        yield
    except Exception as error:
        # By name: versions of the client use different libraries for HTTP, whose errors share only that.
        on_the_way = any(kind.__name__ == "HTTPError" for kind in type(error).__mro__)
        if not on_the_way and not isinstance(error, OSError | ValueError | RuntimeError):
            raise
        # The cause often has the same words.
        reasons = [_first_line(part) for part in (error, error.__cause__) if isinstance(part, Exception)]
        reason = ": ".join(dict.fromkeys(reasons))
        status = getattr(getattr(error, "response", None), "status_code", None)
        barred = isinstance(error, RepositoryNotFoundError) or status in (401, 403)
        hint: Any = ["check its name", set_token()] if barred else "check the name and the connection"
        raise UserError(f"{problem}: {reason}", hint=hint) from None


def _first_line(error: Exception) -> str:
    """The first line of an error's message; its kind if it has none."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
