"""What is known of a finished model beside its tensors, as typed values, and as the `config.json` that holds them.

`ModelRecord` is the content of the file. It is written by `to_dict`, checked field by field by `record_problems`, and
read by `from_dict`, here and nowhere else.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Self

import dca
from dca.backbones.encoder import Encoder
from dca.core.text import name_fault, percent, pluralize
from dca.datasets.dataset import LabelledImage
from dca.images.decode import ImageLike, StoredImage
from dca.methods.base import Problem
from dca.training.session import Session

LIBRARY = "dca-prompt"
FORMAT = 1

# A label as JSON keeps it.
Label = str | int | float | bool


def to_stored_label(label: Any) -> Label:
    """A label for JSON: text, numbers and booleans are kept, anything else becomes text."""
    return label if isinstance(label, str | bool | int | float) else str(label)


# Training images


@dataclass(frozen=True)
class HeldOutPrediction:
    """What a model that has not seen a training image says of it.

    Attributes:
        predicted: Index of the most probable class.
        probability: Its probability.
        own: Probability of the image's own class.

    Example:
        >>> from dca import HeldOutPrediction
        >>> HeldOutPrediction(predicted=1, probability=0.9, own=0.1).predicted
        1
    """

    predicted: int
    probability: float
    own: float


@dataclass(frozen=True)
class ImageId:
    """An image by its short name (the last two parts of its path) and the SHA-256 of its content."""

    name: str
    sha256: str


@dataclass(frozen=True)
class TrainingImage:
    """A training image of a model.

    Attributes:
        label: Index of its class.
        name: Short name, the last two parts of its path.
        sha256: Hash of its content.
        held_out: The prediction by a model that has not seen it; None where there is none.

    Example:
        >>> from dca import TrainingImage
        >>> TrainingImage(label=0, name="cat/1.jpg", sha256="0a" * 32).held_out is None
        True
    """

    label: int
    name: str
    sha256: str
    held_out: HeldOutPrediction | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        row: dict[str, Any] = {"label": self.label, "name": self.name, "sha256": self.sha256}
        return row if self.held_out is None else {**row, "held_out": dataclasses.asdict(self.held_out)}

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Self:
        """Read a training image.

        Args:
            row: The values of `to_dict`.

        Returns:
            The training image.
        """
        held = row.get("held_out")
        prediction = None if held is None else HeldOutPrediction(held["predicted"], held["probability"], held["own"])
        return cls(row["label"], row["name"], row["sha256"], prediction)


def record_training_images(
    items: Sequence[LabelledImage], session: Session, held_out: Iterable[HeldOutPrediction | None] | None = None
) -> tuple[TrainingImage, ...]:
    """Name and hash training images; `held_out` has a prediction, or None, for each of them."""
    images = [item.image for item in items]
    predictions = [None] * len(items) if held_out is None else held_out
    return tuple(
        TrainingImage(item.label, _short_name(item.image), sha256, prediction)
        for item, sha256, prediction in zip(items, session.hash_images(images), predictions, strict=True)
    )


def record_images(images: Sequence[ImageLike], session: Session) -> tuple[ImageId, ...]:
    """Name and hash images."""
    hashes = session.hash_images(images)
    return tuple(ImageId(_short_name(image), sha256) for image, sha256 in zip(images, hashes, strict=True))


def _short_name(image: ImageLike) -> str:
    if isinstance(image, StoredImage):
        return image.name
    return "/".join(image.parts[-2:]) if isinstance(image, Path) else "in memory"


# Accuracy without test images


# A 95 % interval of more than this tells little.
WIDE = 0.4


@dataclass(frozen=True)
class Estimate:
    """Accuracy on new images, estimated on training images by models that have not seen them. All are fractions.

    Attributes:
        how: How the images were held out, e.g. "leave-one-out".
        accuracy: Mean of the classes' accuracies, expected of the model of all training images.
        low: Lower end of its 95 % interval.
        high: Upper end. The interval allows for any accuracy of the classes that cannot be measured.
        n: Number of images with a prediction; copies count as one.
        zero_shot_accuracy: That of zero-shot CLIP on the same images; None for zero-shot CLIP itself.
        held_out_accuracy: That of the predictions for held-out images; `accuracy` is higher where the models that made
            them lack some of the training images. None: they are the same.
        unmeasured: Number of classes none of whose images could be held out.

    Example:
        >>> from dca import Estimate
        >>> print(Estimate("leave-one-out", accuracy=0.9, low=0.8, high=0.95, n=48))
        90.0 % (95 % interval 80.0 to 95.0; leave-one-out on 48 training images)
    """

    how: str
    accuracy: float
    low: float
    high: float
    n: int
    zero_shot_accuracy: float | None = None
    held_out_accuracy: float | None = None
    unmeasured: int = 0

    @property
    def basis(self) -> str:
        """What the estimate is made from, e.g. "leave-one-out on 48 training images"."""
        said = f"{self.how} on {pluralize(self.n, 'training image')}"
        if self.held_out_accuracy is None:
            return said
        return f"{said}, {percent(self.held_out_accuracy)} by models with fewer images"

    def caveats(self) -> list[str]:
        """What the estimate cannot tell, in full sentences."""
        found = []
        if self.unmeasured:
            classes = "class has" if self.unmeasured == 1 else "classes have"
            found.append(
                f"{self.unmeasured:,} {classes} one photo, or copies or a series of one, and cannot be measured: the "
                "accuracy is that of the others, and the interval allows for anything. Add photos of them."
            )
        if self.high - self.low > WIDE:
            found.append(
                "So few photos, of some classes or of all, hardly tell how good the model is. Add photos, first of the "
                "classes that have the fewest, or test it with new ones."
            )
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read an estimate.

        Args:
            values: The values of `to_dict`.

        Returns:
            The estimate.
        """
        return cls(**values)

    def __str__(self) -> str:
        ends = f"{100 * self.low:.1f} to {100 * self.high:.1f}"
        known = self.zero_shot_accuracy
        beside = "" if known is None else f"; zero-shot CLIP {percent(known)}"
        return f"{percent(self.accuracy)} (95 % interval {ends}; {self.basis}{beside})"


