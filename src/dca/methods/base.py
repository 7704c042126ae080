"""The interface of a method: the problem it solves, its options, its training images, its head, and its life.

    parse_options -> build -> [prepare, steps of the training loop] -> finish -> build_head -> encode and classify

`finish` computes the tensors that are stored beside the parameters (`results`). `build_head` turns both into the
finished head. Loading a saved model (`restore`) and moving a model to other classes (`retarget`, `with_class`, ...)
end with `build_head`, too.

A method without training derives from `Method` and implements `finish` and `make_head`; one that is trained in steps
derives from `TrainedMethod` and adds `step`. All else has a default. docs/add-a-method.md walks through an example.
"""

from __future__ import annotations

import copy
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from dca.backbones.encoder import Ability, Encoder
from dca.core import options as core_options
from dca.core import seeds
from dca.core.choices import ProtocolName, Rules, ValidationUse
from dca.core.errors import UserError
from dca.core.hints import change_label_only, combine, set_option, show_method
from dca.core.options import option
from dca.stats.calibration import apply_temperature
from dca.stats.conformal import ClassRanks

if TYPE_CHECKING:
    from dca.backbones.dual_encoder import DualEncoder

__all__ = [
    "AnalyticSteps",
    "Batch",
    "CurvePoint",
    "Fitter",
    "Head",
    "HeldOutPredictions",
    "Method",
    "Problem",
    "ProtocolOptions",
    "Rules",
    "Step",
    "Support",
    "TrainedMethod",
    "TrainingOptions",
    "TrainsOn",
    "ValidationUse",
    "describe_terms",
]

