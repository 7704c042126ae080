"""Classifier: fit on a folder of photos, predict other photos; the interface is that of scikit-learn."""

from __future__ import annotations

import copy
import dataclasses
import logging
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from inspect import Parameter, signature
from itertools import compress
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

import dca
from dca.backbones.encoder import Encoder
from dca.backbones.sources import AUTO
from dca.core.choices import Rules
from dca.core.device import require_device
from dca.core.errors import UserError, not_fitted_error, unknown_name
from dca.core.files import read_whole
from dca.core.hints import fit_with_estimate
from dca.core.options import changed_values
from dca.core.progress import Progress, default_progress, silent
from dca.core.text import NONE_OF_THESE, normalize_name, pluralize
from dca.datasets.classes import label_to_name, match_labels
from dca.datasets.dataset import Dataset, LabelledImage
from dca.datasets.draws import draw_training_part
from dca.images.convert import is_single_image
from dca.images.decode import ImageLike
from dca.methods.base import Method, TrainingOptions
from dca.methods.registry import DEFAULT_METHOD, get_method
from dca.methods.zero_shot import ZeroShot
from dca.model import checkpoint
from dca.model.certainty import Certainty
from dca.model.copies import SharedImages, count_seen, describe_shared_images, find_shared_images
from dca.model.estimate import assess
from dca.model.gallery import Gallery
from dca.model.hub import MESSAGE, HubOptions, find_model, push_folder
from dca.model.inputs import (
    Images,
    Labelled,
    MatchedItems,
    as_dataset,
    as_images,
    label_array,
    match_classes,
    require_learnable,
    require_other,
    require_other_only,
    require_shots,
    require_whole_number,
)
from dca.model.records import (
    BackboneRecord,
    Change,
    ClassAdded,
    ClassRemoved,
    ClassRenamed,
    Estimate,
    FitArguments,
    ImageId,
    ModelBefore,
    ModelRecord,
    OptionsChanged,
    TrainingImage,
    record_images,
    record_training_images,
    to_stored_label,
    unreadable_names,
)
from dca.model.rejection import require_rate
from dca.stats.conformal import add_best, min_images
from dca.training.context import FitContext
from dca.training.evaluate import (
    Evaluation,
    classify_features,
    encode_images,
    evaluate_predictions,
    predict_probabilities,
)
from dca.training.fit import fit
from dca.training.held_out import NestedFits, count_fits
from dca.training.resume import EpochCallback
from dca.training.session import Session
from dca.training.support import ImageSupport

log = logging.getLogger(__name__)

# Parameters of every classifier; the others belong to its method.
CLASSIFIER_PARAMETERS = ("method", "shots", "seed", "backbone", "device", "precision", "estimate", "calibrate")


# What several copies may share: it is never changed.
_NOT_DEEP_COPIED = ("method_", "_session", "backbone")


@dataclass(frozen=True)
class Predictions:
    """All that a model says about n images.

    Attributes:
        probabilities: (n, C), columns in the order of `classes_`.
        p_values: (n,), small for images of none of the classes; None if the model cannot tell.
        sets: One list of labels per image, the most probable first; None unless asked for.

    Example:
        >>> import numpy as np
        >>> from dca import Predictions
        >>> Predictions(np.array([[0.9, 0.1]]), None, None).probabilities.shape
        (1, 2)
    """

    probabilities: NDArray[np.float64]
    p_values: NDArray[np.float64] | None
    sets: list[list[Any]] | None


CompetingClasses = Literal["all", "target"]


