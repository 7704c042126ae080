from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from conftest import make_clip, tiny_config
from dca.backbones.blocks import Residual, Update
from dca.backbones.clip import CLIP
from dca.backbones.clip.text import classes_per_chunk
from oracles.text import encode_padded, encode_prompts_padded


def random_case(
    clip: CLIP, lengths: list[int], name_lengths: list[int], per_class: bool, seed: int
) -> tuple[list[Tensor], list[list[int]]]:
    generator = torch.Generator().manual_seed(seed)
    width, eot = clip.config.text.width, clip.config.text.eot_id
    shape = (len(name_lengths),) if per_class else ()
    contexts = [torch.randn(*shape, n, width, generator=generator).requires_grad_() for n in lengths]
    names = [[*torch.randint(0, 500, (n,), generator=generator).tolist(), eot] for n in name_lengths]
    return contexts, names


@settings(max_examples=12, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    name_lengths=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    per_class=st.booleans(),
    seed=st.integers(0, 99),
)
def test_fast_route_equals_the_padded_one_in_features_and_gradients(
    lengths: list[int], name_lengths: list[int], per_class: bool, seed: int
) -> None:
    clip = make_clip()
    contexts, names = random_case(clip, lengths, name_lengths, per_class, seed)
    fast = clip.encode_prompts(contexts, names)
    plain = encode_prompts_padded(clip, contexts, names)
    torch.testing.assert_close(fast, plain, atol=1e-5, rtol=0)
    weights = torch.randn(plain.shape, generator=torch.Generator().manual_seed(seed))
    by_fast = torch.autograd.grad((fast * weights).sum(), contexts)
    by_plain = torch.autograd.grad((plain * weights).sum(), contexts)
    for one, other in zip(by_fast, by_plain, strict=True):
        assert (one - other).norm() <= 1e-4 * other.norm()
        # Every single token's gradient, not only the whole.
        assert ((one - other).norm(dim=-1) <= 1e-4 * other.norm(dim=-1).clamp_min(1e-6)).all()


