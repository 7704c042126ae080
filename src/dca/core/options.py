"""Options of methods: dataclass fields with a help text, limits and the source of the default.

`option` declares an option, `parse` and `from_dict` read and validate values once, `describe_options` explains them.
"""

from __future__ import annotations

import dataclasses
import json
import math
import numbers
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from dca.core.errors import UserError, unknown_name
from dca.core.hints import Hint

T = TypeVar("T")
# Largest whole number: more is a typing error, and overflows in torch.
LARGEST = 2**31 - 1
TRUE, FALSE, NONE = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}, {"none", "null", "auto"}


def option(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    source: str = "ours",
    empty: Literal["auto", "none"] = "auto",
) -> Any:
    """A field of an options dataclass, with its help, its limits and the source of its default.

    The annotation gives the type of the values; `Literal["a", "b"]` allows a few texts only.

    Args:
        default: Default value.
        help: What the option does, in a few words; shown by `dca methods show`.
        low: Smallest number allowed.
        high: Largest number allowed.
        source: Where the default comes from: a paper, its authors' code, or "ours".
        empty: Word for the value None: "auto" if a value is chosen later, "none" if there is none.

    Returns:
        The field, for the body of a dataclass derived from `TrainingOptions`.

    Example:
        >>> from dataclasses import dataclass
        >>> from dca import TrainingOptions, option
        >>> @dataclass(frozen=True, kw_only=True)
        ... class MyOptions(TrainingOptions):
        ...     strength: float = option(1.0, "weight of the penalty", low=0)
        >>> MyOptions(strength=2.0).strength
        2.0
    """
    meta = {"help": help, "low": low, "high": high, "source": source, "empty": empty}
    return dataclasses.field(default=default, metadata=meta)


@dataclass(frozen=True)
class OptionInfo:
    """What is known about one option.

    Attributes:
        name: Its name.
        default: Its default.
        help: What it does.
        choices: The texts that are allowed; empty if it is no text with a few values.
        low: Smallest number allowed, or None.
        high: Largest number allowed, or None.
        source: Where the default comes from.
        empty: Word for the value None.
    """

    name: str
    default: Any
    help: str
    choices: tuple[str, ...]
    low: float | None
    high: float | None
    source: str
    empty: str

    def format_limits(self) -> str:
        """The allowed values as text; empty if there is no limit.

        >>> OptionInfo("rate", 0.5, "a rate", (), 0, 1, "ours", "auto").format_limits()
        '0 to 1'
        """
        if self.choices:
            return "|".join(self.choices)
        if self.low is not None and self.high is not None:
            return f"{self.low} to {self.high}"
        if self.low is not None:
            return f"at least {self.low}"
        return f"at most {self.high}" if self.high is not None else ""

    def format_default(self) -> str:
        """The default as text; None is written as the option's word for it."""
        if self.default is None:
            return self.empty
        if self.default == ():
            return "none"
        if isinstance(self.default, tuple):
            return json.dumps(self.default, ensure_ascii=False)
        return str(self.default) or "(empty)"


def describe_options(cls: Any) -> list[OptionInfo]:
    """The options of a class, its own before inherited ones."""
    own, allowed = cls.__annotations__, choices(cls)
    fields = sorted(dataclasses.fields(cls), key=lambda field: field.name not in own)
    return [
        OptionInfo(name=field.name, default=field.default, choices=allowed[field.name], **field.metadata)
        for field in fields
        if "help" in field.metadata
    ]


# Reading values


def parse(
    cls: type[T], pairs: Iterable[str], *, defaults: Mapping[str, Any] = MappingProxyType({}), hint: Hint = ""
) -> T:
    """Options from `key=value` texts; one error lists all unknown names and unreadable values.

    defaults: values in place of the defaults of the class. hint: where the options and their limits can be looked up,
    for errors without a hint of their own.
    """
    types_of, values, problems = option_types(cls), dict[str, Any](), []
    names = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
    for pair in pairs:
        name, equals, text = pair.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            problems.append(f"'{pair}' is not key=value")
        elif name not in names:
            problems.append(unknown_name("option", name, names).problem)
        else:
            try:
                values[name] = _convert(text.strip(), types_of[name])
            except ValueError as error:
                problems.append(f"{name}={text}: {error}")
    return _build(cls, {**defaults, **values}, problems, hint)


def from_dict(cls: type[T], values: Mapping[str, Any], *, hint: Hint = "") -> T:
    """Options from a mapping, e.g. JSON of `dataclasses.asdict`; one error lists all wrong names and types.

    hint: as for `parse`.
    """
    types_of, problems, read = option_types(cls), [], dict[str, Any]()
    names = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
    for name, value in values.items():
        if name not in names:
            problems.append(unknown_name("option", name, names).problem)
            continue
        read[name] = _as_float(_to_python(value), types_of[name])
        if not _has_type(read[name], types_of[name]):
            problems.append(f"{name}={value!r}: {_kind_name(types_of[name])} expected")
    return _build(cls, read, problems, hint)


def _build(cls: type[T], values: Mapping[str, Any], problems: Sequence[str], hint: Hint) -> T:
    """Make the options; raises for these problems, or else for values that the class refuses."""
    if problems:
        known = ", ".join(field.name for field in dataclasses.fields(cls))  # type: ignore[arg-type]
        raise UserError("options that cannot be used", details=problems, hint=hint or f"known: {known}")
    try:
        return cls(**values)
    except UserError as error:
        raise UserError(error.problem, details=error.details, hint=error.hint_parts or hint) from None


