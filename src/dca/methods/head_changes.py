"""A finished method with other values of the options that only its head reads: nothing is trained again."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from dca.core.actions import show_method
from dca.core.errors import UserError
from dca.methods.interface import Method

M = TypeVar("M", bound=Method)


def with_options(method: M, given: Mapping[str, Any] | Iterable[str]) -> M:
    """The finished method with other options of its head; parameters and stored tensors are shared.

    The head is that of a fit whose options had these values, at the same parameters. A temperature belongs to
    the head that it was fitted for: the new one has none. An option that decides others, such as DCA's `gammas`,
    decides them again, unless they are given, too.

    Args:
        method: A finished method.
        given: Values by name, or `key=value` texts; only `Method.head_options` can be changed.

    Returns:
        Another method, sealed; the method itself if no value is different.

    Raises:
        UserError: If an option is unknown, has a wrong value, or is not one of the head.
    """
    given = given if isinstance(given, Mapping) else list(given)
    read = method.choose(given)
    names = list(given) if isinstance(given, Mapping) else [text.partition("=")[0].strip() for text in given]
    if fixed := [name for name in names if name not in method.changeable_options]:
        raise _fixed_error(method, fixed)
    open_again = {other: None for name in names for other in method.decides.get(name, ())}
    values = open_again | {name: getattr(read, name) for name in names}
    chosen = method.resolve(dataclasses.replace(method.options, **values), method.problem)
    if chosen == method.options:
        return method
    other = copy.copy(method)
    other._buffers = dict(method._buffers)  # tensors are shared, but setting one here must not set it there
    other.options, other.temperature = chosen, 1.0
    return other.seal()


def _fixed_error(method: Method, names: list[str]) -> UserError:
    can = ", ".join(method.changeable_options)
    return UserError(
        f"{' and '.join(names)} of this finished {method.name} model cannot be changed",
        details=[f"its head reads, and can be made again with: {can}" if can else "its head has no option to change"],
        hint=["fit again with the new values", show_method(method.name)],
    )
