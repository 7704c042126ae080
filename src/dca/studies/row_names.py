"""Names of rows: the names that specifications give their grids, else a method with its changed options."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dca.studies.results import Variant, short_value
from dca.studies.spec_file import Study


@dataclass(frozen=True)
class RowNames:
    """What variants are called.

    Attributes:
        given: Names from specifications.
    """

    given: Mapping[Variant, str] = field(default_factory=dict)

    def __call__(self, variant: Variant) -> str:
        """The name of a variant.

        >>> RowNames()(Variant("dca", (("alpha", 1.0),)))
        'dca alpha=1'
        """
        return self.given.get(variant, variant.label)


def row_names(studies: Iterable[Study]) -> RowNames:
    """The names that specifications give to their rows. Data, shots, seeds and backbones do not matter.

    Args:
        studies: The specifications.

    Returns:
        The names; of two names for one variant the first counts. Variants with one name also have their settings.
    """
    rows: dict[str, dict[Variant, None]] = {}
    for study in studies:
        for cell in study.cells:
            variant = Variant.of(cell.spec.method, cell.spec.options, cell.head)
            for name in cell.rows:
                rows.setdefault(name, {})[variant] = None
    given: dict[Variant, str] = {}
    for name, variants in rows.items():
        for variant, label in _told_apart(name, list(variants)):
            given.setdefault(variant, label)
    return RowNames(given)


def _told_apart(name: str, variants: Sequence[Variant]) -> Iterator[tuple[Variant, str]]:
    """Each variant of a row with a name of its own: the row's, and the method and settings in which they differ."""
    settings = [{"method": variant.method, **variant.settings} for variant in variants]
    differ = [
        key for key in dict.fromkeys(k for some in settings for k in some) if len({s.get(key) for s in settings}) > 1
    ]
    for variant, own in zip(variants, settings, strict=True):
        values = [f"{key}={short_value(own[key])}" for key in differ if key in own]
        yield variant, ", ".join([name, *values])
