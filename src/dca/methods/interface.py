"""The interface of a method: its problem, its training data, and the life of a method.

    build -> [prepare, steps of the training loop] -> finish -> seal -> encode and classify

`finish` computes what is stored beside the parameters (`results`); `seal` makes the finished head of
both. Reading a saved model (`restore`) and moving it to other classes (`retarget`) end with `seal`, too.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dca.clip import CLIP
from dca.core import options, seeds
from dca.core.actions import set_option, show_method, then
from dca.core.errors import UserError
from dca.methods.recipe import Recipe
from dca.methods.shared.heads import Head

TrainsOn = Literal["images", "features", "nothing"]
# Validation images that a method's authors select on; data/protocols.py explains the values.
ValidationUse = Literal["none", "few", "shots", "full"]
# "paper" allows values that authors chose per dataset on more images than the draw has; "strict" does not.
Selection = Literal["strict", "paper"]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The classification problem that a method is built for.

    Args:
        names: words that CLIP reads for each class.
        shots: training images per class, on average.
        seed: of all random numbers of the method.
        dataset: name of a public dataset, or "".
        template: sentence about an image, {} in place of the class name.
        selection: whether values chosen per dataset may be used.
    """

    names: tuple[str, ...]
    shots: int
    seed: int = 0
    dataset: str = ""
    template: str = "a photo of a {}."
    selection: Selection = "strict"


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


class Support(Protocol):
    """The training images, as a method may use them outside the steps."""

    @property
    def labels(self) -> Tensor:
        """(N,)."""

    @property
    def validation(self) -> Support | None:
        """Validation images, if the method may select on any."""

    def map(self, encode: Callable[[Tensor], Tensor], *, views: int = 0) -> Tensor:
        """`encode` of the pixels of every image, without gradients: (N, ...).

        views = 0 is the evaluation view; otherwise that many augmented views of each image,
        view after view: (views · N, ...).
        """

    def frozen_features(self, *, views: int = 0, mirrored: bool = False) -> Tensor:
        """Features of the frozen backbone: (N, D) or (views · N, D), not normalised; stored between runs.

        mirrored: of the pixels flipped left to right.
        """


def describe_terms(**own: str) -> Mapping[str, str]:
    """Descriptions of loss terms by name: those that many methods have, and a method's own."""
    return MappingProxyType({"cls": "classification", "in": "within classes", "ts": "between texts", **own})


