"""A task without the images that cannot be read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from dca.clip import CLIP
from dca.data.dataset import Dataset, ImageLike, Item
from dca.data.decode import Unreadable
from dca.data.protocols import Task
from dca.engine.session import Session

MakeTask = Callable[[Dataset, Sequence[Dataset]], Task]


def images_of(task: Task) -> list[ImageLike]:
    """All images that a task opens: training, validation and test images."""
    tested = (item for target in task.targets for item in target.test)
    return [item.image for item in (*task.source.train, *task.source.val, *tested)]


def readable_task(
    make: MakeTask, dataset: Dataset, targets: Sequence[Dataset], session: Session, clip: CLIP
) -> tuple[Task, list[str]]:
    """The task that `make` gives without unreadable images, and one line for each of these.

    Only images that are drawn are opened: those that cannot be read are removed from the data, and the draw is made
    again, until all of its images can be read.
    """
    skipped: list[str] = []
    while True:
        task = make(dataset, targets)
        faults = session.unreadable_images(clip, images_of(task))
        if not faults:
            return task, skipped
        skipped += [f"{_path(fault, [dataset, *targets])}: {fault.reason}" for fault in faults]
        dataset, *targets = [_without(data, faults) for data in (dataset, *targets)]


def _path(fault: Unreadable, data: Sequence[Dataset]) -> str:
    """The path of an image as records hold it, relative to the folder of its dataset."""
    named = (each.path_of(Item(fault.image, 0)) for each in data)
    return min(named, key=len) or "an image in memory"


def _without(dataset: Dataset, faults: Sequence[Unreadable]) -> Dataset:
    """The dataset without these images, which are compared as objects: images in memory have no hash."""
    bad = {id(fault.image) for fault in faults}

    def kept(items: Sequence[Item]) -> tuple[Item, ...]:
        return tuple(item for item in items if id(item.image) not in bad)

    return dataclasses.replace(dataset, train=kept(dataset.train), val=kept(dataset.val), test=kept(dataset.test))
