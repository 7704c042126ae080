"""The interface of a method: its problem, its training data, and the life of a method.

    build -> [prepare, steps of the training loop] -> finish -> seal -> encode and classify

`finish` computes what is stored beside the parameters (`results`); `seal` makes the finished head of
both. Reading a saved model (`restore`) and moving it to other classes (`retarget`, `with_class`, ... of
`class_changes.py`) end with `seal`, too.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dca.clip import CLIP
from dca.core import options, seeds
from dca.core.actions import set_option, show_method, then
from dca.core.choices import Selection, ValidationUse
from dca.core.errors import UserError
from dca.methods.class_changes import ClassChanges
from dca.methods.grid import Grid
from dca.methods.inspection import Inspection
from dca.methods.problem import Batch, HeldOut, Problem, Step, Steps, Support, describe_terms
from dca.methods.published import Published
from dca.methods.recipe import Recipe
from dca.methods.saved_state import copy_parameters, state_problems
from dca.methods.shared.heads import Head, tempered
from dca.methods.stages import Stages
from dca.methods.uncertainty import Uncertainty

__all__ = [
    "Batch",
    "HeldOut",
    "Method",
    "Problem",
    "Selection",
    "Step",
    "Steps",
    "Support",
    "TrainedMethod",
    "TrainsOn",
    "ValidationUse",
    "describe_terms",
]

TrainsOn = Literal["images", "features", "nothing"]


class Method(ClassChanges, Uncertainty, Inspection, Published, nn.Module, ABC):
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
        >>> from dca.methods.interface import Problem
        >>> kind = list_methods()["coop"]
        >>> problem = Problem(names=("cat", "dog"), shots=1)
        >>> method = kind.build(CLIP.from_pretrained("mini"), problem, kind.choose({"n_tokens": 4}))
        >>> method.context.shape == (4, method.clip.config.text.width)
        True
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    trains_on: ClassVar[TrainsOn] = "nothing"
    Options: ClassVar[type[Recipe]]
    validation: ClassVar[ValidationUse] = "none"
    results: ClassVar[Mapping[str, torch.dtype]] = {}
    fits_others: ClassVar[bool] = False
    head_options: ClassVar[tuple[str, ...]] = ()
    decides: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType({})
    term_words: ClassVar[Mapping[str, str]] = describe_terms()
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
        chosen: Recipe = read(cls.Options, given, hint=hint)  # type: ignore[arg-type]
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
        recipe = dataclasses.fields(Recipe)
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
        return found if self.temperature == 1.0 else tempered(found, self.temperature)

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

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Load a saved `state_dict` and seal the method.

        Args:
            state: Tensors by name.

        Raises:
            UserError: If a name, shape, type or value is wrong; it lists all of them.
        """
        if problems := state_problems(dict(self.named_parameters()), self.results, state) or self.check_results(state):
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


class TrainedMethod(Stages, Grid, Method):
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
