"""The page about several models on the same images: `dca compare ... -o page.html`."""

from __future__ import annotations

from dca.core.wording import counted
from dca.model.comparison import Comparison
from dca.report import page
from dca.report.page import Section
from dca.report.sections import compared, costs, disagreements

SECTIONS: tuple[Section[Comparison], ...] = (compared.SECTION, disagreements.SECTION, costs.SECTION)


def comparison_page(comparison: Comparison) -> str:
    """One self-contained HTML page about a comparison.

    Args:
        comparison: As `compare` returns it.

    Returns:
        The HTML.

    Raises:
        UserError: If jinja2 is missing.
    """
    page.need_jinja()
    title = " and ".join(model.name for model in comparison.models)
    about = f"{counted(len(comparison.models), 'model')} on {counted(len(comparison.images), 'image')}"
    return page.render(SECTIONS, comparison, title=title, about=f"{about} of {comparison.data}")