class Method(nn.Module, ABC):
    """Owns its parameters; turns image features into probabilities.

    It opens no file, prints nothing, chooses no device and runs no epochs. The backbone is
    frozen and shared: it is neither among the parameters nor in the state.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    trains_on: ClassVar[TrainsOn] = "nothing"
    Options: ClassVar[type[Recipe]]
    validation: ClassVar[ValidationUse] = "none"
    # Tensors made after training, whose shapes depend on the data, and their types.
    results: ClassVar[Mapping[str, torch.dtype]] = {}
    # Loss terms in a few words, for the titles of training curves.
    term_words: ClassVar[Mapping[str, str]] = describe_terms()
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
        """Options from values by name or from `key=value` texts. Raises for options without an effect."""
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
        """A method for this problem, with options that were left open resolved."""
        return cls(clip, problem, cls.resolve(chosen, problem))

    @classmethod
    def resolve(cls, chosen: Any, problem: Problem) -> Any:
        """Options with all values that depend on the problem filled in."""
        return chosen

    @property
    def clip(self) -> CLIP:
        """The frozen backbone."""
        return self._backbone[0]

    def generator(self, stream: str) -> torch.Generator:
        """A private random stream for the initial values of this method."""
        return seeds.generator(self.problem.seed, self.name, stream)

    def count_trained(self) -> int:
        """Number of trained values."""
        return sum(p.numel() for p in self.parameters())

    def prepare(self, support: Support) -> None:
        """Compute the constants of training; called once before it."""

    def finish(self, support: Support) -> None:
        """Compute `results`; called once after training."""

    @abstractmethod
    def make_head(self) -> Head:
        """The finished head, from parameters and `results` alone."""

    @torch.no_grad()
    def seal(self) -> Self:
        """Make `head`, whose constants are computed once; returns self."""
        self.head = self.make_head()
        return self

    def classify(self, features: Tensor) -> Tensor:
        """Image features (B, D) of `encode` -> probabilities (B, C). The method must be sealed."""
        return self.head(features)

    @property
    def images_at_once(self) -> int:
        """Most images that `classify` should be given at once, which bounds memory."""
        return self.head.images_at_once

    def encode(self, pixels: Tensor) -> Tensor:
        """Pixels (B, 3, S, S) -> unit image features (B, D); overridden where the image tower is changed."""
        return self.from_frozen(self.clip.encode_image(pixels))

    def from_frozen(self, features: Tensor) -> Tensor:
        """The features (B, D) that `encode` gives, from those of the frozen backbone."""
        return F.normalize(features, dim=-1)

    def encode_all(self, support: Support, *, views: int = 0) -> Tensor:
        """`encode` of all images: (N, D), or (views · N, D); from stored features if the tower is unchanged."""
        if self.frozen_images:
            return self.from_frozen(support.frozen_features(views=views))
        return support.map(self.encode, views=views)

    @property
    def frozen_images(self) -> bool:
        """Whether the image tower is unchanged, so that image features can be stored and reused."""
        return type(self).encode is Method.encode

    def class_parameters(self) -> set[str]:
        """Names of parameters whose first axis is the classes."""
        return set()

    def retarget(self, problem: Problem, sources: Sequence[int | None]) -> Self:
        """The finished model for the classes of another problem, sealed; nothing is fitted again.

        sources: for each class of `problem` the trained class it is, or None. Prompts are attached to
        the new names; values of a class (such as its covariance) follow its source.
        """
        raise UserError(
            f"a {self.name} model knows only the classes it was trained on",
            hint="methods that learn prompts can be used for other classes: dca, coop, vpt, maple, ...",
        )

    def copy_for(self, problem: Problem, sources: Sequence[int | None]) -> Self:
        """A copy with these parameters for another problem, without `results`: a start for `retarget`."""
        other = type(self)(self.clip, problem, self.options)
        mine = dict(self.named_parameters())
        rows = [s for s in sources if s is not None]
        with torch.no_grad():
            for name, parameter in other.named_parameters():
                value: Tensor = mine[name]
                if name in self.class_parameters():
                    value = value[rows]
                if value.shape != parameter.shape:
                    raise UserError(
                        f"{name} of this {self.name} model belongs to the classes it was trained on",
                        hint=then("fit a model whose prompts all classes share", set_option("contexts", "unified")),
                    )
                parameter.copy_(value)
        return other

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Load a saved `state_dict`, checking every name, shape and value, and seal the method."""
        if problems := self._state_problems(state) or self.check_results(state):
            raise UserError(f"the saved tensors are not those of a '{self.name}' model", details=problems)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.copy_(state[name])
        for name in self.results:
            setattr(self, name, state[name].to(self.clip.device))
        self.seal()

    def _state_problems(self, state: Mapping[str, Tensor]) -> list[str]:
        """Errors in the names, shapes, types and values of saved tensors, one line each."""
        expected = {**dict(self.named_parameters()), **dict.fromkeys(self.results)}
        problems = [f"missing {n}" for n in expected if n not in state]
        problems += [f"unexpected {n}" for n in state if n not in expected]
        for name, tensor in state.items():
            want = expected.get(name)
            dtype = self.results.get(name, torch.float32)
            if want is not None and want.shape != tensor.shape:
                problems.append(f"{name}: shape {tuple(tensor.shape)}, expected {tuple(want.shape)}")
            if tensor.dtype != dtype:
                problems.append(f"{name}: type {tensor.dtype}, expected {dtype}")
            elif not torch.isfinite(tensor).all():
                problems.append(f"{name}: holds NaN or infinite values")
        return problems

    def check_results(self, state: Mapping[str, Tensor]) -> list[str]:
        """Errors in the shapes of saved `results`, one line each."""
        return []


class TrainedMethod(Method):
    """A method that the training loop trains: it turns a batch into loss terms."""

    trains_on: ClassVar[TrainsOn] = "images"
    # Whether a GPU may record a step once and replay it. False for a step that reads values back from the
    # device or does something else the second time. Steps that draw from `Batch.generator` are never recorded.
    recordable: ClassVar[bool] = True

    @abstractmethod
    def step(self, batch: Batch) -> Step:
        """Loss terms of one batch."""

    def training_rows(self, support: Support) -> tuple[Tensor, Tensor]:
        """Frozen features (R, D) and labels (R,) that steps take, if `trains_on` is "features"."""
        return support.frozen_features(), support.labels

    def epoch_done(self, epoch: int, epochs: int) -> None:
        """Called after epoch 1, 2 .. `epochs`, for methods that average over epochs."""
