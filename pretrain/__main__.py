"""python -m pretrain: make a small CLIP from your own images and texts."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import click

from dca.core.errors import UserError

CONFIG = click.argument("config", type=click.Path(exists=True, dir_okay=False, path_type=Path))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-v", "--verbose", is_flag=True, help="Print more about what is done.")
def cli(verbose: bool) -> None:
    """Pretrain a small CLIP: pack images, learn a tokenizer, prepare, train, evaluate."""
    logging.basicConfig(level="INFO" if verbose else "WARNING", format="%(message)s", stream=sys.stderr)


@cli.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder of the pack.")
@click.option("--source", required=True, help="Name of this source within the pack.")
@click.option("--captions", type=click.Path(exists=True, path_type=Path), help="JSONL with file, names and captions.")
def pack(folder: Path, out: Path, source: str, captions: Path | None) -> None:
    """Put the images of FOLDER into a pack."""
    from pretrain.pack import pack_folder

    click.echo(f"{pack_folder(folder, captions, out, source):,} images in {out / source}.bin")


@cli.command()
@CONFIG
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for the tokenizer files.")
@click.option("--size", default=10240, show_default=True, help="Tokens, SOT and EOT included.")
def tokenizer(config: Path, out: Path, size: int) -> None:
    """Learn a tokenizer from the texts of the pack and the lexicon."""
    from pretrain import bpe
    from pretrain.config import read_config

    settings = read_config(config)
    bpe.save(bpe.learn(bpe.corpus_texts(settings), size), out, settings.model.context)
    click.echo(f"{size:,} tokens in {out}")


@cli.command()
@CONFIG
@click.option("--source", "sources", multiple=True, help="Prepare this source only; may be repeated.")
@click.option("--device", default="auto", show_default=True, help="Where the sentence encoder runs.")
def prepare(config: Path, sources: tuple[str, ...], device: str) -> None:
    """Decode the images and tokenise the texts of the pack, once."""
    from dca.core.device import resolve_device
    from pretrain.config import read_config
    from pretrain.prepare import prepare as prepare_sources

    prepare_sources(read_config(config), sources, str(resolve_device(device)))


@cli.command()
@CONFIG
def train(config: Path) -> None:
    """Train with the settings of CONFIG, or continue training; the model is in OUT/model."""
    from pretrain.config import read_config
    from pretrain.train import train as run

    run(read_config(config), report=_show)


@cli.command()
@CONFIG
@click.pass_context
def run(context: click.Context, config: Path) -> None:
    """Prepare what is not prepared yet, then train."""
    context.invoke(prepare, config=config, sources=(), device="auto")
    context.invoke(train, config=config)


@cli.command()
@click.argument("model")
@click.option(
    "--data", type=click.Path(exists=True, path_type=Path), help="Folder with Caltech101, EuroSAT and Flowers102."
)
@click.option("--pack", "packed", type=click.Path(exists=True, path_type=Path), help="Pack with tiny_imagenet.")
@click.option("--shots", multiple=True, type=int, default=(16,), show_default=True, help="Images per class.")
@click.option("--most", type=int, help="At most about this many validation images.")
def evaluate(model: str, data: Path | None, packed: Path | None, shots: tuple[int, ...], most: int | None) -> None:
    """Measure MODEL (a folder, a hub id or a short name): the table of the model card."""
    from pretrain.evaluate import evaluate as measure

    click.echo(json.dumps(measure(model, data, packed, shots, most), indent=1))


def _show(line: dict[str, Any]) -> None:
    click.echo(" ".join(f"{name}={value}" for name, value in line.items()))


def main() -> None:
    """Run the command line; exit with 2 on an error that the user can correct."""
    try:
        cli(prog_name="python -m pretrain")
    except UserError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
