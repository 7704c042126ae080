"""The charts: written whole, of sane size, for few and many classes and any names, without a warning."""

from __future__ import annotations

import io
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from dca import plots
from dca.core.errors import UserError
from dca.plots import ClassResult, charts, class_bars, image_grid
from dca.plots.class_bars import Share
from dca.stats.calibration import calibration_error
from dca.stats.intervals import wilson_interval

ODD_NAMES = ["日本の城", "$x^2$ & café", "🦊 fox\n\tnew", "ñandú", "", "a" * 200, "price $5", "naïve \u200b\u202e name"]


def names(count: int) -> list[str]:
    return [ODD_NAMES[k] if k < len(ODD_NAMES) and count > 2 else f"class {k}" for k in range(count)]


def results(count: int, images: int = 10) -> list[ClassResult]:
    rng = np.random.default_rng(count)
    return [
        ClassResult(name, images, int(rng.integers(images + 1)), int(rng.integers(images + 1))) for name in names(count)
    ]


def pictures(count: int) -> list[Image.Image]:
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 255, (20, 24, 3), dtype=np.uint8)) for _ in range(count)]


def metrics(epochs: int) -> list[dict[str, float]]:
    return [
        {"epoch": e, "loss": 9 / e, "loss_ce": 8 / e, "loss_in": 0.1 / e, "accuracy": 1 - 1 / (e + 1), "seconds": 1.0}
        for e in range(1, epochs + 1)
    ]


def draw_all(folder: Path, count: int, said_right: bool = True, suffix: str = "png") -> list[Path]:
    """Every chart for one number of classes."""
    rng = np.random.default_rng(1)
    labels = np.repeat(np.arange(count), 3)
    said = labels if said_right else (labels + 1) % count
    classes, sure = names(count), rng.uniform(0.1, 1, len(labels))
    matrix = np.zeros((count, count), int)
    np.add.at(matrix, (labels, said), 1)
    images = pictures(len(labels))
    truths, answers = [classes[k] for k in labels], [classes[k] for k in said]
    return [
        plots.plot_accuracies(results(count), folder / f"bars.{suffix}"),
        plots.plot_confusion(matrix, classes, folder / f"confusion.{suffix}"),
        plots.plot_reliability(sure, said == labels, folder / f"reliability.{suffix}"),
        plots.plot_training(metrics(count), folder / f"training.{suffix}"),
        plots.plot_selected_predictions(images, truths, answers, sure, folder / f"grid.{suffix}"),
        plots.plot_demo(results(count), images, truths, answers, sure, folder / f"demo.{suffix}", shots=4),
    ]


@pytest.mark.parametrize(("count", "said_right"), [(2, True), (10, False), (100, True)])
def test_every_picture_is_drawn_for_few_and_many_classes(tmp_path, count, said_right):
    for path in draw_all(tmp_path, count, said_right):
        with Image.open(path) as image:
            image.load()
            assert 400 < image.width < 3000
            assert 300 < image.height < 3000
            assert np.asarray(image.convert("L")).std() > 5
    assert len(list(tmp_path.iterdir())) == 6


def test_svg_by_suffix_is_wellformed(tmp_path):
    for path in draw_all(tmp_path, 3, suffix="svg"):
        assert ET.parse(path).getroot().tag.endswith("svg")


def test_equal_data_give_equal_files(tmp_path):
    for suffix in ("png", "svg"):
        one, two = (plots.plot_confusion([[4, 1], [0, 3]], ["a", "b"], tmp_path / f"{k}.{suffix}") for k in (1, 2))
        assert one.read_bytes() == two.read_bytes()


def test_pyplot_is_never_asked_for_and_settings_stay(tmp_path, monkeypatch):
    import matplotlib

    before = matplotlib.rcParams.copy()
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    draw_all(tmp_path, 2)
    assert matplotlib.rcParams.copy() == before


