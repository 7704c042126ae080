"""What is to be fitted: one canonical description, made once, at the edge, of the command line, Python or a study."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from dca.backbones.sources import (
    ADAPTERS,
    AUTO,
    SEPARATOR,
    is_public_name,
    join_prefix,
    name_without_path,
    split_prefix,
)
from dca.core.choices import RULES, ProtocolName, Rules
from dca.core.errors import UserError, unknown_name
from dca.core.options import as_json, changed_values
from dca.methods.base import Method, TrainingOptions
from dca.methods.registry import DEFAULT_METHOD, get_method
from dca.model.classifier import Classifier
from dca.model.inputs import require_other, require_whole_number


@dataclass(frozen=True, kw_only=True)
class FitSpec:
    """One fit and its test. Equal fits have equal descriptions, however their options were given.

    Args:
        data: What to learn from: a folder, an image list, or the name of a public dataset.
        method: Name of the method, in any spelling.
        options: Options of the method by name, or as `key=value` texts: they are validated here. An `Options` object of
            the method is taken as it is. The attribute is always the object.
        shots: Images per class to draw; None takes all.
        seed: Decides the draw and the initial values.
        backbone: "auto", a short name, a hub id, a path, or several with commas between them.
        precision: "auto", "fp32" or "bf16".
        rules: "strict" lets a method choose options on at most 4 validation images per class; "paper" on those that
            its authors used, with the options that they publish and without the EXIF rotation of public images.
        hold_out: Test on this share of each class, where the data has no test part.
        corrections: A model folder; images whose labels were corrected in `dca serve` are training images, too.
        other: A folder of images of none of the classes, to learn what is to be rejected.
        estimate: Estimate the accuracy on the training images; methods that need no time for it always do.
        calibrate: Fit a temperature on the predictions that the estimate is made of.

    Raises:
        UserError: If a name or value is wrong.

    Example:
        >>> spec = FitSpec(data="sample", method="Tip-Adapter", options={"views": 10})
        >>> spec == FitSpec(data="sample", method="tip_adapter")
        True
        >>> spec.options.views
        10
    """

    data: str
    method: str = DEFAULT_METHOD
    options: Any = None
    shots: int | None = None
    seed: int = 1
    backbone: str = AUTO
    precision: str = "auto"
    rules: Rules = "strict"
    hold_out: float = 0.0
    corrections: str | None = None
    other: str | None = None
    estimate: bool = False
    calibrate: bool = True

    def __post_init__(self) -> None:
        kind = get_method(self.method)
        if self.other is not None:
            require_other(kind)
        if self.rules not in RULES:
            raise unknown_name("rules", self.rules, RULES)
        estimate = bool(self.estimate) or kind.has_cheap_held_out
        self._set(
            method=kind.name,
            data=str(self.data),
            backbone=str(self.backbone),
            corrections=None if self.corrections is None else str(self.corrections),
            other=None if self.other is None else str(self.other),
            shots=None if self.shots is None else require_whole_number("shots", self.shots, 1),
            seed=require_whole_number("seed", self.seed, 0),
            hold_out=float(self.hold_out),
            estimate=estimate,
            # Where nothing is estimated, or the method calibrates itself, there is nothing to choose.
            calibrate=bool(self.calibrate) or kind.calibrated or not estimate,
            options=self._validated_options(kind),
        )

    def _set(self, **values: Any) -> None:
        """Set fields while the object is being made."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _validated_options(self, kind: type[Method]) -> Any:
        """The options as an object of the method, which is validated where it is not one already."""
        if isinstance(self.options, kind.Options):
            return self.options
        if isinstance(self.options, TrainingOptions):
            raise UserError(f"{type(self.options).__name__} are no options of {kind.name}")
        defaults = kind.options_for_protocol(self._protocol, self.rules)
        return kind.parse_options(self.options or {}, defaults=defaults)

    @property
    def _protocol(self) -> ProtocolName:
        """The protocol whose published options apply with the rules "paper"."""
        return "few-shot"

    def __hash__(self) -> int:
        return hash((self.data, self.method, self.shots, self.seed, self.backbone))

    @property
    def kind(self) -> type[Method]:
        """The method's class."""
        return get_method(self.method)

    @cached_property
    def changed_options(self) -> dict[str, Any]:
        """The options that differ from the defaults, by name; the defaults are those that the rules give."""
        return changed_values(self.options, _default_options(self.kind, self._protocol, self.rules))

    @property
    def identity(self) -> dict[str, Any]:
        """The part of a run's identity that the description gives; images and backbone are added to it."""
        names = ("method", "rules", "shots", "seed", "hold_out", "estimate", "calibrate")
        return {name: getattr(self, name) for name in names}

    def to_dict(self) -> dict[str, Any]:
        """Plain values for records. Of a path only the last part is kept, so that records name no folder of a user."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        # Left out where there are none, so that descriptions without it keep their hashes.
        other = {} if values.pop("other") is None else {"other": last_part(str(self.other))}
        return {**values, **other} | {
            "data": last_part(self.data),
            "corrections": self.corrections and last_part(self.corrections),
            "backbone": _backbone_name(self.backbone),
            "options": as_json(self.changed_options),
        }

    def classifier(self, device: str = "auto") -> Classifier:
        """The classifier that is described, not fitted yet.

        Args:
            device: "auto", "cpu", "cuda", ...

        Returns:
            A classifier with the method, options, shots, seed, backbone and precision.
        """
        given = {**self.kind.options_for_protocol(self._protocol, self.rules), **self.changed_options}
        return Classifier(
            self.method,
            shots=self.shots,
            seed=self.seed,
            backbone=self.backbone,
            device=device,
            precision=self.precision,
            estimate=self.estimate,
            calibrate=self.calibrate,
            **given,
        )


@cache
def _default_options(kind: type[Method], protocol: ProtocolName, rules: Rules) -> Any:
    """The options of a method where none are given."""
    return kind.Options(**kind.options_for_protocol(protocol, rules))


def last_part(path: str) -> str:
    """The last part of a path, whether it exists or not.

    >>> last_part("data/photos/"), last_part("eurosat")
    ('photos', 'eurosat')
    """
    return Path(path).name if Path(path).name not in ("", "..") else Path(path).resolve().name


def _backbone_name(source: str) -> str:
    """Short names and hub ids as they are; of a path only the last part."""
    if Path(source).expanduser().exists():
        return last_part(source)
    return SEPARATOR.join(map(_public_name, source.split(SEPARATOR)))


def _public_name(name: str) -> str:
    """One name as it is, or without the path of this machine in it."""
    if is_public_name(name):
        return name
    prefix, place = split_prefix(name)
    return join_prefix(prefix, name_without_path(place) if prefix in ADAPTERS else last_part(place))