class Classifier:
    """A few-shot image classifier.

    Args:
        method: Name of the method; `dca.list_methods()` has all of them.
        shots: Images per class to draw for training; None takes all.
        seed: Decides the draw and the initial values.
        backbone: "auto", a short name ("mini", "vit-b-16"), a hub id, a folder, several of these with commas between
            them, or a loaded encoder. "auto" is a pool of the encoders that come with the package; a method that needs
            more than features takes the CLIP among them.
        device: "auto", "cpu", "cuda", ...
        precision: "auto", "fp32" or "bf16".
        estimate: Estimate the accuracy on the training images, each predicted by a model that has not seen it. Takes
            up to six times as long for methods that are trained in steps; methods that need no time always do it.
        calibrate: Fit a temperature on these predictions, where there are any, so that probabilities agree with how
            often predictions are right. It changes no prediction.
        **method_options: Options of the method; `dca methods show NAME` lists them. `fit` checks all arguments.

    Attributes:
        classes_: After `fit`, the label of each class in the order of the columns of `predict_proba`: labels as they
            were given (numbers stay numbers), or folder names if a folder was given.
        method_: After `fit`, the finished method.
        history_: After `fit`, one row of metrics per epoch.
        estimate_: After `fit`, the estimated accuracy, if it was asked for and classes have two images.
        training_images_: After `fit`, class index, name and content hash of each training image, and what a model
            that has not seen it predicts (`held_out`), where that is known.
        held_out_auc_: After `fit`, per class the area under the ROC curve of these predictions, of the class against
            the others; empty where there are none.
        other_images_: Name and content hash of each image of none of the classes that `fit` was given.
        results_: Figures of the run that made the model; empty after a plain `fit`.
        lineage_: Changes of its classes and its head since the fit, with the figures before each.

    Example:
        >>> from dca import Classifier
        >>> from dca.datasets.sample import load_sample
        >>> sample = load_sample(per_class_train=2, per_class_test=1)
        >>> model = Classifier("gda", shots=2, views=0, device="cpu").fit(sample)
        >>> model.predict(sample.test[0].image) in list(model.classes_)
        True
    """

    _estimator_type = "classifier"  # what scikit-learn before 1.6 asks for
    method_options: dict[str, Any]
    method_: Method
    classes_: NDArray[Any]
    history_: list[dict[str, float]]
    training_images_: tuple[TrainingImage, ...]
    held_out_auc_: tuple[float | None, ...]
    other_images_: tuple[ImageId, ...]
    results_: dict[str, Any]
    lineage_: tuple[Change, ...]
    estimate_: Estimate | None
    gallery_: Gallery | None
    _session: Session
    _training: Sequence[LabelledImage] = ()
    _shared_images: tuple[SharedImages, ...] = ()

    def __init__(
        self,
        method: str = DEFAULT_METHOD,
        *,
        shots: int | None = None,
        seed: int = 1,
        backbone: str | Path | Encoder = AUTO,
        device: str = "auto",
        precision: str = "auto",
        estimate: bool = False,
        calibrate: bool = True,
        **method_options: Any,
    ) -> None:
        self.method = method
        self.shots = shots
        self.seed = seed
        self.backbone = backbone
        self.device = device
        self.precision = precision
        self.estimate = estimate
        self.calibrate = calibrate
        self.method_options = method_options

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments of the constructor, as scikit-learn expects it.

        Args:
            deep: Ignored; there are no nested estimators.

        Returns:
            Values by name, options of the method included.

        Example:
            >>> from dca import Classifier
            >>> Classifier("gda", shots=4, views=0).get_params()["views"]
            0
        """
        return {**{name: getattr(self, name) for name in CLASSIFIER_PARAMETERS}, **self.method_options}

    def set_params(self, **params: Any) -> Self:
        """Change arguments of the constructor; takes effect at the next `fit`.

        Args:
            **params: New values by name.

        Returns:
            The classifier itself.

        Raises:
            UserError: If a name is neither an argument of `Classifier` nor an option of its method.

        Example:
            >>> from dca import Classifier
            >>> Classifier().set_params(method="gda", shots=4)
            Classifier('gda', shots=4)
        """
        options = {field.name for field in fields(get_method(params.get("method", self.method)).Options)}
        if unknown := [name for name in params if name not in CLASSIFIER_PARAMETERS and name not in options]:
            raise unknown_name("parameter", unknown[0], [*CLASSIFIER_PARAMETERS, *sorted(options)])
        for name, value in params.items():
            if name in CLASSIFIER_PARAMETERS:
                setattr(self, name, value)
            else:
                self.method_options[name] = value
        return self

    def __sklearn_tags__(self) -> Any:
        """Properties that scikit-learn's `cross_val_score`, `GridSearchCV` and similar functions need."""
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=False),
            classifier_tags=ClassifierTags(),
            input_tags=InputTags(one_d_array=True, two_d_array=False, string=True),
            no_validation=True,
        )

    def __repr__(self) -> str:
        defaults = {name: p.default for name, p in signature(type(self)).parameters.items()}
        given = {
            name: value for name, value in self.get_params().items() if value != defaults.get(name, Parameter.empty)
        }
        method = [repr(given.pop("method"))] if "method" in given else []
        return f"{type(self).__name__}({', '.join([*method, *(f'{k}={_short_repr(v)}' for k, v in given.items())])})"

    def fit(
        self,
        X: Labelled,
        y: Iterable[Any] | None = None,
        *,
        other: Images = (),
        progress: Progress | None = None,
        folder: str | Path | None = None,
        session: Session | None = None,
    ) -> Self:
        """Learn from labelled images; logs a warning if copies of the same images are in two classes.

        Args:
            X: A folder, an image list, a dataset, images as for `predict_proba`, or a data frame (path, label).
            y: Label of each image, if X is a list of images; of a data frame also the name of a column.
            other: Images of none of the classes, in the forms of `predict_proba`: p-values ("none of these") then tell
                such images better. The default method learns from them.
            progress: Receives the progress of the fit; None shows it on a terminal, in a notebook and in logs.
            folder: An existing folder where the state of training is kept, so that an interrupted fit continues.
            session: Backbones and images shared with other fits; its device is used instead of `device`.

        Returns:
            The classifier itself.

        Raises:
            UserError: If options or data cannot be used.
        """
        kind, seed = get_method(self.method), require_whole_number("seed", self.seed, 0)
        shots = None if self.shots is None else require_whole_number("shots", self.shots, 1)
        dataset = as_dataset(X, y)
        require_learnable(dataset)
        require_shots(dataset, shots)
        options = kind.parse_options(self.method_options)
        dataset = dataclasses.replace(dataset, other=(*dataset.other, *as_images(other)))
        source, _ = draw_training_part(dataset, shots, seed, validation=kind.validation_for(options))
        with default_progress(progress) as receiver:
            session = (session or Session(device=self.device)).with_progress(receiver)
            self._fit_drawn(source, session, options=options, folder=None if folder is None else Path(folder))
        if self._shared_images:
            log.warning("%s", describe_shared_images(self._shared_images))
        return self

    def _fit_drawn(
        self,
        source: Dataset,
        session: Session,
        *,
        options: Any = None,
        rules: Rules = "strict",
        folder: Path | None = None,
        on_epoch: EpochCallback | None = None,
    ) -> Self:
        """Learn from all training images of a drawn dataset; `fit` and `run` call it.

        Args:
            source: Training, validation and other images; test images are ignored.
            session: Loads backbones, images and features.
            options: An `Options` object of the method, which is not validated again; by default the options of the
                constructor.
            rules: "paper" allows values that the authors of a method chose per dataset, "strict" does not.
            folder: Folder that keeps the state of training.
            on_epoch: Receives the metrics of each epoch.

        Returns:
            The classifier itself.

        Raises:
            UserError: If options or data cannot be used.
        """
        require_learnable(source)
        kind = get_method(self.method)
        options = kind.parse_options(self.method_options) if options is None else options
        estimate = bool(self.estimate)
        if source.other:
            require_other(kind)
        own, session = session, session.for_dataset(source.public, rules)
        encoder = session.load_backbone(self.backbone, self.precision, kind=kind)
        images = [*(item.image for item in (*source.train, *source.val)), *source.other]
        session.require_readable(encoder, images, summaries=estimate or kind.has_cheap_held_out)
        require_other_only(source, session)
        context = FitContext(
            session=session,
            encoder=encoder,
            seed=int(self.seed),
            rules=rules,
            folder=folder,
            on_epoch=on_epoch,
            fits=count_fits(kind, source, estimate=estimate),
        )
        method, self.history_ = fit(kind, options, source, context, fitter=NestedFits(source, context))
        if source.other:
            method.learn_other(
                ImageSupport([LabelledImage(image, 0) for image in source.other], session, encoder, context.seed)
            )
        found = assess(method, options, source, context, estimate=estimate, calibrate=bool(self.calibrate))
        method.temperature = found.temperature
        self._adopt(method, own, source.labels)
        self.estimate_, self.results_, self.lineage_ = found.estimate, {}, ()
        self.gallery_, self._training = None, source.train
        self.training_images_ = record_training_images(source.train, session, found.held_out)
        self.held_out_auc_ = found.auc
        self.other_images_ = record_images(source.other, session)
        groups = session.group_copies([item.image for item in source.train], decode=False)
        self._shared_images = find_shared_images(self.training_images_, groups, source.labels)
        return self

    def predict_proba(self, X: Images, *, progress: Progress | None = None) -> NDArray[np.float64]:
        """Probabilities of images.

        Args:
            X: n images: a path, PIL image, array (H, W, 3) of uint8 or of floats in [0, 1], tensor (3, H, W), bytes
                or open file; a list or an array (n, H, W, 3) of these; a data frame with the column path; a folder.
            progress: Receives the progress; None shows it where there are many images.

        Returns:
            Probabilities (n, C), or (C,) for a single image that is not in a list; columns in the order of
            `classes_`; every row sums to one.

        Raises:
            UserError: If the classifier is not fitted, or an image cannot be read.
        """
        probabilities = classify_features(self._require_fitted(), self._encode(X, progress))
        return probabilities[0] if is_single_image(X) else probabilities

    def transform(self, X: Images, *, progress: Progress | None = None) -> NDArray[np.float32]:
        """Features of images, as the head of the model sees them; `predict_features` takes them.

        Args:
            X: As for `predict_proba`.
            progress: As for `predict_proba`.

        Returns:
            Features (n, D), or (D,) for a single image that is not in a list.

        Raises:
            UserError: As for `predict_proba`.
        """
        features: NDArray[np.float32] = self._encode(X, progress).cpu().float().numpy()
        return features[0] if is_single_image(X) else features

    def predict(self, X: Images, *, reject: float | None = None) -> Any:
        """The label of the most probable class.

        Args:
            X: As for `predict_proba`.
            reject: Wanted share of false rejections: answer "none of these" for images whose p-value is at most this;
                see `p_values`.

        Returns:
            One label for one image, an array (n,) for several.

        Raises:
            UserError: As for `predict_proba`, and for `p_values` if `reject` is given; if the model has too few
                training images for this rate (`smallest_p_value`).
        """
        if reject is None:
            probabilities = classify_features(self._require_fitted(), self._encode(X, None))
            found = self.classes_[probabilities.argmax(axis=1)]
        else:
            require_rate(reject, self.smallest_p_value)
            predictions = self.predict_details(X)
            found = self.classes_[predictions.probabilities.argmax(axis=1)].astype(object)
            found[self._require_p_values(predictions) <= reject] = NONE_OF_THESE
        return found.tolist()[0] if is_single_image(X) else found

    def p_values(self, X: Images, *, progress: Progress | None = None) -> NDArray[np.float64] | float:
        """How usual images are among the training images; small values mean "none of these classes".

        If images are like the training images of their classes, about a share P of them has a p-value of at most P,
        for P from `smallest_p_value` on.

        Args:
            X: As for `predict_proba`; n images.
            progress: As for `predict_proba`.

        Returns:
            p-values (n,), or one number for a single image; from `smallest_p_value` to 1.

        Raises:
            UserError: If the model was fitted without held-out predictions, or an image cannot be read.

        Example:
            >>> from dca import Classifier
            >>> from dca.datasets.sample import load_sample
            >>> sample = load_sample(per_class_train=4, per_class_test=1)
            >>> model = Classifier("closed_form", device="cpu").fit(sample)
            >>> bool(0 < model.p_values(sample.test[0].image) <= 1)
            True
        """
        p_values = self._require_p_values(self.predict_details(X, progress=progress))
        return float(p_values[0]) if is_single_image(X) else p_values

    def prediction_sets(
        self, X: Images, *, coverage: float = 0.9, progress: Progress | None = None
    ) -> list[list[Any]] | list[Any]:
        """Sets of labels that contain the right one with a stated probability.

        Args:
            X: As for `predict_proba`; n images.
            coverage: Wanted probability c. The default method guarantees 2c - 1 for new images that are
                like the training images (jackknife+) and reaches about c; other methods only aim at c.
            progress: As for `predict_proba`.

        Returns:
            One list of labels per image, the most probable first; never empty. For a single image its list.

        Raises:
            UserError: As for `p_values`, or if there are too few training images for this coverage.

        Example:
            >>> from dca import Classifier
            >>> from dca.datasets.sample import load_sample
            >>> sample = load_sample(per_class_train=4, per_class_test=1)
            >>> model = Classifier("closed_form", device="cpu").fit(sample)
            >>> len(model.prediction_sets(sample.test[0].image, coverage=0.8))
            1
        """
        sets = self.predict_details(X, coverage=coverage, progress=progress).sets
        assert sets is not None
        return sets[0] if is_single_image(X) else sets

    def predict_details(
        self, X: Images, *, coverage: float | None = None, progress: Progress | None = None
    ) -> Predictions:
        """Probabilities, p-values and prediction sets of images, which are opened once.

        Args:
            X: As for `predict_proba`; n images.
            coverage: Of the prediction sets; None for no sets.
            progress: As for `predict_proba`.

        Returns:
            Probabilities; p-values where the model has any; sets where they are asked for.

        Raises:
            UserError: As for `prediction_sets`.

        Example:
            >>> from dca import Classifier
            >>> from dca.datasets.sample import load_sample
            >>> sample = load_sample(per_class_train=4, per_class_test=1)
            >>> model = Classifier("closed_form", device="cpu").fit(sample)
            >>> model.predict_details([item.image for item in sample.test]).probabilities.shape
            (10, 10)
        """
        return self.predict_features(self._encode(X, progress), coverage=coverage)

    def predict_features(
        self, features: Tensor | NDArray[np.floating[Any]], *, coverage: float | None = None
    ) -> Predictions:
        """Everything that the model says of images that are encoded already.

        Args:
            features: Features (n, D) of `transform`, or of `method_.encode`.
            coverage: Of the prediction sets; None for no sets.

        Returns:
            Probabilities; p-values where the model has any; sets where they are asked for.

        Raises:
            UserError: If the features are no array or tensor, or of another length, and as for `prediction_sets`.
        """
        method = self._require_fitted()
        features = _as_features(method, features)
        probs = classify_features(method, features)
        return Predictions(
            probs,
            self._p_values(features, probs),
            None if coverage is None else self._sets(features, probs, coverage),
        )

    @property
    def has_p_values(self) -> bool:
        """Whether the model can tell images of none of its classes."""
        return self.smallest_p_value is not None

    @property
    def smallest_p_value(self) -> float | None:
        """The smallest p-value that an image can have, and so the least rate of false rejections that can be kept.

        1 / (n + 1) with n training images that can be left out, as many of each class; unequal classes are worth fewer.
        None if the model has no p-values.
        """
        return self.certainty().smallest_p_value

    def certainty(self) -> Certainty:
        """What the model says of its own answers, as functions of features; the classifier must be fitted."""
        return Certainty(self._require_fitted(), self.training_images_)

    def evaluate(
        self,
        X: Labelled,
        y: Iterable[Any] | None = None,
        *,
        classes: CompetingClasses | None = None,
        progress: Progress | None = None,
    ) -> Evaluation:
        """Measure the model on labelled images.

        Args:
            X: A folder, an image list or a dataset (its test part, or else its validation part, is used), or images.
            y: Label of each image, if X is a list of images.
            classes: Classes that compete: "all" of the model, or those of the "target", the images' own. None is "all",
                but "target" for shifted versions of the dataset that the model was fitted on, known by WordNet id
                (ImageNet-A, ImageNet-R), as in the domain-shift protocol.
            progress: As for `predict_proba`.

        Returns:
            Accuracy, accuracy per class and calibration.

        Raises:
            UserError: If a class is not one of the model's, or an image cannot be read.
        """
        method = self._require_fitted()
        dataset = as_dataset(X, y, for_evaluation=True)
        labels = self.classes_.tolist()
        matched = match_classes(dataset, labels, method.problem.names, method.problem.dataset)
        images, truth = [item.image for item in matched.items], [item.label for item in matched.items]
        competing = _choose_competing(matched, dataset, method, classes)
        small = None if competing is None else _restrict_method(method, competing, dataset)
        with default_progress(progress, len(images)) as receiver:
            session = self._session.with_progress(receiver).for_dataset(dataset.public, method.problem.rules)
            (probs,) = predict_probabilities([small or method], images, session)
        if competing is not None:
            probs = probs if small else _restrict_probabilities(probs, competing)
            truth, labels = [competing.index(y) for y in truth], [labels[c] for c in competing]
        report = evaluate_predictions(probs, np.array(truth), labels)
        return dataclasses.replace(report, seen_in_training=self._count_seen(images))

    def score(self, X: Labelled, y: Iterable[Any] | None = None) -> float:
        """Accuracy on labelled images.

        Args:
            X: As for `evaluate`.
            y: As for `evaluate`.

        Returns:
            The accuracy, a fraction.

        Raises:
            UserError: As for `evaluate`.
        """
        return self.evaluate(X, y).accuracy

    def zero_shot(self) -> ZeroShot:
        """Zero-shot CLIP for the same classes on the same backbone, for comparison; the classifier must be fitted."""
        method = self._require_fitted()
        return ZeroShot.for_problem(method.encoder, method.problem)

    @torch.no_grad()
    def add_class(
        self, name: str, images: Images = (), *, label: Any = None, progress: Progress = silent
    ) -> Classifier:
        """Return a model with one more class; the images of the others are not needed.

        Args:
            name: Words that CLIP reads for the class.
            images: Its images, in the forms of `predict_proba`; methods that learn prompts need none.
            label: What `predict` returns for the class; its name by default.
            progress: Receives the progress.

        Returns:
            Another classifier; the new class is the last.

        Raises:
            UserError: If the classifier is not fitted, there is such a class, an image cannot be read, or the
                method cannot take another class.

        Example:
            >>> from dca import Classifier
            >>> from dca.datasets.sample import load_sample
            >>> model = Classifier("zero_shot", device="cpu").fit(load_sample(per_class_train=1, per_class_test=1))
            >>> model.add_class("zebra").classes_.tolist()[-2:]
            ['sunflower', 'zebra']
        """
        method, words, index = self._require_fitted(), label_to_name(name), len(self.classes_)
        label = name if label is None else label
        self._require_new_class(label, words)
        session = self._session.with_progress(progress)
        items = [LabelledImage(image, index) for image in as_images(images)]
        session.require_readable(method.encoder, [item.image for item in items])
        changed = method.with_class(words, ImageSupport(items, session, method.encoder, method.problem.seed))
        added = record_training_images(items, session)
        known = self.gallery()
        other = self._copy_with(
            changed,
            [*self.classes_.tolist(), label],
            (*self.training_images_, *added),
            partial(
                ClassAdded,
                label=to_stored_label(label),
                name=words,
                images=tuple(ImageId(image.name, image.sha256) for image in added),
            ),
        )
        if self.other_images_:  # what is a class now is not to be rejected
            hashes = {image.sha256 for image in added}
            kept = [image.sha256 not in hashes for image in self.other_images_]
            changed.keep_other(kept)
            other.other_images_ = tuple(compress(self.other_images_, kept))
        if known is not None:
            other.gallery_ = known.concatenate(Gallery.make(items, added, session, method.encoder))
        return other

    @torch.no_grad()
    def remove_class(self, label: Any) -> Classifier:
        """Return a model without one of the classes.

        Args:
            label: Label of the class, or its name.

        Returns:
            Another classifier.

        Raises:
            UserError: If the classifier is not fitted, there is no such class, only one would be left, or the
                method cannot give up a class.

        Example:
            >>> from dca import Classifier
            >>> from dca.datasets.sample import load_sample
            >>> model = Classifier("zero_shot", device="cpu").fit(load_sample(per_class_train=1, per_class_test=1))
            >>> "sunflower" in model.remove_class("sunflower").classes_
            False
        """
        method, index = self._require_fitted(), self._find_class(label)
        labels = self.classes_.tolist()
        if len(labels) < 3:
            hint = "add another class first"
            raise UserError(f"the model has {pluralize(len(labels), 'class')}; at least 2 must be left", hint=hint)
        images = tuple(
            dataclasses.replace(image, label=image.label - (image.label > index))
            for image in self.training_images_
            if image.label != index
        )
        change = partial(ClassRemoved, label=to_stored_label(labels[index]), name=method.problem.names[index])
        return self._copy_with(method.without_class(index), labels[:index] + labels[index + 1 :], images, change)

    @torch.no_grad()
    def rename_class(self, label: Any, new: Any, *, label_only: bool = False) -> Classifier:
        """Return a model with another label, and name, for one of the classes.

        Args:
            label: Label of the class, or its name.
            new: The new label, whose words CLIP reads from now on.
            label_only: Keep the name that CLIP reads, and so all probabilities.

        Returns:
            Another classifier.

        Raises:
            UserError: If the classifier is not fitted, there is no such class, there is another of the new name, or
                the method has learned the old name.

        Example:
            >>> from dca import Classifier
            >>> from dca.datasets.sample import load_sample
            >>> model = Classifier("zero_shot", device="cpu").fit(load_sample(per_class_train=1, per_class_test=1))
            >>> "helianthus" in model.rename_class("sunflower", "helianthus").classes_
            True
        """
        method, index = self._require_fitted(), self._find_class(label)
        old_name, words = method.problem.names[index], label_to_name(str(new))
        self._require_new_class(new, None if label_only else words, except_index=index)
        changed = method if label_only or words == old_name else method.with_name(index, words)
        labels = self.classes_.tolist()
        change = partial(
            ClassRenamed,
            label=to_stored_label(labels[index]),
            name=old_name,
            new_label=to_stored_label(new),
            new_name=changed.problem.names[index],
        )
        labels[index] = new
        return self._copy_with(changed, labels, self.training_images_, change, keep_figures=changed is method)

    @torch.no_grad()
    def with_options(self, *texts: str, **options: Any) -> Classifier:
        """Return a model with other options of its head; nothing is trained again.

        Args:
            *texts: Options as `name=value` texts, instead of keyword arguments.
            **options: Options that only the head reads (`Method.head_options`): of DCA γ1, γ2 and how distances
                are measured. Its probabilities are not calibrated.

        Returns:
            Another classifier with the same parameters, whose `fit` uses the new values; this one if no value is
            different.

        Raises:
            UserError: If the classifier is not fitted, an option is unknown, has a wrong value, or is not one of
                the head.

        Example:
            >>> from dca import Classifier
            >>> from dca.datasets.sample import load_sample
            >>> model = Classifier("dca", shots=2, epochs=0, device="cpu").fit(load_sample(per_class_train=2))
            >>> model.with_options(gamma1=100, gamma2=50).method_.options.gamma1
            100.0
        """
        if texts and options:
            raise TypeError("give options as texts or as keyword arguments, not both")
        method = self._require_fitted()
        changed = method.with_options(texts or options)
        before, after = dataclasses.asdict(method.options), dataclasses.asdict(changed.options)
        different = {name: (before[name], value) for name, value in after.items() if value != before[name]}
        if not different:
            return self
        change = partial(OptionsChanged, options=different)
        other = self._copy_with(changed, self.classes_.tolist(), self.training_images_, change)
        other.method_options |= {name: after[name] for name in different}
        return other

    def gallery(self) -> Gallery | None:
        """Thumbnails and features of the training images, made on first use.

        Returns:
            The gallery; None for a model that was saved without one.

        Raises:
            UserError: If the classifier is not fitted, or a training image cannot be read any more.
        """
        method = self._require_fitted()
        if self.gallery_ is None and self._training:
            self.gallery_ = Gallery.make(self._training, self.training_images_, self._session, method.encoder)
        return self.gallery_

    def _to_record(self) -> ModelRecord:
        """Everything that is saved beside the tensors; the classifier must be fitted."""
        method = self._require_fitted()
        module = type(method).__module__.partition(".")[0]
        shots = None if self.shots is None else int(self.shots)
        return ModelRecord(
            method=method.name,
            options=dataclasses.asdict(method.options),
            problem=method.problem,
            labels=tuple(map(to_stored_label, self.classes_.tolist())),
            backbone=BackboneRecord.from_backbone(method.encoder),
            fit_arguments=FitArguments(
                shots, _to_plain(self.method_options), bool(self.estimate), bool(self.calibrate)
            ),
            training_images=self.training_images_,
            held_out_auc=self.held_out_auc_,
            other_images=self.other_images_,
            results=self.results_,
            lineage=self.lineage_,
            package="" if module == "dca" else module,
            temperature=method.temperature,
            estimate=self.estimate_,
        )

    def save_pretrained(
        self,
        save_directory: str | Path,
        *,
        gallery: bool = True,
        push_to_hub: bool = False,
        repo_id: str | None = None,
        **push_to_hub_kwargs: Any,
    ) -> str | None:
        """Write the model: trained tensors, classes and options; backbone weights are not written.

        Args:
            save_directory: Folder of the model; an existing model is replaced, anything else is refused.
            gallery: Also write thumbnails and features of the training images (`gallery.safetensors`).
            push_to_hub: Also send the model to the Hugging Face hub; see `push_to_hub`.
            repo_id: The repository; by default it has the name of the folder.
            **push_to_hub_kwargs: Further arguments of `push_to_hub`.

        Returns:
            The address of the commit on the hub; None if nothing was sent.

        Raises:
            UserError: If the classifier is not fitted, a training image cannot be read any more, the folder cannot be
                written, or the hub does not take it.
        """
        method, folder = self._require_fitted(), Path(save_directory)
        try:
            thumbnails = self.gallery() if gallery else None
        except UserError as error:
            raise UserError(
                f"thumbnails of the training images go with the model, and {error.problem.rstrip('.')}",
                hint=f'put the image back, or leave thumbnails out: save_pretrained("{folder}", gallery=False)',
            ) from error
        checkpoint.save_model(folder, method, self._to_record(), thumbnails)
        return self.push_to_hub(repo_id or folder.name, **push_to_hub_kwargs) if push_to_hub else None

    def push_to_hub(
        self,
        repo_id: str,
        *,
        commit_message: str = MESSAGE,
        private: bool | None = None,
        token: str | None = None,
        branch: str | None = None,
        create_pr: bool = False,
        include_images: bool = False,
    ) -> str:
        """Send the model to the Hugging Face hub, in one commit, with a card that names its figures.

        Weights, options and classes are sent, with the file names of the training images but not the images.

        Args:
            repo_id: The repository, "user/name"; it is made if it does not exist.
            commit_message: Message of the commit.
            private: Whether a new repository is private; None takes the account's default.
            token: Access token; by default the one that `hf auth login` has stored, or HF_TOKEN.
            branch: Branch to send to; the main branch by default.
            create_pr: Open a pull request instead.
            include_images: Also send thumbnails of the training images, where the model has them.

        Returns:
            The address of the commit, or of the pull request.

        Raises:
            UserError: If the classifier is not fitted, or the hub does not take the model.
        """
        self._require_fitted()
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "model"
            self.save_pretrained(folder, gallery=include_images)
            return push_folder(
                folder,
                repo_id,
                commit_message=commit_message,
                private=private,
                token=token,
                branch=branch,
                create_pr=create_pr,
                include_images=include_images,
            )

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        backbone: str | Path | Encoder | None = None,
        device: str = "auto",
        precision: str = "auto",
        session: Session | None = None,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
        force_download: bool = False,
    ) -> Self:
        """Read a model that `save_pretrained` or a run wrote, or one from the Hugging Face hub.

        Args:
            pretrained_model_name_or_path: The model folder, or a hub repository, "user/name".
            backbone: Backbone of the model; by default found by its recorded name and hash.
            device: "auto", "cpu", "cuda", ...
            precision: "auto", "fp32" or "bf16".
            session: Backbones shared with other models; its device is used instead of `device`.
            revision: Branch, tag or commit of the hub repository.
            token, cache_dir, local_files_only, force_download: As in `huggingface_hub.snapshot_download`.

        Returns:
            A fitted classifier with the arguments of the original one: `fit` uses them again.

        Raises:
            UserError: If the folder holds no complete model, or the backbone cannot be loaded or is a different one.
        """
        require_device(device, precision)
        hub = HubOptions(revision, token, cache_dir, local_files_only, force_download)
        path, used = find_model(pretrained_model_name_or_path, hub), session or Session(device=device)
        return read_whole(path, lambda: cls._load(path, backbone, device, precision, used))

    @classmethod
    def _load(
        cls, path: Path, backbone: str | Path | Encoder | None, device: str, precision: str, session: Session
    ) -> Self:
        """The classifier in a folder that no other process is replacing."""
        record = checkpoint.read_record(path)
        source, encoder = checkpoint.load_backbone(path, record, backbone, session, precision)
        arguments = record.fit_arguments
        model = cls(
            record.method,
            shots=arguments.shots,
            seed=record.problem.seed,
            backbone=source,
            device=device,
            precision=precision,
            estimate=arguments.estimate,
            calibrate=arguments.calibrate,
            **arguments.options,
        )
        model._adopt(checkpoint.load_model(path, record, encoder), session, record.labels)
        model.training_images_, model.results_, model.history_ = record.training_images, record.results, []
        model.held_out_auc_, model.other_images_ = record.held_out_auc, record.other_images
        model.estimate_, model.lineage_, model.gallery_ = record.estimate, record.lineage, checkpoint.load_gallery(path)
        return model

    def __getstate__(self) -> dict[str, Any]:
        params = self.get_params()
        params["backbone"] = getattr(self.backbone, "source", self.backbone)
        state: dict[str, Any] = {"params": params}
        if hasattr(self, "method_"):
            with tempfile.TemporaryDirectory() as folder:
                self.save_pretrained(Path(folder) / "model")
                state["files"] = {path.name: path.read_bytes() for path in (Path(folder) / "model").iterdir()}
            state["fitted"] = {"classes_": self.classes_, "history_": self.history_}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state["params"])  # type: ignore[misc]
        if "files" in state:
            self.__dict__.update({**_unpickle(type(self), state).__dict__, **self.__dict__, **state["fitted"]})

    def __copy__(self) -> Self:
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__)
        return new

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        new = self.__copy__()
        own = {name: value for name, value in self.__dict__.items() if name not in _NOT_DEEP_COPIED}
        new.__dict__.update(copy.deepcopy(own, memo))
        return new

    def _adopt(self, method: Method, session: Session, labels: Sequence[Any]) -> None:
        self.method_, self._session = method, session.with_progress(silent)
        self.classes_ = label_array(labels)

    def _require_fitted(self) -> Method:
        if not hasattr(self, "method_"):
            hint = "call fit(...) or Classifier.from_pretrained(...)"
            raise not_fitted_error("this classifier is not fitted yet", hint=hint)
        return self.method_

    def _copy_with(
        self,
        method: Method,
        labels: Sequence[Any],
        images: tuple[TrainingImage, ...],
        change: Callable[..., Change],
        *,
        keep_figures: bool = False,
    ) -> Self:
        """A classifier with another method, and the change in its lineage.

        Its figures and held-out predictions are dropped, because they were measured on other classes or with another
        head; keep_figures: it predicts as before, so that they hold.
        """
        other, gallery = copy.copy(self), self.gallery()
        other.method_options = dict(self.method_options)
        other._adopt(method, self._session, labels)
        other.gallery_ = None if gallery is None else gallery.select(images)
        other._training, other.training_images_ = (), images
        before = ModelBefore(checkpoint.hash_weights(self.method_))
        if not keep_figures:
            before = dataclasses.replace(before, results=self.results_, estimate=self.estimate_)
            other.training_images_ = tuple(dataclasses.replace(image, held_out=None) for image in images)
            other.estimate_, other.held_out_auc_ = None, ()
            other.results_ = {key: value for key, value in self.results_.items() if key == "dataset"}
        other.lineage_ = (*self.lineage_, change(version=dca.__version__, before=before))
        return other

    def _find_class(self, label: Any) -> int:
        """Index of the class with this label or name."""
        labels, names = self.classes_.tolist(), self._require_fitted().problem.names
        (index,) = match_labels([label], [str(label)], labels, names)
        if index is None:
            raise unknown_name("class", str(label), map(str, labels))
        return index

    def _require_new_class(self, label: Any, words: str | None, *, except_index: int | None = None) -> None:
        """Raise if label or words cannot be read, or are those of a class other than number `except_index`.

        words: None if CLIP does not read them.
        """
        texts = [str(label)] if words is None else [str(label), words]
        if faults := unreadable_names(texts):
            details = sorted(set(faults))
            raise UserError("a name that a class cannot have", details=details, hint="give it another name")
        names = self._require_fitted().problem.names
        for index, (known, name) in enumerate(zip(self.classes_.tolist(), names, strict=True)):
            clash = normalize_name(str(label)) == normalize_name(str(known)) or (
                words is not None and normalize_name(words) == normalize_name(name)
            )
            if index != except_index and clash:
                reads = f" (CLIP reads '{name}')" if str(known) != name else ""
                hint = "choose another name, or remove that class first"
                raise UserError(f"the model has a class '{known}' already{reads}", hint=hint)

    def _encode(self, X: Images, progress: Progress | None) -> Tensor:
        """Features (n, D) of images that are seen once: nothing is stored or looked up."""
        method, images = self._require_fitted(), as_images(X)
        with default_progress(progress, len(images)) as receiver:
            return encode_images([method], images, self._session.with_progress(receiver), stored=False)[0]

    def _count_seen(self, images: Sequence[ImageLike]) -> int:
        """How many of the images the model was trained on, compared by content."""
        known = [image.sha256 for image in self.training_images_]
        return count_seen(known, self._session.hash_images(images)) if known else 0

    def _require_p_values(self, predictions: Predictions) -> NDArray[np.float64]:
        """The p-values; raises if the model was fitted without held-out predictions."""
        if predictions.p_values is None:
            raise self._unknown_certainty()
        return predictions.p_values

    def _unknown_certainty(self) -> UserError:
        problem = f"this {self._require_fitted().name} model does not know how it does on images it has not seen"
        return UserError(problem, hint=fit_with_estimate())

    def _p_values(self, features: Tensor, probs: NDArray[np.float64]) -> NDArray[np.float64] | None:
        found = self.certainty().p_values(features, torch.from_numpy(probs))
        return None if found is None else found.cpu().double().numpy()

    def _sets(self, features: Tensor, probs: NDArray[np.float64], coverage: float) -> list[list[Any]]:
        if not 0 < coverage < 1:
            raise UserError(f"coverage is {coverage}", hint="give a number between 0 and 1, such as 0.9")
        p = torch.from_numpy(probs)
        found = self.certainty().class_ranks(features, p)
        if found is None:
            raise self._unknown_certainty()
        if found.images < (least := min_images(coverage)):
            raise UserError(
                f"a coverage of {coverage} needs {least} training images that can be held out; {found.images} can be",
                hint="ask for less coverage, or fit with more images",
            )
        sets = add_best(found.sets(coverage).cpu(), p).numpy()
        labels, order = self.classes_.tolist(), (-probs).argsort(axis=1, kind="stable")
        return [[labels[c] for c in row if kept[c]] for row, kept in zip(order, sets, strict=True)]