def test_a_failed_write_leaves_the_old_picture(tmp_path, monkeypatch):
    path = tmp_path / "curves.png"
    plots.plot_training(metrics(3), path)
    old = path.read_bytes()

    def broken(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", broken)
    with pytest.raises(UserError, match="disk full"):
        plots.plot_training(metrics(30), path)
    assert path.read_bytes() == old
    assert [file.name for file in tmp_path.iterdir()] == ["curves.png"]


def test_unknown_suffix_is_refused_with_the_way_out(tmp_path):
    with pytest.raises(UserError, match=r"\.png or \.svg"):
        plots.plot_training(metrics(3), tmp_path / "curves.gif")


def test_missing_matplotlib_names_the_command(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError) as caught:
        plots.plot_accuracies(results(2), tmp_path / "bars.png")
    assert "pip install" in caught.value.hint
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "rows", [[], [{"loss": 1.0}], [{"epoch": 1, "losses": {"ce": float("nan")}, "accuracy": None}]]
)
def test_training_curves_of_almost_nothing(tmp_path, rows):
    assert plots.plot_training(rows, tmp_path / "curves.png").exists()


LONG = {"names": "drift of names", "features": "drift of texts", "cls": "classification", "logits": "drift of answers"}


def curves(monkeypatch: pytest.MonkeyPatch, epochs: int, sizes: dict[str, float]) -> Figure:
    """The figure of curves whose terms fall to these sizes."""
    kept: list[Figure] = []
    monkeypatch.setattr(charts, "save_figure", lambda figure, path: kept.append(figure) or path)
    rows = [
        {"epoch": e, "loss": 9 / e, "accuracy": e / epochs, **{f"loss_{name}": s / e for name, s in sizes.items()}}
        for e in range(1, epochs + 1)
    ]
    plots.plot_training(rows, "curves.png", term_titles=LONG)
    FigureCanvasAgg(kept[0]).draw()
    return kept[0]


def test_curves_say_in_words_what_they_show(monkeypatch):
    figure = curves(monkeypatch, 3, {"cls": 1.0, "names": 2.0, "near_text": 3.0})
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["training accuracy, %", "loss", "classification", "drift of names", "near text"]
    said = [text.get_text() for text in figure.texts]
    assert "3 epochs over the training images; loss = classification + drift of names + near text" in said
    alone = curves(monkeypatch, 1, {"cls": 1.0})
    assert "1 epoch over the training images; loss = classification" in [text.get_text() for text in alone.texts]


@pytest.mark.parametrize("epochs", [1, 12, 2000])
def test_no_curve_writes_into_its_neighbour(monkeypatch, epochs):
    figure = curves(monkeypatch, epochs, {"cls": 6.3, "names": -1.2345e6, "features": -0.15, "logits": -1.5e-7})
    places = [axes.get_tightbbox() for axes in figure.axes]
    assert not [(a, b) for k, a in enumerate(places) for b in places[k + 1 :] if a.overlaps(b)]
    for axes in figure.axes:
        left, right = (title.get_window_extent() for title in (axes._left_title, axes._right_title))
        assert not left.overlaps(right)
    assert all(figure.bbox.containsx(place.x0) and figure.bbox.containsx(place.x1) for place in places)


def test_grid_says_the_surest_mistakes_and_the_least_sure_right_answers(monkeypatch):
    truths, said = ["cat", "cat", "fish", "fish", "cat"], ["cat", "fish", "fish", "hot air balloon", "cat"]
    sure = [0.9, 0.5, 0.99, 0.97, 0.4]
    figure = figure_of(monkeypatch, lambda: plots.plot_selected_predictions(pictures(5), truths, said, sure, "x.png"))
    found = [text.replace("\N{NO-BREAK SPACE}", " ") for text in texts_of(figure)]
    assert found[:2] == ["Predictions", "2 of 5 wrong"]
    spoken = " ".join(found[2:])
    assert spoken == (
        "mistakes, the surest first (2) said hot air balloon (97 %), really fish said fish (50 %), really cat "
        "right answers, the least sure first (3) cat (40 %) cat (90 %) fish (99 %)"
    )


def test_the_images_worth_a_look_leave_room_for_right_answers():
    truths, said = ["a"] * 100, ["b"] * 60 + ["a"] * 40
    sure = np.linspace(0.3, 0.9, 100).tolist()
    found = plots.select_informative(truths, said, sure)
    assert found == [*range(59, 35, -1), *range(60, 66)]
    assert plots.select_informative(truths[:60], said[:60], sure[:60]) == [*range(59, 29, -1)]
    assert plots.select_informative(["a"] * 9, ["a"] * 9, sure[:9]) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("count", [2, 10, 100])
