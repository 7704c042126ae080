"""dca serve: a model in the browser."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dca.cli.common import VisibleFormatter, backbone_of_model, device_flags, print_lines
from dca.core.errors import UserError

if TYPE_CHECKING:
    from dca.model.classifier import Classifier


class Millions(click.FloatRange):
    """A number that the user gives in millions."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number itself."""
        return round(super().convert(value, param, ctx) * 10**6)


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for all.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="Port to listen on; 0 takes any free one.",
)
@click.option(
    "--tray", type=click.Path(path_type=Path), default=None, help="Folder of unlabelled images to label on the page."
)
@click.option(
    "--reject",
    type=click.FloatRange(0, 1),
    default=None,
    metavar="P",
    help="Say 'none of these' for images whose p-value is at most P: about a share P of good images, too.  "
    "[default: 0.05, or the smallest up to 0.1 that the model can keep]",
)
@click.option(
    "--max-upload",
    "upload_bytes",
    type=Millions(min=0.001),
    default=20,
    show_default=True,
    metavar="N",
    help="Largest image file in megabytes.",
)
@click.option(
    "--max-pixels",
    "pixels",
    type=Millions(min=0.001),
    default=50,
    show_default=True,
    metavar="N",
    help="Largest image in million pixels.",
)
@click.option(
    "--batch", type=click.IntRange(min=1), default=32, show_default=True, help="Largest batch of images to encode."
)
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="HOST",
    help="Another host name that clients use, such as that of a proxy; repeatable.",
)
@click.option("--open", "open_page", is_flag=True, help="Open the page in the browser.")
@backbone_of_model
@device_flags
def command(
    model: Path,
    tray: Path | None,
    open_page: bool,
    backbone: str | None,
    device: str,
    precision: str,
    **options: Any,
) -> None:
    """Serve MODEL as a page in the browser and as a JSON API.

    Drop an image on the page to see its classes. Click the right class, or type a new one, and press
    Refit: the model learns it at once. Corrections are kept in MODEL/corrections/<class>/, and
    `dca fit` learns from them, too.

    \b
    dca serve photos.dca
    dca serve photos.dca --tray new_photos/        label the most useful images first
    dca serve photos.dca --host 0.0.0.0            for other machines; prints a token
    curl -H 'X-DCA: 1' -H 'Content-Type: image/jpeg' --data-binary @new.jpg http://127.0.0.1:8080/api/predict

    Only this machine can connect unless --host says otherwise; other machines then need the token that
    is printed (or the one in the environment variable DCA_TOKEN). There is no encryption: use a
    proxy with TLS in front on networks that you do not trust.
    """
    from dca.serve import require_packages

    require_packages()
    from dca.model.classifier import Classifier
    from dca.model.rejection import require_rate
    from dca.serve.options import TOKEN, ServeOptions
    from dca.serve.server import serve

    if tray is not None and not tray.is_dir():
        raise UserError(f"{tray}: no such folder", hint="give a folder of images to --tray")
    shown = logging.StreamHandler()
    shown.setFormatter(VisibleFormatter())
    logging.basicConfig(handlers=[shown], level=logging.WARNING)
    serve_options = ServeOptions(token=os.environ.get(TOKEN, ""), **options)
    classifier = Classifier.from_pretrained(model, backbone=backbone, device=device, precision=precision)
    require_rate(serve_options.reject, classifier.smallest_p_value)

    def on_ready(address: str) -> None:
        print_address(address, model, classifier, local=serve_options.local)
        if open_page:
            click.launch(address)

    serve(model, classifier, serve_options, tray=tray, on_ready=on_ready)


def print_address(address: str, model: Path, classifier: Classifier, *, local: bool) -> None:
    """Print which model is served, and where."""
    from dca.serve.workspace import describe_model

    where = "this machine only; --host to change" if local else "the part after # is the token: keep it to yourself"
    print_lines(f"{model}: {describe_model(classifier)}")
    print_lines(f"{address}   ({where})   Ctrl-C to stop")
    print_lines(f"corrections go to {model / 'corrections'}")