def read_none(value: Any, kind: Any) -> Any:
    """The value, but None for the word "auto", "none" or "null" if this type may be None; TOML has no null.

    >>> read_none("auto", float | None), read_none("auto", str), read_none(1.5, float | None)
    (None, 'auto', 1.5)
    """
    optional = get_origin(kind) in (Union, types.UnionType) and type(None) in get_args(kind)
    return None if optional and isinstance(value, str) and value.lower() in NONE else value


def _convert(text: str, kind: Any) -> Any:
    """Convert a text to the annotated type."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if read_none(text, kind) is None:
            return None
        return _convert(text, next(k for k in inner if k is not type(None)))
    if origin is tuple:
        # The word "none" itself is written ["none"].
        return () if text.lower() in NONE else tuple(_convert(part, inner[0]) for part in _split_list(text))
    if kind is bool:
        if text.lower() in TRUE | FALSE:
            return text.lower() in TRUE
        raise ValueError("true or false expected")
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            raise ValueError("a whole number expected" if kind is int else "a number expected") from None
    return text


def _split_list(text: str) -> list[str]:
    """The parts between commas; values that contain commas are given as a JSON list."""
    if not text.lstrip().startswith("["):
        return [part.strip() for part in text.split(",") if part.strip()]
    try:
        parts = json.loads(text)
    except ValueError:
        raise ValueError('a list as in ["one", "two, with a comma"] expected') from None
    return [part if isinstance(part, str) else json.dumps(part) for part in parts]


def _as_float(value: Any, kind: Any) -> Any:
    """A whole number as a float where the option is a float, so that 1 and 1.0 are the same value in records."""
    is_float = kind is float or (
        get_origin(kind) in (Union, types.UnionType) and {*get_args(kind)} == {float, type(None)}
    )
    return float(value) if is_float and type(value) is int and abs(value) <= LARGEST else value


def _to_python(value: Any) -> Any:
    """The value with lists as tuples and NumPy numbers as Python numbers."""
    if isinstance(value, list | tuple):
        return tuple(_to_python(v) for v in value)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return value
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def _has_type(value: Any, kind: Any) -> bool:
    """Whether the value has the annotated type; an int is accepted as a float."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return any(_has_type(value, k) for k in inner)
    if origin is tuple:
        return isinstance(value, tuple) and all(_has_type(v, inner[0]) for v in value)
    if origin is Literal:  # `check_limits` names the allowed texts
        return isinstance(value, str)
    if kind in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, (int, float) if kind is float else kind)


def _kind_name(kind: Any) -> str:
    """The text of a type annotation for an error message."""
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    return kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)


# Validation


def check_limits(options: Any) -> None:
    """Raise one UserError for all values outside their limits; call from `__post_init__`."""
    cls: Any = type(options)
    problems, allowed = [], choices(cls)
    for field in dataclasses.fields(options):
        value, meta = getattr(options, field.name), field.metadata
        if value is None or "help" not in meta:
            continue
        if allowed[field.name] and value not in allowed[field.name]:
            problems.append(f"{field.name}={value}: one of {', '.join(allowed[field.name])}")
        values = value if isinstance(value, tuple) else (value,)
        for number in values:
            if isinstance(number, int | float) and (fault := _limit_problem(number, meta["low"], meta["high"])):
                problems.append(f"{field.name}={number}: {fault}")
    if problems:
        raise UserError("options out of range", details=problems)


def _limit_problem(number: float, low: float | None, high: float | None) -> str:
    """What is wrong with a number; empty if nothing."""
    if not isinstance(number, int) and not math.isfinite(number):
        return "a finite number expected"
    if low is not None and number < low:
        return f"at least {low}"
    highest = LARGEST if high is None and isinstance(number, int) else high
    return f"at most {highest}" if highest is not None and number > highest else ""


def option_types(cls: Any) -> Mapping[str, Any]:
    """The type of each option of an options class, by name."""
    return _types(cls)


@cache
def _types(cls: type[Any]) -> Mapping[str, Any]:
    """`option_types`, cached, because reading annotations takes milliseconds."""
    return MappingProxyType(get_type_hints(cls))


@cache
def choices(cls: type[Any]) -> dict[str, tuple[str, ...]]:
    """The texts that each option allows, by name: those of `Literal`, also with `| None`; empty for other types."""
    kinds = {name: {kind, *get_args(kind)} for name, kind in option_types(cls).items()}
    literals = {name: [get_args(kind) for kind in own if get_origin(kind) is Literal] for name, own in kinds.items()}
    return {name: texts[0] if texts else () for name, texts in literals.items()}


# Values that are there already


def replace_options(options: T, **values: Any) -> T:
    """The options with some values replaced, without validating again: for values that code of ours has computed.

    Example:
        >>> from dca import TrainingOptions
        >>> replace_options(TrainingOptions(epochs=10), batch_size=32).batch_size
        32
    """
    other = object.__new__(type(options))
    other.__dict__.update({**vars(options), **values})
    return other


def changed_values(options: Any, default: Any = None) -> dict[str, Any]:
    """The values that differ from their defaults, by name, sorted.

    An option that holds options itself, those of another method, is a mapping of its own changed values; it is left
    out if there are none.

    Args:
        options: An options object.
        default: What it is compared with; by default the defaults of its class.

    Returns:
        Values by name.
    """
    default = type(options)() if default is None else default
    changed: dict[str, Any] = {}
    for name in sorted(field.name for field in dataclasses.fields(options)):
        value = getattr(options, name)
        if dataclasses.is_dataclass(value):
            if inner := changed_values(value):
                changed[name] = inner
        elif value != getattr(default, name):
            changed[name] = value
    return changed


def as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of options as they are after a round trip through JSON: tuples are lists."""
    return {name: _to_json_value(value) for name, value in values.items()}


def _to_json_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return as_json(value)
    return list(value) if isinstance(value, tuple) else value