def test_no_caption_of_the_grid_is_cut_or_overlaps(monkeypatch, count):
    classes = [f"red-breasted merganser (Mergus serrator) {k}" for k in range(count)]
    truths, said = [classes[k % count] for k in range(40)], [classes[(k + k % 3) % count] for k in range(40)]
    figure = figure_of(
        monkeypatch, lambda: plots.plot_selected_predictions(pictures(40), truths, said, [0.97] * 40, "x.png")
    )
    boxes = [text.get_window_extent() for text in figure.texts]
    assert not [(a, b) for k, a in enumerate(boxes) for b in boxes[k + 1 :] if a.overlaps(b)]
    assert all(figure.bbox.contains(box.x0, box.y0) and figure.bbox.contains(box.x1, box.y1) for box in boxes)


def test_bins_suit_the_number_of_images_and_numbers_stand_at_the_bars(monkeypatch):
    sure, right = np.linspace(0.3, 1, 50), np.arange(50) % 2 == 0
    figure = figure_of(monkeypatch, lambda: plots.plot_reliability(sure, right, "x.png"))
    bars, counts = figure.axes
    assert len(counts.patches) == 7
    assert sum(int(text.get_text()) for text in counts.texts) == 50
    assert len(bars.texts) == len(bars.patches) == len(counts.texts)


def test_a_long_name_keeps_its_end():
    from dca.plots.style import fit_text

    assert fit_text("Boeing 737-800", 20) == "Boeing 737-800"
    assert fit_text("BMW 3 Series Sedan of the year 2012", 20) == "BMW 3 Series…r 2012"


def test_lists_of_different_length_are_a_bug_of_the_caller(tmp_path):
    with pytest.raises(ValueError, match="length"):
        plots.plot_selected_predictions(pictures(2), ["a"], ["a", "b"], [1, 1], tmp_path / "grid.png")
    with pytest.raises(ValueError, match="classes"):
        plots.plot_confusion(np.eye(3), ["a", "b"], tmp_path / "confusion.png")


def test_grey_and_alpha_images_are_shown(tmp_path):
    images = [Image.new("L", (9, 5)), Image.new("RGBA", (5, 9)), np.zeros((4, 4)), np.zeros((4, 4, 4))]
    path = plots.plot_selected_predictions(images, ["a"] * 4, ["a"] * 4, [0.5] * 4, tmp_path / "grid.png")
    assert Image.open(io.BytesIO(path.read_bytes())).size[0] > 400


def test_classes_without_test_images_are_left_out_of_the_bars(tmp_path):
    rows = [*results(3), ClassResult("unseen", 0, 0, 0)]
    assert plots.plot_accuracies(rows, tmp_path / "bars.png").exists()
    assert plots.plot_confusion(np.diag([3, 0]), ["seen", "unseen"], tmp_path / "confusion.png").exists()


def test_class_results_count_what_each_model_got_right():
    found = plots.count_correct_by_class([0, 0, 1], [0, 1, 0], [0, 0, 1], ["cat", "dog"])
    assert found == [ClassResult("cat", 2, 1, 2), ClassResult("dog", 1, 0, 1)]


def test_class_results_count_a_second_model():
    found = plots.count_correct_by_class([0, 0, 1], [0, 1, 0], [0, 0, 1], ["cat", "dog"], [1, 0, 1])
    assert found == [ClassResult("cat", 2, 1, 2, 1), ClassResult("dog", 1, 0, 1, 1)]
    overall = class_bars.sum_classes(found)
    assert (overall.name, overall.images) == ("all 2 classes", 3)
    for share, right in ((overall.zero_shot, 1), (overall.adapted, 3), (overall.second_model, 2)):
        assert share == Share(right / 3, *wilson_interval(right / 3, 3))


