"""A finished model with a class added, removed or renamed, or with other options of its head.

Each function returns another classifier. Its figures are gone, because they were measured on other classes or with
another head; what was done, and the figures of the model before, are in its lineage.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

import dca
from dca.core.errors import UserError, unknown_name
from dca.core.text import normalize_name, pluralize
from dca.datasets.classes import match_labels
from dca.datasets.dataset import Item
from dca.datasets.folder import words_of
from dca.images.decode import ImageLike
from dca.methods.base import Method, with_options
from dca.model.checkpoint import draw_record, stored_label, unreadable_names, weights_of
from dca.model.gallery import Gallery
from dca.training.session import Session
from dca.training.training_images import TrainingImages

if TYPE_CHECKING:
    from dca.model.classifier import Classifier

Row = dict[str, Any]


@torch.no_grad()
def add_class(
    model: Classifier, name: str, images: Sequence[ImageLike], *, label: Any = None, session: Session | None = None
) -> Classifier:
    """The model with one more class, the last.

    Args:
        model: A fitted classifier.
        name: Words that CLIP reads for the class.
        images: Its images; methods that learn prompts need none.
        label: What `predict` returns for the class; its name by default.
        session: Reads images and features; the model's own by default.

    Returns:
        Another classifier.

    Raises:
        UserError: If there is such a class, an image cannot be read, or the method cannot take another class.
    """
    method, session = model._require_fitted(), session or model._session
    label, words, index = name if label is None else label, words_of(name), len(model.classes_)
    _require_new(model, label, words)
    session.require_readable(method.clip, images)
    items = [Item(image, index) for image in images]
    support = TrainingImages(items, session, method.clip, method.problem.seed)
    rows = draw_record(items, session)
    changed = method.with_class(words, support)
    labels = [*model.classes_.tolist(), label]
    images_of = [{key: row[key] for key in ("name", "sha256")} for row in rows]
    done = {"change": "added", "label": stored_label(label), "name": words, "images": images_of}
    other = _edited(model, changed, labels, [*model.draw_, *rows], done)
    if (known := model.gallery()) is not None:
        other.gallery_ = known.joined(Gallery.of(items, rows, session, method.clip))
    return other


@torch.no_grad()
def remove_class(model: Classifier, label: Any) -> Classifier:
    """The model without one of its classes.

    Args:
        model: A fitted classifier.
        label: Label of the class, or its name.

    Returns:
        Another classifier.

    Raises:
        UserError: If there is no such class, only one would be left, or the method cannot give up a class.
    """
    method, index = model._require_fitted(), _find(model, label)
    labels = model.classes_.tolist()
    if len(labels) < 3:
        hint = "add another class first"
        raise UserError(f"the model has {pluralize(len(labels), 'class')}; at least 2 must be left", hint=hint)
    draw = [{**row, "label": row["label"] - (row["label"] > index)} for row in model.draw_ if row["label"] != index]
    done = {"change": "removed", "label": stored_label(labels[index]), "name": method.problem.names[index]}
    return _edited(model, method.without_class(index), labels[:index] + labels[index + 1 :], draw, done)


@torch.no_grad()
def rename_class(model: Classifier, label: Any, new: Any, *, label_only: bool = False) -> Classifier:
    """The model with another label, and name, for one of its classes.

    Args:
        model: A fitted classifier.
        label: Label of the class, or its name.
        new: The new label, whose words CLIP reads from now on.
        label_only: Keep the name that CLIP reads, and so all probabilities.

    Returns:
        Another classifier.

    Raises:
        UserError: If there is no such class, there is another of the new name, or the method has learned the old one.
    """
    method, index = model._require_fitted(), _find(model, label)
    old, words = method.problem.names[index], words_of(str(new))
    _require_new(model, new, None if label_only else words, but=index)
    changed = method if label_only or words == old else method.with_name(index, words)
    labels = model.classes_.tolist()
    done = {"change": "renamed", "label": stored_label(labels[index]), "name": old}
    done |= {"new_label": stored_label(new), "new_name": changed.problem.names[index]}
    labels[index] = new
    return _edited(model, changed, labels, list(model.draw_), done, same=changed is method)


@torch.no_grad()
def change_options(model: Classifier, given: Mapping[str, Any] | Iterable[str]) -> Classifier:
    """The model with other options of its head.

    Args:
        model: A fitted classifier.
        given: Values by name, or `key=value` texts.

    Returns:
        Another classifier; a fit of it uses the new values.

    Raises:
        UserError: If an option is unknown, has a wrong value, or is not one of the head.
    """
    method = model._require_fitted()
    changed = with_options(method, given)
    before, after = asdict(method.options), asdict(changed.options)
    other = {name: [before[name], value] for name, value in after.items() if value != before[name]}
    done: Row = {"change": "options", "options": other}
    if not other:
        return model
    edited = _edited(model, changed, model.classes_.tolist(), list(model.draw_), done)
    edited.settings = {**model.settings, **{name: after[name] for name in other}}
    return edited


def _edited(
    model: Classifier, method: Method, labels: Sequence[Any], draw: list[Row], done: Row, *, same: bool = False
) -> Classifier:
    """A classifier with this method; `same`: it predicts as before, so that its figures still hold."""
    other = copy.copy(model)
    other.settings = dict(model.settings)
    other._adopt(method, model._session, labels)
    other.draw_, known = draw, model.gallery()
    other.gallery_, other._training = known and known.of_draw(draw), ()
    before: Row = {"weights": hashlib.sha256(weights_of(model._require_fitted())).hexdigest()}
    if not same:
        before["results"], before["estimate"] = model.results_, model.estimate_.to_dict() if model.estimate_ else {}
        other.draw_ = [{key: row[key] for key in ("label", "name", "sha256")} for row in draw]
        other.estimate_ = None
        other.results_ = {key: value for key, value in model.results_.items() if key == "dataset"}
    other.lineage_ = [*model.lineage_, {**done, "version": dca.__version__, "before": before}]
    return other


def _find(model: Classifier, label: Any) -> int:
    """Index of the class with this label or name."""
    labels, names = model.classes_.tolist(), model._require_fitted().problem.names
    (index,) = match_labels([label], [str(label)], labels, names)
    if index is None:
        raise unknown_name("class", str(label), map(str, labels))
    return index


def _require_new(model: Classifier, label: Any, words: str | None, but: int | None = None) -> None:
    """Raise if label or words cannot be read, or are those of a class other than number `but`.

    words: None if CLIP does not read them.
    """
    texts = [str(label)] if words is None else [str(label), words]
    if faults := unreadable_names(texts):
        raise UserError("a class name that is no text", details=sorted(set(faults)), hint="give it a name to read")
    labels, names = model.classes_.tolist(), model._require_fitted().problem.names
    for c, (known, name) in enumerate(zip(labels, names, strict=True)):
        clash = normalize_name(str(label)) == normalize_name(str(known)) or (
            words is not None and normalize_name(words) == normalize_name(name)
        )
        if c != but and clash:
            raise UserError(
                f"the model has a class '{known}' already" + (f" (CLIP reads '{name}')" if str(known) != name else ""),
                hint="choose another name, or remove that class first",
            )
