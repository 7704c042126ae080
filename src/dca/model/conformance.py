"""What every method must do, as checks that run on any method; `dca methods check` and the tests run them.

    for check in CHECKS:
        check(Subject("coop"))

A check fits the method on ten drawn classes with a tiny random backbone, and raises `ViolationError` if something is
not as it must be. Only "better than chance" takes the embedded backbone. All run on the CPU.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dca.backbones.clip import CLIP, CLIPConfig, TextConfig, VisionConfig
from dca.backbones.clip.weights import initialize_weights
from dca.backbones.dual_encoder import compute_digest
from dca.backbones.preprocess import Preprocess
from dca.core.choices import ValidationUse
from dca.core.device import limit_threads
from dca.core.errors import UserError
from dca.core.text import pluralize
from dca.datasets.dataset import Dataset
from dca.methods.base import Method, TrainedMethod, TrainingOptions, TrainsOn
from dca.methods.registry import get_method
from dca.model.classifier import Classifier
from dca.training import loop
from dca.training.session import Session
from dca.training.support import ImageSupport

# Images per class of the sample, and their size.
TRAIN, TEST, SIZE = 4, 3, 48
EPOCHS, SEED = 2, 3
# Numbers of images per class: one shot, two classes, a class with one image.
FEW = ((1, 1), (3, 1), (1, 2, 4))
NAMES = ("café 東京", "naïve ½", "x")
# Batch sizes of an exported program, and the one that it is made with.
BATCHES, EXPORTED = (1, 3, 7), 2
CLOSE = 1e-5

C = TypeVar("C", bound=Callable[["Subject"], None])


class ViolationError(AssertionError):
    """Something that every method must do, and this one does not."""


def require(condition: bool, message: str) -> None:
    """Raise `ViolationError` with the message unless the condition holds."""
    if not condition:
        raise ViolationError(message)


def require_close(found: Any, expected: Any, what: str, tolerance: float = CLOSE) -> None:
    """Raise `ViolationError` if two arrays differ by more than the tolerance, relative or absolute."""
    one, other = np.asarray(found, dtype=np.float64), np.asarray(expected, dtype=np.float64)
    require(one.shape == other.shape, f"{what}: shape {one.shape}, expected {other.shape}")
    apart = float(np.abs(one - other).max(initial=0.0))
    message = f"{what}: differ by up to {apart:.1e}, more than {tolerance:.0e}"
    require(bool(np.allclose(one, other, atol=tolerance, rtol=0)), message)


def short_options(kind: type[Method], **more: Any) -> dict[str, Any]:
    """Options of a short fit; a method that fits others in folds gives them fewer epochs."""
    settings = {"epochs": EPOCHS, "warmup_epochs": 0, "batch_size": 8, **more}
    if kind.fits_others:
        return {"folds": 2, "trained_options": {**settings, "epochs": min(settings["epochs"], EPOCHS)}}
    return settings if kind.trains_on != "nothing" else {}


@cache
def _load_mini() -> CLIP:
    """The embedded model."""
    return CLIP.from_pretrained("mini")


def tiny_backbone() -> CLIP:
    """A CLIP of three small blocks with random weights, always the same, and the tokenizer of the embedded model."""
    mini = _load_mini()
    words = mini.config.text
    config = CLIPConfig(
        vision=VisionConfig(
            width=32, layers=3, heads=2, hidden=64, activation="quick_gelu", image_size=32, patch_size=8
        ),
        text=TextConfig(
            width=24, layers=3, heads=2, hidden=48, activation="quick_gelu", vocab_size=words.vocab_size,
            context_length=words.context_length, sot_id=words.sot_id, eot_id=words.eot_id,
        ),
        embed_dim=16,
    )  # fmt: skip
    transform = Preprocess(size=32, resize=32, resample=3, mean=mini.preprocess.mean, std=mini.preprocess.std)
    generator = torch.Generator().manual_seed(0)
    clip = initialize_weights(CLIP(config, mini.tokenizer, transform, "tiny"), generator)
    with torch.no_grad():
        for name, parameter in clip.named_parameters():
            if name.endswith("bias"):  # not zero, so that a lost one shows
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
        clip.logit_scale.fill_(3.0)
    return clip.freeze()


@dataclass
class Subject:
    """A method that is checked.

    Args:
        name: Name of the method, which must be among `dca.list_methods()`.
        make_backbone: Makes the same small backbone, a new one every time.

    Example:
        >>> Subject("zero_shot").fitted.method_.problem.names[:2]
        ('butterfly', 'cactus')
    """

    name: str
    make_backbone: Callable[[], CLIP] = field(default=tiny_backbone)

    @cached_property
    def kind(self) -> type[Method]:
        """The class of the method."""
        return get_method(self.name)

    @cached_property
    def sample(self) -> Dataset:
        """Ten drawn classes."""
        from dca.datasets.sample import load_sample

        return load_sample(per_class_train=TRAIN, per_class_test=TEST, size=SIZE)

    @cached_property
    def fitted(self) -> Classifier:
        """The method after a short fit; checks do not change it."""
        return self.fit(self.sample)

    def classifier(self, **more: Any) -> Classifier:
        """A classifier with the options of a short fit, and others."""
        options = short_options(self.kind, **more)
        return Classifier(self.kind.name, seed=SEED, backbone=self.make_backbone(), device="cpu", **options)

    def fit(self, data: Dataset, **more: Any) -> Classifier:
        """Fit a new one."""
        return self.classifier(**more).fit(data)

    @property
    def images(self) -> list[Any]:
        """The test images."""
        return [item.image for item in self.sample.test]

    def predict(self, model: Classifier, count: int | None = None) -> NDArray[np.floating[Any]]:
        """Probabilities of the first test images, (count, C)."""
        found: NDArray[np.floating[Any]] = model.predict_proba(self.images[:count])
        return found

    @cached_property
    def features(self) -> Tensor:
        """Features of six test images as the finished method encodes them, (6, D)."""
        method = self.fitted.method_
        size = method.clip.preprocess.size
        pixels = torch.randn(6, 3, size, size, generator=torch.Generator().manual_seed(SEED))
        with torch.no_grad():
            return method.encode(pixels)


@dataclass(frozen=True)
class Check:
    """One thing that every method must do.

    Args:
        promise: What it is, as a short sentence.
        function: Raises `ViolationError`, or any other error, if the subject does not do it.
    """

    promise: str
    function: Callable[[Subject], None]

    def __call__(self, subject: Subject) -> None:
        """Check the subject."""
        self.function(subject)

    def __str__(self) -> str:
        return self.function.__name__.removeprefix("check_")


CHECKS: list[Check] = []


def promise(sentence: str) -> Callable[[C], C]:
    """Add a function to `CHECKS`."""

    def add(function: C) -> C:
        CHECKS.append(Check(sentence, function))
        return function

    return add


@promise("it says what it is, and every option has help")
def check_description(subject: Subject) -> None:
    """Name, paper with a year, documentation, options."""
    kind = subject.kind
    require(issubclass(kind, Method), "it is not derived from dca.methods.base.Method")
    require(kind.name == subject.name, f"name is {kind.name!r}, but it is listed as {subject.name!r}")
    require(kind.trains_on in get_args(TrainsOn), f"trains_on is {kind.trains_on!r}, not one of {get_args(TrainsOn)}")
    uses = get_args(ValidationUse)
    require(kind.validation in uses, f"validation is {kind.validation!r}, not one of {uses}")
    trained = issubclass(kind, TrainedMethod)
    message = "trains_on must be 'nothing' for a method derived from Method, and something else for a TrainedMethod"
    require(trained is (kind.trains_on != "nothing"), message)
    require(hasattr(kind, "step") is trained, "step is for methods derived from TrainedMethod only")
    require(re.search(r"\b20[12]\d\b", kind.paper) is not None, f"paper has no year: {kind.paper!r}")
    require(bool((kind.__doc__ or "").strip()), "the class has no docstring; `dca methods` shows its first line")
    require(issubclass(kind.Options, TrainingOptions), "Options is not derived from TrainingOptions")
    bare = [one.name for one in dataclasses.fields(kind.Options) if not one.metadata.get("help")]
    require(not bare, f"options without help (declare them by dca.option): {', '.join(bare)}")


@promise("options survive JSON")
def check_options_survive_json(subject: Subject) -> None:
    """A model's folder holds them as JSON."""
    chosen = subject.fitted.method_.options
    again = subject.kind.parse_options(json.loads(json.dumps(dataclasses.asdict(chosen))))
    require(again == chosen, f"{chosen} was read back as {again}")


