"""Where the estimated accuracy of the closed form differs from the accuracy on other images, and why.

    python study/measurements/estimates.py DATA ... [--shots 8] [--draws 10] [--classes 100] [--parts train,val]

Each draw takes `--shots` images per class of the given parts, fits the closed form, and measures it on all other images
of these parts. Printed are means over the draws of, in points,

- `macro`, `micro`: the accuracy on the other images, as the mean over classes (which is what is estimated) and as the
  share of images;
- `estimate`: the exact leave-one-out that `dca fit` prints;
- `not corrected`: the same without the correction for the smaller class mean of a left-out image;
- `nested`: cross-validation with as many folds as shots, where each fold chooses its numbers (k, ridges, scales)
  without the left-out images, which is free of the optimism of choosing on the images that are estimated on;
- `fixed numbers`: the same folds with the numbers of the whole fit, so that `fixed numbers` minus `nested` is the
  optimism of the choice.

Images are drawn at random, and in a second table as neighbours by file name, from a random place in every class, as
someone does who copies them from the top of a folder: neighbours are often photos of the same object.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import click
import numpy as np
import torch
from closed_form import existing_items, select_classes
from numpy.typing import NDArray
from torch import Tensor

from dca import Classifier, Session
from dca.datasets import load_dataset
from dca.datasets.dataset import Dataset, LabelledImage
from dca.methods.closed_form import ClosedForm
from dca.methods.shared.experts import TextGaussian
from dca.methods.shared.product_of_experts import (
    Experts,
    ExpertsHead,
    Hyperparameters,
    held_out_logits,
    select_hyperparameters,
)
from dca.stats.intervals import macro_accuracy


def draw_task(dataset: Dataset, parts: Sequence[str], shots: int, classes: int, draw: int, neighbours: bool) -> Dataset:
    """`shots` images per class for training, all others for testing; neighbours: by file name, not at random."""
    rng = np.random.default_rng(draw)
    images: dict[int, list[LabelledImage]] = {}
    for item in existing_items([item for part in parts for item in getattr(dataset, part)]):
        images.setdefault(item.label, []).append(item)
    able = sorted(c for c, own in images.items() if len(own) >= shots + 4)
    chosen = sorted(rng.choice(able, min(classes, len(able)), replace=False).tolist())
    train, rest = list[LabelledImage](), list[LabelledImage]()
    for c in chosen:
        own = sorted(images[c], key=lambda item: str(item.image))
        if neighbours:
            start = rng.integers(len(own) - shots + 1)
            own = [*own[start:], *own[:start]]
        else:
            own = [own[i] for i in rng.permutation(len(own))]
        train += own[:shots]
        rest += own[shots:]
    return select_classes(dataset, chosen, train, rest)


def select_rows(experts: Experts, rows: Tensor) -> Experts:
    """The same experts for some of the training images."""
    g, kernel = experts.gaussian, experts.kernel
    part = TextGaussian.from_features(
        g.x[rows], g.labels[rows], g.text, torch.unique(g.groups[rows], return_inverse=True)[1]
    )
    width = 2.0 if kernel is None else kernel.width
    return Experts.build(part, experts.tau, experts.fixed, width=width, most=0 if kernel is None else len(g.x))


def classify_in_folds(experts: Experts, folds: Tensor, numbers: Hyperparameters | None) -> NDArray[np.bool_]:
    """Whether each training image is predicted correctly by the fit without its fold; numbers None: chosen per fold."""
    x, labels = experts.gaussian.x, experts.labels
    right = torch.zeros(len(labels), dtype=torch.bool)
    for fold in folds.unique():
        rest = select_rows(experts, (folds != fold).nonzero()[:, 0])
        head = ExpertsHead.from_experts(rest, numbers or select_hyperparameters(rest))
        own = folds == fold
        right[own] = head(x[own].float()).argmax(dim=-1) == labels[own]
    return right.numpy()


def assign_folds(experts: Experts, shots: int) -> Tensor:
    """A fold (N,) for every image: one image per class in each; copies share the fold of the first of them."""
    labels, groups = experts.labels, experts.gaussian.groups
    place = torch.stack([(labels[:n] == labels[n]).sum() for n in range(len(labels))]) % shots
    first = {int(g): int(p) for g, p in zip(groups.flip(0), place.flip(0), strict=True)}
    return torch.tensor([first[int(g)] for g in groups])


def measure_accuracies(task: Dataset, session: Session, shots: int) -> dict[str, float]:
    """All accuracies of one draw."""
    model = Classifier("closed_form").fit(task, session=session)
    found, report = model.estimate_, model.evaluate(task)
    assert found is not None
    assert isinstance(model.method_, ClosedForm)
    experts, numbers = model.method_.experts, model.method_.selected
    labels, known = experts.labels.numpy(), experts.gaussian.peers.numpy()
    plain = held_out_logits(experts, numbers, corrected=False).argmax(dim=-1).numpy() == labels
    folds = assign_folds(experts, shots)
    return {
        "macro": float(np.mean(list(report.per_class.values()))),
        "micro": report.accuracy,
        "estimate": found.accuracy,
        "not corrected": macro_accuracy(plain[known], labels[known])[0],
        "fixed numbers": macro_accuracy(classify_in_folds(experts, folds, numbers), labels)[0],
        "nested": macro_accuracy(classify_in_folds(experts, folds, None), labels)[0],
        "inside": float(found.low <= np.mean(list(report.per_class.values())) <= found.high),
    }


def make_table(rows: Sequence[dict[str, float]]) -> str:
    """Means over draws, and their differences to the accuracy on other images with 95 % intervals."""
    found = {name: 100 * np.array([row[name] for row in rows]) for name in rows[0]}
    inside = found.pop("inside")
    lines = [
        f"  {name:<14} {values.mean():6.1f}   minus macro {format_mean(values - found['macro'])}"
        for name, values in found.items()
    ]
    optimism = format_mean(found["fixed numbers"] - found["nested"])
    covered = f"  macro inside the printed interval: {inside.sum() / 100:.0f} of {len(rows)}"
    return "\n".join([*lines, f"  optimism of the choice {optimism}", covered])


def format_mean(values: NDArray[np.float64]) -> str:
    """The mean of values (n,) and half the width of its 95 % interval (normal)."""
    half = 1.96 * values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else float("nan")
    return f"{values.mean():+5.1f} ± {half:.1f}"


def main() -> None:
    """Print both tables for every dataset."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+")
    parser.add_argument("--shots", type=int, default=8)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--parts", default="train,val", help="parts to draw from; test only to confirm")
    given = parser.parse_args()
    session, parts = Session(), given.parts.split(",")
    for place in given.data:
        dataset = load_dataset(place)
        for title, neighbours in (("at random", False), ("neighbours by file name", True)):
            tasks = [
                draw_task(dataset, parts, given.shots, given.classes, draw, neighbours) for draw in range(given.draws)
            ]
            click.echo(f"{dataset.name}, {given.shots} images per class, {title}")
            click.echo(make_table([measure_accuracies(task, session, given.shots) for task in tasks]))


if __name__ == "__main__":
    main()
