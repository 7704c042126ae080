"""Classes encoded chunk by chunk: the same features and gradients, computed again for the gradient."""

from __future__ import annotations

import pytest
import torch

from dca.backbones.clip import CLIP
from dca.backbones.clip.text import classes_at_once


@pytest.mark.parametrize("at_once", [1, 2, 3, 4])
def test_chunks_equal_the_whole(clip: CLIP, at_once: int) -> None:
    ids = [[5, 6, 7, clip.config.text.eot_id], [8, clip.config.text.eot_id]] * 2
    starts = [torch.randn(n, clip.config.text.width, generator=torch.Generator().manual_seed(n)) for n in (2, 3)]
    found = []
    for most in (None, at_once):
        contexts = [start.clone().requires_grad_() for start in starts]
        features = clip.text.encode_prompts(contexts, ids, at_once=most)
        (features * torch.linspace(-1, 1, features.numel()).view_as(features)).sum().backward()
        found.append([features.detach(), *(context.grad for context in contexts)])
    for whole, parts in zip(*found, strict=True):
        torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-6)


def test_a_cpu_and_predictions_encode_all_classes_at_once(clip: CLIP) -> None:
    lengths = [3] * 10**6
    assert classes_at_once(lengths, 4, clip.config.text, torch.zeros(0)) == 10**6
    with torch.no_grad():
        assert classes_at_once(lengths, 4, clip.config.text, torch.zeros(0)) == 10**6


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
    assert classes_at_once([3] * 200, 4, config, OnGpu()) == 200
    assert classes_at_once([3] * 201, 4, config, OnGpu()) == 120


def test_the_number_of_classes_at_once_stays_as_it_was_chosen_first(
    clip: CLIP, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Free memory shrinks while a step is recorded; other chunks would need index tensors that are not there yet."""
    asked = iter([2, 3])
    monkeypatch.setattr("dca.backbones.clip.text.classes_at_once", lambda *_: next(asked))
    chosen = [clip.text._at_once([3, 4, 5], prompts, torch.zeros(0)) for prompts in (1, 1, 2)]
    assert chosen == [2, 2, 3]
