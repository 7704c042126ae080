"""The estimate and the accuracy of the default on tasks that another process sends, by the `dca` that Python finds.

    python study/measurements/estimate_task.py < TASKS

It is started by `estimate_coverage.py`, once with its own tree and once with an earlier one on PYTHONPATH:
`clip_features` and `dca` are those of that tree, and this file keeps to what both have.
"""

from __future__ import annotations

import argparse
import pickle
import sys
import time
from typing import Any, NamedTuple

import numpy as np
import torch
from clip_features import Given, Rows
from numpy.typing import NDArray
from torch.nn import functional as F

from dca.methods.base import Problem
from dca.methods.closed_form import ClosedForm, ClosedFormOptions
from dca.model.estimate import estimate_accuracy
from dca.stats.intervals import macro_accuracy


class Photos(NamedTuple):
    """A task: images to learn from, and new ones.

    x: (N, D). labels, groups: (N,), copies share a group. new: (M, D). text: (C, D), zeros for none. tau: CLIP's scale.
    """

    x: NDArray[np.float32]
    labels: NDArray[np.int64]
    groups: NDArray[np.int64]
    new: NDArray[np.float32]
    new_labels: NDArray[np.int64]
    text: NDArray[np.float32]
    tau: float


class GroupedRows:
    """Rows whose copies are known."""

    def __init__(self, rows: Rows, groups: torch.Tensor) -> None:
        self.rows, self.groups, self.labels = rows, groups, rows.labels

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rows, name)


def measure(task: Photos) -> dict[str, float]:
    """Estimate, ends of its interval, accuracy on new images (the mean over classes), seconds of fit and estimate."""
    text, x = torch.from_numpy(task.text), torch.from_numpy(task.x)
    given = Given(text)
    given.tau = task.tau
    support: Any = GroupedRows(Rows(x, torch.from_numpy(task.labels)), torch.from_numpy(task.groups))
    problem = Problem(names=tuple(map(str, range(len(text)))), shots=max(len(x) // len(text), 1))
    began = time.process_time()
    method = ClosedForm.build(given, problem, ClosedFormOptions())  # type: ignore[arg-type]
    method.finish(support)
    method.build_head()
    held = method.predict_held_out(support)
    zero_shot = (task.tau * x @ text.T).double().softmax(dim=-1).numpy() if text.any() else None
    found = estimate_accuracy(held, task.labels, zero_shot)
    seconds = time.process_time() - began
    with torch.no_grad():
        predicted = method.classify(F.normalize(torch.from_numpy(task.new), dim=-1)).argmax(dim=-1)
    accuracy, _ = macro_accuracy(predicted.numpy() == task.new_labels, task.new_labels)
    estimate, low, high = found.accuracy, found.low, found.high
    return {"estimate": estimate, "low": low, "high": high, "accuracy": accuracy, "seconds": seconds}


def main() -> None:
    """Measure what comes on the standard input until it ends."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.set_num_threads(1)
    while True:
        try:
            task = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(measure(Photos(*task)), sys.stdout.buffer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