@promise("probabilities are finite and sum to one, for any batch size")
def check_probabilities(subject: Subject) -> None:
    """Shapes (B, C) of the head and of predictions, and no image changes the answer for another."""
    found = subject.predict(subject.fitted)
    shape = len(subject.images), len(subject.sample.names)
    require(found.shape == shape, f"probabilities have shape {found.shape}, expected {shape}")
    require_distributions(found)
    method, f = subject.fitted.method_, subject.features
    with torch.no_grad():
        require_distributions(method.head(f))  # `classify` would hide sums by its temperature
        together = method.classify(f)
        for size in BATCHES[:2]:
            part = method.classify(f[:size])
            require(part.shape == (size, shape[1]), f"a batch of {size} gives {tuple(part.shape)}")
            require_close(part, together[:size], f"answers for a batch of {size} and of {len(f)}")
    require(method.max_batch_size >= 1, f"max_batch_size is {method.max_batch_size}")


def require_distributions(found: Any) -> None:
    """Rows are finite, not negative, and sum to one."""
    rows = np.asarray(found, dtype=np.float64)
    require(bool(np.isfinite(rows).all()), "probabilities are NaN or infinite")
    require(bool((rows >= 0).all()), f"a probability is negative: {rows.min()}")
    require_close(rows.sum(axis=1), np.ones(len(rows)), "sums of probabilities")


