"""GPU kernels in Triton's interpreter equal the plain implementations, values and gradients."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor, nn

os.environ["TRITON_INTERPRET"] = "1"  # before the kernels are imported, which happens when they are first used
pytest.importorskip("triton", reason="Triton is not available for this system")

from dca.backbones.clip.text import PromptLayout, SequenceLayout
from dca.backbones.fast import activation, attention, norm
from dca.backbones.fast.attention import BLOCK_ROWS, SequenceGroup, divide_into_blocks
from dca.core.device import power_of_two, triton_usable

CPU = torch.device("cpu")
CLOSE = {torch.float32: {"rtol": 1e-5, "atol": 2e-6}, torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2}}
TYPES = pytest.mark.parametrize("dtype", list(CLOSE), ids=["fp32", "bf16"])


def draw(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def gradients(outputs: list[Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """Gradients of the inputs under random weights of the outputs."""
    weights = [draw(*out.shape, seed=place, dtype=out.dtype) for place, out in enumerate(outputs)]
    return [g.float() for g in torch.autograd.grad(outputs, inputs, weights, retain_graph=True)]


def assert_same(got: list[Tensor], want: list[Tensor], dtype: torch.dtype) -> None:
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a.float(), b.float(), **CLOSE[dtype])


@TYPES
@pytest.mark.parametrize("width", [24, 64])
@pytest.mark.parametrize("adds", [True, False])
def test_add_norm(width: int, adds: bool, dtype: torch.dtype) -> None:
    layer = nn.LayerNorm(width).requires_grad_(False)
    layer.weight.copy_(draw(width, seed=5))
    layer.bias.copy_(draw(width, seed=6))
    x = draw(3, 5, width, seed=1).requires_grad_()
    y = draw(3, 5, width, seed=2, dtype=dtype).requires_grad_() if adds else None
    inputs = [x] if y is None else [x, y]
    got = list(norm.FusedAddNorm.apply(x, y, layer.weight, layer.bias, layer.eps, dtype))
    want = list(norm.add_norm(x, y, layer, dtype))
    assert [t.dtype for t in got] == [t.dtype for t in want] == [torch.float32, dtype]
    assert_same([*got, *gradients(got, inputs)], [*want, *gradients(want, inputs)], dtype)


@pytest.mark.parametrize("used", [0, 1], ids=["the sum alone", "the norm alone"])
def test_add_norm_where_one_result_is_used(used: int) -> None:
    layer = nn.LayerNorm(16).requires_grad_(False)
    x, y = draw(4, 16, seed=1).requires_grad_(), draw(4, 16, seed=2).requires_grad_()
    got = norm.FusedAddNorm.apply(x, y, layer.weight, layer.bias, layer.eps, torch.float32)[used]
    want = norm.add_norm(x, y, layer)[used]
    assert_same(gradients([got], [x, y]), gradients([want], [x, y]), torch.float32)


@TYPES
@pytest.mark.parametrize("quick", [True, False])
def test_activation(quick: bool, dtype: torch.dtype) -> None:
    h = (6 * draw(5000, seed=1)).to(dtype).requires_grad_()
    got, want = activation.FusedActivation.apply(h, quick), activation.activate(h, quick=quick)
    assert_same([got, *gradients([got], [h])], [want, *gradients([want], [h])], dtype)


HEADS, WIDTH = 2, 32
# Equal and unequal prefixes; names that fill a block exactly, are longer than the usual block, or are one token.
PREFIXES = [(5,), (5, 3, 7), (17, 2)]
NAMES = [(1,), (2, 4, 9, 3, 2, 2, 30, 40, 3), (BLOCK_ROWS, BLOCK_ROWS, 1), (BLOCK_ROWS + 6, 2), (3,) * 25]


def split_heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (HEADS, -1)).transpose(-3, -2)


def merge_heads(x: Tensor) -> Tensor:
    return x.transpose(-3, -2).flatten(-2)


# In float32 only: the interpreter multiplies no bfloat16 matrices. tests/gpu/check_device.py compares both on a GPU.
@pytest.mark.parametrize("names", NAMES, ids=str)
@pytest.mark.parametrize("prefixes", PREFIXES, ids=str)
def test_attention_with_prefixes(prefixes: tuple[int, ...], names: tuple[int, ...]) -> None:
    compare(PromptLayout(prefixes, names, CPU), sum(prefixes) + len(prefixes) * sum(names))


@pytest.mark.parametrize("names", NAMES, ids=str)
def test_attention_of_whole_sequences(names: tuple[int, ...]) -> None:
    compare(SequenceLayout(names, CPU), sum(names))


def compare(layout: PromptLayout | SequenceLayout, rows: int) -> None:
    qkv = draw(rows, 3 * WIDTH, seed=3).requires_grad_()
    q, k, v = (split_heads(part) for part in qkv.chunk(3, -1))
    got = attention.fused_attention(qkv, None, layout.row_blocks(last=False), HEADS)
    want = merge_heads(layout.attend(q, k, v))
    assert_same([got, *gradients([got], [qkv])], [want, *gradients([want], [qkv])], torch.float32)
    last = layout.last(qkv[:, :WIDTH])
    got = attention.fused_attention(last, qkv[:, WIDTH:], layout.row_blocks(last=True), HEADS)
    want = merge_heads(layout.attend_last(split_heads(last), k, v))
    assert_same([got, *gradients([got], [qkv])], [want, *gradients([want], [qkv])], torch.float32)


def test_blocks_hold_whole_sequences_and_every_row_once() -> None:
    spans = [SequenceGroup(0, (4, 6)), SequenceGroup(10, (30, 30, 10, 64, 1), range(4))]
    blocks = divide_into_blocks(spans, CPU, last=False)
    covered = [row for _, _, first, count, _, _ in blocks.blocks.tolist() for row in range(first, first + count)]
    assert covered == list(range(145)) == blocks.row_of.tolist()
    assert blocks.blocks[:, 2:].tolist() == [
        [0, 10, 0, 0], [10, 60, 0, 4], [70, 10, 0, 4], [80, 64, 0, 4], [144, 1, 0, 4],
    ]  # fmt: skip
    assert blocks.prefixes.tolist() == [[0, 4, 1, 4]]


def test_kernels_run_on_gpus_only() -> None:
    assert not triton_usable(torch.zeros(2))
    assert [power_of_two(n, 16) for n in (1, 16, 17, 100)] == [16, 16, 32, 128]
