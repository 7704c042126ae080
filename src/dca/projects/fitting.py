"""From the photos of a project to its model, with the features at hand: the model that `dca fit` makes of them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dca.backbones.encoder import Encoder
from dca.datasets.corrections import read_corrections
from dca.datasets.dataset import Dataset, LabelledImage
from dca.datasets.folder import load_classes
from dca.features.store import MemoryStore
from dca.images.decode import StoredImage
from dca.methods.registry import DEFAULT_METHOD
from dca.model import checkpoint
from dca.model.classifier import Classifier
from dca.model.findings import (
    ConfusedPair,
    MoreImages,
    confused_pairs,
    doubtful_labels,
    recall_by_class,
)
from dca.projects.project import Photo
from dca.runs.run import run
from dca.runs.spec import FitSpec
from dca.stats.confusion import confusion_matrix, order_by_need
from dca.training.features import feature_space
from dca.training.session import Session

Photos = Mapping[str, Sequence[Photo]]
# How many classes are named that need photos.
MOST_NEEDED = 5


@dataclass(frozen=True)
class PhotoContent:
    """What a fit needs of a photo. features: (D,) of the frozen backbone. preview: a small JPEG."""

    features: Tensor
    preview: bytes


def learnable_photos(photos: Photos, contents: Mapping[str, PhotoContent]) -> dict[str, tuple[Photo, ...]]:
    """The photos that can be learned from: those that are read, of classes that have some."""
    kept = {label: tuple(one for one in own if one.sha256 in contents) for label, own in photos.items()}
    return {label: own for label, own in kept.items() if own}


def fit_project(
    root: Path,
    target: Path,
    photos: Photos,
    contents: Mapping[str, PhotoContent],
    session: Session,
    backbone: str,
    precision: str = "auto",
) -> Classifier:
    """Fit the default method on photos and write the model; both are those of `dca fit ROOT`.

    Args:
        root: The project.
        target: Its model folder, which is replaced.
        photos: The photos of each class, as `learnable_photos` returns them.
        contents: What is known of each, by hash.
        session: Has loaded the backbone.
        backbone: Its name.
        precision: "auto", "fp32" or "bf16".

    Returns:
        The fitted classifier.

    Raises:
        UserError: As `dca.runs.run.run`.
    """
    encoder = session.load_backbone(backbone, precision)
    dataset = make_dataset(root, photos, contents)
    store = MemoryStore()
    used = sorted({photo.sha256 for own in photos.values() for photo in own})
    features = torch.stack([contents[sha256].features for sha256 in used]).cpu()
    parts = torch.split(features, [member.feature_dim for member in encoder.members], dim=-1)
    for member, rows in zip(encoder.members, parts, strict=True):
        store.add(feature_space(member), used, rows)
    corrections = str(target) if read_corrections(target) else None
    spec = FitSpec(data=str(root), backbone=backbone, precision=precision, corrections=corrections)
    fitted = run(spec, target, dataset=dataset, session=session.with_store(store), overwrite=True, gallery=True)
    assert fitted.classifier is not None
    return fitted.classifier


def make_dataset(root: Path, photos: Photos, contents: Mapping[str, PhotoContent]) -> Dataset:
    """The dataset that `dca fit` reads, with images that are known by their hash in the place of files."""
    listed = {label: [root / photo.path for photo in own] for label, own in photos.items()}
    dataset = load_classes(root, listed)
    known = {root / photo.path: photo for own in photos.values() for photo in own}

    def to_stored(item: LabelledImage) -> LabelledImage:
        assert isinstance(item.image, Path)
        photo = known[item.image]
        name = "/".join(item.image.parts[-2:])
        return LabelledImage(StoredImage(photo.sha256, name, contents[photo.sha256].preview), item.label)

    return dataclasses.replace(dataset, train=tuple(map(to_stored, dataset.train)))


def find_other_model(target: Path, encoder: Encoder) -> str:
    """Why the model beside a project is not one that the page makes, so that it must not replace it; "" if it is."""
    if not checkpoint.holds_model(target):
        return ""
    record = checkpoint.read_record(target)
    if record.method != DEFAULT_METHOD or record.fit_arguments.options or record.fit_arguments.shots is not None:
        return f"{target.name} was fitted on the command line with other options than the page uses"
    if record.backbone.digest != encoder.digest:
        return f"{target.name} was fitted with another backbone ({record.backbone.source})"
    if record.lineage:  # its classes or labels may be nowhere else
        return f"{target.name} was changed after its fit"
    return ""


def same_images(model: Classifier, photos: Photos) -> bool:
    """Whether a model was fitted on exactly these photos, under these labels."""
    labels = model.classes_.tolist()
    fitted = Counter((str(labels[image.label]), image.sha256) for image in model.training_images_)
    return fitted == Counter((label, photo.sha256) for label, own in photos.items() for photo in own)


@dataclass(frozen=True)
class DoubtfulPhoto:
    """A photo whose label looks wrong. probability: of the suggested label; own: of its own."""

    photo: Photo
    suggested: str
    probability: float
    own: float


@dataclass(frozen=True)
class NeededPhotos:
    """A class that needs photos: of n held-out ones, `missed` were not recognised. rival: what it is confused with."""

    label: str
    have: int
    missed: int
    n: int
    rival: str


@dataclass(frozen=True)
class ProjectFindings:
    """What a fit says of the photos of a project.

    doubtful: the most doubtful first. copies: groups of photos that are the same or nearly. confused: pairs of classes.
    needed: the classes that need photos, those that need them most first. more: what more photos of all would bring.
    unmeasured: classes none of whose photos could be held out.
    """

    doubtful: tuple[DoubtfulPhoto, ...] = ()
    copies: tuple[tuple[Photo, ...], ...] = ()
    confused: tuple[ConfusedPair, ...] = ()
    needed: tuple[NeededPhotos, ...] = ()
    more: MoreImages | None = None
    unmeasured: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def find_in_project(
    model: Classifier, photos: Photos, contents: Mapping[str, PhotoContent], session: Session
) -> ProjectFindings:
    """Look at what a fit found out about these photos.

    Args:
        model: A fitted classifier.
        photos: The photos of each class.
        contents: What is known of each, by hash.
        session: Compares copies.

    Returns:
        The findings.
    """
    labels = [str(label) for label in model.classes_.tolist()]
    by_content = {(label, photo.sha256): photo for label, own in photos.items() for photo in own}
    images, doubtful = model.training_images_, []
    for row in doubtful_labels(images, labels):
        photo = by_content.get((row.label, images[row.index].sha256))
        if photo is not None:
            doubtful.append(DoubtfulPhoto(photo, row.suggested, row.probability, row.own))
    more = None
    if stored := (model.results_.get("findings") or {}).get("more_images"):
        more = MoreImages(**stored)
    recall = recall_by_class(images, labels)
    return ProjectFindings(
        tuple(doubtful),
        _find_copies(photos, contents, session),
        confused_pairs(images, labels),
        _find_needed(model, labels),
        more,
        tuple(row.label for row in recall if row.missing),
        tuple(model.method_.notes()),
    )


def _find_copies(
    photos: Photos, contents: Mapping[str, PhotoContent], session: Session
) -> tuple[tuple[Photo, ...], ...]:
    """Groups of photos that are the same or nearly the same."""
    rows = [photo for own in photos.values() for photo in own if photo.sha256 in contents]
    images = [StoredImage(photo.sha256, photo.path, contents[photo.sha256].preview) for photo in rows]
    groups: dict[int, list[Photo]] = {}
    if images:
        for photo, group in zip(rows, session.group_copies(images).tolist(), strict=True):
            groups.setdefault(group, []).append(photo)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)


def _find_needed(model: Classifier, labels: Sequence[str]) -> tuple[NeededPhotos, ...]:
    """The classes that need photos: those with the most mistakes."""
    pairs = [(image.label, image.held_out.predicted) for image in model.training_images_ if image.held_out]
    counts = confusion_matrix([own for own, _ in pairs], [found for _, found in pairs], len(labels))
    have = Counter(image.label for image in model.training_images_)
    rows = []
    for c in order_by_need(counts)[:MOST_NEEDED]:
        others = counts[c] + counts[:, c]
        others[c] = 0
        missed = int(counts[c].sum() - counts[c, c])
        rows.append(NeededPhotos(labels[c], have[c], missed, int(counts[c].sum()), labels[int(others.argmax())]))
    return tuple(rows)
