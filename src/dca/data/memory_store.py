"""Features in memory, for a model that is served: nothing is written and nothing is ever removed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dca.data.feature_store import Compute, space_name


class MemoryStore:
    """Features by key, as `FeatureStore` has them, without a file.

    Example:
        >>> store = MemoryStore()
        >>> store.add({"backbone": "c620"}, ["0a" * 32], torch.ones(1, 3))
        >>> store.rows({"backbone": "c620"}, ["0a" * 32], lambda places: []).shape
        torch.Size([1, 3])
    """

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], Tensor] = {}

    def add(self, about: Mapping[str, object], keys: Sequence[str], rows: Tensor) -> None:
        """Keep features (N, D) under N keys."""
        space = space_name(about)
        self._rows.update(((space, key), row) for key, row in zip(keys, rows.float().cpu(), strict=True))

    def rows(self, about: Mapping[str, object], keys: Sequence[str], compute: Compute) -> Tensor:
        """Features (N, D) under N keys; `compute` makes those that are missing, as for `FeatureStore`."""
        space = space_name(about)
        missing: dict[str, int] = {}
        for place, key in enumerate(keys):
            if (space, key) not in self._rows:
                missing.setdefault(key, place)
        if missing:
            self.add(about, list(missing), torch.cat(list(compute(list(missing.values())))))
        return torch.stack([self._rows[space, key] for key in keys]) if keys else torch.empty(0, 0)

    def known(self, about: Mapping[str, object], keys: Sequence[str]) -> set[str]:
        """The keys whose features are kept."""
        space = space_name(about)
        return {key for key in keys if (space, key) in self._rows}
