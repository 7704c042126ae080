"""Small real parts for the tests: a tiny CLIP checkpoint, the data beside the repository."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import hypothesis
import pytest
import torch

from dca.backbones.clip import CLIP, CLIPConfig, TextConfig, Tokenizer, VisionConfig
from dca.backbones.clip.tokenizer import _byte_alphabet, build_bpe
from dca.backbones.clip.weights import initialize_weights, to_hf_state
from dca.backbones.preprocess import Preprocess
from dca.core.files import write_json
from dca.datasets.dataset import Dataset

# The wheel of torchvision, which reference libraries import, registers functions of its GPU operations: beside a CPU
# build of torch that fails, and the tests need none of them.
sys.modules.setdefault("torchvision._meta_registrations", ModuleType("torchvision._meta_registrations"))
torch.set_num_threads(1)
# A busy machine is no reason to fail.
hypothesis.settings.register_profile("dca", deadline=None)
hypothesis.settings.load_profile("dca")
# A shell starts background jobs with SIGINT ignored, and child processes would inherit that: tests interrupt them.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Features that tests store stay out of the user's cache; processes they start inherit this.
os.environ["DCA_CACHE"] = tempfile.mkdtemp(prefix="dca-test-cache-")
# The small encoder alone, for speed: tests of the pool ask for it.
os.environ["DCA_BACKBONE"] = "mini"
# Tests of plots ask for them; for the others they would only take time.
os.environ["DCA_PLOTS"] = "0"

SHARED = Path(__file__).resolve().parents[1].parent / "shared"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MERGES = ["a t</w>", "c at</w>", "d o", "do g</w>", "o f</w>", "p h", "ph o", "pho t", "phot o</w>", "i s</w>", "t h"]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say at the end what was skipped and why, one line per reason."""
    reports = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reports if report.longrepr)
    for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
        terminalreporter.write_line(f"skipped {count:>3}: {reason}")


def shared(*parts: str) -> Path:
    """A folder of the shared data; the test is skipped where it is absent."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"needs the shared data: {'/'.join(parts)}")
    return path


def small_vocabulary(size: int | None = None) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Bytes, bytes at the end of a word, a few merges, tokens without use up to `size`, SOT and EOT."""
    merges = [(a, b) for a, b in (m.split() for m in MERGES)]
    alphabet = _byte_alphabet()
    tokens = [*alphabet, *(c + "</w>" for c in alphabet), *(a + b for a, b in merges)]
    tokens += [f"unused{n}" for n in range((size or 0) - len(tokens) - 2)]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    return {t: i for i, t in enumerate(tokens)}, merges


def tiny_config(activation: str = "quick_gelu", context_length: int = 77) -> CLIPConfig:
    vocab = len(small_vocabulary()[0])
    return CLIPConfig(
        vision=VisionConfig(
            width=32, layers=3, heads=2, hidden=64, activation=activation, image_size=32, patch_size=8
        ),
        text=TextConfig(
            width=24, layers=3, heads=2, hidden=48, activation=activation, vocab_size=vocab,
            context_length=context_length, sot_id=vocab - 2, eot_id=vocab - 1,
        ),
        embed_dim=16,
    )  # fmt: skip


def make_clip(config: CLIPConfig | None = None, seed: int = 0) -> CLIP:
    """A randomly initialised CLIP; its biases are random too, so that a lost one shows."""
    config = config or tiny_config()
    tokenizer = Tokenizer(build_bpe(*small_vocabulary(config.text.vocab_size)), config.text.context_length)
    size = config.vision.image_size
    transform = Preprocess(size=size, resize=size, resample=3, mean=(0.48, 0.46, 0.41), std=(0.27, 0.26, 0.28))
    generator = torch.Generator().manual_seed(seed)
    clip = initialize_weights(CLIP(config, tokenizer, transform, "tiny"), generator)
    with torch.no_grad():
        for name, parameter in clip.named_parameters():
            if name.endswith("bias"):
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
        clip.logit_scale.fill_(3.0)
    return clip.freeze()


def save_hf(clip: CLIP, folder: Path) -> Path:
    """The checkpoint in Hugging Face layout, tokenizer as vocab.json and merges.txt."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    save_file(to_hf_state(clip.state_dict()), folder / "model.safetensors")
    write_json(folder / "config.json", clip.config.to_hf())
    write_json(folder / "preprocessor_config.json", clip.preprocess.to_hf())
    vocab, merges = small_vocabulary(clip.config.text.vocab_size)
    (folder / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(f"{a} {b}" for a, b in merges), encoding="utf-8")
    return folder


def short_recipe(name: str, **more: object) -> dict[str, object]:
    """Settings of a short fit; a method that fits another one in folds is given fewer epochs."""
    from dca.methods.registry import get_method
    from dca.model.conformance import short_options

    return short_options(get_method(name), **more)


@pytest.fixture(scope="session")
def clip() -> CLIP:
    return make_clip()


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_hf(make_clip(), tmp_path_factory.mktemp("tiny") / "clip")


@pytest.fixture(scope="session")
def sample() -> Dataset:
    """A small cut of the drawn dataset: 10 classes, 4 training and 3 test images each."""
    from dca.datasets.sample import load_sample

    return load_sample(per_class_train=4, per_class_test=3, size=48)


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as a folder with train/ and test/."""
    from dca.datasets.sample import write_sample

    return write_sample(tmp_path_factory.mktemp("photos") / "photos", per_class_train=4, per_class_test=3, size=48)


@pytest.fixture(scope="session")
def fitted(tmp_path_factory: pytest.TempPathFactory, photos: Path, tiny_folder: Path) -> Path:
    """A finished run of DCA on the photos; tests that damage it take a copy."""
    from dca.runs.run import run
    from dca.runs.spec import FitSpec

    spec = FitSpec(data=str(photos), method="dca", shots=2, backbone=str(tiny_folder), options={"epochs": 2})
    return run(spec, tmp_path_factory.mktemp("fitted") / "photos.dca").folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


class Said(NamedTuple):
    """What a command left: its exit code and its two streams."""

    code: int
    out: str
    err: str


@pytest.fixture
def dca(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """The command line, called in this process."""
    from dca.cli import main

    def call(*arguments: object) -> Said:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return Said(code, *capsys.readouterr())

    return call
