"""Draw the time of a training step against the number of classes, from results of `dca bench step --json`.

python benchmarks/performance_plot.py benchmarks/results/h200.json docs/images/step-time.svg
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt


def main(source: Path, target: Path) -> None:
    """Read the results, draw and write."""
    results = json.loads(source.read_text(encoding="utf-8"))["results"]
    steps = [(int(found[1]), row) for row in results if (found := re.match(r"step, (\d+) classes", row["name"]))]
    classes = [count for count, _ in steps]
    figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
    lines = {"usual, 77 tokens": "reference_ms", "dca": "ours_ms", "arithmetic alone": "floor_ms"}
    for (label, key), style in zip(lines.items(), ("o--", "o-", ":"), strict=True):
        values = [row[key] for _, row in steps]
        axes.plot(classes, values, style, label=label)
        axes.annotate(f"{values[-1]:.0f} ms", (classes[-1], values[-1]), xytext=(6, -3), textcoords="offset points")
    axes.set(xscale="log", yscale="log", xlabel="classes", ylabel="milliseconds per step", xlim=(8, 1800))
    axes.set_xticks(classes, labels=[str(count) for count in classes])
    axes.minorticks_off()
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    plt.rcParams["svg.hashsalt"] = "dca"
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
