"""dca add-class, remove-class and rename-class: change the classes of a finished model."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dca.cli.common import (
    backbone_of_model,
    device_flags,
    emit,
    json_flag,
    overwrite_flag,
    print_lines,
    quiet_flag,
    showing,
)
from dca.core.errors import UserError
from dca.core.hints import allow_overwrite, choose_output
from dca.core.text import pluralize

if TYPE_CHECKING:
    from dca.core.progress import Progress
    from dca.model.classifier import Classifier

F = TypeVar("F", bound=Callable[..., Any])
Change = Callable[["Classifier", "Progress"], "Classifier"]


def change_options(function: F) -> F:
    """Add the argument MODEL, -o, and the options of commands that load a model."""
    for option in (json_flag, quiet_flag, device_flags, backbone_of_model, overwrite_flag):
        function = option(function)
    output = click.option(
        "-o",
        "--output",
        type=click.Path(path_type=Path),
        default=None,
        help="Folder of the changed model.  [default: MODEL itself]",
    )
    return click.argument("model", type=click.Path(path_type=Path))(output(function))


@click.command()
@change_options
@click.argument("name")
@click.argument("images", nargs=-1, type=click.Path())
@click.option("--label", default=None, help="Label of the class in predictions.  [default: NAME]")
def add(model: Path, name: str, images: tuple[str, ...], label: str | None, **options: Any) -> None:
    """Add the class NAME to MODEL, with IMAGES: files, or folders with all images below them.

    The images of the other classes are not needed and nothing is trained again. Methods that learn
    prompts put them before the new name, so they need no IMAGES. Without -o, MODEL itself is changed.

    \b
    dca add-class photos.dca zebra zebras/
    dca add-class photos.dca "polar bear" a.jpg b.jpg -o more.dca
    dca add-class photos.dca zebra zebras/ --label SKU-1671
    """
    paths = list_images(images)
    change_model(model, lambda old, progress: old.add_class(name, paths, label=label, progress=progress), **options)


@click.command()
@change_options
@click.argument("name")
def remove(model: Path, name: str, **options: Any) -> None:
    """Remove the class NAME from MODEL. Without -o, MODEL itself is changed.

    \b
    dca remove-class photos.dca zebra
    dca remove-class photos.dca zebra -o fewer.dca
    """
    change_model(model, lambda old, _: old.remove_class(name), **options)


@click.command()
@change_options
@click.argument("name")
@click.argument("new")
@click.option("--label-only", is_flag=True, help="Keep the name that CLIP reads, and so all probabilities.")
def rename(model: Path, name: str, new: str, label_only: bool, **options: Any) -> None:
    """Rename the class NAME of MODEL to NEW, which CLIP then reads. Without -o, MODEL itself is changed.

    \b
    dca rename-class photos.dca ox "highland cattle"
    dca rename-class photos.dca zebra SKU-1671 --label-only
    """
    change_model(model, lambda old, _: old.rename_class(name, new, label_only=label_only), **options)


def list_images(images: Sequence[str]) -> list[Path]:
    """List files in the order given, with all images below folders; one error names all that are missing."""
    from dca.model.inputs import as_images

    if missing := [name for name in images if not os.path.exists(name)]:
        raise UserError("no such file or folder", details=missing, hint="check the paths")
    return [Path(str(image)) for name in images for image in as_images(name)]


def change_model(
    model: Path,
    change: Change,
    *,
    output: Path | None,
    overwrite: bool,
    backbone: str | None,
    device: str,
    precision: str,
    quiet: bool,
    as_json: bool,
) -> None:
    """Load the model, change it, and write it to the output in one rename."""
    from dca.core.files import exclusive_lock
    from dca.model import checkpoint
    from dca.model.classifier import Classifier

    checkpoint.read_record(model)  # before a lock file is made beside it
    target = model if output is None else output
    in_place = os.path.realpath(target) == os.path.realpath(model)
    if not in_place:
        require_free(target, overwrite=overwrite)
    with exclusive_lock(target):
        old = Classifier.from_pretrained(model, backbone=backbone, device=device, precision=precision)
        with showing(quiet=quiet) as progress:
            new = change(old, progress)
        checkpoint.save_model(target, new.method_, new._to_record(), new.gallery())
    print_change(new, model if in_place else target, as_json=as_json)


def require_free(target: Path, *, overwrite: bool) -> None:
    """Raise if something is at the output that may not be replaced."""
    from dca.model import checkpoint

    checkpoint.require_replaceable(target)
    if checkpoint.holds_model(target) and not overwrite:
        raise UserError(f"{target} holds a model", hint=[choose_output(), allow_overwrite()])


def print_change(model: Classifier, folder: Path, *, as_json: bool) -> None:
    """Print the last change, and how to measure the changed model."""
    from dca.model.records import ClassAdded

    change, labels = model.lineage_[-1], model._to_record().labels
    if as_json:
        emit({"model": str(folder), **change.to_dict(), "classes": labels})
        return
    print_lines(f"{folder}: {change}; {pluralize(len(labels), 'class')}")
    if isinstance(change, ClassAdded) and not change.images:
        print_lines("  no images: the class is known by its name only")
    if change.before.results is not None:
        print_lines("its accuracy is not known any more")
        print_lines(f"next  dca eval {shlex.quote(str(folder))} FOLDER")
