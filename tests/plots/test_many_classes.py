"""Charts of many classes and of long names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dca.plots import style
from dca.plots.charts import MOST_ROWS, plot_confusion
from dca.plots.class_bars import ClassResult, plot_accuracies
from dca.plots.explanation import plot_explanation
from dca.plots.image_grid import plot_demo, plot_doubtful_labels, plot_selected_predictions
from dca.stats.confusion import count_confusions, order_by_error, select_classes

NAMES = ["WWWWWWWWWWWWWWWWWWWWWWWWWWW", "Mammuthus primigenius", "m" * 40, "il" * 30]


def test_of_150_classes_those_are_shown_that_are_taken_for_each_other() -> None:
    """Each of 75 pairs is confused; the classes with the highest error rates are of different pairs."""
    counts = 8 * np.eye(150, dtype=np.int64)
    for n in range(75):
        a, b = n, 149 - n
        counts[a, b] = 1 + n % 5
        counts[a, a] -= counts[a, b]
    order = order_by_error(counts)
    shown = select_classes(order, count_confusions(counts), MOST_ROWS)
    off = counts[np.ix_(shown, shown)].sum() - counts[shown, shown].sum()
    first = order[:MOST_ROWS]
    assert counts[np.ix_(first, first)].sum() == counts[first, first].sum(), "an empty grid"
    assert off >= 15
    assert len(shown) == MOST_ROWS
    assert shown == [c for c in order if c in shown]


def test_the_chart_of_150_classes_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    counts = 8 * np.eye(150, dtype=np.int64)
    counts[3, 140] = 5
    path = plot_confusion(counts, [f"class {n}" for n in range(150)], tmp_path / "a.svg")
    assert path.stat().st_size > 1000


@pytest.mark.parametrize("name", NAMES)
def test_text_fits_a_width(name: str) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    words = style.fit_width(name, 1.0, 7)
    font = FontProperties(family=list(style._fonts()))
    assert TextPath((0, 0), words, size=7, prop=font).get_extents().width <= 72
    longer = style.fit_width(name, 5.0, 7)
    assert len(longer) >= len(words)


def overlaps(figure: object) -> list[tuple[str, str]]:
    """Texts of a figure whose boxes overlap."""
    from matplotlib.text import Text

    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]  # type: ignore[attr-defined]
    boxes = [text.get_window_extent(renderer).shrunk(0.98, 0.8) for text in texts]
    return [
        (texts[i].get_text(), texts[j].get_text())
        for i in range(len(texts))
        for j in range(i)
        if boxes[i].overlaps(boxes[j])
    ]


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The figures that are saved, with a canvas that measures."""
    pytest.importorskip("matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from dca.plots import charts, class_bars, explanation, image_grid

    saved: list[object] = []

    def keep(figure: object, path: Path) -> Path:
        FigureCanvasAgg(figure)  # type: ignore[arg-type]
        figure.canvas.draw()  # type: ignore[attr-defined]
        saved.append(figure)
        return path

    for module in (image_grid, explanation, charts, class_bars):
        monkeypatch.setattr(module, "save_figure", keep)
    return saved


def test_captions_of_doubtful_labels_do_not_overlap(figures: list[object], tmp_path: Path) -> None:
    n = 12
    images = [np.zeros((20, 20, 3), np.uint8)] * n
    words = [NAMES[k % 4] for k in range(n)]
    plot_doubtful_labels(images, words, words, words[::-1], [0.987] * n, tmp_path / "a.png", found=40, of=400)
    assert overlaps(figures[0]) == []


def test_captions_of_an_explanation_do_not_overlap(figures: list[object], tmp_path: Path) -> None:
    image = np.zeros((20, 20, 3), np.uint8)
    top = [(name, 0.25) for name in NAMES]
    nearest = [(image, name, 0.9) for name in NAMES]
    plot_explanation(image, image, top, nearest, tmp_path / "a.png", target=NAMES[0])
    assert overlaps(figures[0]) == []


def test_the_title_of_an_explanation_stays_on_the_page(figures: list[object], tmp_path: Path) -> None:
    from matplotlib.text import Text

    image = np.zeros((20, 20, 3), np.uint8)
    plot_explanation(image, image, [("W" * 40, 0.999)], [], tmp_path / "a.png", target="W" * 40)
    figure: Any = figures[0]
    title = next(text for text in figure.findobj(Text) if text.get_text().endswith("(99.9 %)") and text.get_size() > 10)
    assert title.get_window_extent(figure.canvas.get_renderer()).x1 <= figure.bbox.x1


def outside(figure: Any) -> list[str]:
    """Texts of a figure that reach over its edges."""
    from matplotlib.text import Text

    renderer, page = figure.canvas.get_renderer(), figure.bbox
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in texts]
    return [words for words, box in boxes if box.x0 < 0 or box.y0 < 0 or box.x1 > page.x1 or box.y1 > page.y1]


def draw_predictions(path: Path) -> None:
    images = [np.zeros((20, 20, 3), np.uint8)] * 8
    truths, answers = [NAMES[k % 4] for k in range(8)], [NAMES[(k + k // 4) % 4] for k in range(8)]
    plot_selected_predictions(images, truths, answers, [0.987] * 8, path)


def draw_demo(path: Path) -> None:
    images = [np.zeros((20, 20, 3), np.uint8)] * 8
    answers = [NAMES[(k + k // 4) % 4] for k in range(8)]
    rows = [ClassResult(name, 3, 1, 2) for name in NAMES]
    plot_demo(rows, images, [NAMES[k % 4] for k in range(8)], answers, [0.987] * 8, path)


@pytest.mark.parametrize(
    "draw",
    [
        draw_predictions,
        draw_demo,
        lambda path: plot_confusion(np.ones((4, 4), int), NAMES, path),
        lambda path: plot_accuracies([ClassResult(name, 3, 1, 2) for name in NAMES], path),
    ],
    ids=["predictions", "demo", "confusion", "classes"],
)
def test_wide_names_neither_overlap_nor_leave_the_page(
    draw: Callable[[Path], object], figures: list[object], tmp_path: Path
) -> None:
    draw(tmp_path / "a.png")
    assert overlaps(figures[0]) == []
    assert outside(figures[0]) == []
