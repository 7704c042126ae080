"""dca serve: a model in the browser."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dca.cli.common import F, VisibleFormatter, backbone_of_model, device_flags, print_lines
from dca.core.errors import UserError

if TYPE_CHECKING:
    from dca.serve.options import ServeOptions


class Millions(click.FloatRange):
    """A number that the user gives in millions."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number itself."""
        return round(super().convert(value, param, ctx) * 10**6)


def connection_options(function: F) -> F:
    """Add the options for where a server listens and who may connect."""
    for add in reversed(_CONNECTION_OPTIONS):
        function = add(function)
    return function


def limit_options(function: F) -> F:
    """Add the options for what a server answers and takes."""
    for add in reversed(_LIMIT_OPTIONS):
        function = add(function)
    return function


def quota_options(
    flag: str, fields: tuple[str, str], what: str, *, most: int, megabytes: float, least: float
) -> Callable[[F], F]:
    """Options --max-FLAG and --max-FLAG-mb for how many files a server keeps, and how many megabytes of them.

    fields: of `ServeOptions`. what: the files in words. most, megabytes: the defaults. least: the least of both.
    """
    shown: dict[str, Any] = {"show_default": True, "metavar": "N"}
    count = click.option(
        f"--max-{flag}", fields[0], type=click.IntRange(min=round(least)), default=most, help=f"Most {what}.", **shown
    )
    size = click.option(
        f"--max-{flag}-mb", fields[1], type=Millions(min=least / 1000), default=megabytes,
        help=f"Most megabytes of {what}.", **shown,
    )  # fmt: skip
    return lambda function: count(size(function))


_CONNECTION_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for all."),
    click.option(
        "--port",
        type=click.IntRange(0, 65535),
        default=8080,
        show_default=True,
        help="Port to listen on; 0 takes any free one.",
    ),
    click.option(
        "--name",
        "names",
        multiple=True,
        metavar="HOST",
        help="Another host name that clients use, such as that of a proxy; repeatable.",
    ),
    click.option(
        "--no-token",
        is_flag=True,
        help="Let every user and program of this machine connect; refused with a --host for other machines.",
    ),
)
_LIMIT_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--reject",
        type=click.FloatRange(0, 1),
        default=None,
        metavar="P",
        help="Say 'none of these' for images whose p-value is at most P: about a share P of good images, too.  "
        "[default: 0.05, or the smallest up to 0.1 that the model can keep]",
    ),
    click.option(
        "--max-upload",
        "upload_bytes",
        type=Millions(min=0.001),
        default=20,
        show_default=True,
        metavar="N",
        help="Largest image file in megabytes.",
    ),
    click.option(
        "--max-pixels",
        "pixels",
        type=Millions(min=0.001),
        default=50,
        show_default=True,
        metavar="N",
        help="Largest image in million pixels.",
    ),
    click.option(
        "--batch", type=click.IntRange(min=1), default=32, show_default=True, help="Largest batch of images to encode."
    ),
)
open_flag = click.option(
    "--open",
    "open_page",
    is_flag=True,
    help="Open the page in the browser; its command line, which other users may see, then holds the token.",
)


@click.command()
@click.argument("model", type=click.Path(path_type=Path), required=False)
@connection_options
@click.option(
    "--tray", type=click.Path(path_type=Path), default=None, help="Folder of unlabelled images to label on the page."
)
@limit_options
@quota_options(
    "corrections", ("corrections", "correction_bytes"), "corrected images", most=5000, megabytes=2000, least=0
)
@open_flag
@backbone_of_model
@device_flags
def command(
    model: Path | None,
    tray: Path | None,
    open_page: bool,
    no_token: bool,
    backbone: str | None,
    device: str,
    precision: str,
    **options: Any,
) -> None:
    """Serve MODEL as a page in the browser and as a JSON API; without MODEL, as `dca app`.

    Drop an image on the page to see its classes. Click the right class, or type a new one, and press
    Refit: the model learns it at once. Corrections are kept in MODEL/corrections/<class>/, and
    `dca fit` learns from them, too.

    \b
    dca serve photos.dca
    dca serve photos.dca --tray new_photos/        label the most useful images first
    dca serve photos.dca --host 0.0.0.0            for other machines
    curl -H "Authorization: Bearer $TOKEN" -H 'X-DCA: 1' --data-binary @new.jpg http://127.0.0.1:8080/api/predict

    Only this machine can connect unless --host says otherwise, and only with the token in the address that
    is printed (or the one in the environment variable DCA_TOKEN): the machine may have other users.
    There is no encryption: use a proxy with TLS in front on networks that you do not trust.
    """
    if model is None:
        if tray is not None:
            raise UserError("a tray needs a model", hint="name the model, or drop the images on the page of dca app")
        from dca.cli.app import run_app

        shared: dict[str, Any] = {
            "open_page": open_page,
            "no_token": no_token,
            "device": device,
            "precision": precision,
        }
        return run_app(None, backbone or "auto", **shared, **options)
    from dca.serve import require_packages

    require_packages()
    from dca.core.device import share_freed_memory
    from dca.model.classifier import Classifier
    from dca.model.rejection import require_rate
    from dca.serve.server import serve
    from dca.serve.workspace import describe_model

    if tray is not None and not tray.is_dir():
        raise UserError(f"{tray}: no such folder", hint="give a folder of images to --tray")
    start_logging()
    share_freed_memory()
    serve_options = make_options(no_token=no_token, **options)
    classifier = Classifier.from_pretrained(model, backbone=backbone, device=device, precision=precision)
    require_rate(serve_options.reject, classifier.smallest_p_value)

    def on_ready(address: str) -> None:
        print_lines(f"{model}: {describe_model(classifier)}")
        print_access(address, serve_options)
        print_lines(f"corrections go to {model / 'corrections'}")
        if open_page:
            click.launch(address)

    serve(model, classifier, serve_options, tray=tray, on_ready=on_ready)


def start_logging() -> None:
    """Show warnings of the server."""
    shown = logging.StreamHandler()
    shown.setFormatter(VisibleFormatter())
    logging.basicConfig(handlers=[shown], level=logging.WARNING)


def make_options(*, no_token: bool, **options: Any) -> ServeOptions:
    """The options of a server; the token is that of the environment, or a random one."""
    from dca.serve.options import TOKEN, ServeOptions, create_token

    return ServeOptions(token="" if no_token else os.environ.get(TOKEN) or create_token(), **options)


def print_access(address: str, options: ServeOptions) -> None:
    """Print where the page is, and for whom."""
    where = "this machine only; --host to change" if options.local else "also for other machines"
    token = "keep the token after # to yourself" if options.token else "no token: for all users of this machine"
    print_lines(f"{address}   Ctrl-C to stop")
    print_lines(f"({where}; {token})")
