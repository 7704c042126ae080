"""Classifier: from a folder of photos to predictions, in the manner of scikit-learn."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from dca import checkpoint, options
from dca.clip import CLIP
from dca.data import load_dataset
from dca.data.content import sha256_of
from dca.data.dataset import Dataset, Item
from dca.data.images import ImageStore
from dca.data.opening import Picture
from dca.data.splits import few_shot, short_classes
from dca.device import compute_dtype, resolve_device
from dca.errors import UserError
from dca.evaluate import Evaluation, evaluation, probabilities
from dca.methods.base import Method, Task, get_method
from dca.methods.zero_shot import ZeroShot
from dca.progress import Progress, of_stage, silent
from dca.support import TrainingImages
from dca.train import Row, Tick, Trainer

if TYPE_CHECKING:
    from PIL import Image

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".heic"}


class Classifier:
    """A few-shot image classifier.

    >>> model = Classifier("dca", shots=16, seed=1)             # doctest: +SKIP
    >>> model.fit("photos/")                                    # doctest: +SKIP
    >>> model.predict("new.jpg")                                # doctest: +SKIP
    'dog'

    shots: images a class to draw for training; None takes all. Further keywords are options of
    the method, as `dca methods show NAME` lists them.
    """

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
        self.results_: dict[str, Any] = {}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """What the constructor was given."""
        names = ("method", "shots", "seed", "backbone", "device", "precision")
        return {**{name: getattr(self, name) for name in names}, **self.settings}

    def __repr__(self) -> str:
        given = [f"{k}={v!r}" for k, v in self.get_params().items() if k not in ("method", "backbone")]
        return f"Classifier({self.method!r}, {', '.join(given)})"

    def fit(
        self,
        X: str | Path | Dataset | Sequence[str | Path | Image.Image],
        y: Sequence[Any] | None = None,
        *,
        progress: Progress = silent,
        folder: Path | None = None,
    ) -> Self:
        """Learn from a folder, an image list or a dataset, or from pictures X and labels y.

        folder: where the state of training is kept, so that an interrupted fit continues.
        """
        kind = get_method(self.method)
        chosen = options.from_dict(kind.Options, self.settings)
        dataset = self.draw(X, y)
        clip = self._clip()
        self.dataset_ = dataset
        task = task_of(dataset, self.seed)
        method = kind.build(clip, task, chosen)
        store = ImageStore(
            [i.picture for i in dataset.train], clip.preprocess.size, progress=of_stage(progress, "reading")
        )
        images = TrainingImages(store, torch.tensor([i.label for i in dataset.train]), clip, self.seed)
        self.history_ = self._train(method, images, progress, folder)
        method.finish(images)
        self._adopt(method)
        self.draw_ = [
            {"label": i.label, "name": _name(i.picture), "sha256": sha256_of(i.picture)} for i in dataset.train
        ]
        return self

    def draw(
        self, X: str | Path | Dataset | Sequence[str | Path | Image.Image], y: Sequence[Any] | None = None
    ) -> Dataset:
        """The dataset that `fit` would learn from: the shots of this seed, and the test images."""
        dataset = as_dataset(X, y)
        if self.shots is not None and (short := short_classes(dataset, self.shots)):
            least = min(n for _, n in short)
            raise UserError(
                f"{len(short)} of {len(dataset.classes)} classes have fewer than {self.shots} training images",
                details=[f"{name}: {n}" for name, n in short],
                hint=f"add images, or use --shots {least}" if least else "add images to the empty classes",
            )
        return few_shot(dataset, self.shots, self.seed)

    def _train(self, method: Method, images: TrainingImages, progress: Progress, folder: Path | None) -> list[Row]:
        if method.trains_on == "nothing":
            method.prepare(images)
            return []
        trainer = Trainer(method, images, method.options, self.seed)
        method.options = dataclasses.replace(method.options, learning_rate=trainer.rate)

        def show(tick: Tick) -> None:
            note = f"epoch {tick.epoch}/{tick.epochs}  loss {tick.loss:.3f}  accuracy {100 * tick.accuracy:.0f} %"
            progress("training", tick.done, tick.total, note)

        return trainer.run(folder, show)

    def _clip(self) -> CLIP:
        """The backbone on its device, in its precision."""
        clip = self.backbone if isinstance(self.backbone, CLIP) else CLIP.from_pretrained(self.backbone)
        device = resolve_device(self.device)
        clip.to(device)
        clip.compute_dtype = compute_dtype(device, self.precision)
        return clip

    def _adopt(self, method: Method) -> None:
        self.method_ = method
        self.classes_ = np.array(method.task.classes)

    def _fitted(self) -> Method:
        if not hasattr(self, "method_"):
            raise UserError(
                "this classifier is not fitted yet", hint="call fit(...) or Classifier.from_pretrained(...)"
            )
        return self.method_

    def predict_proba(
        self, X: str | Path | Image.Image | Sequence[str | Path | Image.Image], *, progress: Progress = silent
    ) -> NDArray[np.float64]:
        """Probabilities (n, C), columns in the order of `classes_`."""
        return probabilities([self._fitted()], as_pictures(X), progress=progress)[0]

    def predict(self, X: str | Path | Image.Image | Sequence[str | Path | Image.Image]) -> Any:
        """The likeliest class: a name for one picture, an array of names for several."""
        names = self.classes_[self.predict_proba(X).argmax(axis=1)] if self._fitted() else np.array([])
        return str(names[0]) if _is_one(X) else names

    def evaluate(
        self, X: str | Path | Dataset | Sequence[Any], y: Sequence[Any] | None = None, *, progress: Progress = silent
    ) -> Evaluation:
        """Accuracy, accuracy of each class and calibration on labelled pictures."""
        method = self._fitted()
        items = match_classes(as_dataset(X, y), method.task.classes)
        probs = probabilities([method], [i.picture for i in items], progress=progress)[0]
        return evaluation(probs, np.array([i.label for i in items]), method.task.classes)

    def score(self, X: str | Path | Dataset | Sequence[Any], y: Sequence[Any] | None = None) -> float:
        """Accuracy on labelled pictures, a fraction."""
        return self.evaluate(X, y).accuracy

    def zero_shot(self) -> ZeroShot:
        """Zero-shot CLIP for the same classes on the same backbone, to compare with."""
        method = self._fitted()
        plain = ZeroShot.build(method.clip, method.task, ZeroShot.Options())
        plain.finish()
        return plain

    def record(self, results: dict[str, Any] | None = None) -> checkpoint.Record:
        """What is saved beside the tensors."""
        method = self._fitted()
        return checkpoint.Record(
            method=method.name,
            options=dataclasses.asdict(method.options),
            task=method.task,
            backbone=checkpoint.backbone_record(method.clip),
            draw=getattr(self, "draw_", []),
            results=self.results_ if results is None else results,
        )

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the model: prompts, head, class names, options; never backbone weights."""
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
        record = checkpoint.read_record(path)
        model = cls(
            record.method,
            shots=record.task.shots,
            seed=record.task.seed,
            backbone=backbone or record.backbone["source"],
            device=device,
            precision=precision,
            **record.options,
        )
        model._adopt(checkpoint.load_model(path, record, model._clip()))
        model.draw_, model.results_ = record.draw, record.results
        return model


