"""What held-out predictions say of training images: doubtful labels, recall by class, whether more images would help.

A label is doubtful if a model that has not seen the image finds another class at least `ODDS` times as probable, and
proportionally more where there are more than `FEW_CLASSES` classes: each of them may be the more probable one by
chance. A class is rare if another one has at least `RARE` times as many images. It is weak if its recall is at most
`WEAK` times that of the median class, and the 95 % interval of its recall ends below the median.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from dca.backbones.encoder import Encoder
from dca.backbones.sources import AUTO
from dca.core.errors import UserError
from dca.core.text import pluralize
from dca.datasets.dataset import Dataset
from dca.images.decode import ImageLike
from dca.images.hashing import find_copy_pairs
from dca.methods.base import Method
from dca.methods.shared.experts import RARE
from dca.model.classifier import Classifier
from dca.model.copies import SharedImages
from dca.model.records import Estimate, TrainingImage
from dca.stats.intervals import wilson_interval
from dca.stats.one_against_rest import ClassScores, mean_scores, score_classes
from dca.training.session import Session

ODDS, FEW_CLASSES = 10.0, 10
# How many pairs of classes are reported, and images that a pair must have.
MOST_CONFUSED, LEAST_CONFUSED = 3, 2
# Share of the median recall that a weak class reaches.
WEAK = 0.5


@dataclass(frozen=True)
class DoubtfulLabel:
    """A training image whose label looks wrong: a candidate to look at, not a fact.

    Attributes:
        index: Its position among the training images.
        image: Its short name, or its path.
        label: Its label.
        suggested: The label that is more probable.
        probability: Probability of the suggested label by a model that has not seen the image.
        own: Probability of its own label.
    """

    index: int
    image: str
    label: str
    suggested: str
    probability: float
    own: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class ConfusedPair:
    """Two classes, and the number of images of either that were taken for the other."""

    labels: tuple[str, str]
    images: int


@dataclass(frozen=True)
class ClassRecall:
    """How many training images of a class were recognised by models that have not seen them.

    Attributes:
        label: Label of the class.
        right: Number of its images that were recognised.
        n: Number of its images with a held-out prediction.
        images: Number of its training images.
    """

    label: str
    right: int
    n: int
    images: int

    @property
    def missing(self) -> str:
        """Why the recall cannot be measured; "" where it is."""
        if self.n:
            return ""
        copies = ", copies or a series of one" if self.images > 1 else ""
        return f"{pluralize(self.images, 'photo')}{copies}: cannot be measured"

    def __str__(self) -> str:
        return f"{self.label} ({self.missing})" if self.missing else f"{self.label} {self.right} of {self.n}"


@dataclass(frozen=True)
class MoreImages:
    """The accuracy that is expected with `shots` images per class, its 95 % interval, and how much more it is."""

    shots: int
    accuracy: float
    low: float
    high: float
    gain: float


@dataclass(frozen=True)
class Findings:
    """What a fit found out about its training images.

    Attributes:
        doubtful_labels: Images whose label looks wrong, the most doubtful first.
        confused: The classes that are confused most often.
        more_images: What more images per class would bring; None if the method cannot tell.
        notes: What the method notes.
        recall: How often each class is recognised, in the order of the classes; empty without held-out predictions.
        shared_images: Pairs of classes that hold copies of the same images.
        scores: Precision, recall, F1 and ROC AUC of each class on held-out predictions, by label; empty without any.
    """

    doubtful_labels: tuple[DoubtfulLabel, ...]
    confused: tuple[ConfusedPair, ...]
    more_images: MoreImages | None
    notes: tuple[str, ...]
    recall: tuple[ClassRecall, ...] = ()
    shared_images: tuple[SharedImages, ...] = ()
    scores: Mapping[str, ClassScores] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "doubtful_labels": [row.to_dict() for row in self.doubtful_labels],
            "confused": [{"labels": list(pair.labels), "images": pair.images} for pair in self.confused],
            "more_images": None if self.more_images is None else dataclasses.asdict(self.more_images),
            "notes": list(self.notes),
            "recall": [dataclasses.asdict(row) for row in self.recall],
            "mean_scores": mean_scores(list(self.scores.values())).to_dict(),
            "scores": {label: row.to_dict() for label, row in self.scores.items()},
            "shared_images": [one.to_dict() for one in self.shared_images],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The findings of `to_dict`; those of older versions have no recall, no scores and no shared images."""
        more = values["more_images"]
        return cls(
            tuple(DoubtfulLabel(**row) for row in values["doubtful_labels"]),
            tuple(ConfusedPair(tuple(pair["labels"]), pair["images"]) for pair in values["confused"]),
            None if more is None else MoreImages(**more),
            tuple(values["notes"]),
            tuple(ClassRecall(**row) for row in values.get("recall", ())),
            tuple(map(SharedImages.from_dict, values.get("shared_images", ()))),
            {label: ClassScores(**row) for label, row in values.get("scores", {}).items()},
        )


