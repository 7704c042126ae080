"""Copies and near-copies among any number of features: groups of images whose similarity is at least a threshold.

The search is exact, and compares tiles of images with tiles. Full features would be D products per pair; instead, each
image has its coordinates h in a frame of a few orthonormal directions, and the length r of what is left of it:

    a·b = h_a·h_b + (rest of a)·(rest of b) ≤ h_a·h_b + r_a r_b = [h_a, r_a]·[h_b, r_b]

so only images of pairs whose bound reaches the threshold are read again and compared in full. Any frame is right; the
directions in which a sample of the features is largest make the bound tight. Memory is that of the coordinates (260
bytes per image), a few row groups and a tile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dca.core.progress import Progress, silent
from dca.model.embed import FeatureBlock, FeatureTable, SimilarImage

# The least cosine of copies unless it is given. With the default backbone, copies of 120 photos of Caltech-101 that
# were compressed again or made brighter have more (239 of 240), and no two different ones of them more than 0.86.
THRESHOLD = 0.95
# Directions of the frame.
FRAME = 64
# Images per side of a tile: 1,024 x 1,024 bounds take 4 MB, which stay in the caches.
TILE = 1024
# Row groups of which a sample is taken for the frame, and images of each.
SAMPLED_GROUPS, SAMPLED_IMAGES = 16, 256
# Row groups that are kept in memory.
KEPT = 6
# Rounding in float32: of squared lengths, of bounds, and of similarities.
LENGTH_ERROR, BOUND_ERROR, ERROR = 1e-6, 1e-5, 2e-6


@dataclass(frozen=True)
class CopyGroup:
    """Images that are copies of each other, or of copies of each other, in the order of the files.

    Their similarities are those to the first one.
    """

    images: Sequence[SimilarImage]


def find_archive_copies(
    table: FeatureTable, threshold: float = THRESHOLD, *, progress: Progress = silent
) -> list[CopyGroup]:
    """Find all groups of images that pairs with at least this similarity connect; exact.

    Args:
        table: The features.
        threshold: The least cosine of two copies.
        progress: Receives the progress.

    Returns:
        Groups of two images and more, in the order of their first images.
    """
    archive = _Archive(table, progress)
    if not archive.rows:
        return []
    groups, tiles = _Groups(archive.rows), torch.split(archive.bounds, TILE)
    # New memory for the bounds of each pair of tiles would take longer than computing them.
    memory = torch.empty(TILE * TILE)
    for one, bounds in enumerate(tiles):
        for other, others in enumerate(tiles[one:], one):
            shape = len(bounds), len(others)
            products = torch.mm(bounds, others.T, out=memory[: shape[0] * shape[1]].view(shape))
            if one == other:
                products.fill_diagonal_(-1)
            if products.amax() >= threshold - BOUND_ERROR:
                possible = (products >= threshold - BOUND_ERROR).numpy()
                _compare(archive, groups, possible, (one * TILE, other * TILE), threshold)
        progress("tiles", one + 1, len(tiles), "")
    return [_describe_group(archive, members) for members in groups.members()]


class _Archive:
    """Bounds of all features, and the features themselves by number.

    rows: N. bounds: [h, r] of each image, (N, directions + 1).
    """

    def __init__(self, table: FeatureTable, progress: Progress) -> None:
        self._read: Callable[[int], FeatureBlock] = lru_cache(KEPT)(table.read)
        frame, counts, bounds = _choose_frame(table), list[int](), list[Tensor]()
        for number in range(len(table)):
            features = self._read(number).features
            counts.append(len(features))
            if len(features):
                coordinates = features @ frame
                rest = features.square().sum(1) - coordinates.square().sum(1)
                bounds.append(torch.cat([coordinates, (rest.clamp(min=0) + LENGTH_ERROR).sqrt()[:, None]], 1))
            progress("row groups", number + 1, len(table), "")
        self._ends = np.cumsum(counts, dtype=np.int64)
        self.rows = int(sum(counts))
        self.bounds = torch.cat(bounds) if bounds else torch.zeros(0, 0)

    def features(self, rows: NDArray[np.int64]) -> Tensor:
        """Features of rows, in ascending order, (n, D)."""
        return torch.cat([block.features[local] for block, local in self._locate(rows)])

    def paths(self, rows: NDArray[np.int64]) -> list[str]:
        """Paths of rows, in ascending order."""
        return [block.paths[n] for block, local in self._locate(rows) for n in local.tolist()]

    def _locate(self, rows: NDArray[np.int64]) -> Iterator[tuple[FeatureBlock, NDArray[np.int64]]]:
        groups = np.searchsorted(self._ends, rows, side="right")
        for group in np.unique(groups).tolist():
            before = self._ends[group - 1] if group else 0
            yield self._read(group), rows[groups == group] - before


def _choose_frame(table: FeatureTable) -> Tensor:
    """Orthonormal directions in which a sample of the features is largest, (D, directions)."""
    spread = np.unique(np.linspace(0, len(table) - 1, min(SAMPLED_GROUPS, len(table))).astype(int)).tolist()
    thinned = list[Tensor]()
    for number in spread:
        if len(features := table.read(number).features):
            thinned.append(features[:: -(-len(features) // SAMPLED_IMAGES)].double())
    if not thinned:
        return torch.zeros(0, 0)
    sample = torch.cat(thinned)
    directions: Tensor = torch.linalg.eigh(sample.T @ sample).eigenvectors
    return directions[:, -FRAME:].float()


def _compare(
    archive: _Archive, groups: _Groups, possible: NDArray[np.bool_], starts: tuple[int, int], threshold: float
) -> None:
    """Unite the images of two tiles that are similar; possible: pairs that may be, starts: first rows of the tiles."""
    sides = [np.flatnonzero(possible.any(axis)) + start for axis, start in zip((1, 0), starts, strict=True)]
    # Images that are of one group already need not be compared.
    if len(np.unique(groups.roots(np.concatenate(sides)))) == 1:
        return
    alike = (archive.features(sides[0]) @ archive.features(sides[1]).T >= threshold - ERROR).numpy()
    rows, columns = np.nonzero(alike)
    groups.unite(sides[0][rows], sides[1][columns])


class _Groups:
    """Which images are of one group: each image points to an earlier one of its group, or to itself."""

    def __init__(self, rows: int) -> None:
        self._parent = np.arange(rows)

    def roots(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The first image of the group of each row."""
        found = rows
        while ((above := self._parent[found]) != found).any():
            found = above
        self._parent[rows] = found
        return found

    def unite(self, rows: NDArray[np.int64], others: NDArray[np.int64]) -> None:
        """Make one group of the groups of each pair."""
        while True:
            one, other = self.roots(rows), self.roots(others)
            differ = one != other
            if not differ.any():
                return
            rows, others = one[differ], other[differ]
            # Of several partners of one group this keeps the earliest; the others are there in the next round.
            np.minimum.at(self._parent, np.maximum(rows, others), np.minimum(rows, others))

    def members(self) -> list[NDArray[np.int64]]:
        """The images of each group that has several."""
        roots = self.roots(np.arange(len(self._parent)))
        order = np.argsort(roots, kind="stable")
        _, starts = np.unique(roots[order], return_index=True)
        return [members for members in np.split(order, starts[1:]) if len(members) > 1]


def _describe_group(archive: _Archive, members: NDArray[np.int64]) -> CopyGroup:
    first, found = archive.features(members[:1])[0], list[SimilarImage]()
    for start in range(0, len(members), TILE):
        some = members[start : start + TILE]
        similarities = (archive.features(some) @ first).tolist()
        found += [SimilarImage(*pair) for pair in zip(archive.paths(some), similarities, strict=True)]
    return CopyGroup(found)
