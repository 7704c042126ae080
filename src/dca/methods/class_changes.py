"""A finished method for other classes: all others (`retarget`), one more, one less, or one with another name."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Self

from dca.core.actions import change_label_only
from dca.core.errors import UserError
from dca.methods.problem import Problem, Support


class ClassChanges:
    """The part of `Method` that changes classes; nothing is trained again.

    One class is added, removed or renamed through `retarget` unless a method overrides these functions.
    """

    name: ClassVar[str]
    problem: Problem

    def class_parameters(self) -> set[str]:
        """Names of parameters whose first axis is the classes."""
        return set()

    def retarget(self, problem: Problem, sources: Sequence[int | None]) -> Self:
        """The finished model for the classes of another problem; nothing is fitted again.

        Args:
            problem: The other problem.
            sources: For each of its classes the index of the same trained class, or None. Prompts are
                attached to the new names; values of a class (such as its covariance) follow its source.

        Returns:
            Another method, sealed.

        Raises:
            UserError: If the method cannot be used for other classes.
        """
        raise UserError(
            f"a {self.name} model knows only the classes it was trained on",
            hint="methods that learn prompts can be used for other classes: dca, coop, vpt, maple, ...",
        )

    def with_class(self, name: str, images: Support) -> Self:
        """The finished model with one more class, the last.

        Args:
            name: Words that CLIP reads for the class.
            images: Images of the class, with its index C as their label. There may be none of them for methods
                that learn prompts.

        Returns:
            Another method, sealed.

        Raises:
            UserError: If the method has to be fitted again, or needs images of the class.
        """
        if not self._takes_other_classes or self.class_parameters():
            raise UserError(
                f"this {self.name} model cannot take a new class: what it learned belongs to the classes it has",
                hint="fit again with the images of all classes",
            )
        names = self.problem.names
        return self._moved_to((*names, name), [*range(len(names)), None])

    def without_class(self, index: int) -> Self:
        """The finished model without one of its classes.

        Args:
            index: The class.

        Returns:
            Another method, sealed.

        Raises:
            UserError: If the method has to be fitted again.
        """
        if not self._takes_other_classes:
            hint = "fit again with the images of the other classes"
            raise UserError(f"no class can be removed from a {self.name} model", hint=hint)
        kept = self.other_classes(index)
        return self._moved_to([self.problem.names[c] for c in kept], kept)

    def with_name(self, index: int, name: str) -> Self:
        """The finished model with another name for one of its classes; learned values of the class are kept.

        Args:
            index: The class.
            name: Words that CLIP reads for it from now on.

        Returns:
            Another method, sealed.

        Raises:
            UserError: If the method has to be fitted again.
        """
        if not self._takes_other_classes:
            raise self.learned_name_error()
        names = [name if c == index else old for c, old in enumerate(self.problem.names)]
        return self._moved_to(names, range(len(names)))

    def other_classes(self, index: int) -> list[int]:
        """All classes but one.

        Args:
            index: The class to leave out.

        Returns:
            Indices of the others, in order.
        """
        return [c for c in range(len(self.problem.names)) if c != index]

    def learned_name_error(self) -> UserError:
        """The error for another name that the finished model has no way to read."""
        return UserError(
            f"a {self.name} model cannot read another name of a class: what it learned belongs to the old one",
            hint=[change_label_only(), "fit again with the new name"],
        )

    @property
    def _takes_other_classes(self) -> bool:
        return type(self).retarget is not ClassChanges.retarget

    def _moved_to(self, names: Sequence[str], sources: Sequence[int | None]) -> Self:
        return self.retarget(dataclasses.replace(self.problem, names=tuple(names)), sources)
