from __future__ import annotations

import pytest
import torch
from torch import Tensor

from conftest import make_clip
from dca.backbones.clip import CLIP
from dca.core.errors import UserError
from dca.methods.base import Problem, TrainingOptions
from dca.methods.coop import CoOp, CoOpOptions
from dca.methods.shared.gaussian import paper_gammas
from dca.methods.summary import parameter_count
from dca.methods.zero_shot import ZeroShot
from dca.training.loop import learning_rate_at
from oracles import dca as dense
from oracles.images import Images
from oracles.steps import literal_logits, require_gradients, require_own_randomness, unit_images, values
from oracles.text import encode_sequences_padded
from oracles.towers import cross_entropy

CLASSES = ("cat", "dog", "a_photo", "x y z")


def build(clip: CLIP, classes: tuple[str, ...] = CLASSES, shots: int = 3, dataset: str = "", **options: object) -> CoOp:
    problem = Problem(names=classes, shots=shots, seed=1, dataset=dataset)
    return CoOp.build(clip, problem, CoOpOptions(**options))  # type: ignore[arg-type]


def written_out(clip: CLIP, method: CoOp, position: str) -> Tensor:
    """t from sequences put together by hand: unit, (C, D)."""
    table, tokenizer = clip.text.embedding.weight, clip.tokenizer
    sequences = []
    for c, name in enumerate(CLASSES):
        V = method.context if method.context.dim() == 2 else method.context[c]
        word, stop = table[tokenizer.encode(name.replace("_", " "))], table[tokenizer.encode(".")]
        sos, eot = table[[tokenizer.sot_id]], table[[tokenizer.eot_id]]
        half = len(V) // 2
        order = {
            "end": [sos, V, word, stop, eot],
            "middle": [sos, V[:half], word, V[half:], stop, eot],
            "front": [sos, word, V, stop, eot],
        }
        sequences.append(torch.cat(order[position]))
    return encode_sequences_padded(clip, sequences)


@pytest.mark.parametrize("position", ["end", "middle", "front"])
@pytest.mark.parametrize("contexts", ["unified", "class"])
@pytest.mark.parametrize("n_tokens", [4, 5])
def test_step_and_probabilities_equal_the_equations(clip: CLIP, position: str, contexts: str, n_tokens: int) -> None:
    images = Images((3, 2, 1, 2))
    method = build(clip, position=position, contexts=contexts, n_tokens=n_tokens)
    with torch.no_grad():
        method.context.mul_(20)  # far from zero, so that every vector's place shows
        z = literal_logits(clip, unit_images(clip, images.pixels), written_out(clip, method, position))
    step = method.step(images.batch())
    assert values(step) == pytest.approx({"cls": cross_entropy(z, images.labels)}, abs=1e-5)
    torch.testing.assert_close(step.probabilities, z.softmax(-1), atol=1e-5, rtol=0)
    method.finish(images)
    method.build_head()
    torch.testing.assert_close(method.classify(method.encode(images.pixels)), z.softmax(-1), atol=1e-5, rtol=0)


def test_trained_parameters_on_vit_b_16() -> None:
    assert parameter_count(CoOp) == 8192
    assert parameter_count(CoOp, n_tokens=4) == 2048
    assert parameter_count(CoOp, contexts="class") == 819_200


@pytest.mark.parametrize("contexts", ["unified", "class"])
def test_a_photo_of_a_starts_at_zero_shot_clip(clip: CLIP, contexts: str) -> None:
    images = Images((1, 1, 1, 1))
    method = build(clip, phrase="a photo of a", contexts=contexts)
    plain = ZeroShot.build(clip, method.problem, ZeroShot.Options(templates=("a photo of a {}.",)))
    plain.finish()
    plain.build_head()
    f = method.encode(images.pixels)
    difference = clip.tau * f @ (method.encode_text() - plain.text_features).mT
    assert float(difference.detach().abs().max()) < 1e-4