def task_of(dataset: Dataset, seed: int) -> Task:
    """The problem a drawn dataset poses; its shots are the images a class has on average."""
    shots = max(len(dataset.train) // len(dataset.classes), 1)
    return Task(classes=dataset.classes, shots=shots, seed=seed, dataset=dataset.name, template=dataset.template)


def as_dataset(X: str | Path | Dataset | Sequence[Any], y: Sequence[Any] | None) -> Dataset:
    """Labelled pictures from any of the forms a user may hold them in."""
    if isinstance(X, Dataset):
        return X
    if y is None:
        if not isinstance(X, str | Path):
            raise UserError(
                "pictures without labels", hint="fit(pictures, labels), or a folder with one sub-folder a class"
            )
        return load_dataset(X)
    if isinstance(X, str | Path):
        raise UserError("labels given beside a folder, whose sub-folders are the labels already", hint="fit(folder)")
    if len(X) != len(y):
        raise UserError(f"{len(X)} pictures but {len(y)} labels")
    classes = tuple(sorted({str(label) for label in y}))
    if len(classes) < 2:
        raise UserError(f"found {len(classes)} class; at least 2 are needed")
    place = {name: i for i, name in enumerate(classes)}
    items = tuple(Item(as_picture(x), place[str(label)]) for x, label in zip(X, y, strict=True))
    return Dataset(name="images", classes=classes, train=items)


def as_picture(x: str | Path | Image.Image) -> Picture:
    """A path or an image."""
    return Path(x) if isinstance(x, str | Path) else x


def as_pictures(X: str | Path | Image.Image | Sequence[str | Path | Image.Image]) -> list[Picture]:
    """Pictures to predict: one, several, or all images of a folder."""
    if isinstance(X, str | Path):
        path = Path(X)
        if path.is_dir():
            found = sorted(p for p in path.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file())
            if not found:
                raise UserError(f"{path} holds no images", hint="give image files or a folder of them")
            return list(found)
        if not path.exists():
            raise UserError(f"{path}: no such file or folder")
        return [path]
    if _is_one(X):
        return [X]  # type: ignore[list-item]
    several = [as_picture(x) for x in X]  # type: ignore[union-attr]
    if missing := [str(p) for p in several if isinstance(p, Path) and not p.exists()]:
        raise UserError("no such files", details=missing)
    return several


def _is_one(X: Any) -> bool:
    return not isinstance(X, list | tuple | np.ndarray) and not (isinstance(X, str | Path) and Path(X).is_dir())


def match_classes(dataset: Dataset, classes: Sequence[str]) -> list[Item]:
    """The dataset's test images (all, if it has no test part), labelled by the model's classes."""
    place = {name: i for i, name in enumerate(classes)}
    items = dataset.test or dataset.train
    used = Counter(dataset.classes[i.label] for i in items)
    if unknown := [f"{name}: {n} images" for name, n in used.items() if name not in place]:
        raise UserError(
            "classes that the model does not know",
            details=unknown,
            hint=f"the model knows: {', '.join(list(classes)[:20])}",
        )
    return [Item(i.picture, place[dataset.classes[i.label]]) for i in items]


def _name(picture: Picture) -> str:
    return "/".join(picture.parts[-2:]) if isinstance(picture, Path) else "in memory"
