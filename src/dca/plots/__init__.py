"""Charts: from plain numbers and images to one PNG or SVG file. Independent of models.

Everything is drawn with matplotlib's `Figure`, never through pyplot, so that nothing global changes
and no window opens. matplotlib is loaded when the first chart is drawn.
"""

from __future__ import annotations

from dca.plots.charts import confusion, reliability, training_curves
from dca.plots.class_bars import ClassResult, accuracy_bars, class_results
from dca.plots.image_grid import demo_figure, label_sheet, prediction_grid, telling

__all__ = [
    "ClassResult",
    "accuracy_bars",
    "class_results",
    "confusion",
    "demo_figure",
    "label_sheet",
    "prediction_grid",
    "reliability",
    "telling",
    "training_curves",
]