OptimizerName = Literal["sgd", "adam", "adamw"]
ScheduleUnit = Literal["epoch", "step"]
LastBatch = Literal["drop", "keep"]
TrainsOn = Literal["images", "features", "nothing"]
# Smallest share of an image that a random crop covers, unless an option says otherwise.
CROP_LOW = 0.08
# The same for augmented views of methods over frozen features, as in the code of Tip-Adapter and ProLIP.
VIEW_CROP_LOW = 0.5
# Most images per call of a head, and most values in an intermediate result: they bound memory, not results.
MAX_BATCH_SIZE, MAX_VALUES_PER_CALL = 128, 2**24


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The classification problem that a method is built for.

    Args:
        names: The text of each class that CLIP reads.
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


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Training options, which all methods share. The options of a method are a dataclass derived from it.

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
        >>> TrainingOptions(epochs=10).fill_unset(epochs=50, batch_size=32)  # doctest: +ELLIPSIS
        TrainingOptions(epochs=10, batch_size=32, learning_rate=None, ...)
    """

    epochs: int | None = option(None, "passes over the training images", low=0)
    batch_size: int | None = option(None, "images per step", low=1)
    learning_rate: float | None = option(None, "learning rate after warm-up", low=0)
    optimizer: OptimizerName = option("sgd", "optimiser", source="CoOp")
    momentum: float = option(0.9, "momentum of SGD", low=0, high=1, source="CoOp")
    adam_eps: float = option(1e-8, "ε of Adam and AdamW", low=0, source="torch")
    weight_decay: float = option(5e-4, "weight decay of every trained tensor", low=0, source="CoOp")
    warmup_epochs: int = option(1, "epochs of warm-up", low=0, source="CoOp")
    warmup_rate: float = option(1e-5, "constant learning rate of the warm-up", low=0, source="CoOp")
    schedule: ScheduleUnit = option(
        "epoch", "whether the cosine schedule advances per epoch or per step", source="CoOp"
    )
    final_rate: float = option(0.0, "learning rate at the end of the cosine schedule", low=0, source="CoOp")
    augment: bool = option(True, "random resized crops and flips", source="CoOp")
    crop_low: float = option(
        CROP_LOW, "smallest share of the image in a random crop; the largest is 1", low=0.001, high=1, source="CoOp"
    )
    last_batch: LastBatch = option(
        "drop", "whether an epoch ends with a short batch; drop: only if it is the only one", source="CoOp"
    )

    def __post_init__(self) -> None:
        core_options.check_limits(self)

    def fill_unset(self, **values: Any) -> Self:
        """Replace options that are None by values of the method's own, which are not validated.

        Args:
            **values: Values by name; those of options that are set are ignored.

        Returns:
            The new options.
        """
        unset = {name: value for name, value in values.items() if getattr(self, name) is None}
        return core_options.replace_options(self, **unset)


@dataclass(frozen=True)
class ProtocolOptions:
    """The options that the authors of a method use in one protocol.

    Args:
        options: Values that differ from the defaults, by name.
        source: Where they are published.

    Example:
        >>> ProtocolOptions({"depth": 3, "epochs": 2}, "a file of the authors").describe()
        'depth=3 epochs=2 (a file of the authors)'
    """

    options: Mapping[str, Any]
    source: str

    def describe(self) -> str:
        """Return options and source in one line."""
        return f"{' '.join(f'{name}={value}' for name, value in self.options.items())} ({self.source})"


@dataclass(frozen=True)
class Batch:
    """The images of one training step.

    Args:
        inputs: Pixels (B, 3, S, S), or frozen features (B, D), as `Method.trains_on` says.
        labels: Class of each image, (B,).
        generator: Random numbers of this step, on the CPU.
    """

    inputs: Tensor
    labels: Tensor
    generator: torch.Generator

    @cached_property
    def noise(self) -> torch.Generator:
        """A generator on the device of the inputs, seeded by one draw of `generator`."""
        return seeds.spawn_generator(self.generator, self.inputs.device)

    @property
    def noise_used(self) -> bool:
        """Whether the step has drawn from `noise`."""
        return "noise" in vars(self)


@dataclass(frozen=True)
class Step:
    """Result of a training step.

    Args:
        terms: Weighted loss terms by name; their sum is minimised.
        probabilities: Of the images of the batch, (B, C), for the training accuracy.
    """

    terms: dict[str, Tensor]
    probabilities: Tensor


class AnalyticSteps(Protocol):
    """S steps whose batches are known before the first, with gradients that need no backpropagation."""

    def gradients(self, number: int) -> Sequence[Tensor]:
        """Gradients of step `number` (from 0 on) at the present parameters, in the order of the parameters.

        Called once per step, in order.
        """

    def summarize(self) -> tuple[dict[str, Tensor], Tensor]:
        """Loss terms by name, (S,) each, and the number of correct images of each step, (S,)."""


def describe_terms(**own: str) -> Mapping[str, str]:
    """Titles of loss terms by name: those that many methods have, and a method's own."""
    return MappingProxyType({"cls": "classification", "in": "within classes", "ts": "between texts", **own})


class Support(Protocol):
    """The training images as a method sees them outside the steps."""

    @property
    def labels(self) -> Tensor:
        """Class index of each image, (N,)."""

    @property
    def groups(self) -> Tensor:
        """Group of each image, (N,): near-copies share a number, so that they are left out together."""

    @property
    def validation(self) -> Support | None:
        """Validation images, if the method may select on any."""

    @property
    def fitter(self) -> Fitter | None:
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


class Fitter(Protocol):
    """Fits other methods on the same training images, for a method that combines several."""

    def fit(self, kind: type[Method], options: Any) -> Method:
        """Fit the method `kind` with these options."""

    def predict_held_out(self, kind: type[Method], options: Any, folds: int) -> HeldOutPredictions:
        """Predict every training image by a fit of `kind` that has not seen it, in at most `folds` folds."""


@dataclass(frozen=True)
class HeldOutPredictions:
    """Predictions for training images by models that have not seen them.

    Args:
        probabilities: (N, C) float64; NaN in the rows of images that cannot be left out (the only one of a class).
        how: "leave-one-out", "approximate leave-one-out" or "5-fold cross-validation", as shown to people.
        shortage: (N,) 1/n' - 1/n, where an image is predicted by models of n' of the n images of its class
            (`stats.folds.fold_shortage`); None for leave-one-out, whose scores are those of a model of all images.
        occasions: (N,) a number that images share which were left out together and count as one, copies among them;
            None where only copies were.
    """

    probabilities: NDArray[np.float64]
    how: str
    shortage: NDArray[np.float64] | None = None
    occasions: NDArray[np.int64] | None = None

    @property
    def known(self) -> NDArray[np.bool_]:
        """(N,) whether an image has a prediction."""
        return np.asarray(np.isfinite(self.probabilities).all(axis=1))