@promise("losses are finite, and curves know their names")
def check_losses(subject: Subject) -> None:
    """Loss terms of every epoch."""
    for row in subject.fitted.history_:
        require(all(np.isfinite(value) for value in row.values()), f"a loss is NaN or infinite: {row}")
        named = {name.removeprefix("loss_") for name in row if name.startswith("loss_")}
        require(bool(named), "step returned no loss term")
        unknown = sorted(named - set(subject.kind.term_titles))
        require(not unknown, f"loss terms without a title: {', '.join(unknown)}; see term_titles and describe_terms")


@promise("the same seed gives the same weights")
def check_same_seed(subject: Subject) -> None:
    """Bit for bit, on the same machine."""
    require_equal_states(subject.fitted, subject.fit(subject.sample), "of two fits with the same seed")


def require_equal_states(one: Classifier, other: Classifier, what: str) -> None:
    """Two fits have the same tensors, bit for bit."""
    a, b = one.method_.state_dict(), other.method_.state_dict()
    require(a.keys() == b.keys(), f"tensors {what}: {sorted(a)} and {sorted(b)}")
    different = [name for name in a if not torch.equal(a[name], b[name])]
    require(not different, f"tensors {what} differ: {', '.join(different)}; draw from self.generator and the batch")


@promise("the backbone stays as it is")
def check_backbone(subject: Subject) -> None:
    """No weight of the backbone changes, or has a gradient."""
    clip = subject.fitted.method_.clip
    same = compute_digest(clip) == compute_digest(subject.make_backbone())
    require(same, "the weights of the backbone were changed")
    with_gradients = [name for name, parameter in clip.named_parameters() if parameter.grad is not None]
    require(not with_gradients, f"the backbone has gradients: {', '.join(with_gradients[:3])}")


