"""The figures of a finished run, as `result.json` holds them and as `dca fit` shows them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from dca.model.findings import Findings
from dca.model.records import Estimate


@dataclass(frozen=True, kw_only=True)
class TargetResult:
    """The figures of a model on one target. Accuracies are fractions.

    Attributes:
        name: Name of the target.
        classes: Number of its classes.
        test_images: Number of its test images.
        accuracy: Accuracy of the model.
        zero_shot_accuracy: Accuracy of zero-shot CLIP; None if the encoder knows no texts.
        ece: Expected calibration error of the model.
        metric: Distance that the head of the model used, if the method has a choice.
        seen_in_training: How many of the test images the fit was trained on, by their content, where that is known.
    """

    name: str
    classes: int
    test_images: int
    accuracy: float
    zero_shot_accuracy: float | None
    ece: float
    metric: str | None = None
    seen_in_training: int = 0

    @property
    def gain(self) -> float | None:
        """How much better than zero-shot CLIP the model is."""
        return None if self.zero_shot_accuracy is None else self.accuracy - self.zero_shot_accuracy


@dataclass(frozen=True, kw_only=True)
class MethodResult:
    """One method of a comparison on the same test images.

    Attributes:
        method: Name of the method; "zero_shot" for zero-shot CLIP.
        accuracy: Its accuracy.
        test_images: Number of test images.
        seconds: Time of its fit.
    """

    method: str
    accuracy: float
    test_images: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The figures of a run. They hold no path of the user's machine.

    Attributes:
        method: Name of the method.
        backbone: Name of the backbone.
        image_size: Side in pixels of the images that it sees.
        feature_precision: Type in which its frozen features were computed: "float32" or "bfloat16".
        dataset: Name of the data.
        public: Name of the public dataset that the data is, or "".
        split: How the data was divided into training and test images, in words.
        classes: Number of classes.
        shots: Images per class that were drawn; None for all.
        images: Number of training images.
        corrections: How many of them are corrections of labels.
        other_images: Images of none of the classes that the model has learned from.
        held_out: Share of the images that was set aside as test part.
        seed: Seed of the draw and of the initial values.
        selected_on: Which validation images the method could choose options on, in words.
        test_images: Number of test images of the first target; 0 without one.
        zero_shot_accuracy: Accuracy of zero-shot CLIP on the first target.
        accuracy: Accuracy of the model on the first target.
        targets: The figures on every target.
        estimate: Accuracy that was estimated on the training images, if it was.
        temperature: Temperature of the model's probabilities.
        findings: What the fit found out about its training images.
        smallest_p_value: The least rate of false rejections that the model can keep; None if it rejects nothing.
        warnings: What should be known about the class names.
        trained_parameters: Number of trained values.
        seconds: Time of the fit.
        evaluation_seconds: Time of the test.
        checkpoint_bytes: Size of the trained tensors on disk.
        skipped: One line per image that was left out because it cannot be read.
        plots: Paths of the plots, inside the folder of the run.
        comparison: Other methods on the same images, where they were fitted, too.
    """

    _OPTIONAL: ClassVar[tuple[str, ...]] = (
        "checkpoint_bytes",
        "plots",
        "comparison",
        "other_images",
        "smallest_p_value",
    )

    method: str
    backbone: str
    image_size: int
    feature_precision: str = "float32"
    dataset: str
    public: str
    split: str
    classes: int
    shots: int | None
    images: int
    corrections: int = 0
    other_images: int = 0
    held_out: float = 0.0
    seed: int
    selected_on: str
    test_images: int = 0
    zero_shot_accuracy: float | None = None
    accuracy: float | None = None
    targets: tuple[TargetResult, ...] = ()
    estimate: Estimate | None = None
    temperature: float = 1.0
    findings: Findings | None = None
    smallest_p_value: float | None = None
    warnings: tuple[str, ...] = ()
    trained_parameters: int
    seconds: float
    evaluation_seconds: float = 0.0
    checkpoint_bytes: int = 0
    skipped: tuple[str, ...] = ()
    plots: tuple[str, ...] = ()
    comparison: tuple[MethodResult, ...] = ()

    @property
    def draw_words(self) -> str:
        """Which images of the data were trained on, in words."""
        if self.shots:
            return f"{self.shots} per class"
        return f"all but the {self.test_images:,} held out" if self.held_out else "all of them"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; values that only some runs have are left out of the others."""
        values = dataclasses.asdict(self) | {"findings": self.findings.to_dict() if self.findings else None}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
            if value or name not in self._OPTIONAL
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The result of `to_dict`. Further values are ignored: a study adds some.

        Args:
            values: The content of `result.json`.

        Returns:
            The result.

        Raises:
            TypeError: If values are missing.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        known: dict[str, Any] = {
            name: tuple(v) if isinstance(v, list) else v for name, v in values.items() if name in names
        }
        known["targets"] = tuple(TargetResult(**target) for target in values.get("targets", []))
        known["comparison"] = tuple(MethodResult(**one) for one in values.get("comparison", []))
        if estimate := values.get("estimate"):
            known["estimate"] = Estimate.from_dict(estimate)
        if findings := values.get("findings"):
            known["findings"] = Findings.from_dict(findings)
        return cls(**known)


def record_targets(targets: tuple[TargetResult, ...]) -> dict[str, Any]:
    """The fields of a result that the test images decide: the targets, and the first of them as the run's own."""
    first = targets[0] if targets else None
    return {
        "test_images": first.test_images if first else 0,
        "zero_shot_accuracy": first.zero_shot_accuracy if first else None,
        "accuracy": first.accuracy if first else None,
        "targets": targets,
    }
