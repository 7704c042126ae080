"""Draw time and memory of a training step against classes and batch size, from `dca study bench step --json`.

python scripts/performance_plot.py benchmarks/results/h200.json docs/images/step-time.svg
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

GIB = 2**30
TIMES = {"usual, 77 tokens": "reference_ms", "dca": "ours_ms", "arithmetic alone": "floor_ms"}
MEMORY = {"usual, 77 tokens": "reference_memory", "dca": "memory"}
STYLES = {"usual, 77 tokens": "C0o--", "dca": "C1o-", "arithmetic alone": "C2:"}


def select_steps(results: list[dict[str, Any]], axis: str) -> list[tuple[int, dict[str, Any]]]:
    """Results of steps by the number of classes (batch 32) or by the batch size (100 classes), in their order."""
    found = []
    for row in results:
        if match := re.match(r"step, (\d+) classes, batch (\d+)", row["name"]):
            classes, batch = int(match[1]), int(match[2])
            if (axis == "classes" and batch == 32) or (axis == "batch" and classes == 100):
                found.append((classes if axis == "classes" else batch, row))
    return sorted(found, key=lambda pair: pair[0])


def plot_lines(axes: Axes, found: list[tuple[int, dict[str, Any]]], lines: dict[str, str], scale: float) -> None:
    """Lines of one panel with the value at the end of each."""
    for label, key in lines.items():
        known = [(place, row[key] / scale) for place, row in found if row.get(key) is not None]
        if len(known) < 2:
            continue
        places, values = zip(*known, strict=True)
        axes.plot(places, values, STYLES[label], label=label, markersize=4)
        axes.annotate(f"{values[-1]:.3g}", (places[-1], values[-1]), xytext=(5, -3), textcoords="offset points")
    ticks = [place for place, _ in found]
    axes.set(xscale="log", yscale="log", xlim=(ticks[0] * 0.8, ticks[-1] * 2.2))
    axes.set_xticks(ticks, labels=[f"{place:,}" for place in ticks], rotation=45)
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    """Read the results, draw and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="results of `dca study bench step --json`")
    parser.add_argument("figure", type=Path, help="SVG file to write")
    arguments = parser.parse_args()
    results = json.loads(arguments.results.read_text(encoding="utf-8"))["results"]
    figure, panels = plt.subplots(2, 2, figsize=(8, 6), layout="constrained")
    for column, (axis, label) in enumerate((("classes", "classes, batch 32"), ("batch", "batch size, 100 classes"))):
        found = select_steps(results, axis)
        plot_lines(panels[0, column], found, TIMES, 1)
        plot_lines(panels[1, column], found, MEMORY, GIB)
        panels[1, column].set_xlabel(label)
    panels[0, 0].set_ylabel("milliseconds per step")
    panels[1, 0].set_ylabel("peak memory, GiB")
    panels[0, 0].legend(frameon=False)
    plt.rcParams["svg.hashsalt"] = "dca"
    figure.savefig(arguments.figure, metadata={"Date": None})


if __name__ == "__main__":
    main()
