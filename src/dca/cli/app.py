"""dca app: from an empty page to a classifier."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from dca.cli.common import device_flags, print_lines
from dca.cli.serve import (
    connection_options,
    limit_options,
    make_options,
    open_flag,
    print_access,
    quota_options,
    start_logging,
)
from dca.core.errors import UserError

# Where projects are kept unless another folder is named.
WORKSPACE = "dca-projects"


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), required=False)
@click.option(
    "--backbone",
    default="auto",
    show_default=True,
    help="As for `dca fit`: mini, efficientnet-lite0, vit-b-16, ..., a hub id, a path, or several with commas.",
)
@connection_options
@limit_options
@quota_options(
    "photos", ("project_photos", "project_bytes"), "photos of a project", most=20_000, megabytes=20_000, least=1
)
@open_flag
@device_flags
def command(
    folder: Path | None, backbone: str, open_page: bool, no_token: bool, device: str, precision: str, **options: Any
) -> None:
    """Make a classifier in the browser, from an empty page.

    FOLDER holds the projects; it is ~/dca-projects by default. It may also be a single project, a folder
    of photos as `dca fit` takes it.

    \b
    dca app                       projects are folders in ~/dca-projects
    dca app work/                 ... in work/
    dca app photos/               photos/cat/*.jpg  photos/dog/*.jpg
    dca app --host 0.0.0.0        also for other machines, such as a phone

    Drop folders or a zip, or use the camera: the model follows by itself, and is written beside the photos
    (photos.dca), as `dca fit photos/` writes it. What is done on the page, the command line can continue,
    and the other way round.
    """
    run_app(folder, backbone, open_page=open_page, no_token=no_token, device=device, precision=precision, **options)


def run_app(
    folder: Path | None, backbone: str, *, open_page: bool, no_token: bool, device: str, precision: str, **options: Any
) -> None:
    """Serve the projects of a folder until the process is interrupted."""
    from dca.serve import require_packages

    require_packages()
    from dca.core.device import share_freed_memory
    from dca.projects.project import is_project
    from dca.serve.server import serve_projects
    from dca.training.session import Session

    start_logging()
    share_freed_memory()
    serve_options = make_options(no_token=no_token, **options)
    workspace, project = (folder or Path.home() / WORKSPACE).expanduser(), ""
    if workspace.exists() and not workspace.is_dir():
        raise UserError(f"{workspace} is a file", hint="give a folder for the projects, or a folder of photos")
    if workspace.is_dir() and is_project(workspace):
        workspace, project = workspace.resolve().parent, workspace.resolve().name
    session = Session(device=device)

    def on_ready(address: str) -> None:
        # In the fragment, which browsers do not send; the page takes it out of the address.
        separator = "&" if "#" in address else "#"
        shown = f"{address}{separator}project={quote(project)}" if project else address
        print_lines(f"projects in {workspace}")
        print_access(shown, serve_options)
        if open_page:
            click.launch(shown)

    serve_projects(workspace, session, backbone, serve_options, precision=precision, on_ready=on_ready)
