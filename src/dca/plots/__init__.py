"""Charts: from plain numbers and images to one PNG or SVG file. Independent of models.

Everything is drawn with matplotlib's `Figure`, never through pyplot, so that nothing global changes
and no window opens. matplotlib is loaded when the first chart is drawn.
"""

from __future__ import annotations

from dca.plots.charts import plot_confusion, plot_reliability, plot_training
from dca.plots.class_bars import ClassResult, Share, count_correct_by_class, plot_accuracies
from dca.plots.image_grid import plot_demo, plot_doubtful_labels, plot_selected_predictions, select_informative

__all__ = [
    "ClassResult",
    "Share",
    "count_correct_by_class",
    "plot_accuracies",
    "plot_confusion",
    "plot_demo",
    "plot_doubtful_labels",
    "plot_selected_predictions",
    "plot_reliability",
    "plot_training",
    "select_informative",
]