@promise("gradients reach every parameter")
def check_gradients(subject: Subject) -> None:
    """As the last step left them; of a method that trains in stages, those of its last stage."""
    method = subject.fitted.method_
    parameters = dict(method.named_parameters())
    if not isinstance(method, TrainedMethod):
        found = [name for name, parameter in parameters.items() if parameter.grad is not None]
        require(not found, f"parameters of a method without steps have gradients: {', '.join(found)}")
        return
    trained = {name: parameter.grad for name, parameter in parameters.items() if parameter.requires_grad}
    if len(method.stages(2)) == 1:
        fixed = sorted(parameters.keys() - trained.keys())
        require(not fixed, f"parameters that are not trained: {', '.join(fixed)}; make them buffers or `results`")
    without = [name for name, gradient in trained.items() if gradient is None]
    require(not without, f"no gradient reaches {', '.join(without)}")
    largest = max(float(gradient.abs().max()) for gradient in trained.values() if gradient is not None)
    require(largest > 0, "every gradient is zero")


@promise("a saved model is loaded with the same answers")
def check_saving(subject: Subject) -> None:
    """Bit for bit, from parameters and `results` alone."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        subject.fitted.save_pretrained(path)
        loaded = Classifier.from_pretrained(path, backbone=subject.make_backbone())
        one, other = subject.predict(subject.fitted, 7), subject.predict(loaded, 7)
    require(bool(np.array_equal(one, other)), "the loaded model answers differently: is something not in `results`?")


@promise("damaged tensors are refused with their names")
def check_damaged_state(subject: Subject) -> None:
    """A tensor with one row too few is named in the error."""
    method = subject.fitted.method_
    state = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    name = next((name for name, tensor in state.items() if tensor.dim() and len(tensor)), None)
    if name is None:
        return
    state[name] = state[name][1:]
    other = type(method)(method.clip, method.problem, method.options)
    try:
        other.restore(state)
    except UserError as error:
        text = " ".join([str(error), *error.details])
        require(any(part in text for part in state), f"the error names no tensor: {text}")
        return
    except Exception as error:
        raise ViolationError(f"{name} with a row too few: {error!r} instead of a line of check_results") from error
    raise ViolationError(f"{name} with a row too few was accepted; compare its shape in check_results")


@promise("an interrupted fit continues to the same weights")
def check_resuming(subject: Subject) -> None:
    """Stopped after the second epoch, and started again in its folder."""
    if subject.kind.trains_on == "nothing":
        require(subject.fitted.history_ == [], "a method without steps has a history of epochs")
        return
    reached = []

    def stop(stage: str, done: int, total: int, note: str) -> None:
        if stage == "training" and "epoch 2/" in note:
            reached.append(note)
            raise KeyboardInterrupt

    with tempfile.TemporaryDirectory() as folder:
        with mock.patch.object(loop, "SAVE_EVERY", 0.0), suppress(KeyboardInterrupt):
            subject.classifier().fit(subject.sample, progress=stop, folder=Path(folder))
        require(bool(reached), "the fit had no second epoch")
        resumed = subject.classifier().fit(subject.sample, folder=Path(folder))
    require_equal_states(subject.fitted, resumed, "of a straight and of a resumed fit")


@promise("the order of classes does not matter")
def check_order_of_classes(subject: Subject) -> None:
    """Same images, classes renumbered: the columns move, the numbers stay."""
    sample = subject.sample
    order = np.random.default_rng(0).permutation(len(sample.names))
    place = {int(old): new for new, old in enumerate(order)}
    moved = dataclasses.replace(
        sample,
        labels=tuple(sample.labels[o] for o in order),
        names=tuple(sample.names[o] for o in order),
        train=tuple(dataclasses.replace(item, label=place[item.label]) for item in sample.train),
        test=tuple(dataclasses.replace(item, label=place[item.label]) for item in sample.test),
    )
    for epochs in (0, EPOCHS):
        one, other = (subject.predict(subject.fit(data, epochs=epochs), 6) for data in (sample, moved))
        require_close(one[:, order], other, f"answers with classes in another order, {pluralize(epochs, 'epoch')}")
        if subject.kind.trains_on == "nothing":
            return


@promise("one image per class, unequal numbers and names in any script work")
def check_few_images(subject: Subject) -> None:
    """Down to two classes with one image each."""
    sample = subject.sample
    for counts in FEW:
        names = NAMES[: len(counts)]
        by_class = [[item for item in sample.train if item.label == label][:n] for label, n in enumerate(counts)]
        train = tuple(item for items in by_class for item in items)
        tiny = dataclasses.replace(sample, labels=names, names=names, train=train, test=())
        model = subject.fit(tiny)
        require_distributions(subject.predict(model, 3))
        require(model.predict(subject.images[0]) in names, f"with {counts} images it predicts none of the classes")


@promise("what a report shows of it can be shown")
def check_reported(subject: Subject) -> None:
    """Texts, prompts and stored features have their shapes, or there are none; notes are sentences."""
    method, C = subject.fitted.method_, len(subject.sample.names)
    with torch.no_grad():
        texts, stored = method.prompt_features(), method.stored_training_features()
    fits = texts is None or (texts.dim() == 3 and texts.shape[1:] == (C, method.encoder.feature_dim))
    require(fits, f"prompt_features has shape {tuple(getattr(texts, 'shape', ()))}, not (M, C, D)")
    for context in method.text_contexts():
        require(context.dim() in (2, 3), f"a text context has shape {tuple(context.shape)}, not (L, W) or (C, L, W)")
    if stored is not None:
        rows, labels = stored
        require(len(rows) == len(labels), f"{len(rows)} stored features have {len(labels)} labels")
    require(all(isinstance(note, str) and note.endswith(".") for note in method.notes()), "a note is no sentence")


@promise("it is exported as one program for any batch size")
def check_export(subject: Subject) -> None:
    """From pixels to probabilities."""
    require_exported(subject.fitted.method_)


class Pixels(nn.Module):
    """The finished method as a module: pixels (B, 3, S, S) -> probabilities (B, C)."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method

    def forward(self, pixels: Tensor) -> Tensor:
        """Encode and classify."""
        return self.method.classify(self.method.encode(pixels))


