"""What a user can do about an error, worded for the command line and for Python.

Code below the command line does not know who called it. A hint is therefore an `Action` with two
texts: `UserError.render("cli")` shows flags and commands, `str(error)` shows arguments and calls.
Each text is a clause without a full stop, so that several can be joined: "..., or ...".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Audience = Literal["cli", "python"]


@dataclass(frozen=True)
class Action:
    """One way to solve a problem. The functions of this module make the usual ones.

    Args:
        cli: Text for the command line, with flags and commands.
        python: Text for Python, with arguments and calls.

    Example:
        >>> from dca.core.hints import set_shots
        >>> set_shots(2, 4).python
        'use shots=2 or 4'
    """

    cli: str
    python: str


# Plain text is the same for the command line and for Python.
Hint = str | Action | Sequence[str | Action]


def split_hint(hint: Hint) -> tuple[str | Action, ...]:
    """The parts of a hint, without empty ones."""
    parts = (hint,) if isinstance(hint, str | Action) else tuple(hint)
    return tuple(part for part in parts if part)


def render_hint(hint: Hint, audience: Audience) -> str:
    """The text of a hint.

    >>> render_hint(["add images", set_shots(2)], "cli")
    'add images, or use --shots 2'
    >>> render_hint(["add images", set_shots(2)], "python")
    'add images, or use shots=2'
    """
    return ", or ".join(part if isinstance(part, str) else getattr(part, audience) for part in split_hint(hint))


def fit_with_estimate() -> Action:
    """Fit with held-out predictions."""
    return Action("fit again with --estimate, or with the default method", "fit again with estimate=True")


def combine(first: str, action: Action) -> Action:
    """One action: first something that is worded the same for everyone, then another action.

    >>> combine("put the files into a folder", choose_backbone("FOLDER")).cli
    'put the files into a folder and name the backbone with --backbone FOLDER'
    """
    return Action(f"{first} and {action.cli}", f"{first} and {action.python}")


# Arguments of a fit


def choose_output(what: str = "another folder") -> Action:
    """Write the result somewhere else; `what` describes where."""
    return Action(f"choose {what} with -o DIR", f"choose {what}")


def choose_folder(argument: str) -> Action:
    """Write into another folder, which the command line takes as this option."""
    return Action(f"choose another folder with {_flag(argument)} DIR", "choose another folder")


def allow_overwrite() -> Action:
    """Replace what is at the output."""
    return Action("replace it with --overwrite", "replace it with overwrite=True")


def set_shots(*numbers: int) -> Action:
    """Draw one of these numbers of training images per class."""
    return _one_of("shots", numbers)


def hold_out(share: float) -> Action:
    """Test on a share of the images."""
    return Action(
        f"hold out test images with {_flag('hold_out')} {share:g}", f"hold out test images with hold_out={share:g}"
    )


def omit(*arguments: str) -> Action:
    """Leave out arguments, given by their Python names.

    >>> omit("hold_out").cli, omit("hold_out").python
    ('leave out --hold-out', 'leave out hold_out')
    """
    return Action(f"leave out {' and '.join(map(_flag, arguments))}", f"leave out {' and '.join(arguments)}")


def set_flag(argument: str) -> Action:
    """Switch an argument on, given by its Python name.

    >>> set_flag("int8").cli, set_flag("int8").python
    ('use --int8', 'use int8=True')
    """
    return Action(f"use {_flag(argument)}", f"use {argument}=True")


def set_option(name: str, value: Any) -> Action:
    """Give an option of the method this value.

    >>> set_option("epochs", 50).cli, set_option("epochs", 50).python
    ('use --set epochs=50', 'use epochs=50')
    """
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return Action(f"use --set {name}={text}", f"use {name}={text if isinstance(value, float) else repr(value)}")


def choose_backbone(source: str = "PLACE") -> Action:
    """Say where the backbone is."""
    return Action(f"name the backbone with --backbone {source}", f"name the backbone with backbone={_literal(source)}")


def choose_architecture(name: str) -> Action:
    """Name the architecture of a file of tensors."""
    return Action(f"name its architecture with --architecture {name}", f"name the backbone '{name}:FILE'")


def choose_device(*names: str) -> Action:
    """Run on one of these devices."""
    return _one_of("device", names)


def choose_precision(*names: str) -> Action:
    """Compute in one of these precisions."""
    return _one_of("precision", names)


def choose_address() -> Action:
    """Listen somewhere else."""
    return Action("choose another --port or --host", "choose another port or host")


# Methods


def list_methods() -> Action:
    """List all methods."""
    return Action("list the methods with `dca methods`", "list the methods with `dca.list_methods()`")


def show_method(name: str) -> Action:
    """List the options of one method."""
    return Action(
        f"see the options and their limits with `dca methods show {name}`",
        f"see the options and their limits with `help(dca.list_methods()[{name!r}].Options)`",
    )


def list_specification_keys() -> Action:
    """Show what a sweep specification may hold."""
    return Action("see its keys with `dca study sweep --help`", "see its keys with `help(dca.study.specification)`")


def run_sweep() -> Action:
    """Run the experiments of a specification."""
    return Action(
        "run experiments with `dca study sweep SPEC --runs RUNS`", "run experiments with `dca.study.run_sweep`"
    )


def finish_sweep(study: str, runs: str) -> Action:
    """Run the cells of a study that are not finished."""
    call = f"from dca.study import plan_sweep, run_sweep; list(run_sweep(plan_sweep(study, {_literal(runs)})))"
    return Action(f"run `dca study sweep {study} --runs {runs}`", f"run `{call}`")


def report_runs() -> Action:
    """Write a report about a folder of runs."""
    return Action(
        "report on a folder of runs with `dca study report RUNS`", "report on runs with `dca.study.report.folder`"
    )


def collect_runs() -> Action:
    """Collect finished runs into a results file."""
    return Action(
        "collect the runs again with `dca study collect RUNS -o FILE`",
        "collect the runs again with `dca.study.index.collect`",
    )


def start_ray() -> Action:
    """Start a Ray cluster, or name one."""
    way = "start a cluster with `ray start --head`, or name one with RAY_ADDRESS"
    return Action(way, way)


def install_again(requirement: str) -> Action:
    """Install a package anew, whose files were changed."""
    way = f"run `pip install --force-reinstall --no-deps {requirement}`"
    return Action(way, way)


def write_features(path: str) -> Action:
    """Make a file of image features with the encoder that is wanted."""
    command = f"dca embed FOLDER -o {path} --backbone NAME"
    return Action(f"write them: {command}", f"write them: embed_to_file(..., '{path}')")


def log_in_to_wandb() -> Action:
    """Give Weights & Biases an account, or keep its runs on this machine."""
    way = "log in with `wandb login`, or set WANDB_MODE=offline"
    return Action(way, way)


# Data


def choose_targets() -> Action:
    """Name datasets to test on."""
    return Action("name one or more with --target DATA", "name one or more with targets=(DATA,)")


def choose_protocol(*names: str) -> Action:
    """Use one of these protocols."""
    return _one_of("protocol", names)


def list_datasets() -> Action:
    """List all public datasets."""
    return Action(
        "list the public datasets with `dca datasets`",
        "list the public datasets with `from dca.datasets import catalog; catalog.entries()`",
    )


def show_dataset(name: str) -> Action:
    """Show the layout and the source of one public dataset."""
    return Action(
        f"see where to get it and how to arrange it with `dca datasets show {name}`",
        "see where to get it and how to arrange it with "
        f"`from dca.datasets import catalog; catalog.get({name!r}).describe()`",
    )


def set_data_root(folder: str) -> Action:
    """Name the folder of the public datasets; `folder` is where the dataset in question lies in it."""
    where = f"set DCA_DATA=DIR, the folder that holds {folder}/"
    return Action(
        f"{where} (`dca datasets` also takes --root DIR)", f"{where} (`dca.load_dataset` also takes root=DIR)"
    )


def check_data() -> Action:
    """List everything that is wrong with the data."""
    return Action(
        "list all problems with `dca datasets check DATA`",
        "list all problems with `from dca.datasets.check import check_source; check_source(data)`",
    )


def write_draw() -> Action:
    """Write the file of a draw again."""
    return Action(
        "write the draw again with `dca datasets draw DATA --shots K -o FILE`",
        "write the draw again with `from dca.datasets.draws import export_draw; export_draw(...)`",
    )


def skip_unreadable() -> Action:
    """Use only the images that can be read."""
    return Action("skip them with --skip-bad (of `dca fit` and `dca predict`)", "leave them out of the list of images")


def download_first() -> Action:
    """Give a file instead of its address."""
    return Action(
        "download it first, for example with `curl -O URL`, and give the file",
        "download it first, for example with `urllib.request.urlretrieve(url, 'image.jpg')`, and give the file",
    )


def raise_pixel_limit() -> Action:
    """Open larger images."""
    return Action(
        "open larger images with --max-megapixels N", "open larger images with PIL.Image.MAX_IMAGE_PIXELS = N"
    )


# Models


def fit_first() -> Action:
    """Make a model."""
    return Action(
        "make a model with `dca fit DATA -o DIR`",
        "make a model with `dca.Classifier().fit(data).save_pretrained(folder)`",
    )


def resume_fit() -> Action:
    """Continue an unfinished run."""
    return Action(
        "give the command that began it again to continue it",
        "run it again with the same arguments and the same folder to continue it",
    )


def change_label_only() -> Action:
    """Rename a class without giving CLIP another name to read."""
    return Action("change only its label with --label-only", "change only its label with label_only=True")


def set_token() -> Action:
    """Give the hub an access token."""
    return Action("log in with `hf auth login`, or set HF_TOKEN", "log in with `hf auth login`, or give token=TOKEN")


def evaluate_model() -> Action:
    """Measure the accuracy of a model on other images."""
    return Action("measure the model with `dca eval MODEL DATA`", "measure the model with `classifier.evaluate(data)`")


def _one_of(argument: str, values: Sequence[object]) -> Action:
    """Set an argument to one of several values.

    >>> _one_of("device", ["auto", "cpu", "cuda"])
    Action(cli='use --device auto, cpu or cuda', python="use device='auto', 'cpu' or 'cuda'")
    """
    return Action(
        f"use {_flag(argument)} {_join_with_or(map(str, values))}", f"use {argument}={_join_with_or(map(repr, values))}"
    )


def _join_with_or(words: Iterable[str]) -> str:
    """Words joined as in "a, b or c"."""
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def _flag(argument: str) -> str:
    """The flag of an argument: hold_out -> --hold-out."""
    return f"--{argument.replace('_', '-')}"


def _literal(value: str) -> str:
    """A value as Python code; names in capitals are placeholders."""
    return value if value.isupper() else repr(value)