def _as_features(method: Method, features: Tensor | NDArray[np.floating[Any]]) -> Tensor:
    """Features as a tensor; raises if they are not of the shape that the method's `encode` gives."""
    if isinstance(features, np.ndarray) and features.dtype.kind == "f":
        features = torch.from_numpy(features.astype(np.float32)).to(method.encoder.device)
    if not isinstance(features, Tensor):
        raise UserError(
            f"features are a {type(features).__name__}, and an array or tensor of floats is expected",
            hint="give what transform returns",
        )
    length = method.encoder.feature_dim
    if features.dim() == 2 and features.shape[1] == length:
        return features
    with torch.no_grad():  # some methods keep more of an image than its feature
        length = method.encode(method.encoder.preprocess([Image.new("RGB", (8, 8))]).to(method.encoder.device)).shape[1]
    if features.dim() != 2 or features.shape[1] != length:
        raise UserError(
            f"features of shape {tuple(features.shape)}; (n, {length}) expected",
            hint="give what transform returns for a list of images",
        )
    return features


def _choose_competing(matched: MatchedItems, dataset: Dataset, method: Method, classes: str | None) -> list[int] | None:
    """The model's classes that compete, in the order of the data; None for all.

    classes: "all", "target", or None: the data's own classes for another public dataset than the model's whose
    classes are known by WordNet id (ImageNet-A, ImageNet-R), as in the domain-shift protocol; otherwise all.
    """
    if classes is not None and classes not in get_args(CompetingClasses):
        raise unknown_name("choice of classes", classes, get_args(CompetingClasses))
    if classes is None:
        shifted = matched.by_id and dataset.public not in ("", method.problem.dataset)
        classes = "target" if shifted else "all"
    if classes == "all" or len(matched.classes) == len(method.problem.names):
        return None
    if len(matched.classes) < 2:
        raise UserError("the data have one class: among it alone every prediction is right", hint="let all compete")
    return list(matched.classes)