def require_exported(method: Method) -> None:
    """A finished method passes `torch.export` with a dynamic batch, and the program gives its numbers."""
    module = Pixels(method).eval()
    size = method.clip.preprocess.size
    new = torch.randn(max(BATCHES), 3, size, size, generator=torch.Generator().manual_seed(3))
    batch = torch.export.Dim("batch", min=1, max=128)
    with torch.no_grad():
        try:
            program = torch.export.export(module, (new[:EXPORTED],), dynamic_shapes=({0: batch},)).module()
        except Exception as error:  # whatever torch.export raises about code that it cannot follow
            raise ViolationError(f"torch.export fails: {str(error).splitlines()[0]}") from error
        for count in BATCHES:
            require_close(program(new[:count]), module(new[:count]), f"the exported program, batch of {count}", 1e-5)


Change = Literal["add", "remove", "rename"]


@promise("classes are added, removed and renamed, or it says why not")
def check_class_changes(subject: Subject) -> None:
    """The changed model answers for its classes and can be saved; the model itself stays as it is."""
    for change in get_args(Change):
        changed = apply_change(subject, change)
        if changed is None:
            continue
        method, names = changed
        require(method.problem.names == names, f"to {change} a class leaves the names {method.problem.names}")
        with torch.no_grad():
            found = method.classify(subject.features)
        require(found.shape == (6, len(names)), f"to {change} a class leaves answers of shape {tuple(found.shape)}")
        require_distributions(found)
        copied = type(method)(method.clip, method.problem, method.options)
        copied.restore(method.state_dict())
        copied.temperature = method.temperature
        with torch.no_grad():
            require_close(copied.classify(subject.features), found, f"a model saved after it was changed ({change})")


