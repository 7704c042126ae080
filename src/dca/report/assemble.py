"""Put the two pages together: about one model, and about several models on the same images.

`dca report MODEL [DATA]` and `dca compare ... -o page.html` write them.
"""

from __future__ import annotations

from pathlib import Path

from dca.core.progress import Progress, silent
from dca.core.text import pluralize
from dca.datasets.dataset import Dataset
from dca.model.classifier import Classifier
from dca.model.comparison import Comparison
from dca.report import page
from dca.report.reported_model import prepare_report
from dca.report.sections import COMPARISON_SECTIONS, SECTIONS
from dca.training.session import Session


def make_model_page(
    model: Classifier,
    name: str,
    session: Session,
    *,
    folder: Path | None = None,
    dataset: Dataset | None = None,
    data: str = "",
    progress: Progress = silent,
) -> str:
    """Make one self-contained HTML page about a model.

    Args:
        model: A fitted classifier.
        name: What to call it.
        session: Reads images and features.
        folder: Folder of the model, for what its run recorded.
        dataset: Labelled images to measure it on; None for what the fit knows.
        data: Path of these, as the user gave it.
        progress: Receives the progress.

    Returns:
        The HTML.

    Raises:
        UserError: If a class of the data is not one of the model's, an image cannot be read, or jinja2 is missing.

    Example:
        >>> from dca import Classifier, Session
        >>> from dca.datasets.sample import load_sample
        >>> from dca.report.assemble import make_model_page
        >>> sample = load_sample(per_class_train=1, per_class_test=1)
        >>> model = Classifier("zero_shot", device="cpu").fit(sample)
        >>> "How good is it?" in make_model_page(model, "photos", Session(device="cpu"))
        True
    """
    page.require_jinja()
    reported = prepare_report(model, name, session, folder=folder, dataset=dataset, data=data, progress=progress)
    below = f"{model.method_.name} on {model.method_.encoder.source}, {pluralize(len(model.classes_), 'class')}"
    return page.render(SECTIONS, reported, title=name, about=below)


def make_comparison_page(comparison: Comparison) -> str:
    """Make one self-contained HTML page about a comparison.

    Args:
        comparison: As `compare` returns it.

    Returns:
        The HTML.

    Raises:
        UserError: If jinja2 is missing.

    Example:
        >>> from dca import Classifier
        >>> from dca.datasets.sample import load_sample
        >>> from dca.model.comparison import compare
        >>> from dca.report.assemble import make_comparison_page
        >>> sample = load_sample(per_class_train=1, per_class_test=1)
        >>> model = Classifier("zero_shot", device="cpu").fit(sample)
        >>> "Which is better?" in make_comparison_page(compare([("a", model), ("b", model)], sample))
        True
    """
    page.require_jinja()
    title = " and ".join(model.name for model in comparison.models)
    about = f"{pluralize(len(comparison.models), 'model')} on {pluralize(len(comparison.images), 'image')}"
    return page.render(COMPARISON_SECTIONS, comparison, title=title, about=f"{about} of {comparison.data}")
