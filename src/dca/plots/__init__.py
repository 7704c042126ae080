"""The pictures: plain numbers and images in, one PNG or SVG out. Knows no model.

Everything is drawn with matplotlib's `Figure`, never through pyplot, so that nothing global changes
and no window opens. matplotlib is loaded when the first picture is drawn.
"""

from __future__ import annotations

from dca.plots.charts import ClassResult, accuracy_bars, class_results, confusion, reliability, training_curves
from dca.plots.pictures import demo_figure, prediction_grid
from dca.plots.stats import wilson

__all__ = [
    "ClassResult",
    "accuracy_bars",
    "class_results",
    "confusion",
    "demo_figure",
    "prediction_grid",
    "reliability",
    "training_curves",
    "wilson",
]
