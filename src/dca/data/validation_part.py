"""A dataset whose validation images take the place of its test images, for choosing settings between methods.

Methods that select something, such as the α of Tip-Adapter, do it on min(K, 4) validation images per class. These
stay theirs: what is measured on is the rest of the validation part, the same images for every method. So a fit is
exactly that of an experiment on the test part, and no image is both selected on and measured on.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path

from dca.core.actions import omit
from dca.core.errors import UserError
from dca.core.wording import counted
from dca.data.dataset import Dataset, Item
from dca.data.protocols import training_part


def measured_on_validation(dataset: Dataset, shots: int | None, seed: int) -> Dataset:
    """The dataset with validation images in place of its test images, none of which is left.

    Args:
        dataset: The dataset; its validation part stays whole, because draws are made from it.
        shots: Training images per class, K; None for all.
        seed: Seed of the draw.

    Returns:
        The dataset whose test part are the validation images without the min(K, 4) per class of this draw. Files that
        are not there are left out, and `split` says how many: copies of public datasets often lack some.

    Raises:
        UserError: If no image is left to measure on.
    """
    drawn, _ = training_part(dataset, shots, seed, validation="few")
    used = {_key(item) for item in (*drawn.train, *drawn.val)}
    rest = [item for item in dataset.val if _key(item) not in used]
    there = tuple(item for item in rest if not isinstance(item.image, Path) or item.image.is_file())
    if not there:
        what = "has no validation part" if not dataset.val else "has no validation image that no method selects on"
        problem = f"{dataset.name} {what}, so nothing can be measured on it."
        raise UserError(problem, hint=omit("measured_on"))
    absent = f", {len(rest) - len(there):,} are not there" if len(there) < len(rest) else ""
    words = f"measured on {counted(len(there), 'validation image')} that no method selects on{absent}"
    return replace(dataset, test=there, split=f"{dataset.split}; {words}" if dataset.split else words)


def _key(item: Item) -> Hashable:
    """The file of an image; an image in memory is itself."""
    return item.image if isinstance(item.image, Path) else id(item.image)
