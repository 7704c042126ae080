"""What is to be run in a study: a fit with its protocol, its targets and the part of the data that is measured on.

And the figures of such a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

from dca.backbones.sources import MINI
from dca.core.choices import PROTOCOLS, ProtocolName
from dca.core.errors import UserError, unknown_name
from dca.core.files import json_digest
from dca.core.hints import omit, write_draw
from dca.runs.result import RunResult, TargetResult, record_targets
from dca.runs.spec import FitSpec, last_part
from dca.study.choices import MEASURED_ON, MeasuredOn
from dca.study.protocols import harmonic_mean


@dataclass(frozen=True, kw_only=True)
class Experiment(FitSpec):
    """One experiment. Equal experiments have equal ids, however their options were given.

    Args:
        data, method, shots, seed, precision: As for `dca.runs.spec.FitSpec`.
        backbone: A short name, a hub id or a path; `mini` unless given, and not `auto` as elsewhere: methods that
            train run on one encoder, so that all methods of a study are compared on the same one.
        hold_out, corrections, estimate, calibrate: As for `dca.runs.spec.FitSpec`.
        other: None; experiments have no other images.
        options: Options of the method by name, `key=value` texts, or an `Options` object.
        rules: "strict" or "paper". With "paper" the defaults of the options are those that the method's authors
            publish for the protocol, where they do.
        protocol: "few-shot", "base-to-new", "cross-dataset", "domain-shift" or "transductive".
        targets: Further datasets to test on, for "cross-dataset" and "domain-shift".
        measured_on: "test", or "validation": the validation images that no method selects on take the place of the
            test images, to choose options with; few-shot only.
        draw: A file that lists exactly which images are drawn.

    Raises:
        UserError: If a name or value is wrong, or arguments contradict each other.

    Example:
        >>> from dca.study import Experiment
        >>> experiment = Experiment(data="eurosat", method="Tip-Adapter", shots=4, options={"views": 10})
        >>> experiment == Experiment(data="eurosat", method="tip_adapter", shots=4)
        True
    """

    # Methods are compared on one CLIP, which all of them can use.
    backbone: str = MINI
    protocol: ProtocolName = "few-shot"
    targets: Sequence[str] = ()
    measured_on: MeasuredOn = "test"
    draw: str | None = None

    def __post_init__(self) -> None:
        for name, known in (("protocol", PROTOCOLS), ("measured_on", MEASURED_ON)):
            if getattr(self, name) not in known:
                raise unknown_name(name, getattr(self, name), known)
        super().__post_init__()
        self._set(
            targets=(self.targets,) if isinstance(self.targets, str) else tuple(map(str, self.targets)),
            draw=None if self.draw is None else str(self.draw),
        )
        if self.other is not None:
            raise UserError("an experiment measures classes, and learns from no other images", hint=omit("other"))
        if self.measured_on == "validation":
            self._check_validation()
        if self.draw is not None:
            self._check_draw(self.draw)

    @property
    def _protocol(self) -> ProtocolName:
        return self.protocol

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

    def _check_draw(self, draw: str) -> None:
        """Raise if other arguments decide what is drawn, too."""
        file = Path(draw).name
        if self.corrections is not None:
            problem = f"draw and corrections cannot be combined: {file} lists the images to draw"
            raise UserError(problem, hint=omit("corrections"))
        if self.shots is not None:
            problem = f"draw and shots cannot be combined: {file} lists the images to draw"
            raise UserError(problem, hint=[omit("shots"), write_draw()])
        if self.hold_out:
            problem = f"draw and hold_out cannot be combined: images that {file} lists could be held out"
            raise UserError(problem, hint=omit("hold_out"))
        if self.protocol != "few-shot":
            raise UserError(f"draw and protocol {self.protocol} cannot be combined", hint=omit("draw"))

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def identity(self) -> dict[str, Any]:
        """As for `FitSpec`, with the protocol."""
        return {"protocol": self.protocol, **super().identity}

    def to_dict(self) -> dict[str, Any]:
        """Plain values for records. Of a path only the last part is kept, so that records name no folder of a user."""
        values = super().to_dict() | {
            "draw": self.draw and last_part(self.draw),
            "targets": list(map(last_part, self.targets)),
        }
        if self.measured_on == "test":  # the usual case is left out, so that it does not decide ids
            del values["measured_on"]
        return values

    @cached_property
    def id(self) -> str:
        """Hash of `to_dict`, 16 hexadecimal digits; names the run in a sweep."""
        return json_digest(self.to_dict())[:16]


@dataclass(frozen=True, kw_only=True)
class ExperimentResult(RunResult):
    """The figures of an experiment.

    Where other datasets (cross-dataset), or all test images together (transductive), are classified, only the targets
    have accuracies: they are not those of the model on one image of its data.

    Attributes:
        protocol: The protocol.
        measured_on: The part of the data that was measured on.
        draw: Name of the file that lists the drawn images, if there was one.
        harmonic_mean: Of the accuracies on base and new classes, for "base-to-new".
        fit: Id of the experiment whose model was measured, where that is another one.
        head: Options of the model's head that differ from those of the fit.
    """

    _OPTIONAL: ClassVar[tuple[str, ...]] = (*RunResult._OPTIONAL, "harmonic_mean", "fit", "head")

    protocol: ProtocolName
    measured_on: MeasuredOn = "test"
    draw: str | None = None
    harmonic_mean: float | None = None
    fit: str | None = None
    head: dict[str, Any] = field(default_factory=dict)

    @property
    def draw_words(self) -> str:
        """Which images of the data were trained on, in words."""
        if self.protocol == "base-to-new" and not self.shots:
            return "those of the base classes"
        return f"those of {self.draw}" if self.draw else super().draw_words

    @classmethod
    def complete(cls, result: RunResult, experiment: Experiment) -> Self:
        """The result of a run as that of an experiment.

        Args:
            result: The figures of the run, or of another experiment with the same fit.
            experiment: What was run.

        Returns:
            The same figures, with those that the protocol decides.
        """
        values = {f.name: getattr(result, f.name) for f in fields(RunResult)}
        return cls(
            **{
                **values,
                **experiment_figures(experiment.protocol, result.targets),
                "protocol": experiment.protocol,
                "measured_on": experiment.measured_on,
                "draw": experiment.draw and Path(experiment.draw).name,
            }
        )


def experiment_figures(protocol: ProtocolName, targets: tuple[TargetResult, ...]) -> dict[str, Any]:
    """The fields of a result that the test images decide under a protocol."""
    figures: dict[str, Any] = {**record_targets(targets), "harmonic_mean": None}
    if protocol in ("cross-dataset", "transductive"):
        figures |= {"test_images": 0, "zero_shot_accuracy": None, "accuracy": None}
    if protocol == "base-to-new":
        base, new = targets
        figures["harmonic_mean"] = harmonic_mean(base.accuracy, new.accuracy)
    return figures