def test_random_contexts_follow_the_law_and_the_seed(clip: CLIP) -> None:
    problem = Problem(names=CLASSES, shots=1)
    require_own_randomness(CoOp, clip, problem)
    context = build(clip, n_tokens=70).context.detach()
    assert float(context.mean()) == pytest.approx(0, abs=3e-3)
    assert float(context.std()) == pytest.approx(0.02, rel=0.1)


def test_class_contexts_belong_to_their_class_in_any_order(clip: CLIP) -> None:
    one, other = (build(clip, order, contexts="class").context.detach() for order in (CLASSES, CLASSES[::-1]))
    assert torch.equal(one, other.flip(0))
    assert not torch.equal(one[0], one[1])


@pytest.mark.parametrize("position", ["end", "middle", "front"])
def test_gradients_reach_every_vector_and_nothing_else(position: str) -> None:
    clip = make_clip()
    method = build(clip, position=position)
    require_gradients(method, clip, Images((2, 1, 1, 1)))
    assert method.context.grad is not None
    assert method.context.grad.abs().sum(-1).min() > 0


def test_the_finished_model_can_measure_mahalanobis_distances(clip: CLIP) -> None:
    images = Images((3, 3, 3, 3))
    method = build(clip, test_metric="mahalanobis")
    method.finish(images)
    method.build_head()
    new = method.encode(torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(5)))
    t, x = method.encode_text().detach().double(), method.encode(images.pixels).double()
    for f, got in zip(new.double(), method.classify(new), strict=True):
        sigmas = [dense.dense_covariance(x[images.labels == c], t[c], *paper_gammas(3), True) for c in range(4)]
        distances = [float(dense.dense_distance(sigmas[c], f, t[c])) for c in range(4)]
        expected = torch.tensor(dense.probability(distances, clip.tau, 1e-6, "inverse"))
        torch.testing.assert_close(got.detach(), expected, atol=1e-5, rtol=1e-4)


def test_the_finished_model_can_measure_euclidean_distances(clip: CLIP) -> None:
    images = Images((2, 2, 2, 2))
    method = build(clip, test_metric="euclidean")
    method.finish(images)
    method.build_head()
    f = method.encode(images.pixels)
    expected = (clip.tau / ((f[:, None] - method.text_features).square().sum(-1) + 1e-6)).softmax(-1)
    torch.testing.assert_close(method.classify(f), expected, atol=1e-5, rtol=1e-4)


def test_epochs_follow_shots_and_dataset(clip: CLIP) -> None:
    assert [build(clip, shots=k).options.epochs for k in (1, 2, 4, 8, 16)] == [50, 100, 100, 200, 200]
    assert [build(clip, shots=k, dataset="imagenet").options.epochs for k in (1, 16)] == [50, 50]
    chosen = build(clip, epochs=7, learning_rate=None).options
    assert (chosen.epochs, chosen.batch_size, chosen.learning_rate) == (7, 32, None)


def test_the_lineage_schedule() -> None:
    """Section 13, test 12: one warm-up epoch, then a cosine shifted by it that never ends at zero."""
    rates = [learning_rate_at(e, 5, TrainingOptions(), 0.0035) for e in range(5)]
    assert rates == pytest.approx([1e-5, 0.0035, 0.003166, 0.002291, 0.001209], abs=5e-7)


def test_names_that_do_not_fit_are_listed(clip: CLIP) -> None:
    with pytest.raises(UserError, match="longer than") as caught:
        build(clip, ("cat", "z" * 70))
    assert len(caught.value.details) == 1


def test_training_lowers_the_loss() -> None:
    clip, images = make_clip(), Images((4, 4, 4, 4))
    method = build(clip)
    optimizer = torch.optim.SGD(method.parameters(), lr=0.02, momentum=0.9)
    losses = []
    for _ in range(30):
        loss = method.step(images.batch()).terms["cls"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 0.05