# Changes since the fit


@dataclass(frozen=True)
class ModelBefore:
    """A model before it was changed.

    Attributes:
        weights: SHA-256 of its weights.
        results: The figures that the change made invalid; None if it made none invalid.
        estimate: Its estimated accuracy, likewise.
    """

    weights: str
    results: dict[str, Any] | None = None
    estimate: Estimate | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        if self.results is None:
            return {"weights": self.weights}
        estimate = self.estimate.to_dict() if self.estimate else {}
        return {"weights": self.weights, "results": self.results, "estimate": estimate}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The values of `to_dict`."""
        estimate = values.get("estimate")
        return cls(values["weights"], values.get("results"), Estimate.from_dict(estimate) if estimate else None)


@dataclass(frozen=True, kw_only=True)
class Change:
    """What was done to a model since its fit; `str` says it in words.

    Attributes:
        version: Version of `dca` that did it.
        before: The model before it.
    """

    kind: ClassVar[str]
    version: str
    before: ModelBefore

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"change": self.kind, **dataclasses.asdict(self), "before": self.before.to_dict()}

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Change:
        """The change of `to_dict`."""
        kind = CHANGES[row["change"]]
        values = {f.name: row[f.name] for f in dataclasses.fields(kind)}
        values["before"] = ModelBefore.from_dict(row["before"])
        if kind is ClassAdded:
            values["images"] = tuple(ImageId(image["name"], image["sha256"]) for image in row["images"])
        if kind is OptionsChanged:
            values["options"] = {name: (before, after) for name, (before, after) in row["options"].items()}
        return kind(**values)


@dataclass(frozen=True, kw_only=True)
class ClassAdded(Change):
    """A class was added: its label, the name that CLIP reads, and its images."""

    kind = "added"
    label: Label
    name: str
    images: tuple[ImageId, ...]

    def __str__(self) -> str:
        return f"added '{self.label}' with {pluralize(len(self.images), 'image')}"


@dataclass(frozen=True, kw_only=True)
class ClassRemoved(Change):
    """A class was removed: its label, and the name that CLIP read."""

    kind = "removed"
    label: Label
    name: str

    def __str__(self) -> str:
        return f"removed '{self.label}'"


@dataclass(frozen=True, kw_only=True)
class ClassRenamed(Change):
    """A class was given another label, and perhaps another name that CLIP reads."""

    kind = "renamed"
    label: Label
    name: str
    new_label: Label
    new_name: str

    def __str__(self) -> str:
        return f"renamed '{self.label}' to '{self.new_label}'"


@dataclass(frozen=True, kw_only=True)
class OptionsChanged(Change):
    """Options of the head were changed: by name the value before and the value after."""

    kind = "options"
    options: dict[str, tuple[Any, Any]]

    def __str__(self) -> str:
        return "set " + ", ".join(f"{name}={new} (was {old})" for name, (old, new) in self.options.items())


CHANGES: dict[str, type[Change]] = {
    kind.kind: kind for kind in (ClassAdded, ClassRemoved, ClassRenamed, OptionsChanged)
}


# The whole record


@dataclass(frozen=True)
class BackboneRecord:
    """Identity of a backbone: its source name, hash, sizes and preprocessing."""

    source: str
    digest: str
    config: dict[str, Any]
    preprocess: dict[str, Any]

    @classmethod
    def from_backbone(cls, encoder: Encoder) -> Self:
        """The record of a loaded backbone."""
        return cls(encoder.source, encoder.digest, encoder.describe(), encoder.preprocess.to_dict())

    def describe_members(self) -> list[str]:
        """One line per encoder: name, hash, and where its weights are from, as far as that is known."""
        found = list[str]()
        for member in self.config.get("members") or [
            {"source": self.source, "digest": self.digest, "config": self.config}
        ]:
            config, line = member["config"], f"{member['source']}, sha256 {member['digest']}"
            if "weights" in config:
                line += f"; weights of the package {config['weights']}"
            if "licence" in config:
                line += f", licence {config['licence']}"
            found.append(line)
        return found

    def members(self) -> list[dict[str, str]]:
        """Source and digest of each encoder of a pool; of one encoder, its own."""
        own = {"source": self.source, "digest": self.digest}
        return [{name: str(member[name]) for name in own} for member in self.config.get("members", ())] or [own]


@dataclass(frozen=True)
class FitArguments:
    """Arguments of the classifier as the user gave them, so that the model can be fitted again."""

    shots: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    estimate: bool = False
    calibrate: bool = True


@dataclass(frozen=True)
class ModelRecord:
    """Everything about a model except its tensors.

    Attributes:
        method: Name of the method.
        options: Its options, with all values filled in.
        problem: The problem of the method: class names that CLIP reads, shots, seed, ...
        labels: Label of each class; `predict` returns these.
        backbone: The backbone that it was trained on.
        fit_arguments: Shots, options and so on as the user gave them.
        training_images: The images that it was trained on.
        held_out_auc: Per class, the area under the ROC curve of its probability in the held-out predictions; None for
            a class that has none of them, or all. Empty where it is not known.
        other_images: Images of none of the classes that it has learned from.
        results: Figures of the fit.
        lineage: Changes of its classes and its head since the fit.
        package: Top module of the method's code if it is not `dca`, else "".
        temperature: `classify` returns softmax(log p / temperature).
        estimate: The estimated accuracy; None if it was not estimated.
    """

    method: str
    options: dict[str, Any]
    problem: Problem
    labels: tuple[Label, ...]
    backbone: BackboneRecord
    fit_arguments: FitArguments = field(default_factory=FitArguments)
    training_images: tuple[TrainingImage, ...] = ()
    held_out_auc: tuple[float | None, ...] = ()
    other_images: tuple[ImageId, ...] = ()
    results: dict[str, Any] = field(default_factory=dict)
    lineage: tuple[Change, ...] = ()
    package: str = ""
    temperature: float = 1.0
    estimate: Estimate | None = None

    def to_dict(self) -> dict[str, Any]:
        """The content of `config.json`."""
        return {
            "library": LIBRARY,
            "format": FORMAT,
            "version": dca.__version__,
            "method": self.method,
            "options": self.options,
            "problem": dataclasses.asdict(self.problem) | {"names": list(self.problem.names)},
            "labels": list(self.labels),
            "backbone": dataclasses.asdict(self.backbone),
            "fit_arguments": dataclasses.asdict(self.fit_arguments),
            "training_images": [image.to_dict() for image in self.training_images],
            "held_out_auc": list(self.held_out_auc),
            "other_images": [dataclasses.asdict(image) for image in self.other_images],
            "results": self.results,
            "lineage": [change.to_dict() for change in self.lineage],
            "package": self.package,
            "temperature": self.temperature,
            "estimate": self.estimate.to_dict() if self.estimate else {},
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """The record of a `config.json` in which `record_problems` finds none."""
        return cls(
            method=raw["method"],
            options=raw["options"],
            problem=Problem(**{**raw["problem"], "names": tuple(raw["problem"]["names"])}),
            labels=tuple(raw["labels"]),
            backbone=BackboneRecord(**raw["backbone"]),
            fit_arguments=FitArguments(**raw["fit_arguments"]),
            training_images=tuple(map(TrainingImage.from_dict, raw["training_images"])),
            held_out_auc=tuple(raw["held_out_auc"]),
            other_images=tuple(ImageId(image["name"], image["sha256"]) for image in raw["other_images"]),
            results=raw["results"],
            lineage=tuple(map(Change.from_dict, raw["lineage"])),
            package=raw["package"],
            temperature=raw["temperature"],
            estimate=Estimate.from_dict(raw["estimate"]) if raw["estimate"] else None,
        )


# Checks of the file

# Field, type, what JSON calls it.
_FIELDS = (
    ("method", str, "string"),
    ("options", dict, "object"),
    ("problem", dict, "object"),
    ("labels", list, "array"),
    ("backbone", dict, "object"),
    ("fit_arguments", dict, "object"),
    ("training_images", list, "array"),
    ("held_out_auc", list, "array"),
    ("other_images", list, "array"),
    ("results", dict, "object"),
    ("lineage", list, "array"),
    ("package", str, "string"),
    ("temperature", float, "number"),
    ("estimate", dict, "object"),
)
_LABEL_TYPES = (str, int, float, bool)


def record_problems(raw: dict[str, Any]) -> list[str]:
    """One line per field of a `config.json` that is missing or wrong."""
    problems = [f"{name}: a JSON {word} expected" for name, kind, word in _FIELDS if type(raw.get(name)) is not kind]
    if problems:
        return problems
    return [
        *_problem_faults(raw["problem"], raw["labels"]),
        *_type_faults("backbone", raw["backbone"], {"source": str, "digest": str, "config": dict, "preprocess": dict}),
        *_member_faults(raw["backbone"]),
        *_fit_argument_faults(raw["fit_arguments"]),
        *_training_image_faults(raw["training_images"]),
        *_held_out_auc_faults(raw["held_out_auc"], raw["labels"]),
        *_other_image_faults(raw["other_images"]),
        *([] if 0 < raw["temperature"] < math.inf else ["temperature: a number above 0 expected"]),
        *_estimate_faults(raw["estimate"]),
        *_result_faults(raw["results"]),
        *_lineage_faults(raw["lineage"]),
    ]


_WORDS = {str: "text", dict: "JSON object", int: "whole number"}


def _member_faults(backbone: Any) -> list[str]:
    """Errors in the list of the encoders of a pool."""
    config = backbone.get("config") if isinstance(backbone, dict) else None
    members = config.get("members", []) if isinstance(config, dict) else []
    if not isinstance(members, list) or not all(isinstance(one, dict) for one in members):
        return ["backbone.config.members: a list of JSON objects expected"]
    kinds: dict[str, type] = {"source": str, "digest": str, "config": dict}
    faults = (_type_faults(f"backbone.config.members.{n}", one, kinds) for n, one in enumerate(members))
    return list(chain.from_iterable(faults))


def _type_faults(where: str, values: dict[str, Any], kinds: dict[str, type]) -> list[str]:
    """Fields of an object that have another type than expected, and those that are unknown."""
    faults = [
        f"{where}.{key}: a {_WORDS[kind]} expected" for key, kind in kinds.items() if type(values.get(key)) is not kind
    ]
    return faults + [f"{where}.{key}: unknown" for key in values if key not in kinds]


def _problem_faults(problem: dict[str, Any], labels: list[Any]) -> list[str]:
    names = problem.get("names")
    faults = []
    if not isinstance(names, list) or len(names) < 2 or not all(isinstance(name, str) for name in names):
        faults.append("problem.names: at least two names expected")
    else:
        faults += [f"problem.names: {fault}" for fault in unreadable_names(names)]
        faults += [f"labels: {fault}" for fault in unreadable_names(map(str, labels))]
        if len(labels) != len(names):
            faults.append(f"labels: {len(names)} expected, one per class name")
    faults += [f"labels: {label!r} is not text or a number" for label in labels if type(label) not in _LABEL_TYPES]
    others = {key: value for key, value in problem.items() if key != "names"}
    kinds = {"shots": int, "seed": int, "dataset": str, "template": str, "rules": str}
    return faults + _type_faults("problem", others, kinds)


def unreadable_names(names: Iterable[str]) -> list[str]:
    """One line per name or label of a class that cannot be one (`name_fault`)."""
    return [fault for fault in dict.fromkeys(map(name_fault, names)) if fault]


def _fit_argument_faults(arguments: dict[str, Any]) -> list[str]:
    where = "fit_arguments"
    faults = []
    if type(arguments.get("shots")) not in (int, type(None)):
        faults.append(f"{where}.shots: a number or nothing expected")
    faults += [
        f"{where}.{key}: true or false expected"
        for key in ("estimate", "calibrate")
        if type(arguments.get(key)) is not bool
    ]
    faults += [
        f"{where}.{key}: unknown" for key in arguments if key not in ("shots", "options", "estimate", "calibrate")
    ]
    return faults if type(arguments.get("options")) is dict else [*faults, f"{where}.options: a JSON object expected"]


def _has_types(row: Any, kinds: dict[str, type]) -> bool:
    """Whether a value is an object with these fields of these types."""
    return isinstance(row, dict) and all(type(row.get(key)) is kind for key, kind in kinds.items())


def _training_image_faults(images: list[Any]) -> list[str]:
    if not all(_has_types(row, {"label": int, "name": str, "sha256": str}) for row in images):
        return ["training_images: label, name and sha256 of each image expected"]
    held_out = [row["held_out"] for row in images if "held_out" in row]
    if not all(_has_types(row, {"predicted": int, "probability": float, "own": float}) for row in held_out):
        return ["training_images: predicted, probability and own of each held-out prediction expected"]
    return []


def _held_out_auc_faults(areas: list[Any], labels: list[Any]) -> list[str]:
    """Errors in the AUC of the classes; there are none where it is not known."""
    if len(areas) in (0, len(labels)) and all(map(_is_share, areas)):
        return []
    return ["held_out_auc: a number from 0 to 1, or null, of each class expected"]


def _is_share(value: Any) -> bool:
    return value is None or (type(value) is float and 0 <= value <= 1)


def _other_image_faults(images: list[Any]) -> list[str]:
    complete = all(_has_types(row, {"name": str, "sha256": str}) for row in images)
    return [] if complete else ["other_images: name and sha256 of each image expected"]


def _estimate_faults(estimate: dict[str, Any]) -> list[str]:
    if not estimate:
        return []
    kinds: dict[str, tuple[type, ...]] = {"how": (str,), "n": (int,), "unmeasured": (int,)}
    kinds |= dict.fromkeys(("accuracy", "low", "high"), (float,))
    kinds |= dict.fromkeys(("zero_shot_accuracy", "held_out_accuracy"), (float, type(None)))
    faults = [f"estimate.{k}: another type expected" for k, v in kinds.items() if type(estimate.get(k)) not in v]
    return faults + [f"estimate.{k}: unknown" for k in estimate if k not in kinds]


def _result_faults(results: dict[str, Any]) -> list[str]:
    return [
        f"results.{name}: a number expected"
        for name in ("accuracy", "zero_shot_accuracy")
        if type(results.get(name)) not in (int, float, type(None))
    ]


def _lineage_faults(lineage: list[Any]) -> list[str]:
    return [
        f"lineage[{n}]: a change of a class or of options expected"
        for n, row in enumerate(lineage)
        if not _is_change(row)
    ]


def _is_change(row: Any) -> bool:
    """Whether a row of the lineage says what was done to which class of which model."""
    if not _has_types(row, {"change": str, "version": str, "before": dict}) or row["change"] not in CHANGES:
        return False
    before = row["before"]
    if not isinstance(before.get("weights"), str) or not isinstance(before.get("results", {}), dict):
        return False
    if not isinstance(before.get("estimate", {}), dict) or _estimate_faults(before.get("estimate", {})):
        return False
    if row["change"] == "options":
        changed = row.get("options")
        return isinstance(changed, dict) and all(isinstance(p, list) and len(p) == 2 for p in changed.values())
    if not isinstance(row.get("name"), str) or type(row.get("label")) not in _LABEL_TYPES:
        return False
    if row["change"] == "added":
        images = row.get("images")
        return isinstance(images, list) and all(_has_types(image, {"name": str, "sha256": str}) for image in images)
    if row["change"] == "renamed":
        return isinstance(row.get("new_name"), str) and type(row.get("new_label")) in _LABEL_TYPES
    return True
