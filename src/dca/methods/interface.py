"""What a method is, and the registry of methods."""

from __future__ import annotations

import dataclasses
import logging
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
from dca.core.errors import UserError
from dca.methods.recipe import Recipe

log = logging.getLogger(__name__)


Habit = Literal["none", "few", "shots", "full"]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What a method is told about the problem it is to solve.

    protocol: "paper" allows values that authors chose by dataset on more images than the draw has;
    "strict" does not (data/protocols.py).
    """

    names: tuple[str, ...]
    shots: int
    seed: int = 0
    dataset: str = ""
    template: str = "a photo of a {}."
    protocol: str = "strict"


@dataclass(frozen=True)
class Batch:
    """One training step's images: pixels (B, 3, S, S) or frozen features (B, D), and labels (B,)."""

    inputs: Tensor
    labels: Tensor
    generator: torch.Generator

    @cached_property
    def noise(self) -> torch.Generator:
        """Random numbers where the inputs are, from one draw of `generator`: many without a transfer."""
        return seeds.branch(self.generator, self.inputs.device)

    @property
    def noisy(self) -> bool:
        """Whether anyone has asked for `noise`."""
        return "noise" in vars(self)


@dataclass(frozen=True)
class Step:
    """What a step yields: weighted loss terms by name, whose sum is minimised, and (B, C) probabilities."""

    terms: dict[str, Tensor]
    probabilities: Tensor


class Support(Protocol):
    """The training images, as a method may see them outside the steps."""

    @property
    def labels(self) -> Tensor:
        """(N,)."""

    @property
    def validation(self) -> Support | None:
        """The few-shot validation images, where the dataset has them."""

    def map(self, encode: Callable[[Tensor], Tensor], *, views: int = 0) -> Tensor:
        """`encode` of every image's pixels, without gradients: (N, ...).

        views = 0 is the evaluation view; otherwise that many augmented views of each image,
        view after view: (views · N, ...).
        """

    def frozen_features(self, clip: CLIP, *, views: int = 0, mirrored: bool = False) -> Tensor:
        """`map` of `clip.encode_image`, the backbone as it is: (N, D), not normalised; kept from run to run.

        mirrored: of the pixels turned left to right.
        """


def in_words(**own: str) -> Mapping[str, str]:
    """What the names of loss terms mean: of those that many methods have, and of a method's own."""
    return MappingProxyType({"cls": "classification", "in": "within classes", "ts": "between texts", **own})