def test_a_class_that_cannot_be_measured_is_named_last():
    found = plots.count_correct_by_class([0, 2], None, [0, 0], ["cat", "dog", "pug"], missing={1: "1 photo"})
    assert found[1] == ClassResult("dog", 0, None, 0, None, "1 photo")
    assert [row.name for row in class_bars.select_hardest(found, 30)] == ["cat", "pug", "dog"]
    seen = plots.count_correct_by_class([1], None, [1], ["cat", "dog"], missing={1: "1 photo"})
    assert seen[1].missing == "", "it is measured after all"


def test_bars_show_the_estimate_and_the_classes_that_it_leaves_out(monkeypatch):
    rows = [ClassResult("cat", 8, None, 8), ClassResult("dog", 2, None, 1), ClassResult("pug", 0, None, 0, None, "why")]
    estimate = Share(0.75, 0.4, 0.9)
    figure = figure_of(monkeypatch, lambda: plots.plot_accuracies(rows, "x.png", label="m", estimate=estimate))
    found = texts_of(figure)
    assert "Estimated accuracy 75.0 %" in found
    assert "m on 10 test images; mean over classes; lines are 95 % intervals" in found
    assert {"mean over classes", "75.0", "pug", "why"} <= set(found)
    assert not any("90.0" in text for text in found), "the share of all images"
    (line,) = [line for line in figure.axes[0].lines if list(line.get_xdata()) == [40.0, 90.0]]
    assert line.get_ydata()[0] < 0


def test_bars_of_test_images_name_the_mean_over_classes_where_it_differs(monkeypatch):
    rows = [ClassResult("cat", 8, None, 8), ClassResult("dog", 2, None, 1)]
    found = texts_of(figure_of(monkeypatch, lambda: plots.plot_accuracies(rows, "x.png", label="m")))
    assert "Accuracy 90.0 %" in found
    assert "m on 10 test images; mean over classes 75.0 %; lines are 95 % intervals" in found


def test_a_class_that_cannot_be_measured_is_in_the_confusion(monkeypatch):
    matrix = [[2, 0, 0], [0, 3, 0], [0, 0, 0]]
    missing = {2: "1 photo: cannot be measured"}
    figure = figure_of(monkeypatch, lambda: plots.plot_confusion(matrix, ["a", "b", "c"], "x.png", missing=missing))
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["a", "b", "c"]
    assert any("c: 1 photo: cannot be measured" in text for text in texts_of(figure))


def figure_of(monkeypatch: pytest.MonkeyPatch, draw: Callable[[], object]) -> Figure:
    """The figure that a function would save."""
    kept: list[Figure] = []
    for module in (charts, class_bars, image_grid):
        monkeypatch.setattr(module, "save_figure", lambda figure, path: kept.append(figure) or path)
    draw()
    FigureCanvasAgg(kept[0]).draw()
    return kept[0]


def texts_of(figure: Figure) -> list[str]:
    """All texts on a figure and in its axes."""
    return [text.get_text() for text in (*figure.texts, *(text for axes in figure.axes for text in axes.texts))]


def test_classes_that_do_not_occur_are_left_out_of_the_confusion(monkeypatch):
    matrix = np.zeros((50, 50), int)
    matrix[3, 3], matrix[3, 7], matrix[9, 9] = 2, 1, 4
    figure = figure_of(monkeypatch, lambda: plots.plot_confusion(matrix, [f"c{k}" for k in range(50)], "x.png"))
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels() if text.get_text()]
    assert labels == ["c3", "c9", "c7"], "the highest error rate first, classes without images last"
    assert {"67 %", "100 %", "–"} <= set(texts_of(figure))
    assert "1 of 7 images wrong; rows: true class, columns: predicted class" in texts_of(figure)


def test_a_long_confusion_says_how_many_went_elsewhere(monkeypatch):
    matrix = np.diag(np.full(40, 5))
    matrix[:30, 39] = np.arange(1, 31)
    figure = figure_of(monkeypatch, lambda: plots.plot_confusion(matrix, [f"c{k}" for k in range(40)], "x.png"))
    found = texts_of(figure)
    assert "elsewhere" in found
    assert any("the 30 classes of the most frequent confusions, of 40" in text for text in found)
    assert {str(n) for n in range(2, 31)} <= set(found), "c39, which the others are taken for, is shown"


