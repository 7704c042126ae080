"""dca push: send a model to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

import click

from dca.cli.common import emit, json_flag, print_lines


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("repo")
@click.option("--private", is_flag=True, help="Make the repository private if it is new.")
@click.option("--branch", default=None, help="Branch to send to.  [default: main]")
@click.option("--message", default=None, help="Commit message.")
@click.option("--create-pr", is_flag=True, help="Open a pull request instead.")
@click.option("--with-images", is_flag=True, help="Also send thumbnails of the training images, and corrected images.")
@json_flag
def command(
    model: Path,
    repo: str,
    private: bool,
    branch: str | None,
    message: str | None,
    create_pr: bool,
    with_images: bool,
    as_json: bool,
) -> None:
    """Send MODEL to REPO (user/name) on the Hugging Face hub, in one commit, with its card.

    A model names the files of its training images; the images themselves are sent only with --with-images.
    Access is given by `hf auth login` or HF_TOKEN.

    \b
    dca push photos.dca someone/photos
    dca push photos.dca someone/photos --private --message "More cats"
    """
    from dca.model.hub import MESSAGE, push_folder

    url = push_folder(
        model,
        repo,
        commit_message=message or MESSAGE,
        private=private or None,
        branch=branch,
        create_pr=create_pr,
        include_images=with_images,
    )
    if as_json:
        emit({"model": str(model), "repo": repo, "url": url})
        return
    print_lines(f"{model}: sent to {url}")
    print_lines(f'next  Classifier.from_pretrained("{repo}")')