def apply_change(subject: Subject, change: Change) -> tuple[Method, tuple[str, ...]] | None:
    """The method after a change, and the names that it must have; None if it says that it cannot."""
    method, names = subject.fitted.method_, subject.sample.names
    with torch.no_grad():
        before = method.classify(subject.features)
    # A new class of the images of the last one, under another name.
    own = [dataclasses.replace(i, label=len(names)) for i in subject.sample.train if i.label == len(names) - 1]
    support = ImageSupport(own, Session(device="cpu"), method.clip, SEED)
    changes: Mapping[Change, tuple[Callable[[], Method], tuple[str, ...]]] = {
        "add": (lambda: method.with_class("a drawing", support), (*names, "a drawing")),
        "remove": (lambda: method.without_class(1), (names[0], *names[2:])),
        "rename": (lambda: method.with_name(1, "a drawing"), (names[0], "a drawing", *names[2:])),
    }
    function, expected = changes[change]
    try:
        changed = function()
    except UserError as error:
        require(bool(error.hint), f"to {change} a class is refused without a hint: {error}")
        return None
    with torch.no_grad():
        require(torch.equal(method.classify(subject.features), before), f"to {change} a class changed the model itself")
    return changed, expected


@promise("it moves to other classes, or says why not")
def check_retarget(subject: Subject) -> None:
    """`retarget` to some known classes in another order, and a new one."""
    method, names = subject.fitted.method_, subject.sample.names
    problem = dataclasses.replace(method.problem, names=(names[2], "a drawing", names[0]))
    sources: Sequence[int | None] = (2, None, 0)
    try:
        moved = method.retarget(problem, sources)
    except UserError as error:
        require(bool(error.hint), f"retarget is refused without a hint: {error}")
        return
    with torch.no_grad():
        found = moved.classify(subject.features)
    require(found.shape == (6, 3), f"for three classes it answers with shape {tuple(found.shape)}")
    require_distributions(found)


@promise("it is better than chance by far")
def check_accuracy(subject: Subject) -> None:
    """Six epochs on the embedded backbone; a method that combines others is left out."""
    if subject.kind.fits_others:
        return
    known = vars(subject.kind.Options())
    few: dict[str, Any] = {option: 2 for option in ("views", "train_views") if option in known}
    settings: dict[str, Any] = {**short_options(subject.kind, epochs=6), **few}
    model = Classifier(subject.kind.name, shots=TRAIN, seed=1, backbone=_load_mini(), device="cpu", **settings)
    accuracy, classes = model.fit(subject.sample).evaluate(subject.sample).accuracy, len(subject.sample.names)
    require(accuracy > 3 / classes, f"accuracy {accuracy:.0%} with {classes} classes, less than three times chance")


@dataclass(frozen=True)
class CheckResult:
    """Outcome of one check.

    check: its name. promise: what was checked. problem: what is wrong, or "". seconds: how long it took.
    """

    check: str
    promise: str
    problem: str
    seconds: float


def check_method(name: str) -> Iterator[CheckResult]:
    """Run all checks on a method.

    Args:
        name: Its name.

    Returns:
        One result after the other.

    Raises:
        UserError: If there is no such method.
    """
    subject = Subject(get_method(name).name)
    for check in CHECKS:
        start, problem = time.perf_counter(), ""
        try:
            # Such small products are slower on several threads.
            with limit_threads(0):
                check(subject)
        except Exception as error:  # a method under development may raise anything
            known = isinstance(error, ViolationError | UserError)
            problem = str(error) if known else f"{type(error).__name__}: {error}"
        yield CheckResult(str(check), check.promise, problem, time.perf_counter() - start)
