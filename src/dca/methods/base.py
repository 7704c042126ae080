"""The interface of a method: the problem it is built for, its options, its training images, and the life of a method.

    build -> [prepare, steps of the training loop] -> finish -> seal -> encode and classify

`finish` computes what is stored beside the parameters (`results`); `seal` makes the finished head of both. Reading a
saved model (`restore`) and moving it to other classes (`retarget`, `with_class`, ...) end with `seal`, too.
"""

from __future__ import annotations

import copy
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from dca.backbones.clip import CLIP
from dca.core import options, seeds
from dca.core.choices import ProtocolName, Rules, ValidationUse
from dca.core.errors import UserError
from dca.core.hints import change_label_only, set_option, show_method, then
from dca.core.options import opt
from dca.stats.calibration import apply_temperature

OptimizerName = Literal["sgd", "adam", "adamw"]
ScheduleUnit = Literal["epoch", "step"]
LastBatch = Literal["drop", "keep"]
# Smallest share of an image that a random crop covers, unless an option says otherwise.
CROP_LOW = 0.08
# The same for augmented views of methods over frozen features, as in the code of Tip-Adapter and ProLIP.
VIEW_CROP_LOW = 0.5


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """The training recipe: options that all methods share. Options of a method are a dataclass derived from it.

    Args:
        epochs: Passes over the training images; None if the method decides.
        batch_size: Images per step; None if the method decides.
        learning_rate: Learning rate after warm-up; None takes it from the gradient.
        optimizer: "sgd", "adam" or "adamw".
        momentum: Momentum of SGD.
        adam_eps: ε of Adam and AdamW.
        weight_decay: Weight decay of every trained tensor.
        warmup_epochs: Epochs of warm-up.
        warmup_rate: Constant learning rate of the warm-up.
        schedule: Whether the cosine schedule advances per "epoch" or per "step".
        final_rate: Learning rate at the end of the cosine schedule.
        augment: Train on random resized crops and flips.
        crop_low: Smallest share of the image in a random crop, in training and in augmented views.
        last_batch: Whether an epoch ends with the images that are too few for a batch ("keep") or leaves them
            out ("drop"), unless they are all there are.

    Raises:
        UserError: If a value is outside its limits; one error lists all of them.

    Example:
        >>> from dca import TrainingOptions
        >>> TrainingOptions(epochs=10).settled(epochs=50, batch_size=32)  # doctest: +ELLIPSIS
        TrainingOptions(epochs=10, batch_size=32, learning_rate=None, ...)
    """

    epochs: int | None = opt(None, "passes over the training images", low=0)
    batch_size: int | None = opt(None, "images per step", low=1)
    learning_rate: float | None = opt(None, "learning rate after warm-up", low=0)
    optimizer: OptimizerName = opt("sgd", "optimiser", source="CoOp")
    momentum: float = opt(0.9, "momentum of SGD", low=0, high=1, source="CoOp")
    adam_eps: float = opt(1e-8, "ε of Adam and AdamW", low=0, source="torch")
    weight_decay: float = opt(5e-4, "weight decay of every trained tensor", low=0, source="CoOp")
    warmup_epochs: int = opt(1, "epochs of warm-up", low=0, source="CoOp")
    warmup_rate: float = opt(1e-5, "constant learning rate of the warm-up", low=0, source="CoOp")
    schedule: ScheduleUnit = opt("epoch", "whether the cosine schedule advances per epoch or per step", source="CoOp")
    final_rate: float = opt(0.0, "learning rate at the end of the cosine schedule", low=0, source="CoOp")
    augment: bool = opt(True, "random resized crops and flips", source="CoOp")
    crop_low: float = opt(
        CROP_LOW, "smallest share of the image in a random crop; the largest is 1", low=0.001, high=1, source="CoOp"
    )
    last_batch: LastBatch = opt(
        "drop", "a short last batch of an epoch; drop: unless it is the only one", source="CoOp"
    )

    def __post_init__(self) -> None:
        options.check(self)

    def settled(self, **auto: Any) -> Self:
        """The same options with values in place of None.

        Args:
            **auto: Values by name, for options that are None.

        Returns:
            The new options; values that were given are kept.
        """
        return dataclasses.replace(self, **{name: v for name, v in auto.items() if getattr(self, name) is None})


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The classification problem that a method is built for.

    Args:
        names: Words that CLIP reads for each class.
        shots: Training images per class, on average.
        seed: Seed of all random numbers of the method.
        dataset: Name of a public dataset, or "".
        template: Zero-shot sentence with `{}` for the class name.
        rules: "paper" allows values that authors chose per dataset, "strict" does not.
    """

    names: tuple[str, ...]
    shots: int
    seed: int = 0
    dataset: str = ""
    template: str = "a photo of a {}."
    rules: Rules = "strict"


@dataclass(frozen=True)
class Batch:
    """The images of one training step: pixels (B, 3, S, S) or frozen features (B, D), and labels (B,)."""

    inputs: Tensor
    labels: Tensor
    generator: torch.Generator

    @cached_property
    def noise(self) -> torch.Generator:
        """A generator on the device of the inputs, seeded by one draw of `generator`."""
        return seeds.branch(self.generator, self.inputs.device)

    @property
    def noisy(self) -> bool:
        """Whether `noise` has been used."""
        return "noise" in vars(self)


@dataclass(frozen=True)
class Step:
    """Result of a training step: weighted loss terms by name, whose sum is minimised, and (B, C) probabilities."""

    terms: dict[str, Tensor]
    probabilities: Tensor


@dataclass(frozen=True)
class HeldOutPredictions:
    """Predictions for training images by models that have not seen them.

    Args:
        probabilities: (N, C) float64; rows of NaN where an image cannot be left out (the only one of its class).
        how: "leave-one-out", "approximate leave-one-out" or "5-fold cross-validation", as shown to people.
    """

    probabilities: NDArray[np.float64]
    how: str

    @property
    def known(self) -> NDArray[np.bool_]:
        """(N,) whether an image has a prediction."""
        return np.asarray(np.isfinite(self.probabilities).all(axis=1))


class Steps(Protocol):
    """Several steps whose batches are known before the first, with gradients that need no backpropagation."""

    def gradients(self, number: int) -> Sequence[Tensor]:
        """Gradients of the sum of the terms of one step, from 0 on, at the present values of the parameters.

        They are asked for once, in order, and given in the order of the parameters.
        """

    def outcome(self) -> tuple[dict[str, Tensor], Tensor]:
        """Loss terms by name, (S,) each, and the number of correct images, (S,), of all S steps."""


class Nested(Protocol):
    """Fits other methods on the same training images, for methods that are made of others."""

    def fit(self, kind: type[Method], chosen: Any) -> Method:
        """The finished method `kind`, fitted with the options `chosen`."""

    def held_out(self, kind: type[Method], chosen: Any, folds: int) -> HeldOutPredictions:
        """Predictions for the training images by fits that have not seen them; at most so many folds."""


class Support(Protocol):
    """The training images, as a method may use them outside the steps."""

    @property
    def labels(self) -> Tensor:
        """Class index of each image, (N,)."""

    @property
    def groups(self) -> Tensor:
        """Group of each image, (N,): near-copies share a number; they are left out together."""

    @property
    def validation(self) -> Support | None:
        """Validation images, if the method may select on any."""

    @property
    def nested(self) -> Nested | None:
        """Fits other methods on these images; None where nothing is being fitted."""

    def map(self, encode: Callable[[Tensor], Tensor], *, views: int = 0, crop_low: float = CROP_LOW) -> Tensor:
        """`encode` of the pixels of every image, without gradients: (N, ...).

        views = 0 is the evaluation view; otherwise that many augmented views of each image,
        view after view: (views · N, ...). crop_low: smallest share of the image in such a view.
        """

    def frozen_features(self, *, views: int = 0, mirrored: bool = False, crop_low: float = CROP_LOW) -> Tensor:
        """Features of the frozen backbone: (N, D) or (views · N, D), not normalised; stored between runs.

        mirrored: of the pixels flipped left to right. crop_low: smallest share of the image in an augmented view.
        """


def describe_terms(**own: str) -> Mapping[str, str]:
    """Descriptions of loss terms by name: those that many methods have, and a method's own."""
    return MappingProxyType({"cls": "classification", "in": "within classes", "ts": "between texts", **own})


