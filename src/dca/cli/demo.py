"""dca demo: fit and test on built-in images."""

from __future__ import annotations

from pathlib import Path

import click

from dca.cli.common import device_flags, emit, json_flag, overwrite_flag, print_lines, quiet_flag, showing


@click.command()
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("dca-demo"),
    show_default=True,
    help="Folder to write.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="Seed of the draw and of the initial values.",
)
@click.option("--backbone", default="auto", show_default=True, help="Backbone, as for dca fit.")
@overwrite_flag
@device_flags
@quiet_flag
@json_flag
def command(
    output: Path,
    seed: int,
    backbone: str,
    overwrite: bool,
    device: str,
    precision: str,
    quiet: bool,
    as_json: bool,
) -> None:
    """Fit the default method and DCA on images that come with this package, with the CLIP inside it.

    Ten classes with 16 training and 20 test images each. Writes a folder with the model of DCA, its
    metrics, a comparison with zero-shot CLIP and the default, and a grid of predictions. A finished
    demonstration is shown again, an interrupted one continues.

    \b
    dca demo
    dca demo -o elsewhere/ --seed 2 --backbone vit-b-16
    """
    from dca.cli.fit import print_result, resumable
    from dca.plots.style import missing_matplotlib
    from dca.runs.demo import COMPARISON, CURVES, GRID, run_demo

    with resumable(output), showing(quiet=quiet) as progress:
        finished = run_demo(
            output,
            backbone=backbone,
            seed=seed,
            device=device,
            precision=precision,
            overwrite=overwrite,
            progress=progress,
        )
    if as_json:
        emit(finished.result.to_dict())
        return
    print_result(finished)
    if (output / COMPARISON).is_file():
        print_lines(f"look  {output / COMPARISON}   {output / GRID}   {output / CURVES}")
    else:
        missing = missing_matplotlib()
        print_lines(f"no plots: {missing.problem} {missing.hint}")
    print_lines("then  dca fit YOUR_PHOTOS/    one sub-folder per class")