@dataclass(frozen=True)
class CurvePoint:
    """Accuracy with a number of training images.

    Args:
        shots: Images per class.
        accuracy: A fraction.
        expected: Whether the accuracy is extrapolated rather than measured.
        low, high: The 95 % interval of what is expected; None if it was measured.
    """

    shots: float
    accuracy: float
    expected: bool = False
    low: float | None = None
    high: float | None = None


class Head(ABC):
    """The finished classifier over image features; subclasses are frozen dataclasses of tensors."""

    @abstractmethod
    def __call__(self, f: Tensor) -> Tensor:
        """Image features f (B, D) -> probabilities (B, C)."""

    @property
    def max_batch_size(self) -> int:
        """Most images per call, which bounds memory."""
        return max(min(MAX_BATCH_SIZE, MAX_VALUES_PER_CALL // self.values_per_image), 1)

    @property
    def values_per_image(self) -> int:
        """Number of values in the largest intermediate result, per image."""
        return 1


class Method(nn.Module, ABC):
    """Base class of all methods: owns its parameters and turns image features into probabilities.

    A method opens no file, prints nothing, chooses no device and runs no epochs. The backbone is
    frozen and shared: it is neither among the parameters nor in the state.

    Args:
        encoder: The frozen backbone.
        problem: Classes, shots and seed.
        options: Options with all values filled in; `build` does that.

    Attributes:
        name: Name of the method.
        paper: Authors, title and venue.
        needs: What its encoder must be able to do, whatever the options. Methods that read texts where there are some
            do not need them.
        trains_on: What the training loop feeds to steps: "images", "features", or "nothing".
        Options: Dataclass of the options.
        validation: Validation images that the authors choose options on.
        results: Tensors computed after training, whose shapes depend on the data, and their types.
        fits_others: Whether a fit of this method fits others, too.
        head_options: Options that only the head reads, so that a finished model can change them.
        dependent_options: Option -> the options that take their values from it where they are not set.
        term_titles: Short titles of the loss terms, for training curves.
        has_cheap_held_out: Whether `predict_held_out` takes no time: then every fit estimates its accuracy.
        calibrated: Whether probabilities are calibrated without a temperature.
        learns_other: Whether p-values take images of none of the classes into account (`learn_other`).
        protocol_options: Options that the authors use in a protocol, where these are not the defaults.
        kept_defaults: Option -> why its default is not the value that was chosen on validation images.
        temperature: `classify` returns softmax(log p / temperature) of the head's p.
        head: The finished head, after `build_head`.

    Example:
        >>> from dca import CLIP, list_methods
        >>> from dca.methods.base import Problem
        >>> kind = list_methods()["coop"]
        >>> problem = Problem(names=("cat", "dog"), shots=1)
        >>> method = kind.build(CLIP.from_pretrained("mini"), problem, kind.parse_options({"n_tokens": 4}))
        >>> method.context.shape == (4, method.clip.text.width)
        True
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    needs: ClassVar[frozenset[Ability]] = frozenset({Ability.IMAGE_FEATURES})
    trains_on: ClassVar[TrainsOn] = "nothing"
    Options: ClassVar[type[TrainingOptions]]
    validation: ClassVar[ValidationUse] = "none"
    results: ClassVar[Mapping[str, torch.dtype]] = {}
    fits_others: ClassVar[bool] = False
    head_options: ClassVar[tuple[str, ...]] = ()
    dependent_options: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType({})
    term_titles: ClassVar[Mapping[str, str]] = describe_terms()
    has_cheap_held_out: ClassVar[bool] = False
    calibrated: ClassVar[bool] = False
    learns_other: ClassVar[bool] = False
    protocol_options: ClassVar[Mapping[ProtocolName, ProtocolOptions]] = MappingProxyType({})
    kept_defaults: ClassVar[Mapping[str, str]] = MappingProxyType({})
    temperature: float = 1.0
    head: Head

    # Options, from what the user writes to what a fit uses.

    @classmethod
    def parse_options(
        cls, values: Mapping[str, Any] | Iterable[str], *, defaults: Mapping[str, Any] = MappingProxyType({})
    ) -> Any:
        """Read and check the options of this method.

        Args:
            values: Values by name, or `key=value` texts.
            defaults: Values that replace the defaults of the class; `values` win over them.

        Returns:
            The options.

        Raises:
            UserError: If a name is unknown, a value is not allowed, or an option would have no effect.
        """
        hint = show_method(cls.name)
        options: TrainingOptions
        if isinstance(values, Mapping):
            options = core_options.from_dict(cls.Options, {**defaults, **values}, hint=hint)
        else:
            options = core_options.parse(cls.Options, values, defaults=defaults, hint=hint)
        default = cls.Options()
        unused = [name for name in cls.unused_options() if getattr(options, name) != getattr(default, name)]
        if unused:
            raise UserError(
                f"{cls.name} is not trained in steps: these options would have no effect",
                details=[f"{name}={getattr(options, name)}" for name in unused],
                hint=["leave them out", hint],
            )
        return options

    @classmethod
    def unused_options(cls) -> list[str]:
        """Training options without an effect: all that a method without steps does not define again."""
        if cls.trains_on != "nothing":
            return []
        shared = dataclasses.fields(TrainingOptions)
        return [field.name for field in dataclasses.fields(cls.Options) if any(field is one for one in shared)]

    @classmethod
    def options_for_protocol(cls, protocol: ProtocolName, rules: Rules) -> dict[str, Any]:
        """Values that replace the defaults in an experiment; options that the user sets win over them.

        Args:
            protocol: The protocol of the experiment.
            rules: "strict" has the same options for all protocols; "paper" takes those of the authors.

        Returns:
            Values by name; empty where the defaults are used.
        """
        published = cls.protocol_options.get(protocol)
        return dict(published.options) if published and rules == "paper" else {}

    @classmethod
    def validation_for(cls, options: Any) -> ValidationUse:
        """The validation images that are drawn for a fit with these options.

        Args:
            options: Options of `parse_options`.

        Returns:
            `validation`, unless the options decide.
        """
        return cls.validation

    @classmethod
    def resolve(cls, options: Any, problem: Problem) -> Any:
        """Fill in the values that depend on the problem.

        Args:
            options: Options of `parse_options`.
            problem: Classes, shots and dataset.

        Returns:
            The options to train with.
        """
        return options

    @classmethod
    def explain_options(cls) -> dict[str, list[str]]:
        """What `dca methods show` prints below the options.

        Returns:
            Lines by heading.
        """
        sections = {
            "options of its authors in other protocols, taken with --rules paper": [
                f"{protocol}: {published.describe()}" for protocol, published in cls.protocol_options.items()
            ],
            "defaults that are not those chosen on validation images": [
                f"{option}: {why}" for option, why in cls.kept_defaults.items()
            ],
        }
        return {heading: lines for heading, lines in sections.items() if lines}

    # A fit: build, prepare, train, finish, build the head.

    @classmethod
    def build(cls, encoder: Encoder, problem: Problem, options: Any) -> Self:
        """Create a method for a problem, not trained yet.

        Args:
            encoder: The frozen backbone.
            problem: Classes, shots and seed.
            options: Options of `parse_options`; `resolve` fills in what is not set.

        Returns:
            The method.
        """
        resolved = cls.resolve(options, problem)
        cls._require_abilities(encoder, resolved)
        return cls(encoder, problem, resolved)

    @classmethod
    def needs_with(cls, options: Any) -> frozenset[Ability]:
        """What an encoder must be able to do for these options.

        Args:
            options: Options of `parse_options`.

        Returns:
            `needs`, unless an option asks for more.
        """
        return cls.needs

    @classmethod
    def _require_abilities(cls, encoder: Encoder, options: Any) -> None:
        """Raise if the encoder lacks what these options need; other values of an option that it can do are named."""
        missing = cls.needs_with(options) - encoder.abilities
        if not missing:
            return
        kind: Any = cls.Options
        allowed = core_options.choices(kind)
        others = [
            (field.name, value)
            for field in dataclasses.fields(options)
            for value in allowed[field.name]
            if cls.needs_with(core_options.replace_options(options, **{field.name: value})) <= encoder.abilities
        ]
        raise UserError(
            f"{cls.name} needs {' and '.join(sorted(missing))} for these options, which {encoder.source} does not have",
            hint=[set_option(name, value) for name, value in others],
        )

    def __init__(self, encoder: Encoder, problem: Problem, options: Any) -> None:
        super().__init__()
        self._backbone = (encoder,)  # a tuple, so that nn.Module does not register it
        self.problem = problem
        self.options = options
        for name in self.results:
            self.register_buffer(name, None)

    @property
    def encoder(self) -> Encoder:
        """The frozen backbone."""
        return self._backbone[0]

    @property
    def clip(self) -> DualEncoder:
        """The frozen backbone of methods that need more of it than features."""
        return cast("DualEncoder", self._backbone[0])

    def generator(self, stream: str) -> torch.Generator:
        """Open a random stream of this method's own, e.g. for initial values.

        Args:
            stream: Name of the stream.

        Returns:
            A CPU generator at the start of the stream.
        """
        return seeds.generator(self.problem.seed, self.name, stream)

    def count_parameters(self) -> int:
        """Count the trained values."""
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
        """Compute the finished head from parameters and `results` alone; `build_head` stores it."""

    @torch.no_grad()
    def build_head(self) -> Self:
        """Store the head of `make_head`, whose constants are computed once, in `head`; returns self."""
        self.head = self.make_head()
        return self

    # Prediction, after `build_head`.

    def classify(self, features: Tensor) -> Tensor:
        """Classify images by their features.

        Args:
            features: Image features (B, D) of `encode`.

        Returns:
            Probabilities (B, C).
        """
        probabilities = self.head(features)
        return probabilities if self.temperature == 1.0 else apply_temperature(probabilities, self.temperature)

    @property
    def max_batch_size(self) -> int:
        """Most images per call of `classify`, which bounds memory."""
        return self.head.max_batch_size

    def encode(self, pixels: Tensor) -> Tensor:
        """Encode images; overridden by methods that change the image tower.

        Args:
            pixels: Normalised pixels (B, 3, S, S).

        Returns:
            Unit features (B, D).
        """
        return self.adapt_features(self.encoder.encode_image(pixels))

    def adapt_features(self, features: Tensor) -> Tensor:
        """Turn features of the frozen backbone into those of `encode`.

        Args:
            features: Features (B, D) of the frozen backbone, not normalised.

        Returns:
            Features (B, D).
        """
        return F.normalize(features, dim=-1)

    def encode_all(self, support: Support, *, views: int = 0) -> Tensor:
        """Encode all images of a support, by stored features if the image tower is unchanged.

        Args:
            support: The N images.
            views: 0 for the evaluation view; otherwise that many augmented views of each image.

        Returns:
            Features (N, D), or (views · N, D) view after view.
        """
        if self.has_frozen_image_tower:
            return self.adapt_features(support.frozen_features(views=views, crop_low=self.options.crop_low))
        return support.map(self.encode, views=views, crop_low=self.options.crop_low)

    @property
    def has_frozen_image_tower(self) -> bool:
        """Whether the image tower is unchanged, so that image features can be stored and reused."""
        return type(self).encode is Method.encode

    # What a finished method knows about its own errors; every function is optional.

    def predict_held_out(self, support: Support) -> HeldOutPredictions | None:
        """Predict every training image by a model that has not seen it; called after `finish`.

        Args:
            support: The training images of `finish`.

        Returns:
            The predictions, without the temperature; None if they have to be found by cross-validation.
        """
        return None

    def options_for_folds(self, options: Any) -> Any:
        """Options for cross-validation: what was searched on validation images keeps the value that was found.

        A search in every fold would find other values, and probabilities on other scales.

        Args:
            options: The options of the fit.

        Returns:
            The options of the folds.
        """
        return options

    def p_values(self, features: Tensor) -> Tensor | None:
        """How typical images are of the training images; small for images of none of the classes.

        Args:
            features: Image features (B, D) of `encode`.

        Returns:
            p-values (B,), or None if the method has none of its own.
        """
        return None

    def smallest_p_value(self) -> float | None:
        """The smallest p-value that an image can have.

        Returns:
            1 / (n + 1), where the held-out images are worth n (`stats.conformal`); None if the method has no p-values
            of its own.
        """
        return None

    def learn_other(self, support: Support) -> None:
        """Learn from images of none of the classes; called after `finish` if `learns_other`.

        Args:
            support: The images; their labels mean nothing.
        """
        raise NotImplementedError

    def keep_other(self, kept: Sequence[bool]) -> None:
        """Forget some of the images of `learn_other`.

        Args:
            kept: Whether each of them is kept.
        """
        raise NotImplementedError

    def class_ranks(self, features: Tensor) -> ClassRanks | None:
        """How strange each class would be for images, among held-out training images; for prediction sets.

        Args:
            features: Image features (B, D) of `encode`.

        Returns:
            The ranks (B, C), or None if the method has none of its own.
        """
        return None

    def learning_curve(self, accuracy: float) -> list[CurvePoint]:
        """Accuracy by number of training images: measured with fewer, expected with more.

        Args:
            accuracy: That with all training images, as it is estimated.

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

    # Changes of a finished method; nothing is trained again. By default a class is added, removed or renamed through
    # `retarget`.

    def with_options(self, values: Mapping[str, Any] | Iterable[str]) -> Self:
        """Change options of the head; parameters and stored tensors are shared.

        The head is that of a fit whose options had these values, at the same parameters. A temperature belongs to
        the head that it was fitted for: the new one has none. Options that depend on a changed one (see
        `dependent_options`) are filled in again, unless they are among the values, too.

        Args:
            values: Values by name, or `key=value` texts; only `head_options` can be changed.

        Returns:
            Another method with its head; this method itself if no value is different.

        Raises:
            UserError: If an option is unknown, has a wrong value, or is not one of the head.
        """
        values = values if isinstance(values, Mapping) else list(values)
        parsed = self.parse_options(values)
        names = list(values) if isinstance(values, Mapping) else [text.partition("=")[0].strip() for text in values]
        if fixed := [name for name in names if name not in self.changeable_options]:
            can = ", ".join(self.changeable_options)
            details = f"its head reads, and can be rebuilt with: {can}" if can else "its head has no option to change"
            raise UserError(
                f"{' and '.join(fixed)} of this finished {self.name} model cannot be changed",
                details=[details],
                hint=["fit again with the new values", show_method(self.name)],
            )
        unset = {dependent: None for name in names for dependent in self.dependent_options.get(name, ())}
        changes = unset | {name: getattr(parsed, name) for name in names}
        options = self.resolve(core_options.replace_options(self.options, **changes), self.problem)
        if options == self.options:
            return self
        other = copy.copy(self)
        other._buffers = dict(self._buffers)  # tensors are shared, but setting one here must not set it there
        other.options, other.temperature = options, 1.0
        return other.build_head()

    @property
    def changeable_options(self) -> tuple[str, ...]:
        """The `head_options` that have an effect on this model's head."""
        return self.head_options

    def class_parameters(self) -> set[str]:
        """Names of parameters whose first axis is the classes."""
        return set()

    def retarget(self, problem: Problem, sources: Sequence[int | None]) -> Self:
        """Move the finished model to the classes of another problem.

        Args:
            problem: The other problem.
            sources: For each of its classes the index of the same trained class, or None. Prompts are
                attached to the new names; values of a class (such as its covariance) follow its source.

        Returns:
            Another method with its head.

        Raises:
            UserError: If the method cannot be used for other classes.
        """
        raise UserError(
            f"a {self.name} model knows only the classes it was trained on",
            hint="methods that learn prompts can be used for other classes: dca, coop, vpt, maple, ...",
        )

    def with_class(self, name: str, images: Support) -> Self:
        """Add a class, the last, to the finished model.

        Args:
            name: The text of the class that CLIP reads.
            images: Images of the class, with its index C as their label. There may be none of them for methods
                that learn prompts.

        Returns:
            Another method with its head.

        Raises:
            UserError: If the method has to be fitted again, or needs images of the class.
        """
        if not self._can_retarget or self.class_parameters():
            raise UserError(
                f"this {self.name} model cannot take a new class: what it learned belongs to the classes it has",
                hint="fit again with the images of all classes",
            )
        names = self.problem.names
        return self._retarget_to_names((*names, name), [*range(len(names)), None])

    def without_class(self, index: int) -> Self:
        """Remove a class from the finished model.

        Args:
            index: The class.

        Returns:
            Another method with its head.

        Raises:
            UserError: If the method has to be fitted again.
        """
        if not self._can_retarget:
            hint = "fit again with the images of the other classes"
            raise UserError(f"no class can be removed from a {self.name} model", hint=hint)
        kept = self.other_classes(index)
        return self._retarget_to_names([self.problem.names[c] for c in kept], kept)

    def with_name(self, index: int, name: str) -> Self:
        """Rename a class of the finished model; learned values of the class are kept.

        Args:
            index: The class.
            name: The text of the class that CLIP reads from now on.

        Returns:
            Another method with its head.

        Raises:
            UserError: If the method has to be fitted again.
        """
        if not self._can_retarget:
            raise self.renaming_error()
        return self._retarget_to_names(self.names_with(index, name), range(len(self.problem.names)))

    def names_with(self, index: int, name: str) -> list[str]:
        """List the names of all classes, with another one for one of them.

        Args:
            index: The class.
            name: Its other name.

        Returns:
            The names, in order.
        """
        return [name if c == index else old for c, old in enumerate(self.problem.names)]

    def other_classes(self, index: int) -> list[int]:
        """List all classes but one.

        Args:
            index: The class to leave out.

        Returns:
            Indices of the others, in order.
        """
        return [c for c in range(len(self.problem.names)) if c != index]

    def renaming_error(self) -> UserError:
        """The error for a new name that the finished model has no way to read."""
        return UserError(
            f"a {self.name} model cannot read another name of a class: what it learned belongs to the old one",
            hint=[change_label_only(), "fit again with the new name"],
        )

    def copy_for(self, problem: Problem, sources: Sequence[int | None]) -> Self:
        """Copy the parameters to a method for another problem; `retarget` begins with it.

        Args:
            problem: The other problem.
            sources: As for `retarget`.

        Returns:
            The copy, without `results` and head.

        Raises:
            UserError: If a parameter belongs to classes that the other problem does not have.
        """
        other = type(self)(self.encoder, problem, self.options)
        rows = [s for s in sources if s is not None]
        if mismatch := copy_parameters(self, other, self.class_parameters(), rows):
            raise UserError(
                f"{mismatch} of this {self.name} model belongs to the classes it was trained on",
                hint=combine("fit a model whose prompts all classes share", set_option("contexts", "unified")),
            )
        other.temperature = self.temperature
        return other

    @property
    def _can_retarget(self) -> bool:
        return type(self).retarget is not Method.retarget

    def _retarget_to_names(self, names: Sequence[str], sources: Sequence[int | None]) -> Self:
        return self.retarget(dataclasses.replace(self.problem, names=tuple(names)), sources)

    # What a report can show; every function is optional.

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

    def stored_training_features(self) -> tuple[Tensor, Tensor] | None:
        """Features of the training images that the method stores, from its own image tower.

        Returns:
            Features (N, D) and classes (N,), or None if the method stores none.
        """
        return None

    def stored_other_features(self) -> Tensor | None:
        """Features of the images of `learn_other`.

        Returns:
            Features (M, D), or None if the method stores none.
        """
        return None

    # Saved state.

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Load a saved `state_dict` and build the head.

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
            setattr(self, name, state[name].to(self.encoder.device))
        self.build_head()

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
        encoder, problem, options: As for `Method`.

    Attributes:
        recordable: Whether a GPU may record a step once and replay it. False for a step that reads values
            back from the device or does something else the second time. Steps that draw from
            `Batch.generator` are never recorded.

    Example:
        >>> from dca import TrainedMethod, list_methods
        >>> issubclass(list_methods()["coop"], TrainedMethod), issubclass(list_methods()["gda"], TrainedMethod)
        (True, False)
    """

    trains_on: ClassVar[TrainsOn] = "images"
    recordable: ClassVar[bool] = True

    @abstractmethod
    def step(self, batch: Batch) -> Step:
        """Compute the loss terms of one batch.

        Args:
            batch: Inputs as `trains_on` says, and labels (B,).

        Returns:
            Loss terms and probabilities (B, C).
        """

    @property
    def analytic_steps(self) -> Callable[[Batch], AnalyticSteps] | None:
        """For small steps on features: a function of the batches of S steps that replaces `step`."""
        return None

    def training_rows(self, support: Support) -> tuple[Tensor, Tensor]:
        """Compute what steps train on if `trains_on` is "features".

        Args:
            support: The training images.

        Returns:
            Frozen features (R, D) and labels (R,).
        """
        return support.frozen_features(), support.labels

    def on_epoch_end(self, epoch: int, epochs: int) -> None:
        """Callback after every epoch, for methods that average over epochs or train in stages.

        Args:
            epoch: The epoch that has ended, from 1 on.
            epochs: Number of epochs.
        """

    def stages(self, epochs: int) -> tuple[int, ...]:
        """Epochs of each stage, for methods that train different parameters in later epochs.

        The learning rate goes through its whole schedule in every stage.

        Args:
            epochs: Number of epochs.

        Returns:
            Numbers that sum to `epochs`; 0 for a stage that is left out.
        """
        return (epochs,)

    def begin_stage(self, stage: int) -> None:
        """Select the parameters that a stage trains (`requires_grad_`) and its step; it changes no value.

        Called before the first epoch of a stage, and where an interrupted run continues. Initial values of a stage
        are set by `on_epoch_end` of the epoch before, so that they are saved with it.

        Args:
            stage: Number of the stage, from 0 on.
        """

    def steps_per_epoch(self, images: int, batch_size: int) -> int | None:
        """Most steps in an epoch.

        Args:
            images: Number of training images, which may be fewer than the rows of `training_rows`.
            batch_size: Rows per step.

        Returns:
            The number, or None for as many as see every row.
        """
        return None

    @classmethod
    def candidate_options(cls, options: Any, problem: Problem) -> list[Any]:
        """The options that a fit tries, each by a whole training, if there are validation images.

        Args:
            options: Options of `parse_options`.
            problem: Classes, shots and dataset.

        Returns:
            Candidates, of which the first with the highest `validation_accuracy` is kept.
        """
        return [options]

    @property
    def validation_accuracy(self) -> float:
        """Accuracy of the finished model on the validation images; needed where there are several candidates."""
        raise NotImplementedError


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
        parameter = expected.get(name)
        dtype = results.get(name, torch.float32)
        if parameter is not None and parameter.shape != tensor.shape:
            problems.append(f"{name}: shape {tuple(tensor.shape)}, expected {tuple(parameter.shape)}")
        if tensor.dtype != dtype:
            problems.append(f"{name}: type {tensor.dtype}, expected {dtype}")
        elif not torch.isfinite(tensor).all():
            problems.append(f"{name}: holds NaN or infinite values")
    return problems


def copy_parameters(source: nn.Module, target: nn.Module, of_classes: Collection[str], rows: Sequence[int]) -> str:
    """Copy parameters into a method for other classes; returns the name of the first whose shape differs, or "".

    of_classes: parameters whose first axis is the classes; of these only `rows` are taken.
    """
    values = dict(source.named_parameters())
    for name, parameter in target.named_parameters():
        value: Tensor = values[name]
        if name in of_classes:
            value = value[list(rows)]
        if value.shape != parameter.shape:
            return name
        with torch.no_grad():
            parameter.copy_(value)
    return ""
