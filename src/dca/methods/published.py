"""What authors published about a method beyond its defaults: recipes for single protocols, and open points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from dca.core.choices import Protocol, Selection


@dataclass(frozen=True)
class ProtocolRecipe:
    """The settings that the authors of a method use in one protocol.

    Args:
        options: Values of options that differ from the defaults, by name.
        source: Where they are published.

    Example:
        >>> ProtocolRecipe({"depth": 3, "epochs": 2}, "a file of the authors").text()
        'depth=3 epochs=2 (a file of the authors)'
    """

    options: Mapping[str, Any]
    source: str

    def text(self) -> str:
        """Options and source in one line."""
        return f"{' '.join(f'{name}={value}' for name, value in self.options.items())} ({self.source})"


class Published:
    """The part of `Method` that holds what its authors published beyond the defaults.

    Attributes:
        protocol_recipes: Settings of the authors in single protocols, used with the selection "paper".
        not_taken: Options whose default is not what was chosen on validation images, each with the reason.
    """

    protocol_recipes: ClassVar[Mapping[Protocol, ProtocolRecipe]] = MappingProxyType({})
    not_taken: ClassVar[Mapping[str, str]] = MappingProxyType({})

    @classmethod
    def recipe_for(cls, protocol: Protocol, selection: Selection) -> dict[str, Any]:
        """Values that take the place of the defaults in an experiment; options that are given win over them.

        Args:
            protocol: The protocol of the experiment.
            selection: "strict" has one recipe for all protocols; "paper" takes that of the authors.

        Returns:
            Values by name; none where the defaults are used.
        """
        own = cls.protocol_recipes.get(protocol)
        return dict(own.options) if own and selection == "paper" else {}

    @classmethod
    def explanations(cls) -> dict[str, list[str]]:
        """What `dca methods show` prints below the options.

        Returns:
            Lines by heading.
        """
        found = {
            "settings of its authors in other protocols, taken with --selection paper": [
                f"{protocol}: {own.text()}" for protocol, own in cls.protocol_recipes.items()
            ],
            "defaults that are not those chosen on validation images": [
                f"{option}: {why}" for option, why in cls.not_taken.items()
            ],
        }
        return {heading: lines for heading, lines in found.items() if lines}
