"""One CLIP used by several methods, precisions and threads at once."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

from conftest import make_clip
from dca.backbones import dual_encoder
from dca.backbones.blocks import Attention, Residual, Update
from dca.backbones.clip import CLIP
from dca.backbones.dual_encoder import ExtraTokens
from dca.backbones.sources import mini_folder

BF16 = torch.bfloat16


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def updates(seed: int) -> dict[str, Update]:
    """Full-rank updates of every projection of the tiny CLIP."""
    made: dict[str, Update] = {}
    for tower, width in (("visual", 32), ("text", 24)):
        matrix = 0.1 * normal(width, width, seed=seed)
        made |= {f"{tower}.{block}.{part}": lambda x, m=matrix: x @ m for block in range(3) for part in "qkv"}  # type: ignore[misc]
    return made


def jobs(clip: CLIP) -> list[Callable[[], Tensor]]:
    """Calls that differ in their inputs, tokens, updates and types, each with one right answer."""
    pixels, rough = [normal(2, 3, 32, 32, seed=seed) for seed in range(2)], clip.with_dtype(BF16)
    tokens = ExtraTokens({0: normal(4, 32), 1: normal(4, 32, seed=1)})
    one, other = updates(1), updates(2)
    contexts, names = normal(3, 4, 24), [[5, clip.config.text.eot_id], [6, 7, clip.config.text.eot_id]]
    texts = ["a photo of a cat", "dog"]
    return [
        *(lambda x=x: clip.encode_image(x) for x in pixels),  # type: ignore[misc]
        *(lambda x=x: rough.encode_image(x) for x in pixels),  # type: ignore[misc]
        lambda: clip.encode_image(pixels[0], tokens=tokens),
        lambda: clip.encode_image(pixels[0], updates=one),
        lambda: clip.encode_image(pixels[0], updates=other, tokens=tokens),
        lambda: clip.encode_image(pixels[0], dtype=BF16, updates=one),
        lambda: rough.encode_image(pixels[0], dtype=torch.float32),
        lambda: clip.encode_until_end(pixels[1], dtype=BF16),
        lambda: clip.encode_unprojected(pixels[1], dtype=BF16),
        lambda: clip.encode_with_patches(pixels[0])[1],
        lambda: rough.encode_with_patches(pixels[0])[1],
        lambda: clip.encode_text(texts),
        lambda: clip.encode_text(texts, updates=one),
        lambda: rough.encode_text(texts, updates=other),
        lambda: clip.encode_prompts(contexts, names),
        lambda: clip.encode_prompts(list(contexts), names, updates=other),
        lambda: rough.encode_embedded_text([normal(5, 24), normal(7, 24)]),
    ]


def test_encodings_from_eight_threads_equal_those_of_one() -> None:
    clip = make_clip()
    calls = jobs(clip)
    order = torch.randint(len(calls), (1000,), generator=torch.Generator().manual_seed(3)).tolist()
    switching = sys.getswitchinterval()
    with torch.no_grad():
        expected = [call() for call in calls]
    assert all(torch.isfinite(value).all() for value in expected)

    @torch.no_grad()
    def answer(n: int) -> Tensor:
        return calls[n]()

    try:
        sys.setswitchinterval(1e-5)  # more changes between threads than usual
        with ThreadPoolExecutor(8, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            found = list(pool.map(answer, order))
    finally:
        sys.setswitchinterval(switching)
    wrong = [place for place, n in enumerate(order) if not torch.equal(found[place], expected[n])]
    assert wrong == []


def test_the_jobs_of_the_thread_test_tell_the_variants_apart() -> None:
    clip = make_clip()
    plain, _, rough, _, tokens, one, other, mixed, exact, *_ = (call() for call in jobs(clip))
    for first, second in [(plain, rough), (plain, tokens), (plain, one), (one, other), (one, mixed)]:
        assert not torch.equal(first, second)
    assert torch.equal(plain, exact)


def test_updates_of_one_call_are_gone_in_the_next() -> None:
    clip, pixels = make_clip(), normal(2, 3, 32, 32)
    before = clip.encode_image(pixels)
    assert not torch.allclose(clip.encode_image(pixels, updates=updates(1)), before, atol=1e-3)
    assert torch.equal(clip.encode_image(pixels), before)

    def failing(x: Tensor) -> Tensor:
        raise RuntimeError("in the middle of a tower")

    with pytest.raises(RuntimeError, match="in the middle"):
        clip.encode_image(pixels, updates={**updates(1), "visual.2.v": failing})
    assert torch.equal(clip.encode_image(pixels), before)
    assert not any("updates" in vars(module) for module in clip.modules() if isinstance(module, Attention))


def test_a_call_inside_another_keeps_the_updates_of_both() -> None:
    """An update may itself encode with other updates of the same CLIP."""
    clip, pixels = make_clip(), normal(2, 3, 32, 32)
    inner, outer = updates(1), updates(2)
    expected = clip.encode_image(pixels, updates=inner), clip.encode_image(pixels, updates=outer)
    seen: list[Tensor] = []

    def nested(x: Tensor) -> Tensor:
        seen.append(clip.encode_image(pixels, updates=inner))
        return outer["visual.1.k"](x)

    found = clip.encode_image(pixels, updates={**outer, "visual.1.k": nested})
    assert torch.equal(found, expected[1])
    assert torch.equal(seen[0], expected[0])


def test_another_type_is_another_object_with_the_same_weights() -> None:
    clip, pixels = make_clip(), normal(4, 3, 32, 32)
    before = clip.encode_image(pixels), clip.encode_text(["a cat"])
    rough = clip.with_dtype(BF16)
    assert (clip.dtype, rough.dtype) == (torch.float32, BF16)
    assert clip.with_dtype(torch.float32) is clip
    assert [p.data_ptr() for p in rough.parameters()] == [p.data_ptr() for p in clip.parameters()]
    assert rough.state_dict().keys() == clip.state_dict().keys()
    assert rough.device == clip.device
    assert rough.encode_image(pixels).dtype == torch.float32
    assert not torch.equal(rough.encode_image(pixels), before[0])
    torch.testing.assert_close(rough.encode_image(pixels), before[0], atol=0.1, rtol=0.1)
    # Neither its calls nor its existence move the results of the first.
    assert torch.equal(clip.encode_image(pixels), before[0])
    assert torch.equal(clip.encode_text(["a cat"]), before[1])
    assert torch.equal(rough.encode_image(pixels, dtype=torch.float32), before[0])
    assert torch.equal(clip.encode_image(pixels, dtype=BF16), rough.encode_image(pixels))
    with pytest.raises(AttributeError):
        clip.dtype = BF16  # type: ignore[misc]


def test_features_may_have_a_type_of_their_own() -> None:
    clip, pixels, texts = make_clip(), normal(2, 3, 32, 32), ["a cat"]
    rough, mixed = clip.with_dtype(BF16), clip.with_dtype(torch.float32, features=BF16)
    assert (mixed.dtype, mixed.feature_dtype) == (torch.float32, BF16)
    assert [one.precision for one in (clip, rough, mixed)] == ["float32", "bfloat16", "float32, features bfloat16"]
    assert mixed.with_dtype(torch.float32, features=BF16) is mixed
    assert mixed.with_dtype(torch.float32).precision == "float32"
    assert mixed.digest == clip.digest
    tokens, more = ExtraTokens({0: normal(4, 32)}), updates(1)
    contexts, names = normal(3, 4, 24), [[5, clip.config.text.eot_id]]
    frozen: list[Callable[[CLIP], Tensor]] = [
        lambda one: one.encode_image(pixels),
        lambda one: one.encode_image(pixels, updates={}),
        lambda one: one.encode_until_end(pixels),
        lambda one: one.encode_unprojected(pixels),
        lambda one: one.encode_with_patches(pixels)[1],
        lambda one: one.encode_text(texts),
    ]
    learned: list[Callable[[CLIP], Tensor]] = [
        lambda one: one.encode_image(pixels, tokens=tokens),
        lambda one: one.encode_image(pixels, updates=more),
        lambda one: one.encode_text(texts, updates=more),
        lambda one: one.encode_prompts(contexts, names),
        lambda one: one.encode_embedded_text([normal(5, 24)]),
        lambda one: one.encode_image(pixels, dtype=torch.float32),
    ]
    for encode in frozen:
        assert torch.equal(encode(mixed), encode(rough))
        assert not torch.equal(encode(mixed), encode(clip))
    for encode in learned:
        assert torch.equal(encode(mixed), encode(clip))


def test_the_type_is_that_of_the_call_even_under_autocast() -> None:
    clip, pixels = make_clip(), normal(2, 3, 32, 32)
    before = clip.encode_image(pixels)
    with torch.autocast("cpu", dtype=BF16):
        assert torch.equal(clip.encode_image(pixels), before)


def test_a_clip_on_another_device_is_a_copy() -> None:
    clip = make_clip()
    assert clip.to_device("cpu") is clip
    moved = clip.with_dtype(BF16).to_device("meta")
    assert {p.device.type for p in moved.parameters()} == {"meta"}
    assert {p.device.type for p in clip.parameters()} == {"cpu"}
    assert (moved.dtype, clip.dtype) == (BF16, torch.float32)
    assert not any(p.requires_grad for p in moved.parameters())
    assert moved.tokenizer is clip.tokenizer
    assert moved.training is False
    assert moved.to_device(torch.device("meta")) is moved


def test_the_digest_is_computed_once(monkeypatch: pytest.MonkeyPatch, tiny_folder: Path) -> None:
    counted: list[CLIP] = []
    compute = dual_encoder.compute_digest
    monkeypatch.setattr(dual_encoder, "compute_digest", lambda clip: (counted.append(clip), compute(clip))[1])
    loaded = CLIP.from_pretrained(tiny_folder)
    assert len(counted) == 1
    views = [loaded.with_dtype(BF16), loaded.to_device("meta"), loaded.with_dtype(BF16).to_device("meta")]
    assert {view.digest for view in views} == {loaded.digest}
    assert len(counted) == 1

    made = make_clip()
    assert len(counted) == 1
    assert made.with_dtype(BF16).digest == made.digest == loaded.digest
    assert len(counted) == 2


def test_the_digest_of_weights_in_training_is_not_kept() -> None:
    clip = copy.deepcopy(make_clip()).requires_grad_(True)
    before = clip.digest
    with torch.no_grad():
        clip.visual.cls.add_(1)
    assert clip.digest != before


def test_mini_by_name_and_by_path_is_one_backbone() -> None:
    named, found = CLIP.from_pretrained("mini"), CLIP.from_pretrained(mini_folder())
    assert (named.source, named.digest) == (found.source, found.digest) == ("mini", found.digest)


def test_features_are_the_projection_of_unprojected_vectors() -> None:
    clip, pixels = make_clip(), normal(2, 3, 32, 32)
    found = clip.encode_unprojected(pixels)
    assert found.shape == (2, clip.config.vision.width)
    assert found.dtype == torch.float32
    assert torch.equal(clip.visual.projection(found), clip.encode_image(pixels))


def test_the_callback_sees_the_rows_that_leave_each_block() -> None:
    clip, pixels = make_clip(), normal(2, 3, 32, 32)
    tokens = ExtraTokens({0: normal(4, 32), 1: normal(2, 32)})
    seen: dict[str, Tensor] = {}
    features = clip.encode_image(pixels, tokens=tokens, updates=updates(1), on_block=seen.__setitem__)
    assert list(seen) == ["visual.0", "visual.1", "visual.2"]
    assert [tuple(rows.shape) for rows in seen.values()] == [(2, 21, 32), (2, 19, 32), (2, 19, 32)]
    plain = clip.encode_image(pixels, tokens=tokens, updates=updates(1))
    torch.testing.assert_close(features, plain, atol=1e-5, rtol=0)

    seen.clear()
    clip.encode_image(pixels, on_block=seen.__setitem__)
    assert torch.equal(clip.encode_until_end(pixels), seen["visual.1"])
    x = clip.visual.ln_pre(clip.visual.embed(pixels))
    for n, block in enumerate(clip.visual.blocks):
        x = block(Residual(x)).total()
        assert torch.equal(seen[f"visual.{n}"], x)


def test_loading_and_encoding_does_not_import_the_compiler() -> None:
    """torch._dynamo takes more than a second to import."""
    code = (
        "import sys, torch\n"
        "from PIL import Image\n"
        "from dca.backbones.clip import CLIP\n"
        "clip = CLIP.from_pretrained('mini')\n"
        "with torch.inference_mode():\n"
        "    clip.encode_text(['a cat', 'a small dog'])\n"
        "    clip.with_dtype(torch.bfloat16).encode_image([Image.new('RGB', (80, 70))])\n"
        "print([name for name in ('torch._dynamo', 'torch._inductor', 'sympy') if name in sys.modules])\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
