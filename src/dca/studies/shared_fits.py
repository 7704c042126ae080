"""Experiments that differ only in what they are tested on share one fit.

A model that was trained on a dataset is the same whether it is then tested on that dataset (few-shot) or on others
(cross-dataset, domain shift): draw, validation images and options are equal, unless authors publish another recipe for
the protocol.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path

from dca.data.sources import catalog
from dca.experiment.spec import Spec
from dca.model.checkpoint import holds_model
from dca.studies.cell import Cell

_TESTED_ELSEWHERE = ("cross-dataset", "domain-shift")


def few_shot_twin(spec: Spec) -> Spec | None:
    """The few-shot experiment with the same training, or None.

    Only for public datasets: those have test images of their own, so that none are held out of the training images.

    Example:
        >>> spec = Spec(data="imagenet", protocol="domain-shift", targets=["imagenet_a"], method="dca", shots=16)
        >>> few_shot_twin(spec) == Spec(data="imagenet", method="dca", shots=16)
        True
    """
    if spec.protocol not in _TESTED_ELSEWHERE or catalog.lookup(spec.data) is None:
        return None
    twin = dataclasses.replace(spec, protocol="few-shot", targets=(), options=spec.settings)
    return twin if spec.kind.choose(twin.settings) == spec.kind.choose(spec.settings) else None


def fits_of(cells: Iterable[Cell], runs: Path) -> Callable[[Spec], Spec]:
    """Which fit an experiment uses: that of its twin, if the twin is to be fitted, too, or is finished; else its own.

    Args:
        cells: What is to be done.
        runs: Folder of the results.

    Returns:
        From an experiment to the one that is fitted for it.
    """
    wanted = {cell.spec.id for cell in cells}

    def fit(spec: Spec) -> Spec:
        twin = few_shot_twin(spec)
        return twin if twin is not None and (twin.id in wanted or holds_model(runs / twin.id)) else spec

    return fit
