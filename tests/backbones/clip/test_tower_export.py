"""torch.export of the towers with a dynamic batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from conftest import make_clip
from dca.backbones.blocks import Update
from dca.backbones.clip import CLIP
from dca.backbones.dual_encoder import ExtraTokens

WIDTH = 32


class Program(nn.Module):
    """A function of a CLIP and one tensor, as a module that torch.export takes."""

    def __init__(self, clip: CLIP, call: Callable[[CLIP, Tensor], Tensor]) -> None:
        super().__init__()
        self.clip, self.call = clip, call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self.clip, x)


def exported(program: Program, example: Tensor) -> nn.Module:
    batch = torch.export.Dim("batch", min=1, max=64)
    return torch.export.export(program, (example,), dynamic_shapes={"x": {0: batch}}).module()


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def low_rank(tower: str, width: int) -> dict[str, Update]:
    A, B = normal(2, width, seed=1), normal(width, 2, seed=2)
    return {f"{tower}.{block}.{part}": lambda x: 0.1 * x @ A.T @ B.T for block in range(3) for part in "qkv"}


TOKENS = ExtraTokens({0: normal(4, WIDTH), 1: normal(2, WIDTH, seed=1)})
AT_THE_END = ExtraTokens({0: normal(4, WIDTH), 2: normal(4, WIDTH, seed=1)}, "end", before_norm=True)
UPDATES = low_rank("visual", WIDTH)
IMAGE_CALLS: dict[str, Callable[[CLIP, Tensor], Tensor]] = {
    "plain": lambda clip, x: clip.encode_image(x),
    "tokens": lambda clip, x: clip.encode_image(x, tokens=TOKENS),
    "tokens at the end": lambda clip, x: clip.encode_image(x, tokens=AT_THE_END),
    "updates": lambda clip, x: clip.encode_image(x, updates=UPDATES),
    "both": lambda clip, x: clip.encode_image(x, tokens=TOKENS, updates=UPDATES),
    "bfloat16": lambda clip, x: clip.encode_image(x, dtype=torch.bfloat16),
    "rows": lambda clip, x: clip.encode_until_end(x),
    "unprojected": lambda clip, x: clip.encode_unprojected(x),
    "patches": lambda clip, x: clip.encode_with_patches(x)[1],
}


@pytest.mark.parametrize("kind", IMAGE_CALLS)
def test_the_image_tower_takes_any_batch_after_export(kind: str) -> None:
    clip, call = make_clip(), IMAGE_CALLS[kind]
    with torch.no_grad():
        program = exported(Program(clip, call), normal(3, 3, 32, 32))
        for size in (1, 2, 7):
            pixels = normal(size, 3, 32, 32, seed=size)
            expected = call(clip, pixels)
            torch.testing.assert_close(program(pixels), expected, atol=1e-5, rtol=0)
            assert expected.shape[0] == size


@pytest.mark.parametrize("kind", ["equal names", "names of unequal lengths", "updates"])
def test_a_batch_of_contexts_takes_any_size_after_export(kind: str) -> None:
    """And no tensor of the traced program stays in a cache that later calls read."""
    clip = make_clip()
    eot, width = clip.config.text.eot_id, clip.config.text.width
    # Ids that no other test uses, so that the export is the first to ask for these constants.
    start = 60 + 40 * ["equal names", "names of unequal lengths", "updates"].index(kind)
    names = [[start, eot], [start + 1, start + 2, eot], [start + 3, eot]]
    if kind == "equal names":
        names = [[start + n, eot] for n in range(3)]
    updates = low_rank("text", width) if kind == "updates" else None

    def call(clip: CLIP, contexts: Tensor) -> Tensor:
        return F.normalize(clip.encode_prompts(contexts, names, updates=updates), dim=-1)

    with torch.no_grad():
        program = exported(Program(clip, call), normal(3, 4, width))
        for size in (1, 2, 6):
            contexts = normal(size, 4, width, seed=size)
            alone = [clip.encode_prompts([context], names, updates=updates) for context in contexts]
            expected = F.normalize(torch.cat(alone), dim=-1)
            torch.testing.assert_close(call(clip, contexts), expected, atol=1e-6, rtol=0)
            torch.testing.assert_close(program(contexts), expected, atol=1e-6, rtol=0)


def test_texts_can_be_encoded_after_and_inside_an_export() -> None:
    clip = make_clip()
    texts = ["a cat of the export", "dog"]

    def call(clip: CLIP, x: Tensor) -> Tensor:
        return F.normalize(clip.encode_image(x), dim=-1) @ F.normalize(clip.encode_text(texts), dim=-1).T

    with torch.no_grad():
        program = exported(Program(clip, call), normal(3, 3, 32, 32))
        pixels = normal(5, 3, 32, 32)
        torch.testing.assert_close(program(pixels), call(clip, pixels), atol=1e-6, rtol=0)


def test_fake_tensors_do_not_stay_in_a_cache() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    clip = make_clip()
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        clip.encode_text(["a fake dog", "fake"])
    again = clip.encode_text(["a fake dog", "fake"])
    assert type(again) is Tensor
    torch.testing.assert_close(again[:1], clip.encode_text(["a fake dog"]), atol=1e-5, rtol=0)