@pytest.mark.parametrize("activation", ["quick_gelu", "gelu"])
def test_encode_text_equals_the_padded_route(activation: str) -> None:
    clip = make_clip(tiny_config(activation))
    texts = ["cat", "a photo of a dog.", "", "x" * 40, "a photo of a cat and a dog and a cat"]
    sequences = clip.tokenizer(texts)
    length = clip.config.text.context_length
    padded = torch.tensor([s + [clip.config.text.eot_id] * (length - len(s)) for s in sequences])
    ends = torch.tensor([len(s) - 1 for s in sequences])
    expected = encode_padded(clip, clip.text.embedding(padded), ends)
    torch.testing.assert_close(clip.encode_text(texts), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(clip.encode_text(padded), expected, atol=1e-5, rtol=0)


def test_ids_without_eot_are_refused(clip: CLIP) -> None:
    with pytest.raises(ValueError, match="no EOT"):
        clip.encode_text(torch.ones(1, 5, dtype=torch.long))


def test_tokens_at_a_layer_replace_the_context_rows(clip: CLIP) -> None:
    """Deep text prompts: rows 1..L are replaced at the input of block 1."""
    generator = torch.Generator().manual_seed(0)
    width = clip.config.text.width
    x = torch.randn(2, 7, width, generator=generator)
    deep = torch.randn(3, width, generator=generator)
    got = clip.text.encode_packed(x.flatten(0, 1), [7, 7], {1: deep})

    h = clip.text.blocks[0](Residual(x + clip.text.positions[:7]), causal=True).total()
    h = torch.cat([h[:, :1], deep.expand(2, -1, -1), h[:, 4:]], dim=1)
    for block in list(clip.text.blocks)[1:]:
        h = block(Residual(h), causal=True).total()
    torch.testing.assert_close(got, clip.text.projection(clip.text.ln_final(h[:, -1])))


@pytest.mark.parametrize("own", [(), (0,), (1,), (2,), (1, 2), (7,)])
def test_deep_prompts_take_the_shared_route_exactly(clip: CLIP, own: tuple[int, ...]) -> None:
    """Tokens replaced at blocks 1 and 2, shared by the classes, or from some block on of each class."""
    (context,), names = random_case(clip, [3], [1, 4, 2, 4], False, 5)
    generator = torch.Generator().manual_seed(6)
    deep = {}
    for layer in sorted({1, 2, *own}):
        shape = (len(names),) if layer in own else ()
        deep[layer] = torch.randn(*shape, 3, clip.config.text.width, generator=generator).requires_grad_()
    got = clip.encode_prompts([context], names, [deep])[0]
    expected = []
    for c, ids in enumerate(names):
        x = torch.cat([clip.text.embed([clip.config.text.sot_id]), context, clip.text.embed(ids)])
        h = (x + clip.text.positions[: len(x)])[None]
        for layer, block in enumerate(clip.text.blocks):
            if layer in deep:
                tokens = deep[layer][c] if layer in own else deep[layer]
                h = torch.cat([h[:, :1], tokens[None], h[:, 4:]], dim=1)
            h = block(Residual(h), causal=True).total()
        expected.append(clip.text.projection(clip.text.ln_final(h[:, -1]))[0])
    torch.testing.assert_close(got, torch.stack(expected), atol=1e-5, rtol=0)
    weights, learned = torch.randn(got.shape, generator=generator), [context, *deep.values()]
    by_fast = torch.autograd.grad((got * weights).sum(), learned, allow_unused=True)
    by_plain = torch.autograd.grad((torch.stack(expected) * weights).sum(), learned, allow_unused=True)
    for one, other in zip(by_fast, by_plain, strict=True):
        if other is None:
            assert one is None  # no block takes it
        else:
            assert (one - other).norm() <= 1e-4 * other.norm()


@pytest.mark.parametrize(("first", "rows"), [(0, [24, 24]), (1, [14, 24]), (2, [14, 14])])
def test_blocks_before_the_first_own_tokens_share_the_prefix(
    clip: CLIP, first: int, rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three names, 9 rows with EOT, behind a prefix of 5: shared before the tokens come in, then in front of each."""
    (context,), names = random_case(clip, [4], [1, 2, 3], False, 9)
    seen: list[int] = []
    for block in list(clip.text.blocks)[:2]:
        add = block.add_attention_and_mlp
        monkeypatch.setattr(
            block, "add_attention_and_mlp", lambda x, *more, add=add: (seen.append(len(x)), add(x, *more))[1]
        )
    clip.encode_prompts([context], names, [{first: torch.zeros(3, 4, clip.config.text.width)}])
    assert seen == rows


def test_updates_of_layers_equal_changed_weights() -> None:
    """A product added to a linear layer equals adding it to the weight, on every route; so do gains of norms."""
    clip, changed = make_clip(), make_clip()
    generator = torch.Generator().manual_seed(7)
    updates: dict[str, Update] = {}

    def add(name: str, weight: Tensor) -> None:
        delta = 0.1 * torch.randn(weight.shape, generator=generator)
        updates[name] = lambda x: x @ delta.T
        weight += delta

    def add_to_norm(name: str, norm: nn.Module) -> None:
        assert isinstance(norm, nn.LayerNorm)
        gain, bias = 0.3 * torch.randn(2, *norm.weight.shape, generator=generator)
        updates[name] = lambda x: F.layer_norm(x, gain.shape, gain, bias, norm.eps)
        norm.weight += gain
        norm.bias += bias

    for tower in ("visual", "text"):
        for number, block in enumerate(getattr(changed, tower).blocks):
            weights = dict(zip("qkv", block.attn.qkv.weight.chunk(3), strict=True))
            weights |= {"out": block.attn.out.weight, "fc": block.mlp[0].weight, "proj": block.mlp[2].weight}
            for part, weight in weights.items():
                add(f"{tower}.{number}.{part}", weight)
            for part in ("ln_1", "ln_2"):
                add_to_norm(f"{tower}.{number}.{part}", getattr(block, part))
    for tower, part in (("visual", "ln_pre"), ("visual", "ln_post"), ("text", "ln_final")):
        add_to_norm(f"{tower}.{part}", getattr(getattr(changed, tower), part))
    pixels = torch.randn(2, 3, 32, 32, generator=generator)
    contexts, names = random_case(clip, [2, 4], [1, 3, 3], False, 8)
    before = clip.encode_image(pixels)
    routes: list[Callable[[CLIP, Mapping[str, Update] | None], Tensor]] = [
        lambda c, u: c.encode_image(pixels, updates=u),
        lambda c, u: c.encode_image(pixels, updates=u, on_block=lambda name, rows: None),
        lambda c, u: c.encode_prompts(contexts, names, updates=u),
        lambda c, u: c.encode_prompts(torch.stack([contexts[0]] * 2), names, updates=u),
        lambda c, u: c.encode_prompts([torch.stack([contexts[0]] * 3)], names, updates=u),
        lambda c, u: c.encode_prompts([contexts[0]], names, [{1: torch.stack([contexts[0]] * 3)}], updates=u),
        lambda c, u: c.encode_text(["a cat"], updates=u),
    ]
    for route in routes:
        torch.testing.assert_close(route(clip, updates), route(changed, None), atol=1e-5, rtol=0)
        assert not torch.allclose(route(clip, updates), route(clip, None), atol=1e-3)
    assert torch.equal(clip.encode_image(pixels), before)


@pytest.mark.parametrize(
    "name", ["visual.3.q", "visual.0.mlp", "head.0.q", "visual.q", "text.x.v", "text.ln_pre", "visual.0.ln_pre", ""]
)
def test_an_update_of_no_projection_is_refused(clip: CLIP, name: str) -> None:
    with pytest.raises(ValueError, match="update"):
        clip.encode_image(torch.zeros(1, 3, 32, 32), updates={name: lambda x: x})


@pytest.mark.parametrize("name_lengths", [[2, 2, 2], [1, 4, 2]])
def test_one_tensor_of_contexts_equals_the_contexts_one_by_one(name_lengths: list[int]) -> None:
    clip = make_clip()
    contexts, names = random_case(clip, [4] * 5, name_lengths, False, 3)
    together = clip.encode_prompts(torch.stack(contexts), names)
    alone = torch.cat([clip.encode_prompts([context], names) for context in contexts])
    assert together.shape == (5, 3, clip.config.embed_dim)
    torch.testing.assert_close(F.normalize(together, dim=-1), F.normalize(alone, dim=-1), atol=1e-6, rtol=0)
    weights = torch.randn(alone.shape, generator=torch.Generator().manual_seed(4))
    by_batch = torch.autograd.grad((together * weights).sum(), contexts)
    by_one = torch.autograd.grad((alone * weights).sum(), contexts)
    for one, other in zip(by_batch, by_one, strict=True):
        assert (one - other).norm() <= 1e-5 * other.norm()


@pytest.mark.parametrize("chunk_size", [1, 2, 3, 4])
def test_chunks_equal_the_whole(clip: CLIP, chunk_size: int) -> None:
    ids = [[5, 6, 7, clip.config.text.eot_id], [8, clip.config.text.eot_id]] * 2
    starts = [torch.randn(n, clip.config.text.width, generator=torch.Generator().manual_seed(n)) for n in (2, 3)]
    found = []
    for size in (None, chunk_size):
        contexts = [start.clone().requires_grad_() for start in starts]
        features = clip.text.encode_prompts(contexts, ids, chunk_size=size)
        (features * torch.linspace(-1, 1, features.numel()).view_as(features)).sum().backward()
        found.append([features.detach(), *(context.grad for context in contexts)])
    for whole, parts in zip(*found, strict=True):
        torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-6)


def test_a_cpu_and_predictions_encode_all_classes_choose_chunk_size(clip: CLIP) -> None:
    lengths = [3] * 10**6
    assert classes_per_chunk(lengths, 4, clip.config.text, torch.zeros(0)) == 10**6
    with torch.no_grad():
        assert classes_per_chunk(lengths, 4, clip.config.text, torch.zeros(0)) == 10**6


def test_a_gpu_takes_as_many_classes_as_fit(clip: CLIP, monkeypatch: pytest.MonkeyPatch) -> None:
    class OnGpu:
        is_cuda, device = True, "cuda:0"

        def element_size(self) -> int:
            return 2

    config = clip.config.text
    whole = 4 * 3 * config.layers * 9 * config.width * 2  # bytes per class
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: type("P", (), {"total_memory": 1000 * whole})
    )
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 200 * whole)
    assert classes_per_chunk([3] * 200, 4, config, OnGpu()) == 200
    assert classes_per_chunk([3] * 201, 4, config, OnGpu()) == 120


def test_the_chunk_size_stays_as_it_was_chosen_first(clip: CLIP, monkeypatch: pytest.MonkeyPatch) -> None:
    """Free memory shrinks while a step is recorded; other chunks would need index tensors that are not there yet."""
    asked = iter([2, 3])
    monkeypatch.setattr("dca.backbones.clip.text.classes_per_chunk", lambda *_: next(asked))
    chosen = [clip.text._choose_chunk_size([3, 4, 5], prompts, torch.zeros(0)) for prompts in (1, 1, 2)]
    assert chosen == [2, 2, 3]