class Method(nn.Module, ABC):
    """Owns its parameters; turns a batch into loss terms and image features into probabilities.

    It opens no file, prints nothing, chooses no device and knows no epoch. The backbone is
    frozen and shared: it is neither among the parameters nor in the state.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    trains_on: ClassVar[str]  # "images", "features" or "nothing"
    Options: ClassVar[type[Recipe]]
    # Validation images that its authors' code selects on: none, few, shots or full (data/protocols.py).
    habit: ClassVar[Habit] = "none"
    # Whether a GPU may record a step once and replay it. Not where a step reads values back from the
    # device, or does something else the second time; one that draws otherwise than from `Batch.noise` never is.
    recordable: ClassVar[bool] = True
    # Tensors made after training, of shapes that only the data decides, and their types.
    results: ClassVar[Mapping[str, torch.dtype]] = {}
    # Loss terms in the few words that the title of a curve has room for.
    term_words: ClassVar[Mapping[str, str]] = in_words()

    def __init__(self, clip: CLIP, problem: Problem, chosen: Any) -> None:
        super().__init__()
        self._backbone = (clip,)  # a tuple, so that nn.Module does not adopt it
        self.problem = problem
        self.options = chosen
        for name in self.results:
            self.register_buffer(name, None)

    @classmethod
    def choose(cls, given: Mapping[str, Any] | Iterable[str]) -> Any:
        """Options from values by name or from `key=value` texts. Raises for those that would have no effect."""
        hint = f"`dca methods show {cls.name}` lists the options and their limits"
        read = options.from_dict if isinstance(given, Mapping) else options.parse
        chosen: Recipe = read(cls.Options, given, hint=hint)  # type: ignore[arg-type]
        default = cls.Options()
        idle = [name for name in cls.unused() if getattr(chosen, name) != getattr(default, name)]
        if idle:
            raise UserError(
                f"{cls.name} is not trained in steps: these options would have no effect",
                details=[f"{name}={getattr(chosen, name)}" for name in idle],
                hint=f"leave them out; {hint}",
            )
        return chosen

    @classmethod
    def unused(cls) -> list[str]:
        """Options of the recipe that mean nothing where no loop trains; what a method redefines has a meaning."""
        if cls.trains_on != "nothing":
            return []
        recipe = dataclasses.fields(Recipe)
        return [field.name for field in dataclasses.fields(cls.Options) if any(field is one for one in recipe)]

    @classmethod
    def build(cls, clip: CLIP, problem: Problem, chosen: Any) -> Self:
        """A method for this problem; options left open are settled first."""
        return cls(clip, problem, cls.resolve(chosen, problem))

    @classmethod
    def resolve(cls, chosen: Any, problem: Problem) -> Any:
        """Options with everything that depends on the problem settled."""
        return chosen

    @property
    def clip(self) -> CLIP:
        """The frozen backbone."""
        return self._backbone[0]

    def generator(self, stream: str) -> torch.Generator:
        """A private random stream for this method's initial values."""
        return seeds.generator(self.problem.seed, self.name, stream)

    def trained(self) -> int:
        """Number of trained values."""
        return sum(p.numel() for p in self.parameters())

    def prepare(self, support: Support) -> None:
        """Compute what stays constant during training; called once before it."""

    @abstractmethod
    def step(self, batch: Batch) -> Step:
        """Loss terms of one batch."""

    def training_rows(self, support: Support) -> tuple[Tensor, Tensor]:
        """Frozen features (R, D) and labels (R,) that steps take, where `trains_on` is "features"."""
        return support.frozen_features(self.clip), support.labels

    def epoch_done(self, epoch: int, epochs: int) -> None:
        """Called after epoch 1, 2 .. `epochs`, for methods that average over epochs."""

    def finish(self, support: Support) -> None:
        """Compute `results`; called once after training."""

    def encode(self, pixels: Tensor) -> Tensor:
        """Pixels (B, 3, S, S) -> unit image features (B, D); overridden where the image tower is touched."""
        return self.from_frozen(self.clip.encode_image(pixels))

    def from_frozen(self, features: Tensor) -> Tensor:
        """What `encode` makes of the backbone's own image features (B, D), where it leaves the tower alone."""
        return F.normalize(features, dim=-1)

    def encode_all(self, support: Support, *, views: int = 0) -> Tensor:
        """`encode` of all images: (N, D), or (views · N, D); from stored features where the tower is left alone."""
        if self.frozen_images:
            return self.from_frozen(support.frozen_features(self.clip, views=views))
        return support.map(self.encode, views=views)

    @property
    def frozen_images(self) -> bool:
        """Whether images pass the backbone untouched, so that their features can be stored and used again."""
        return type(self).encode is Method.encode

    @abstractmethod
    def classify(self, features: Tensor) -> Tensor:
        """Unit image features (B, D) -> probabilities (B, C)."""

    def class_parameters(self) -> set[str]:
        """Names of parameters whose first axis is the classes."""
        return set()

    def retarget(self, problem: Problem, sources: Sequence[int | None]) -> Self:
        """The finished model for the classes of another problem; nothing is refitted.

        sources: for each class of `problem` the trained class it is, or None. Prompts are attached to
        the new names; what belongs to a class (its covariance, say) follows its source.
        """
        raise UserError(
            f"a {self.name} model knows only the classes it was trained on",
            hint="methods that learn prompts can be asked about others: dca, coop, vpt, maple, ...",
        )

    def moved(self, problem: Problem, sources: Sequence[int | None]) -> Self:
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
                        hint="use a model whose prompts all classes share: --set contexts=unified",
                    )
                parameter.copy_(value)
        return other

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take over a saved `state_dict`, checking every name, shape and value."""
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
        problems = problems or self.check_results(state)
        if problems:
            raise UserError(f"the saved tensors are not those of a '{self.name}' model", details=problems)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.copy_(state[name])
        for name in self.results:
            setattr(self, name, state[name].to(self.clip.device))

    def check_results(self, state: Mapping[str, Tensor]) -> list[str]:
        """What is wrong with the shapes of saved `results`, one line each."""
        return []
