"""Classifier: fit on a folder of photos, predict other photos; the interface is that of scikit-learn."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dca.clip import CLIP
from dca.core.device import require_usable
from dca.core.progress import Progress, shown
from dca.core.wording import NONE
from dca.data.dataset import Dataset
from dca.data.protocols import Selection, training_part
from dca.engine.evaluate import Evaluation, evaluation
from dca.engine.fit import fit
from dca.engine.held_out import fits_in_all
from dca.engine.nested import NestedFits
from dca.engine.resume import Follow
from dca.engine.session import Session
from dca.methods.registry import DEFAULT_METHOD, get_method
from dca.methods.zero_shot import ZeroShot
from dca.model import checkpoint
from dca.model.among import Among, columns, competing, narrowed
from dca.model.backbone import backbone_of
from dca.model.class_edits import ClassEdits
from dca.model.estimate import Estimate, assess
from dca.model.gallery import Gallery
from dca.model.hub import HubModel, HubOptions, model_folder
from dca.model.image_forms import is_single_image
from dca.model.inputs import (
    Images,
    Labelled,
    as_dataset,
    as_images,
    match_classes,
    require_learnable,
    require_shots,
    whole_number,
)
from dca.model.parameters import Parameters
from dca.model.pickles import Pickles
from dca.model.uncertain import Uncertain


class Classifier(Parameters, Pickles, ClassEdits, Uncertain, HubModel):
    """A few-shot image classifier.

    Args:
        method: Name of the method; `dca.list_methods()` has all of them.
        shots: Images per class to draw for training; None takes all.
        seed: Decides the draw and the initial values.
        backbone: A short name ("mini", "vit-b-16"), a hub id, a folder, or a loaded `CLIP`.
        device: "auto", "cpu", "cuda", ...
        precision: "auto", "fp32" or "bf16".
        estimate: Estimate the accuracy on the training images, each predicted by a model that has not seen it. Takes
            up to six times as long for methods that are trained in steps; methods that need no time always do it.
        calibrate: Fit a temperature on these predictions, where there are any, so that probabilities agree with how
            often predictions are right. It changes no prediction.
        **settings: Options of the method; `dca methods show NAME` lists them. `fit` checks all arguments.

    Attributes:
        classes_: After `fit`, the label of each class in the order of the columns of `predict_proba`: labels as they
            were given (numbers stay numbers), or folder names if a folder was given.
        method_: After `fit`, the finished method.
        history_: After `fit`, one row of metrics per epoch.
        estimate_: After `fit`, the estimated accuracy, if it was asked for and classes have two images.
        draw_: After `fit`, class index, name and content hash of each training image, and what a model that has not
            seen it predicts (`held_out`), where that is known.
        results_: Figures of the run that made the model; empty after a plain `fit`.
        lineage_: Changes of its classes and its head since the fit, one row each, and the figures before.

    Example:
        >>> from dca import Classifier
        >>> from dca.data.sources.sample import load_sample
        >>> sample = load_sample(per_class_train=2, per_class_test=1)
        >>> model = Classifier("gda", shots=2, views=0, device="cpu").fit(sample)
        >>> model.predict(sample.test[0].image) in list(model.classes_)
        True
    """

    def __init__(
        self,
        method: str = DEFAULT_METHOD,
        *,
        shots: int | None = None,
        seed: int = 1,
        backbone: str | Path | CLIP = "mini",
        device: str = "auto",
        precision: str = "auto",
        estimate: bool = False,
        calibrate: bool = True,
        **settings: Any,
    ) -> None:
        self.method = method
        self.shots = shots
        self.seed = seed
        self.backbone = backbone
        self.device = device
        self.precision = precision
        self.estimate = estimate
        self.calibrate = calibrate
        self.settings = settings

    def fit(
        self,
        X: Labelled,
        y: Iterable[Any] | None = None,
        *,
        progress: Progress | None = None,
        folder: str | Path | None = None,
        session: Session | None = None,
    ) -> Self:
        """Learn from labelled images.

        Args:
            X: A folder, an image list, a dataset, images as for `predict_proba`, or a data frame (path, label).
            y: Label of each image, if X is a list of images; of a data frame also the name of a column.
            progress: Receives the progress of the fit; None shows it on a terminal, in a notebook and in logs.
            folder: An existing folder where the state of training is kept, so that an interrupted fit continues.
            session: Backbones and images shared with other fits; its device is used instead of `device`.

        Returns:
            The classifier itself.

        Raises:
            UserError: If settings or data cannot be used.
        """
        kind, seed = get_method(self.method), whole_number("seed", self.seed, 0)
        shots = None if self.shots is None else whole_number("shots", self.shots, 1)
        dataset = as_dataset(X, y)
        require_learnable(dataset)
        require_shots(dataset, shots)
        uses = kind.validation_for(kind.choose(self.settings))
        source, _ = training_part(dataset, shots, seed, selection="strict", validation=uses)
        with shown(progress) as receiver:
            session = (session or Session(device=self.device)).with_progress(receiver)
            return self.learn(source, session, folder=None if folder is None else Path(folder))

    def learn(
        self,
        source: Dataset,
        session: Session,
        *,
        selection: Selection = "strict",
        folder: Path | None = None,
        follow: Follow | None = None,
    ) -> Self:
        """Learn from all training images of a drawn dataset; `fit` and `run` call it.

        Args:
            source: Training and validation images; test images are ignored.
            session: Loads backbones, images and features.
            selection: "paper" allows values that the authors of a method chose per dataset, "strict" does not.
            folder: Folder that keeps the state of training.
            follow: Receives the row of metrics of each epoch.

        Returns:
            The classifier itself.

        Raises:
            UserError: If settings or data cannot be used.
        """
        require_learnable(source)
        kind = get_method(self.method)
        chosen = kind.choose(self.settings)
        own, session = session, session.reading(source.public, selection)
        clip = session.backbone(self.backbone, self.precision)
        session.require_readable(clip, [item.image for item in (*source.train, *source.val)])
        shared: dict[str, Any] = {"seed": int(self.seed), "selection": selection, "folder": folder}
        estimate = bool(self.estimate)
        fits = fits_in_all(kind, source, estimate=estimate)
        nested = NestedFits(source, session, clip, **shared)
        method, self.history_ = fit(
            kind, chosen, source, session, clip, fits=fits, nested=nested, follow=follow, **shared
        )
        found = assess(
            method, chosen, source, session, clip, estimate=estimate, calibrate=bool(self.calibrate), **shared
        )
        method.temperature = found.temperature
        self._adopt(method, own, source.labels)
        self.estimate_, self.results_, self.lineage_ = found.estimate, {}, []
        self.gallery_, self._training = None, source.train
        drawn = zip(checkpoint.draw_record(source.train, session), found.rows, strict=True)
        self.draw_ = [{**row, **known} for row, known in drawn]
        return self

    def predict_proba(self, X: Images, *, progress: Progress | None = None) -> NDArray[np.float64]:
        """Probabilities of images.

        Args:
            X: n images: a path, PIL image, array (H, W, 3) of uint8 or of floats in [0, 1], tensor (3, H, W), bytes
                or open file; a list or an array (n, H, W, 3) of these; a data frame with the column path; a folder.
            progress: Receives the progress; None shows it where there are many images.

        Returns:
            Probabilities (n, C), columns in the order of `classes_`; every row sums to one.

        Raises:
            UserError: If the classifier is not fitted, or an image cannot be read.
        """
        method = self._require_fitted()
        return self._probabilities(method, as_images(X), progress, stored=False)

    def predict(self, X: Images, *, reject: float | None = None) -> Any:
        """The label of the most probable class.

        Args:
            X: As for `predict_proba`.
            reject: Answer "none of these" for images whose p-value is below this; see `p_values`.

        Returns:
            One label for one image, an array (n,) for several.

        Raises:
            UserError: As for `predict_proba`, and for `p_values` if `reject` is given.
        """
        if reject is None:
            best = self.predict_proba(X).argmax(axis=1)
            found = self.classes_[best]
        else:
            features, probs = self._seen(X, None)
            found = self.classes_[probs.argmax(axis=1)].astype(object)
            found[self._p_values(features, probs) < reject] = NONE
        return found.tolist()[0] if is_single_image(X) else found

    def evaluate(
        self,
        X: Labelled,
        y: Iterable[Any] | None = None,
        *,
        among: Among | None = None,
        progress: Progress | None = None,
    ) -> Evaluation:
        """Measure the model on labelled images.

        Args:
            X: A folder, an image list or a dataset (its test part, or else its validation part, is used), or images.
            y: Label of each image, if X is a list of images.
            among: Classes that compete: "all" of the model, or those of the "target", the images' own. None is "all",
                but "target" for shifted versions of the dataset that the model was fitted on, known by WordNet id
                (ImageNet-A, ImageNet-R), as in the domain-shift protocol.
            progress: As for `predict_proba`.

        Returns:
            Accuracy, accuracy per class and calibration.

        Raises:
            UserError: If a class is not one of the model's, or an image cannot be read.
        """
        method = self._require_fitted()
        dataset = as_dataset(X, y, measuring=True)
        labels = self.classes_.tolist()
        matched = match_classes(dataset, labels, method.problem.names, method.problem.dataset)
        images, truth = [item.image for item in matched.items], [item.label for item in matched.items]
        classes = competing(matched, dataset, method, among)
        if classes is None:
            probs = self._probabilities(method, images, progress, stored=True, public=dataset.public)
        else:
            small = narrowed(method, classes, dataset)
            probs = self._probabilities(small or method, images, progress, stored=True, public=dataset.public)
            probs = probs if small else columns(probs, classes)
            truth, labels = [classes.index(y) for y in truth], [labels[c] for c in classes]
        report = evaluation(probs, np.array(truth), labels)
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
        return ZeroShot.of(method.clip, method.problem)

    def record(self) -> checkpoint.Record:
        """Everything that is saved beside the tensors; the classifier must be fitted."""
        method = self._require_fitted()
        module = type(method).__module__.partition(".")[0]
        given = {
            "shots": self.shots if self.shots is None else int(self.shots),
            "options": _plain(self.settings),
            "estimate": bool(self.estimate),
            "calibrate": bool(self.calibrate),
        }
        return checkpoint.Record(
            method=method.name,
            options=dataclasses.asdict(method.options),
            problem=method.problem,
            labels=[checkpoint.stored_label(label) for label in self.classes_.tolist()],
            backbone=checkpoint.backbone_record(method.clip),
            given=given,
            draw=self.draw_,
            results=self.results_,
            lineage=self.lineage_,
            package="" if module == "dca" else module,
            temperature=method.temperature,
            estimate=self.estimate_.to_dict() if self.estimate_ else {},
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
            UserError: If the classifier is not fitted, the folder cannot be written, or the hub does not take it.
        """
        method, folder = self._require_fitted(), Path(save_directory)
        checkpoint.save_model(folder, method, self.record(), self.gallery() if gallery else None)
        return self.push_to_hub(repo_id or folder.name, **push_to_hub_kwargs) if push_to_hub else None

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        backbone: str | Path | CLIP | None = None,
        device: str = "auto",
        precision: str = "auto",
        session: Session | None = None,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
        force_download: bool = False,
    ) -> Self:
        """Read a model that `save_pretrained` or an experiment wrote, or one from the Hugging Face hub.

        Args:
            pretrained_model_name_or_path: The model folder, or a hub repository, "user/name".
            backbone: Backbone of the model; by default found by its recorded name and hash.
            device: "auto", "cpu", "cuda", ...
            precision: "auto", "fp32" or "bf16".
            session: Backbones shared with other models; its device is used instead of `device`.
            revision: Branch, tag or commit of the hub repository.
            token, cache_dir, local_files_only, force_download: As in `huggingface_hub.snapshot_download`.

        Returns:
            A fitted classifier with the settings of the original one: `fit` uses them again.

        Raises:
            UserError: If the folder holds no complete model, or the backbone cannot be loaded or is a different one.
        """
        require_usable(device, precision)
        hub = HubOptions(revision, token, cache_dir, local_files_only, force_download)
        path = model_folder(pretrained_model_name_or_path, hub)
        record = checkpoint.read_record(path)
        session = session or Session(device=device)
        source, clip = backbone_of(path, record, backbone, session, precision)
        given = {name: value for name, value in record.given.items() if name != "options"}
        own = {"seed": record.problem.seed, "backbone": source, "device": device, "precision": precision, **given}
        model = cls(record.method, **own, **record.given["options"])
        model._adopt(checkpoint.load_model(path, record, clip), session, record.labels)
        model.draw_, model.results_, model.history_ = record.draw, record.results, []
        model.estimate_ = Estimate.from_dict(record.estimate) if record.estimate else None
        model.lineage_, model.gallery_ = record.lineage, Gallery.load(path)
        return model


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings for JSON: NumPy numbers become Python numbers."""
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in settings.items()}