@dataclass(frozen=True)
class ProtocolOptions:
    """The settings that the authors of a method use in one protocol.

    Args:
        options: Values of options that differ from the defaults, by name.
        source: Where they are published.

    Example:
        >>> ProtocolOptions({"depth": 3, "epochs": 2}, "a file of the authors").text()
        'depth=3 epochs=2 (a file of the authors)'
    """

    options: Mapping[str, Any]
    source: str

    def text(self) -> str:
        """Options and source in one line."""
        return f"{' '.join(f'{name}={value}' for name, value in self.options.items())} ({self.source})"


@dataclass(frozen=True)
class CurvePoint:
    """Accuracy with a number of training images.

    shots: images per class. accuracy: a fraction. expected: whether it is extrapolated rather than measured.
    """

    shots: float
    accuracy: float
    expected: bool = False


def check_state(
    parameters: Mapping[str, Tensor], results: Mapping[str, torch.dtype], state: Mapping[str, Tensor]
) -> list[str]:
    """Errors in the names, shapes, types and values of the saved tensors `state`, one line each.

    parameters: expected tensors by name, float32. results: types of further tensors, of any shape.
    """
    expected = {**parameters, **dict.fromkeys(results)}
    problems = [f"missing {n}" for n in expected if n not in state]
    problems += [f"unexpected {n}" for n in state if n not in expected]
    for name, tensor in state.items():
        want = expected.get(name)
        dtype = results.get(name, torch.float32)
        if want is not None and want.shape != tensor.shape:
            problems.append(f"{name}: shape {tuple(tensor.shape)}, expected {tuple(want.shape)}")
        if tensor.dtype != dtype:
            problems.append(f"{name}: type {tensor.dtype}, expected {dtype}")
        elif not torch.isfinite(tensor).all():
            problems.append(f"{name}: holds NaN or infinite values")
    return problems