def examine_training(
    method: Method,
    images: Sequence[TrainingImage],
    labels: Sequence[Any],
    shared_images: tuple[SharedImages, ...] = (),
    estimate: Estimate | None = None,
    auc: Sequence[float | None] = (),
) -> Findings:
    """Collect all findings about training images.

    Args:
        method: The finished method.
        images: The training images, as `Classifier.training_images_` has them.
        labels: Label of each class.
        shared_images: Pairs of classes that hold copies of the same images.
        estimate: The estimated accuracy; what more images would bring is not told without it.
        auc: Of each class, as `Classifier.held_out_auc_` has it.

    Returns:
        Doubtful labels, confused classes, recall and scores where there are held-out predictions, and notes.
    """
    return Findings(
        doubtful_labels(images, labels),
        confused_pairs(images, labels),
        None if estimate is None else expect_more_images(method, estimate.accuracy),
        tuple(method.notes()),
        recall_by_class(images, labels),
        shared_images,
        score_held_out(images, labels, auc),
    )


def expect_more_images(method: Method, accuracy: float) -> MoreImages | None:
    """What twice as many images would bring to a method of this accuracy; None if the method cannot tell."""
    for point in method.learning_curve(accuracy):
        if point.expected and point.low is not None and point.high is not None:
            gain = point.accuracy - accuracy
            return MoreImages(round(point.shots), point.accuracy, point.low, point.high, gain)
    return None


def usual_odds(classes: int) -> float:
    """How many times as probable as the given label another one is for doubtful labels, unless it is said.

    >>> usual_odds(2), usual_odds(10), usual_odds(100)
    (10.0, 10.0, 110.0)
    """
    return ODDS * max(1.0, (classes - 1) / (FEW_CLASSES - 1))


def doubtful_labels(
    images: Sequence[TrainingImage], labels: Sequence[Any], odds: float | None = None
) -> tuple[DoubtfulLabel, ...]:
    """Images whose own label is `odds` times less probable than another, the least probable first."""
    odds = usual_odds(len(labels)) if odds is None else odds
    rows = [
        DoubtfulLabel(
            index, image.name, str(labels[image.label]), str(labels[held.predicted]), held.probability, held.own
        )
        for index, image in enumerate(images)
        if (held := image.held_out) and held.predicted != image.label and held.probability >= odds * held.own
    ]
    return tuple(sorted(rows, key=lambda row: row.own))


def confused_pairs(images: Sequence[TrainingImage], labels: Sequence[Any]) -> tuple[ConfusedPair, ...]:
    """The pairs of classes that held-out images are confused between most often."""
    wrong = Counter(
        (min(image.label, held.predicted), max(image.label, held.predicted))
        for image in images
        if (held := image.held_out) and held.predicted != image.label
    )
    return tuple(
        ConfusedPair((str(labels[a]), str(labels[b])), count)
        for (a, b), count in wrong.most_common(MOST_CONFUSED)
        if count >= LEAST_CONFUSED
    )


def recall_by_class(images: Sequence[TrainingImage], labels: Sequence[Any]) -> tuple[ClassRecall, ...]:
    """How many images of each class were recognised, in the order of the classes; () if none was held out."""
    if not any(image.held_out for image in images):
        return ()
    total = Counter(image.label for image in images)
    known = Counter(image.label for image in images if image.held_out)
    right = Counter(image.label for image in images if image.held_out and image.held_out.predicted == image.label)
    return tuple(ClassRecall(str(label), right[c], known[c], total[c]) for c, label in enumerate(labels))


def score_held_out(
    images: Sequence[TrainingImage], labels: Sequence[Any], auc: Sequence[float | None]
) -> dict[str, ClassScores]:
    """Precision, recall, F1 and ROC AUC of each class on held-out predictions, by label; empty if there are none.

    auc: of each class; empty where it is not known.
    """
    pairs = [(image.label, image.held_out.predicted) for image in images if image.held_out]
    if not pairs:
        return {}
    truth, predicted = np.array(pairs, dtype=np.int64).T
    return dict(zip(map(str, labels), score_classes(truth, predicted, len(labels), auc), strict=True))


def missing_classes(recall: Sequence[ClassRecall]) -> dict[int, str]:
    """Index of each class whose recall cannot be measured -> why."""
    return {c: row.missing for c, row in enumerate(recall) if row.missing}