def test_bars_without_zero_shot_show_the_model_alone(monkeypatch):
    rows = [ClassResult("cat", 4, None, 3), ClassResult("dog", 4, None, 4), ClassResult("unseen", 0, None, 0)]
    figure = figure_of(monkeypatch, lambda: plots.plot_accuracies(rows, "x.png", label="m.dca"))
    found = texts_of(figure)
    assert "Accuracy 87.5 %" in found
    assert "m.dca on 8 test images; lines are 95 % intervals" in found
    assert "all 2 classes" in found
    assert "zero-shot" not in found
    assert len(figure.axes[0].patches) == 3


def test_bars_with_zero_shot_show_the_gain(monkeypatch):
    rows = [ClassResult("cat", 4, 1, 3), ClassResult("dog", 4, 2, 4)]
    figure = figure_of(monkeypatch, lambda: plots.plot_accuracies(rows, "x.png"))
    found = texts_of(figure)
    assert "37.5 % zero-shot, 87.5 % with DCA" in found
    assert "+50.0 points on 8 test images; lines are 95 % intervals" in found
    assert len(figure.axes[0].patches) == 6


def test_reliability_names_the_calibration_error_of_the_library(monkeypatch):
    sure, right = np.array([0.95, 0.95, 0.55, 0.35]), np.array([True, False, True, False])
    figure = figure_of(monkeypatch, lambda: plots.plot_reliability(sure, right, "x.png"))
    assert f"Calibration error (ECE) {calibration_error(sure, right):.3f}" in texts_of(figure)
    assert any("mean confidence 70.0 %, 50.0 % of 4 images right" in text for text in texts_of(figure))
    assert not any("accuracy" in text for text in texts_of(figure))
    figure = figure_of(monkeypatch, lambda: plots.plot_reliability(sure, right, "x.png", accuracy=0.4))
    assert any("estimated accuracy, mean over classes: 40.0 %" in text for text in texts_of(figure))


def test_the_label_sheet_shows_both_labels_in_the_order_given(tmp_path, monkeypatch):
    kept: list[Figure] = []
    real = image_grid.save_figure
    monkeypatch.setattr(image_grid, "save_figure", lambda figure, path: kept.append(figure) or real(figure, path))
    sure = [0.99] * 12
    path = plots.plot_doubtful_labels(
        pictures(12), [f"{k}.jpg" for k in range(12)], names(12), names(12)[::-1], sure, tmp_path / "sheet.png",
        found=15, of=300,
    )  # fmt: skip
    assert path.exists()
    found = texts_of(kept[0])
    assert "15 of 300 images; the 12 most doubtful: given → suggested (probability)" in found
    assert found.index("0.jpg") < found.index("11.jpg")
    assert "→ class 11 (0.99)" in found
    empty = plots.plot_doubtful_labels([], [], [], [], [], tmp_path / "empty.png", found=0, of=3)
    assert Image.open(io.BytesIO(empty.read_bytes())).size[0] > 400


def test_the_page_of_the_demonstration_shows_three_models_with_their_time(monkeypatch):
    rows = [ClassResult("cat", 4, 1, 4, 3), ClassResult("dog", 4, 2, 4, 3)]
    figure = figure_of(
        monkeypatch,
        lambda: plots.plot_demo(
            rows, pictures(2), ["cat", "dog"], ["cat", "cat"], [0.9, 0.8], "x.png",
            labels=("quick (default)", "DCA"), seconds=(2.2, 95.0), shots=16,
        ),
    )  # fmt: skip
    found = texts_of(figure)
    assert "37.5 % zero-shot, 75.0 % with quick (default) in 2 s, 100.0 % with DCA in 1 min 35 s" in found
    assert "accuracy on 8 test images after 16 per class; lines are 95 % intervals" in found
    boxes = [text.get_window_extent() for text in figure.texts]
    assert not [(a, b) for k, a in enumerate(boxes) for b in boxes[k + 1 :] if a.overlaps(b)]
    assert "test images in turn: 1 of these 2 right with DCA" in found
    assert {"zero-shot", "quick (default)", "DCA"} <= set(found)
    assert len(figure.axes[0].patches) == 9, "three bars for all classes and for each"