def copy_parameters(source: nn.Module, target: nn.Module, of_classes: Collection[str], rows: Sequence[int]) -> str:
    """Copy parameters into a method for other classes; returns the name of the first whose shape differs, or "".

    of_classes: parameters whose first axis is the classes; of these only `rows` are taken.
    """
    mine = dict(source.named_parameters())
    for name, parameter in target.named_parameters():
        value: Tensor = mine[name]
        if name in of_classes:
            value = value[list(rows)]
        if value.shape != parameter.shape:
            return name
        with torch.no_grad():
            parameter.copy_(value)
    return ""


__all__ = [
    "Batch",
    "HeldOutPredictions",
    "Method",
    "Problem",
    "Rules",
    "Step",
    "Steps",
    "Support",
    "TrainedMethod",
    "TrainsOn",
    "ValidationUse",
    "describe_terms",
]

TrainsOn = Literal["images", "features", "nothing"]


# Most images per call, and most numbers in an intermediate result: they bound memory, not results.
IMAGES_PER_CALL, NUMBERS_PER_CALL = 128, 2**24


class Head(ABC):
    """The end of a finished model; subclasses are frozen dataclasses of tensors."""

    @abstractmethod
    def __call__(self, f: Tensor) -> Tensor:
        """Image features f (B, D) -> probabilities (B, C)."""

    @property
    def images_at_once(self) -> int:
        """Most images that a call should be given."""
        return max(min(IMAGES_PER_CALL, NUMBERS_PER_CALL // self.numbers_per_image), 1)

    @property
    def numbers_per_image(self) -> int:
        """Size of the largest intermediate result, per image."""
        return 1


class Method(nn.Module, ABC):
    """Base class of all methods: owns its parameters and turns image features into probabilities.

    A method opens no file, prints nothing, chooses no device and runs no epochs. The backbone is
    frozen and shared: it is neither among the parameters nor in the state.

    Args:
        clip: The frozen backbone.
        problem: Classes, shots and seed.
        chosen: Options with all values filled in; `build` does that.

    Attributes:
        name: Name of the method.
        paper: Authors, title and venue.
        trains_on: What the training loop feeds to steps: "images", "features", or "nothing".
        Options: Dataclass of the options.
        validation: Validation images that the authors select on.
        results: Tensors made after training, whose shapes depend on the data, and their types.
        term_words: Loss terms in a few words, for the titles of training curves.
        fits_others: Whether a fit of this method fits others, too.
        estimates_itself: Whether `held_out` takes no time: then every fit estimates its accuracy.
        calibrated: Whether probabilities are calibrated without a temperature.
        head_options: Options that only the head reads, so that a finished model can change them.
        decides: Option -> the options whose values it decides where they are not given.
        temperature: `classify` returns softmax(log p / temperature) of the head's p.
        head: The finished head, after `seal`.

    Example:
        >>> from dca import CLIP, list_methods
        >>> from dca.methods.base import Problem
        >>> kind = list_methods()["coop"]
        >>> problem = Problem(names=("cat", "dog"), shots=1)
        >>> method = kind.build(CLIP.from_pretrained("mini"), problem, kind.choose({"n_tokens": 4}))
        >>> method.context.shape == (4, method.clip.config.text.width)
        True
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    trains_on: ClassVar[TrainsOn] = "nothing"
    Options: ClassVar[type[TrainingOptions]]
    validation: ClassVar[ValidationUse] = "none"
    results: ClassVar[Mapping[str, torch.dtype]] = {}
    fits_others: ClassVar[bool] = False
    head_options: ClassVar[tuple[str, ...]] = ()
    decides: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType({})
    term_words: ClassVar[Mapping[str, str]] = describe_terms()
    estimates_itself: ClassVar[bool] = False
    calibrated: ClassVar[bool] = False
    protocol_recipes: ClassVar[Mapping[ProtocolName, ProtocolOptions]] = MappingProxyType({})
    not_taken: ClassVar[Mapping[str, str]] = MappingProxyType({})
    temperature: float = 1.0
    head: Head

    def __init__(self, clip: CLIP, problem: Problem, chosen: Any) -> None:
        super().__init__()
        self._backbone = (clip,)  # a tuple, so that nn.Module does not register it
        self.problem = problem
        self.options = chosen
        for name in self.results:
            self.register_buffer(name, None)

    @classmethod
    def choose(cls, given: Mapping[str, Any] | Iterable[str]) -> Any:
        """The options of this method.

        Args:
            given: Values by name, or `key=value` texts.

        Returns:
            The options, checked.

        Raises:
            UserError: If a name is unknown, a value is not allowed, or an option would have no effect.
        """
        hint = show_method(cls.name)
        read = options.from_dict if isinstance(given, Mapping) else options.parse
        chosen: TrainingOptions = read(cls.Options, given, hint=hint)  # type: ignore[arg-type]
        default = cls.Options()
        idle = [name for name in cls.unused_options() if getattr(chosen, name) != getattr(default, name)]
        if idle:
            raise UserError(
                f"{cls.name} is not trained in steps: these options would have no effect",
                details=[f"{name}={getattr(chosen, name)}" for name in idle],
                hint=["leave them out", hint],
            )
        return chosen

    @classmethod
    def unused_options(cls) -> list[str]:
        """Options of the recipe without an effect: all that a method without steps does not redefine."""
        if cls.trains_on != "nothing":
            return []
        recipe = dataclasses.fields(TrainingOptions)
        return [field.name for field in dataclasses.fields(cls.Options) if any(field is one for one in recipe)]

    @classmethod
    def build(cls, clip: CLIP, problem: Problem, chosen: Any) -> Self:
        """A method for a problem, not trained yet.

        Args:
            clip: The frozen backbone.
            problem: Classes, shots and seed.
            chosen: Options of `choose`; values that are left open are filled in.

        Returns:
            The method.
        """
        return cls(clip, problem, cls.resolve(chosen, problem))

    @classmethod
    def resolve(cls, chosen: Any, problem: Problem) -> Any:
        """Fill in the values that depend on the problem.

        Args:
            chosen: Options of `choose`.
            problem: Classes, shots and dataset.

        Returns:
            The options to train with.
        """
        return chosen

    @classmethod
    def recipe_for(cls, protocol: ProtocolName, rules: Rules) -> dict[str, Any]:
        """Values that take the place of the defaults in an experiment; options that are given win over them.

        Args:
            protocol: The protocol of the experiment.
            rules: "strict" has one recipe for all protocols; "paper" takes that of the authors.

        Returns:
            Values by name; none where the defaults are used.
        """
        own = cls.protocol_recipes.get(protocol)
        return dict(own.options) if own and rules == "paper" else {}

    @classmethod
    def validation_for(cls, chosen: Any) -> ValidationUse:
        """The validation images that are drawn for a fit with these options.

        Args:
            chosen: Options of `choose`.

        Returns:
            `validation`, unless the options decide.
        """
        return cls.validation

    @property
    def clip(self) -> CLIP:
        """The frozen backbone."""
        return self._backbone[0]

    def generator(self, stream: str) -> torch.Generator:
        """A random stream of this method's own, e.g. for initial values.

        Args:
            stream: Name of the stream.

        Returns:
            A CPU generator at the start of the stream.
        """
        return seeds.generator(self.problem.seed, self.name, stream)

    def count_trained(self) -> int:
        """Number of trained values."""
        return sum(p.numel() for p in self.parameters())

    def prepare(self, support: Support) -> None:
        """Compute the constants of training; called once before it.

        Args:
            support: The training images.
        """

    def finish(self, support: Support) -> None:
        """Compute `results`; called once after training.

        Args:
            support: The training images.
        """

    @abstractmethod
    def make_head(self) -> Head:
        """The finished head, from parameters and `results` alone."""

    @torch.no_grad()
    def seal(self) -> Self:
        """Make `head`, whose constants are computed once; returns self."""
        self.head = self.make_head()
        return self

    @property
    def changeable_options(self) -> tuple[str, ...]:
        """The `head_options` that have an effect on this model's head."""
        return self.head_options

    def classify(self, features: Tensor) -> Tensor:
        """Probabilities of images; the method must be sealed.

        Args:
            features: Image features (B, D) of `encode`.

        Returns:
            Probabilities (B, C).
        """
        found = self.head(features)
        return found if self.temperature == 1.0 else apply_temperature(found, self.temperature)

    @property
    def images_at_once(self) -> int:
        """Most images that `classify` should be given at once, which bounds memory."""
        return self.head.images_at_once

    def encode(self, pixels: Tensor) -> Tensor:
        """Image features; overridden by methods that change the image tower.

        Args:
            pixels: Normalised pixels (B, 3, S, S).

        Returns:
            Unit features (B, D).
        """
        return self.from_frozen(self.clip.encode_image(pixels))

    def from_frozen(self, features: Tensor) -> Tensor:
        """The features that `encode` returns, from those of the frozen backbone.

        Args:
            features: Features (B, D) of the frozen backbone, not normalised.

        Returns:
            Features (B, D).
        """
        return F.normalize(features, dim=-1)

    def encode_all(self, support: Support, *, views: int = 0) -> Tensor:
        """`encode` of all images, from stored features if the image tower is unchanged.

        Args:
            support: The N images.
            views: 0 for the evaluation view; otherwise that many augmented views of each image.

        Returns:
            Features (N, D), or (views · N, D) view after view.
        """
        if self.frozen_images:
            return self.from_frozen(support.frozen_features(views=views, crop_low=self.options.crop_low))
        return support.map(self.encode, views=views, crop_low=self.options.crop_low)

    @property
    def frozen_images(self) -> bool:
        """Whether the image tower is unchanged, so that image features can be stored and reused."""
        return type(self).encode is Method.encode

    # What a finished method knows about its own errors; every function is optional.

    def held_out(self, support: Support) -> HeldOutPredictions | None:
        """Predictions for the training images by models that have not seen them; called after `finish`.

        Args:
            support: The training images of `finish`.

        Returns:
            The predictions, without the temperature; None if the engine should cross-validate.
        """
        return None

    def settled(self, chosen: Any) -> Any:
        """Options for cross-validation: what was searched on validation images keeps the value that was found.

        A search in every fold would find other values, and probabilities on other scales.

        Args:
            chosen: The options of the fit.

        Returns:
            The options of the folds.
        """
        return chosen

    def p_values(self, features: Tensor) -> Tensor | None:
        """How usual images are among the training images; small for images of none of the classes.

        Args:
            features: Image features (B, D) of `encode`.

        Returns:
            p-values (B,), or None if the method has none of its own.
        """
        return None

    def prediction_sets(self, features: Tensor, coverage: float) -> Tensor | None:
        """Sets of classes that contain the right one with a stated probability.

        Args:
            features: Image features (B, D) of `encode`.
            coverage: 1 - α.

        Returns:
            Whether a class is in the set of an image, (B, C), or None if the method has none of its own.
        """
        return None

    def expected_gain(self) -> tuple[int, float] | None:
        """What more training images would bring.

        Returns:
            Images per class, and the expected change of the accuracy with so many; None if the method cannot tell.
        """
        return None

    def learning_curve(self) -> list[CurvePoint]:
        """Accuracy by number of training images, on images that were left out.

        Returns:
            Points in the order of their number of images; empty if the method cannot tell.
        """
        return []

    def notes(self) -> list[str]:
        """What the user should know about this fit, in full sentences.

        Returns:
            One text per note; usually none.
        """
        return []

    # Other classes: nothing is trained again. One class is added, removed or renamed through `retarget` by default.

    def class_parameters(self) -> set[str]:
        """Names of parameters whose first axis is the classes."""
        return set()

    def retarget(self, problem: Problem, sources: Sequence[int | None]) -> Self:
        """The finished model for the classes of another problem; nothing is fitted again.

        Args:
            problem: The other problem.
            sources: For each of its classes the index of the same trained class, or None. Prompts are
                attached to the new names; values of a class (such as its covariance) follow its source.

        Returns:
            Another method, sealed.

        Raises:
            UserError: If the method cannot be used for other classes.
        """
        raise UserError(
            f"a {self.name} model knows only the classes it was trained on",
            hint="methods that learn prompts can be used for other classes: dca, coop, vpt, maple, ...",
        )

    def with_class(self, name: str, images: Support) -> Self:
        """The finished model with one more class, the last.

        Args:
            name: Words that CLIP reads for the class.
            images: Images of the class, with its index C as their label. There may be none of them for methods
                that learn prompts.

        Returns:
            Another method, sealed.

        Raises:
            UserError: If the method has to be fitted again, or needs images of the class.
        """
        if not self._takes_other_classes or self.class_parameters():
            raise UserError(
                f"this {self.name} model cannot take a new class: what it learned belongs to the classes it has",
                hint="fit again with the images of all classes",
            )
        names = self.problem.names
        return self._moved_to((*names, name), [*range(len(names)), None])

    def without_class(self, index: int) -> Self:
        """The finished model without one of its classes.

        Args:
            index: The class.

        Returns:
            Another method, sealed.

        Raises:
            UserError: If the method has to be fitted again.
        """
        if not self._takes_other_classes:
            hint = "fit again with the images of the other classes"
            raise UserError(f"no class can be removed from a {self.name} model", hint=hint)
        kept = self.other_classes(index)
        return self._moved_to([self.problem.names[c] for c in kept], kept)

    def with_name(self, index: int, name: str) -> Self:
        """The finished model with another name for one of its classes; learned values of the class are kept.

        Args:
            index: The class.
            name: Words that CLIP reads for it from now on.

        Returns:
            Another method, sealed.

        Raises:
            UserError: If the method has to be fitted again.
        """
        if not self._takes_other_classes:
            raise self.learned_name_error()
        names = [name if c == index else old for c, old in enumerate(self.problem.names)]
        return self._moved_to(names, range(len(names)))

    def other_classes(self, index: int) -> list[int]:
        """All classes but one.

        Args:
            index: The class to leave out.

        Returns:
            Indices of the others, in order.
        """
        return [c for c in range(len(self.problem.names)) if c != index]

    def learned_name_error(self) -> UserError:
        """The error for another name that the finished model has no way to read."""
        return UserError(
            f"a {self.name} model cannot read another name of a class: what it learned belongs to the old one",
            hint=[change_label_only(), "fit again with the new name"],
        )

    def copy_for(self, problem: Problem, sources: Sequence[int | None]) -> Self:
        """A copy with these parameters for another problem, without `results`; `retarget` begins with it.

        Args:
            problem: The other problem.
            sources: As for `retarget`.

        Returns:
            The copy, not sealed.

        Raises:
            UserError: If a parameter belongs to classes that the other problem does not have.
        """
        other = type(self)(self.clip, problem, self.options)
        rows = [s for s in sources if s is not None]
        if wrong := copy_parameters(self, other, self.class_parameters(), rows):
            raise UserError(
                f"{wrong} of this {self.name} model belongs to the classes it was trained on",
                hint=then("fit a model whose prompts all classes share", set_option("contexts", "unified")),
            )
        other.temperature = self.temperature
        return other

    @property
    def _takes_other_classes(self) -> bool:
        return type(self).retarget is not Method.retarget

    def _moved_to(self, names: Sequence[str], sources: Sequence[int | None]) -> Self:
        return self.retarget(dataclasses.replace(self.problem, names=tuple(names)), sources)

    # What can be looked at; every function is optional.

    def text_contexts(self) -> Sequence[Tensor]:
        """Learned vectors that enter the text tower in the place of words.

        Returns:
            One tensor per prompt, (L, W), or (C, L, W) if every class has its own; empty if no prompt is learned.
        """
        return ()

    def prompt_features(self) -> Tensor | None:
        """The texts that images are compared with.

        Returns:
            Unit text features (M, C, D) of the M prompts, or None if the method has none of its own.
        """
        return None

    def kept_features(self) -> tuple[Tensor, Tensor] | None:
        """Training images as the image tower of this method sees them.

        Returns:
            Features (N, D) and classes (N,), or None if the method stores none.
        """
        return None

    # Saved state, and what authors published beyond the defaults.

    @classmethod
    def explanations(cls) -> dict[str, list[str]]:
        """What `dca methods show` prints below the options.

        Returns:
            Lines by heading.
        """
        found = {
            "settings of its authors in other protocols, taken with --rules paper": [
                f"{protocol}: {own.text()}" for protocol, own in cls.protocol_recipes.items()
            ],
            "defaults that are not those chosen on validation images": [
                f"{option}: {why}" for option, why in cls.not_taken.items()
            ],
        }
        return {heading: lines for heading, lines in found.items() if lines}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Load a saved `state_dict` and seal the method.

        Args:
            state: Tensors by name.

        Raises:
            UserError: If a name, shape, type or value is wrong; it lists all of them.
        """
        if problems := check_state(dict(self.named_parameters()), self.results, state) or self.check_results(state):
            raise UserError(f"the saved tensors are not those of a '{self.name}' model", details=problems)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.copy_(state[name])
        for name in self.results:
            setattr(self, name, state[name].to(self.clip.device))
        self.seal()

    def check_results(self, state: Mapping[str, Tensor]) -> list[str]:
        """Check the shapes of saved `results`.

        Args:
            state: Tensors by name; none is missing.

        Returns:
            One line for each error.
        """
        return []


class TrainedMethod(Method):
    """A method that the training loop trains: it turns a batch into loss terms.

    Args:
        clip, problem, chosen: As for `Method`.

    Attributes:
        recordable: Whether a GPU may record a step once and replay it. False for a step that reads values
            back from the device or does something else the second time. Steps that draw from
            `Batch.generator` are never recorded.

    Example:
        >>> from dca import TrainedMethod, list_methods
        >>> [name for name, kind in list_methods().items() if not issubclass(kind, TrainedMethod)]
        ['blend', 'closed_form', 'gda', 'linear_probe', 'sim', 'tip_adapter', 'zero_shot']
    """

    trains_on: ClassVar[TrainsOn] = "images"
    recordable: ClassVar[bool] = True

    @abstractmethod
    def step(self, batch: Batch) -> Step:
        """Loss terms of one batch.

        Args:
            batch: Pixels (B, 3, S, S) or frozen features, and labels (B,).

        Returns:
            Loss terms and probabilities (B, C).
        """

    @property
    def analytic_steps(self) -> Callable[[Batch], Steps] | None:
        """For small steps on features: what replaces `step`, from batches (S, B, D) and labels (S, B) of S steps."""
        return None

    def training_rows(self, support: Support) -> tuple[Tensor, Tensor]:
        """What steps train on if `trains_on` is "features".

        Args:
            support: The training images.

        Returns:
            Frozen features (R, D) and labels (R,).
        """
        return support.frozen_features(), support.labels

    def epoch_done(self, epoch: int, epochs: int) -> None:
        """Called after every epoch, for methods that average over epochs or train in stages.

        Args:
            epoch: The epoch that has ended, from 1 on.
            epochs: Number of epochs.
        """

    def stages(self, epochs: int) -> tuple[int, ...]:
        """Epochs of each stage, for methods that train other values in later epochs.

        The learning rate goes through its whole schedule in every stage.

        Args:
            epochs: Number of epochs.

        Returns:
            Numbers that sum to `epochs`; 0 for a stage that is left out.
        """
        return (epochs,)

    def begin_stage(self, stage: int) -> None:
        """Choose the values that a stage trains (`requires_grad_`) and its step; it changes no value.

        Called before the first epoch of a stage, and where an interrupted run continues. Initial values of a stage
        are set by `epoch_done` of the epoch before, so that they are saved with it.

        Args:
            stage: Number of the stage, from 0 on.
        """

    def steps_per_epoch(self, images: int, batch_size: int) -> int | None:
        """Most steps of an epoch.

        Args:
            images: Number of training images, which may be fewer than the rows of `training_rows`.
            batch_size: Rows per step.

        Returns:
            The number, or None for as many as it takes to see every row.
        """
        return None

    @classmethod
    def candidates(cls, chosen: Any, problem: Problem) -> list[Any]:
        """The settings that a fit tries, each by a whole training, if there are validation images.

        Args:
            chosen: Options of `choose`.
            problem: Classes, shots and dataset.

        Returns:
            Options, of which the first with the highest `validation_accuracy` is kept.
        """
        return [chosen]

    @property
    def validation_accuracy(self) -> float:
        """Accuracy of the finished model on the validation images; needed where there are several candidates."""
        raise NotImplementedError


M = TypeVar("M", bound=Method)


def with_options(method: M, given: Mapping[str, Any] | Iterable[str]) -> M:
    """The finished method with other options of its head; parameters and stored tensors are shared.

    The head is that of a fit whose options had these values, at the same parameters. A temperature belongs to
    the head that it was fitted for: the new one has none. An option that decides others, such as DCA's `gammas`,
    decides them again, unless they are given, too.

    Args:
        method: A finished method.
        given: Values by name, or `key=value` texts; only `Method.head_options` can be changed.

    Returns:
        Another method, sealed; the method itself if no value is different.

    Raises:
        UserError: If an option is unknown, has a wrong value, or is not one of the head.
    """
    given = given if isinstance(given, Mapping) else list(given)
    read = method.choose(given)
    names = list(given) if isinstance(given, Mapping) else [text.partition("=")[0].strip() for text in given]
    if fixed := [name for name in names if name not in method.changeable_options]:
        raise _fixed_error(method, fixed)
    open_again = {other: None for name in names for other in method.decides.get(name, ())}
    values = open_again | {name: getattr(read, name) for name in names}
    chosen = method.resolve(dataclasses.replace(method.options, **values), method.problem)
    if chosen == method.options:
        return method
    other = copy.copy(method)
    other._buffers = dict(method._buffers)  # tensors are shared, but setting one here must not set it there
    other.options, other.temperature = chosen, 1.0
    return other.seal()


def _fixed_error(method: Method, names: list[str]) -> UserError:
    can = ", ".join(method.changeable_options)
    return UserError(
        f"{' and '.join(names)} of this finished {method.name} model cannot be changed",
        details=[f"its head reads, and can be made again with: {can}" if can else "its head has no option to change"],
        hint=["fit again with the new values", show_method(method.name)],
    )