def rare_classes(recall: Sequence[ClassRecall]) -> tuple[ClassRecall, ...]:
    """Classes with at most 1/`RARE` as many images as the largest, the smallest and least recognised first."""
    most = max((row.images for row in recall), default=0)
    rare = [row for row in recall if 0 < row.images * RARE <= most]
    return tuple(sorted(rare, key=lambda row: (row.images, row.right / max(row.n, 1), row.label)))


def weak_classes(recall: Sequence[ClassRecall]) -> tuple[ClassRecall, ...]:
    """Classes that are recognised far less often than the others, the worst first."""
    measured = [row for row in recall if row.n]
    if not measured:
        return ()
    usual = statistics.median(row.right / row.n for row in measured)
    weak = [
        row
        for row in measured
        if row.right / row.n <= WEAK * usual and wilson_interval(row.right / row.n, row.n)[1] < usual
    ]
    return tuple(sorted(weak, key=lambda row: (row.right / row.n, -row.n, row.label)))


@dataclass(frozen=True)
class LabelConflict:
    """Two copies of an image under two labels, of which at least one is wrong: their paths and labels."""

    images: tuple[str, str]
    labels: tuple[str, str]


@dataclass(frozen=True)
class LabelCheck:
    """What was found about the labels of the training images of a dataset.

    Attributes:
        images: Number of training images.
        doubtful: Images whose label looks wrong, with their paths, the most doubtful first.
        conflicts: Copies under two labels.
        not_checked: Paths of images that cannot be held out, being the only ones of their class.
        estimate: Accuracy of the models that checked the labels.
    """

    images: int
    doubtful: tuple[DoubtfulLabel, ...]
    conflicts: tuple[LabelConflict, ...]
    not_checked: tuple[str, ...]
    estimate: Estimate

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `dca check-labels --json` prints them."""
        return {
            "images": self.images,
            "checked": self.images - len(self.not_checked),
            "doubtful": [{k: v for k, v in row.to_dict().items() if k != "index"} for row in self.doubtful],
            "conflicts": [{"images": list(one.images), "labels": list(one.labels)} for one in self.conflicts],
            "not_checked": list(self.not_checked),
            "estimate": self.estimate.to_dict(),
        }


def check_labels(
    dataset: Dataset,
    session: Session,
    *,
    backbone: str | Path | Encoder = AUTO,
    precision: str = "auto",
    odds: float | None = None,
) -> LabelCheck:
    """Fit the default method on all training images and look for labels that look wrong; nothing is written.

    Args:
        dataset: The images; only the training part is checked.
        session: Loads backbones, images and features.
        backbone: As for `Classifier`.
        precision: As for `Classifier`.
        odds: How many times as probable as the given label another one must be; `usual_odds` by default.

    Returns:
        Doubtful labels, copies under two labels, and images that cannot be checked.

    Raises:
        UserError: As for `Classifier.fit`, and if no image can be held out.

    Example:
        >>> from dca import Session
        >>> from dca.datasets.sample import load_sample
        >>> from dca.model.findings import check_labels
        >>> check_labels(load_sample(per_class_train=2, per_class_test=1), Session(device="cpu")).images
        20
    """
    source = dataclasses.replace(dataset, val=(), test=())
    model = Classifier(backbone=backbone, precision=precision)._fit_drawn(source, session)
    if model.estimate_ is None:
        raise UserError(
            "no label can be checked: every class has one training image, or copies or a series of one",
            hint="give at least two different images per class",
        )
    paths = [_describe_path(item.image, index) for index, item in enumerate(source.train)]
    doubtful = tuple(
        dataclasses.replace(row, image=paths[row.index])
        for row in doubtful_labels(model.training_images_, source.labels, odds)
    )
    unknown = tuple(path for path, image in zip(paths, model.training_images_, strict=True) if image.held_out is None)
    return LabelCheck(len(paths), doubtful, _find_conflicts(source, paths, session), unknown, model.estimate_)


def _find_conflicts(source: Dataset, paths: Sequence[str], session: Session) -> tuple[LabelConflict, ...]:
    """Copies and near-copies under two labels."""
    images, labels = [item.image for item in source.train], [item.label for item in source.train]
    exact, near = find_copy_pairs(session.hash_images(images), session.thumbnails(images))
    return tuple(
        LabelConflict((paths[a], paths[b]), (str(source.labels[labels[a]]), str(source.labels[labels[b]])))
        for a, b in (*exact, *near)
        if labels[a] != labels[b]
    )


def _describe_path(image: ImageLike, index: int) -> str:
    """The path of an image as the caller gave it, or its number."""
    return str(image) if isinstance(image, Path) else f"image {index}"