@torch.no_grad()
def _restrict_method(method: Method, classes: Sequence[int], dataset: Dataset) -> Method | None:
    """The finished method for these of its classes; None if its probabilities have to be narrowed instead."""
    if type(method).retarget is Method.retarget:
        return None
    names: dict[str, Any] = {"names": tuple(method.problem.names[c] for c in classes)}
    if dataset.public:
        names |= {"dataset": dataset.public, "template": dataset.template}
    return method.retarget(dataclasses.replace(method.problem, **names), list(classes))


def _restrict_probabilities(probs: NDArray[np.float64], classes: Sequence[int]) -> NDArray[np.float64]:
    """Probabilities (N, C) given that the class is one of `classes`: (N, c). Exact for a single softmax."""
    kept: NDArray[np.float64] = probs[:, list(classes)]
    total = kept.sum(axis=1, keepdims=True)
    return np.where(total > 0, kept / np.where(total > 0, total, 1), 1 / len(classes))


def _to_plain(options: dict[str, Any]) -> dict[str, Any]:
    """Settings for JSON: NumPy numbers become Python numbers, and options objects their changed values."""

    def to_plain(value: Any) -> Any:
        if isinstance(value, TrainingOptions):
            return changed_values(value)
        return value.item() if isinstance(value, np.generic) else value

    return {name: to_plain(value) for name, value in options.items()}


def _short_repr(value: Any) -> str:
    """A value on one line; a loaded backbone by its name."""
    return repr(getattr(value, "source", value))


def _unpickle(kind: type[Classifier], state: dict[str, Any]) -> Classifier:
    """The classifier of the files in a pickle."""
    with tempfile.TemporaryDirectory() as folder:
        for name, data in state["files"].items():
            (Path(folder) / name).write_bytes(data)
        params = state["params"]
        return kind.from_pretrained(folder, device=params["device"], precision=params["precision"])
