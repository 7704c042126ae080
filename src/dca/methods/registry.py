"""Methods by name: the modules of this package, and those of other packages through entry points."""

from __future__ import annotations

import importlib
import logging
import pkgutil
from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points

from dca.backbones.encoder import Encoder
from dca.core.choices import DEFAULT_METHOD  # defined there, so that the command line reads it without torch
from dca.core.errors import UserError, unknown_name
from dca.core.hints import list_methods
from dca.core.text import normalize_name
from dca.methods.base import Method

__all__ = ["DEFAULT_METHOD", "all_methods", "choose_encoder", "get_method", "methods_for"]

log = logging.getLogger(__name__)


@cache
def all_methods() -> dict[str, type[Method]]:
    """All methods: modules of this package that define METHOD, and entry points `dca.methods` of other packages.

    Returns:
        The class of each method by its name, sorted.

    Example:
        >>> import dca
        >>> methods = dca.list_methods()
        >>> len(methods) >= 17, methods["coop"].paper
        (True, 'Zhou et al., Learning to Prompt for Vision-Language Models, IJCV 2022')
    """
    import dca.methods as package

    methods = {}
    for module in pkgutil.iter_modules(package.__path__):
        method = getattr(importlib.import_module(f"{package.__name__}.{module.name}"), "METHOD", None)
        if method is not None:
            methods[method.name] = method
    for method in _load_entry_points():
        methods.setdefault(method.name, method)
    return dict(sorted(methods.items()))


def _load_entry_points() -> Iterator[type[Method]]:
    """Load the methods of other packages. One that cannot be imported is logged and left out."""
    for point in entry_points(group="dca.methods"):
        package = point.dist.name if point.dist else point.value
        try:
            method = point.load()
        except Exception as error:  # importing a foreign module may raise anything
            log.warning("method '%s' of %s cannot be loaded: %s", point.name, package, error)
            continue
        if isinstance(method, type) and issubclass(method, Method):
            yield method
        else:
            log.warning("method '%s' of %s is not a class derived from dca.methods.base.Method", point.name, package)


def get_method(name: str) -> type[Method]:
    """Look up a method by its name, in any case, with hyphens or underscores; raises UserError if unknown."""
    methods = {normalize_name(known): method for known, method in all_methods().items()}
    if normalize_name(name) not in methods:
        raise unknown_name("method", name, all_methods(), hint=list_methods())
    return methods[normalize_name(name)]


def methods_for(encoder: Encoder) -> list[str]:
    """Names of the methods that run on an encoder, or on a member of a pool."""
    candidates = _candidates(encoder)
    return [
        name
        for name, kind in all_methods().items()
        if not kind.fits_others and any(kind.needs <= one.abilities for one in candidates)
    ]


def choose_encoder(kind: type[Method], encoder: Encoder) -> Encoder:
    """The encoder, or the first member of a pool that has what the method needs where the whole pool has not.

    Raises:
        UserError: If the method cannot run on it.
    """
    for candidate in _candidates(encoder):
        if kind.needs <= candidate.abilities:
            return candidate
    missing = sorted(kind.needs - encoder.abilities)
    raise UserError(
        f"{kind.name} needs {' and '.join(missing)}, which {encoder.source} does not have",
        hint=f"methods that run on it: {', '.join(methods_for(encoder))}",
    )


def _candidates(encoder: Encoder) -> tuple[Encoder, ...]:
    return (encoder, *(member for member in encoder.members if member is not encoder))
