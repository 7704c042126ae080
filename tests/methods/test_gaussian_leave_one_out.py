"""methods/shared/gaussian_leave_one_out.py against refitting without each image."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from dca.methods.gda import GDAOptions, gaussian_weights
from dca.methods.shared import gaussian as module
from dca.methods.shared.gaussian import held_out_logits, held_out_scores


def drawn(counts: tuple[int, ...], V: int, D: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Unit rows (N, V, D) in a random order of classes, labels, queries (N, D) and unit texts (C, D)."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=generator)]
    images = normal(len(counts), D)[labels] + 0.7 * normal(len(labels), D)
    rows = F.normalize(images[:, None] + 0.3 * normal(len(labels), V, D), dim=-1)
    queries = rows[:, 0] if V == 1 else F.normalize(images, dim=-1)
    return rows, labels, queries, F.normalize(normal(len(counts), D), dim=-1)


def refitted(rows: Tensor, labels: Tensor, queries: Tensor, classes: int) -> Tensor:
    """Each image under `gaussian_weights` of all the others; the score of a class without images is -inf."""
    V, out = rows.shape[1], []
    for i in range(len(rows)):
        rest = torch.arange(len(rows)) != i
        W, b = gaussian_weights(rows[rest].flatten(0, 1), labels[rest].repeat_interleave(V), classes, GDAOptions())
        scores = W @ queries[i] + b
        missing = torch.bincount(labels[rest], minlength=classes) == 0
        out.append(scores.masked_fill(missing, -torch.inf))
    return torch.stack(out)


counts_of_classes = st.lists(st.integers(1, 5), min_size=2, max_size=5).map(tuple)


@settings(max_examples=40, deadline=None)
@given(counts=counts_of_classes, V=st.integers(1, 4), D=st.sampled_from([3, 8, 40]), seed=st.integers(0, 2**16))
def test_scores_equal_a_refit_without_the_image(counts: tuple[int, ...], V: int, D: int, seed: int) -> None:
    """Unbalanced classes, classes of one image, several views, more and fewer rows than dimensions."""
    rows, labels, queries, _ = drawn(counts, V, D, seed)
    expected = refitted(rows, labels, queries, len(counts))
    got = held_out_scores(rows, labels, queries, len(counts))
    torch.testing.assert_close(got, expected, atol=1e-8, rtol=1e-8)


def test_logits_are_those_of_the_whole_model(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels, queries, text = drawn((3, 1, 2), 2, 6)
    expected = 30.0 * queries @ text.T + 0.5 * refitted(rows, labels, queries, 3)
    got = held_out_logits(rows, labels, queries, text, tau=30.0, alpha=0.5)
    torch.testing.assert_close(got, expected, atol=1e-8, rtol=1e-8)
    monkeypatch.setattr(module, "MAX_VALUES", 1)  # one image at a time
    torch.testing.assert_close(held_out_logits(rows, labels, queries, text, tau=30.0, alpha=0.5), got)


@pytest.mark.parametrize(("counts", "V"), [((4, 2, 3), 1), ((2, 1, 3), 3)])
def test_repair_measures_the_own_class_like_a_new_image(counts: tuple[int, ...], V: int) -> None:
    """½ fᵀPf is common to all classes, so the score of the own class grows by ½ d² / k² for k images."""
    rows, labels, queries, _ = drawn(counts, V, 6)
    plain, got = (held_out_scores(rows, labels, queries, 3, corrected=repair) for repair in (False, True))
    for i, y in enumerate(labels.tolist()):
        rest = torch.arange(len(rows)) != i
        x, c = rows[rest].flatten(0, 1), labels[rest].repeat_interleave(V)
        expected = plain[i].clone()
        if counts[y] > 1:
            means = {k: x[c == k].mean(0) for k in set(c.tolist())}
            apart = torch.stack([f - means[k] for f, k in zip(x, c.tolist(), strict=True)])
            M = apart.T @ apart
            P = 6 * torch.linalg.inv(M + M.trace() / (len(x) - 1) * torch.eye(6, dtype=torch.float64))
            gap = queries[i] - means[y]
            expected[y] += gap @ P @ gap / (2 * counts[y] ** 2)
        torch.testing.assert_close(got[i], expected, atol=1e-8, rtol=1e-8)


def test_without_the_gaussian_part_only_text_counts() -> None:
    rows, labels, queries, text = drawn((2, 1), 1, 6)
    got = held_out_logits(rows, labels, queries, text, tau=30.0, alpha=0.0)
    torch.testing.assert_close(got, 30.0 * queries @ text.T)


def test_an_image_alone_in_its_class_has_no_score_for_it() -> None:
    rows, labels, queries, _ = drawn((3, 1, 2), 2, 6)
    scores = held_out_scores(rows, labels, queries, 3)
    alone = labels == 1
    assert scores[alone, 1].tolist() == [-torch.inf]
    assert torch.isfinite(scores[alone][:, [0, 2]]).all()
    assert torch.isfinite(scores[~alone]).all()


@pytest.mark.parametrize("counts", [(2, 1, 1), (1, 1, 1)])
def test_no_variation_is_left_without_the_image(counts: tuple[int, ...]) -> None:
    """Then Σ̂ is the identity, as in a refit."""
    rows, labels, queries, _ = drawn(counts, 1, 6)
    expected = refitted(rows, labels, queries, 3)
    torch.testing.assert_close(held_out_scores(rows, labels, queries, 3), expected, atol=1e-8, rtol=1e-8)
