"""Classifier: from a folder of photos to predictions, in the manner of scikit-learn."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from dca.clip import CLIP
from dca.core.device import compute_dtype, require_usable, resolve_device
from dca.core.errors import UserError, counted
from dca.core.progress import Progress, of_stage, shown, silent
from dca.data.dataset import Dataset, Item
from dca.data.decode import Picture
from dca.data.feature_store import FeatureCache
from dca.data.hashing import sha256_of
from dca.data.image_store import ImageStore
from dca.data.protocols import Mode, training_part
from dca.data.splits import short_classes
from dca.engine.evaluate import Evaluation, evaluation, probabilities
from dca.engine.loop import Row, Tick, Trainer
from dca.engine.training_images import TrainingImages
from dca.methods.interface import Method, Problem
from dca.methods.registry import get_method
from dca.methods.zero_shot import ZeroShot
from dca.model import checkpoint
from dca.model.inputs import as_dataset, as_pictures, is_one, match_classes, require_learnable

Pictures = str | Path | Image.Image | Iterable[str | Path | Image.Image]
Labelled = str | Path | Dataset | Iterable[str | Path | Image.Image]
# Parameters of every classifier; the others belong to its method.
OWN = ("method", "shots", "seed", "backbone", "device", "precision")


class Classifier:
    """A few-shot image classifier.

    >>> model = Classifier("dca", shots=16, seed=1)             # doctest: +SKIP
    >>> model.fit("photos/")                                    # doctest: +SKIP
    >>> model.predict("new.jpg")                                # doctest: +SKIP
    'dog'

    shots: images a class to draw for training; None takes all. Further keywords are options of
    the method, as `dca methods show NAME` lists them. All of them are checked by `fit`.

    After `fit`, `classes_` holds the classes in the order of the columns of `predict_proba`: labels
    as they were given (numbers stay numbers), or names where a folder or dataset was given.
    """

    _estimator_type = "classifier"  # what scikit-learn before 1.6 asks for

    def __init__(
        self,
        method: str = "dca",
        *,
        shots: int | None = None,
        seed: int = 1,
        backbone: str | Path | CLIP = "mini",
        device: str = "auto",
        precision: str = "auto",
        **settings: Any,
    ) -> None:
        self.method = method
        self.shots = shots
        self.seed = seed
        self.backbone = backbone
        self.device = device
        self.precision = precision
        self.settings = settings

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """What the constructor was given."""
        return {**{name: getattr(self, name) for name in OWN}, **self.settings}

    def set_params(self, **params: Any) -> Self:
        """Change what the constructor was given; takes effect at the next `fit`."""
        for name, value in params.items():
            if name in OWN:
                setattr(self, name, value)
            else:
                self.settings[name] = value
        return self

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn wants to know, for `cross_val_score`, `GridSearchCV` and the like; only it asks."""
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=False),
            classifier_tags=ClassifierTags(),
            input_tags=InputTags(one_d_array=True, two_d_array=False, string=True),
            no_validation=True,
        )

    def __repr__(self) -> str:
        given = [f"{k}={v!r}" for k, v in self.get_params().items() if k not in ("method", "backbone")]
        return f"Classifier({self.method!r}, {', '.join(given)})"

    def fit(
        self,
        X: Labelled,
        y: Iterable[Any] | None = None,
        *,
        progress: Progress | None = None,
        folder: Path | None = None,
    ) -> Self:
        """Learn from a folder, an image list or a dataset, or from pictures X and labels y.

        progress: told how far it has come; None draws bars where stderr is a terminal.
        folder: where the state of training is kept, so that an interrupted fit continues.
        """
        return self.fit_drawn(self.draw(X, y), progress=progress, folder=folder)

    def fit_drawn(
        self,
        dataset: Dataset,
        *,
        mode: Mode = "strict",
        progress: Progress | None = None,
        folder: Path | None = None,
    ) -> Self:
        """Learn from all training images of `dataset`, in their order: what `draw` gave in this mode."""
        require_learnable(dataset)
        kind = get_method(self.method)
        chosen = kind.choose(self.settings)
        method = kind.build(self._clip(), problem_of(dataset, _whole("seed", self.seed, 0), mode), chosen)
        with shown(progress) as told:
            images = self._read(dataset, method.clip, told)
            history = self._train(method, images, told, folder)
            method.finish(images)
        self._adopt(method)
        self.classes_ = _array(dataset.labels or dataset.classes)
        self.dataset_, self.history_ = dataset, history
        self.results_: dict[str, Any] = {}
        self.draw_ = [
            {"label": i.label, "name": _name(i.picture), "sha256": sha256_of(i.picture)} for i in dataset.train
        ]
        return self

    def draw(self, X: Labelled, y: Iterable[Any] | None = None, *, mode: Mode = "strict") -> Dataset:
        """The dataset that `fit` would learn from: the shots of this seed, and the test images.

        mode: on which validation images the method may select, as `data/protocols.py` has them;
        `selection_` then says in words which they are.
        """
        habit, seed = get_method(self.method).habit, _whole("seed", self.seed, 0)
        shots = None if self.shots is None else _whole("shots", self.shots, 1)
        dataset = as_dataset(X, y)
        require_learnable(dataset)
        if shots is not None and (short := short_classes(dataset, shots)):
            least = min(n for _, n in short)
            raise UserError(
                f"{counted(len(short), 'class', 'have', of=len(dataset.classes))} fewer than {shots} training images",
                details=[f"{name}: {n}" for name, n in short],
                hint=f"add images, or use --shots {least}" if least else "add images to the empty classes",
            )
        source, self.selection_ = training_part(dataset, shots, seed, mode=mode, habit=habit)
        return dataclasses.replace(source, test=dataset.test)

    def _read(self, dataset: Dataset, clip: CLIP, progress: Progress) -> TrainingImages:
        validation = self._images(dataset.val, clip, progress) if dataset.val else None
        return self._images(dataset.train, clip, progress, validation)

    def _images(
        self, items: Sequence[Item], clip: CLIP, progress: Progress, validation: TrainingImages | None = None
    ) -> TrainingImages:
        pictures = [item.picture for item in items]
        store = ImageStore(pictures, clip.preprocess.size, progress=of_stage(progress, "reading"))
        labels = torch.tensor([item.label for item in items])
        return TrainingImages(store, labels, clip, int(self.seed), validation, cache=FeatureCache(), progress=progress)

    def _train(self, method: Method, images: TrainingImages, progress: Progress, folder: Path | None) -> list[Row]:
        if method.trains_on == "nothing":
            method.prepare(images)
            return []
        trainer = Trainer(method, images, method.options, int(self.seed))

        def show(tick: Tick) -> None:
            note = f"epoch {tick.epoch}/{tick.epochs}  loss {tick.loss:.3f}  accuracy {100 * tick.accuracy:.0f} %"
            progress("training", tick.done, tick.total, note)

        rows = trainer.run(folder, show)
        method.options = dataclasses.replace(method.options, learning_rate=trainer.rate)
        return rows

    def _clip(self) -> CLIP:
        """The backbone on its device, in its precision."""
        clip = self.backbone if isinstance(self.backbone, CLIP) else CLIP.from_pretrained(self.backbone)
        device = resolve_device(self.device)
        clip.to(device)
        clip.compute_dtype = compute_dtype(device, self.precision)
        return clip

    def _adopt(self, method: Method) -> None:
        self.method_ = method
        self.classes_ = np.array(method.problem.names)

    def _fitted(self) -> Method:
        if not hasattr(self, "method_"):
            raise UserError(
                "this classifier is not fitted yet", hint="call fit(...) or Classifier.from_pretrained(...)"
            )
        return self.method_

    def predict_proba(self, X: Pictures, *, progress: Progress = silent) -> NDArray[np.float64]:
        """Probabilities (n, C), columns in the order of `classes_`."""
        return probabilities([self._fitted()], as_pictures(X), progress=progress)[0]

    def predict(self, X: Pictures) -> Any:
        """The likeliest class as `classes_` has it: one label for one picture, an array for several."""
        best = self.predict_proba(X).argmax(axis=1)
        found = self.classes_[best]
        return found.tolist()[0] if is_one(X) else found

    def evaluate(self, X: Labelled, y: Iterable[Any] | None = None, *, progress: Progress = silent) -> Evaluation:
        """Accuracy, accuracy of each class and calibration on labelled pictures."""
        method = self._fitted()
        items = match_classes(as_dataset(X, y, measuring=True), method.problem.names)
        pictures = [item.picture for item in items]
        probs = probabilities([method], pictures, progress=progress, cache=FeatureCache())[0]
        report = evaluation(probs, np.array([item.label for item in items]), method.problem.names)
        return dataclasses.replace(report, trained_on=self._trained_on(pictures))

    def _trained_on(self, pictures: Sequence[Picture]) -> int:
        """How many of the pictures are among those of the fit, by their content."""
        known = {row["sha256"] for row in getattr(self, "draw_", [])}
        return sum(sha256_of(picture) in known for picture in pictures) if known else 0

    def score(self, X: Labelled, y: Iterable[Any] | None = None) -> float:
        """Accuracy on labelled pictures, a fraction."""
        return self.evaluate(X, y).accuracy

    def zero_shot(self) -> ZeroShot:
        """Zero-shot CLIP for the same classes on the same backbone, to compare with."""
        method = self._fitted()
        plain = ZeroShot.build(method.clip, method.problem, ZeroShot.Options())
        plain.finish()
        return plain

    def record(self) -> checkpoint.Record:
        """What is saved beside the tensors."""
        method = self._fitted()
        module = type(method).__module__.partition(".")[0]
        return checkpoint.Record(
            method=method.name,
            options=dataclasses.asdict(method.options),
            problem=method.problem,
            backbone=checkpoint.backbone_record(method.clip),
            draw=getattr(self, "draw_", []),
            results=getattr(self, "results_", {}),
            package="" if module == "dca" else module,
        )

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the model: prompts, head, class names, options; never backbone weights.

        Class names are text there: a model of the labels 0 and 1 says '0' and '1' when it is read again.
        """
        checkpoint.save_model(Path(folder), self._fitted(), self.record())

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        *,
        backbone: str | Path | CLIP | None = None,
        device: str = "auto",
        precision: str = "auto",
    ) -> Self:
        """Read a model; its backbone is found by its recorded source unless another place is given."""
        path = Path(folder)
        require_usable(device, precision)
        record = checkpoint.read_record(path)
        model = cls(
            record.method,
            shots=record.problem.shots,
            seed=record.problem.seed,
            backbone=record.backbone["source"] if backbone is None else backbone,
            device=device,
            precision=precision,
            **record.options,
        )
        try:
            clip = model._clip()
        except UserError as error:
            if backbone is not None:
                raise
            raise UserError(
                f"the backbone of {path} cannot be loaded: {error.problem}",
                details=error.details,
                hint="say where it lies now: --backbone PLACE, in Python from_pretrained(..., backbone=PLACE)",
            ) from None
        model._adopt(checkpoint.load_model(path, record, clip))
        model.draw_, model.results_ = record.draw, record.results
        return model


def problem_of(dataset: Dataset, seed: int, mode: Mode = "strict") -> Problem:
    """The problem a drawn dataset poses; its shots are the images a class has on average."""
    return Problem(
        names=dataset.classes,
        shots=max(len(dataset.train) // len(dataset.classes), 1),
        seed=seed,
        dataset=dataset.name,
        template=dataset.template,
        protocol=mode,
    )


def backbones() -> dict[str, str | None]:
    """Short names of backbones, each with where it lies now; None for one yet to be fetched."""
    from huggingface_hub import try_to_load_from_cache

    from dca.clip.weights import HUB_IDS, MINI, mini_folder

    places: dict[str, str | None] = {MINI: str(mini_folder()) if mini_folder().is_dir() else None}
    for name, repo in HUB_IDS.items():
        found = try_to_load_from_cache(repo, "config.json")
        places[name] = str(Path(found).parent) if isinstance(found, str) else None
    return places


def _whole(name: str, value: Any, low: int) -> int:
    """A whole number, numpy's too; anything else is the user's to change."""
    hint = "shots=16, say, or shots=None for all images" if name == "shots" else f"{name}=1, say"
    try:
        number = operator.index(value)
    except TypeError:
        raise UserError(f"{name}={value!r}: a whole number expected", hint=hint) from None
    if isinstance(value, bool) or number < low:
        raise UserError(f"{name}={value!r}: a whole number of at least {low} expected", hint=hint)
    return number


def _array(labels: Sequence[Any]) -> NDArray[Any]:
    """Labels as an array of their own type; of objects, where they have several or numpy would change them."""
    array = np.array(labels)
    if array.tolist() != list(labels):
        array = np.empty(len(labels), dtype=object)
        array[:] = labels
    return array


def _name(picture: Picture) -> str:
    return "/".join(picture.parts[-2:]) if isinstance(picture, Path) else "in memory"
