"""What is to be run: one canonical description for the command line, Python and sweeps."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from dca.backbones.sources import MINI, hub_id
from dca.core.choices import MEASURED_ON, MeasuredOn
from dca.core.errors import UserError, unknown_name
from dca.core.files import json_digest
from dca.core.hints import omit, write_draw
from dca.datasets.protocols import PROTOCOLS, RULES, ProtocolName, Rules
from dca.methods.base import Method
from dca.methods.registry import DEFAULT_METHOD, get_method
from dca.model.classifier import Classifier
from dca.model.inputs import require_whole_number


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One experiment. Equal experiments have equal specs, however their options were given.

    Args:
        data: What to learn from: a folder, an image list, or the name of a public dataset.
        method: Name of the method, in any spelling.
        protocol: "few-shot", "base-to-new", "cross-dataset" or "domain-shift".
        targets: Further datasets to test on, for "cross-dataset" and "domain-shift".
        shots: Images per class to draw; None takes all.
        seed: Decides the draw and the initial values.
        backbone: A short name, a hub id or a path.
        precision: "auto", "fp32" or "bf16".
        rules: "strict" selects on at most 4 validation images per class; "paper" on what the authors' code used,
            with their settings for the protocol, and without the EXIF rotation of public images.
        measured_on: "test", or "validation": the validation images that no method selects on take the place of the test
            images, to choose settings with; few-shot only.
        hold_out: Test on this share of each class, where the data has no test part.
        draw: A file that lists exactly which images are drawn.
        corrections: A model folder; images whose labels were corrected in `dca serve` are training images, too.
        estimate: Estimate the accuracy on the training images; methods that need no time for it always do.
        calibrate: Fit a temperature on the predictions that the estimate is made of.
        options: Options of the method by name; those with their default values are dropped. With the rules
            "paper" the defaults of a protocol are those of the method's authors, where they have published some.

    Raises:
        UserError: If a name or value is wrong, or arguments contradict each other.

    Example:
        >>> from dca import Spec
        >>> given = Spec(data="sample", method="Tip-Adapter", options={"views": 10})
        >>> given == Spec(data="sample", method="tip_adapter")
        True
    """

    data: str
    method: str = DEFAULT_METHOD
    protocol: ProtocolName = "few-shot"
    targets: Sequence[str] = ()
    shots: int | None = None
    seed: int = 1
    backbone: str = "mini"
    precision: str = "auto"
    rules: Rules = "strict"
    measured_on: MeasuredOn = "test"
    hold_out: float = 0.0
    draw: str | None = None
    corrections: str | None = None
    estimate: bool = False
    calibrate: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kind = get_method(self.method)
        values = {
            "method": kind.name,
            "data": str(self.data),
            "backbone": str(self.backbone),
            "draw": None if self.draw is None else str(self.draw),
            "corrections": None if self.corrections is None else str(self.corrections),
            "targets": (self.targets,) if isinstance(self.targets, str) else tuple(map(str, self.targets)),
            "options": changed_options(kind, self.options, kind.options_for_protocol(self.protocol, self.rules)),
            "shots": None if self.shots is None else require_whole_number("shots", self.shots, 1),
            "seed": require_whole_number("seed", self.seed, 0),
            "hold_out": float(self.hold_out),
            "estimate": bool(self.estimate) or kind.has_cheap_held_out,
        }
        # Where nothing is estimated, or the method calibrates itself, there is nothing to choose.
        values["calibrate"] = bool(self.calibrate) or kind.calibrated or not values["estimate"]
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self._check()

    def _check(self) -> None:
        """Raise if a word is unknown or arguments contradict each other."""
        for name, known in (("protocol", PROTOCOLS), ("rules", RULES), ("measured_on", MEASURED_ON)):
            if getattr(self, name) not in known:
                raise unknown_name(name, getattr(self, name), known)
        if self.measured_on == "validation":
            self._check_validation()
        if self.draw is not None:
            self._check_draw()

    def _check_validation(self) -> None:
        """Raise if the validation part is selected on, or is not what this experiment would measure."""
        others = {
            f"protocol {self.protocol}": self.protocol != "few-shot",
            "rules paper, in which methods may select on the whole validation part": self.rules == "paper",
            "draw": self.draw is not None,
            "hold_out": bool(self.hold_out),
        }
        if wrong := [name for name, given in others.items() if given]:
            problem = f"measured_on validation cannot be combined with {' and '.join(wrong)}"
            raise UserError(problem, hint=omit("measured_on"))

    def _check_draw(self) -> None:
        """Raise if other arguments decide what is drawn, too."""
        assert self.draw is not None
        where = Path(self.draw).name
        if self.corrections is not None:
            problem = f"draw and corrections cannot be combined: {where} lists the images to draw"
            raise UserError(problem, hint=omit("corrections"))
        if self.shots is not None:
            problem = f"draw and shots cannot be combined: {where} lists the images to draw"
            raise UserError(problem, hint=[omit("shots"), write_draw()])
        if self.hold_out:
            problem = f"draw and hold_out cannot be combined: images that {where} lists could be held out"
            raise UserError(problem, hint=omit("hold_out"))
        if self.protocol != "few-shot":
            raise UserError(f"draw and protocol {self.protocol} cannot be combined", hint=omit("draw"))

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def kind(self) -> type[Method]:
        """The method's class."""
        return get_method(self.method)

    @property
    def settings(self) -> dict[str, Any]:
        """The method's options that differ from its own defaults: the authors' for this protocol, and `options`."""
        return {**self.kind.options_for_protocol(self.protocol, self.rules), **self.options}

    def to_dict(self) -> dict[str, Any]:
        """Plain values for records. Of a path only the last part is kept, so that records name no folder of a user."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        portable = {
            "data": _last_part(self.data),
            "draw": self.draw and _last_part(self.draw),
            "corrections": self.corrections and _last_part(self.corrections),
            "backbone": _backbone_name(self.backbone),
            "targets": list(map(_last_part, self.targets)),
            "options": dict(self.options),
        }
        if self.measured_on == "test":  # the only part there was at first: such experiments keep their ids
            del values["measured_on"]
        return values | portable

    @cached_property
    def id(self) -> str:
        """Hash of `to_dict`, 16 hexadecimal digits; names the run in a sweep."""
        return json_digest(self.to_dict())[:16]

    def classifier(self, device: str = "auto") -> Classifier:
        """The classifier of this spec, not fitted yet.

        Args:
            device: "auto", "cpu", "cuda", ...

        Returns:
            A classifier with the method, options, shots, seed, backbone and precision of the spec.
        """
        return Classifier(
            self.method,
            shots=self.shots,
            seed=self.seed,
            backbone=self.backbone,
            device=device,
            precision=self.precision,
            estimate=self.estimate,
            calibrate=self.calibrate,
            **self.settings,
        )


def changed_options(kind: type[Method], given: Mapping[str, Any], recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The options that differ from their defaults, which are those of the recipe first; checked, sorted by name."""
    chosen, default = kind.parse_options({**recipe, **given}), kind.Options(**recipe)
    fields = sorted(f.name for f in dataclasses.fields(chosen))
    return {name: getattr(chosen, name) for name in fields if getattr(chosen, name) != getattr(default, name)}


def _last_part(place: str) -> str:
    """The last part of a path, whether it exists or not.

    >>> _last_part("data/photos/"), _last_part("eurosat")
    ('photos', 'eurosat')
    """
    return Path(place).name if Path(place).name not in ("", "..") else Path(place).resolve().name


def _backbone_name(source: str) -> str:
    """A short name or hub id as it is; of a path only the last part."""
    public = (source == MINI or hub_id(source) is not None) and not Path(source).expanduser().exists()
    return source if public else _last_part(source)
