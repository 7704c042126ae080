"""dca study run: one experiment, a fit under a protocol."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dca.cli.common import showing
from dca.cli.fit import default_output, describe_fit, fit_options, print_json, print_result, resumable
from dca.core.choices import PROTOCOLS, RULES
from dca.core.text import percent
from dca.study.choices import MEASURED_ON, TRACKER_NAMES, TrackerName

if TYPE_CHECKING:
    from dca.study.experiment import ExperimentResult

track_option = click.option(
    "--track",
    type=click.Choice(TRACKER_NAMES),
    default=None,
    help="Also show the metrics in TensorBoard or Weights & Biases.",
)


@click.command(epilog="Options of a method: dca methods show NAME.  Many experiments: dca study sweep.")
@click.argument("data", type=click.Path())
@click.option(
    "--protocol",
    type=click.Choice(PROTOCOLS),
    default="few-shot",
    show_default=True,
    help="What is tested: DATA, unseen classes, other datasets, shifted versions, or all images of DATA together.",
)
@click.option(
    "--target", "targets", multiple=True, metavar="DATA", help="Another dataset to test on; repeatable. See --protocol."
)
@click.option(
    "--rules",
    type=click.Choice(RULES),
    default="strict",
    show_default=True,
    help="strict: a method chooses options on at most 4 validation images per class; paper: on those that its authors "
    "used, with their options for the protocol, and public images without their EXIF rotation.",
)
@click.option(
    "--measured-on",
    type=click.Choice(MEASURED_ON),
    default="test",
    show_default=True,
    help="validation: measure on validation images that no method selects on.",
)
@click.option(
    "--draw", default=None, metavar="FILE", help="Take exactly the images of this file; see: dca datasets draw."
)
@track_option
@fit_options
def command(
    data: str,
    output: Path | None,
    device: str,
    quiet: bool,
    as_json: bool,
    overwrite: bool,
    skip_bad: bool,
    gallery: bool,
    plots: bool,
    track: TrackerName | None,
    **arguments: Any,
) -> None:
    """Run one experiment: learn from DATA and test under a protocol.

    Everything else is as for `dca fit`: DATA, the folder of the model, and continuing after an interruption.

    \b
    dca study run eurosat/ --shots 16 --protocol base-to-new
    dca study run eurosat/ --method maple --shots 16 --rules paper
    dca study run imagenet/ --shots 16 --protocol domain-shift --target imagenet-sketch/
    dca study run photos/ --method dca --track tensorboard -o dca.dca
    """
    from dca.study.experiment import Experiment, ExperimentResult
    from dca.study.run import run_experiment

    target = output or default_output(data)
    fields = describe_fit(target, use_corrections=arguments["draw"] is None, **arguments)
    experiment = Experiment(data=data, **fields)
    with resumable(target), showing(quiet=quiet) as progress:
        fitted = run_experiment(
            experiment, target, device=device, progress=progress, track=track,
            overwrite=overwrite, skip_bad=skip_bad, gallery=gallery, plots=plots,
        )  # fmt: skip
    if as_json:
        print_json(fitted)
        return
    assert isinstance(fitted.result, ExperimentResult)
    print_result(fitted, data, plots, extra=format_protocol(fitted.result))


def format_protocol(result: ExperimentResult) -> list[str]:
    """What the protocol adds to the result of a fit, as lines of text."""
    lines = [f"protocol {result.protocol}; {result.selected_on}"]
    if result.harmonic_mean is not None:
        lines.append(f"harmonic mean of base and new  {percent(result.harmonic_mean)}")
    return lines
