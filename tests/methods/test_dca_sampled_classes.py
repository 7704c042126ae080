"""Steps in which only some of the classes compete."""

from __future__ import annotations

import pytest
import torch

from dca import UserError
from dca.backbones.clip import CLIP
from dca.core import seeds
from dca.methods.base import Batch, Problem
from dca.methods.dca import DCA, SampledClasses
from oracles.images import Images

NAMES = ("cat", "dog", "photo", "this", "that")


def test_the_classes_of_the_batch_and_others() -> None:
    labels = torch.tensor([7, 2, 7])
    drawn = [SampledClasses.draw(labels, 50, 10, seeds.generator(1, "x", k)) for k in range(20)]
    for one in drawn:
        assert len(one.classes) == len(set(one.classes)) == 10
        assert one.classes == sorted(one.classes)
        assert [one.classes[place] for place in one.labels.tolist()] == [7, 2, 7]
    assert len({place for one in drawn for place in one.classes}) > 40
    assert SampledClasses.draw(labels, 50, 1, seeds.generator(1, "x")).classes == [2, 7]


def test_probabilities_of_the_others_are_zero() -> None:
    some = SampledClasses([1, 3], torch.tensor([0]), 4)
    assert some.to_all_classes(torch.tensor([[0.25, 0.75]])).tolist() == [[0, 0.25, 0, 0.75]]


@pytest.mark.parametrize("contexts", ["unified", "class"])
def test_a_step_with_all_but_one_class_is_that_of_a_model_without_it(clip: CLIP, contexts: str) -> None:
    """The sampled step equals a literal one: logits of all classes with the absent columns left out."""
    method = DCA.build(
        clip, Problem(names=NAMES, shots=2, seed=1), DCA.Options(classes_per_step=4, contexts=contexts, alpha=0)
    )
    images = Images((2, 2, 2, 2, 2))
    batch = Batch(images.pixels[:3], torch.tensor([0, 3, 3]), seeds.generator(1, "s"))
    places = SampledClasses.draw(batch.labels, 5, 4, seeds.generator(1, "s")).classes
    found = method.step(batch)
    f, u = method.encode(batch.inputs), method.encode_text()[:, places]
    logits = method._train_logits(f, u)
    labels = torch.tensor([places.index(label) for label in (0, 3, 3)])
    expected = sum(torch.nn.functional.cross_entropy(one, labels) for one in logits)
    torch.testing.assert_close(found.terms["cls"], expected, rtol=1e-5, atol=1e-6)
    (absent,) = set(range(5)) - set(places)
    assert found.probabilities.shape == (3, 5)
    assert not found.probabilities[:, absent].any()


def test_all_classes_are_exact_and_draw_nothing(clip: CLIP) -> None:
    images = Images((1, 1, 1, 1, 1))
    terms = []
    for count in (0, 5, 99):
        method = DCA.build(clip, Problem(names=NAMES, shots=1, seed=1), DCA.Options(classes_per_step=count, alpha=0))
        generator = seeds.generator(1, "s")
        before = generator.get_state()
        terms.append(method.step(Batch(images.pixels[:2], torch.tensor([0, 1]), generator)).terms["cls"])
        assert torch.equal(before, generator.get_state())
    assert terms[0] == terms[1] == terms[2]


def test_distances_of_the_covariance_need_all_classes(clip: CLIP) -> None:
    chosen = DCA.Options(classes_per_step=2, train_metric="mahalanobis")
    with pytest.raises(UserError, match="cannot be combined"):
        DCA.resolve(chosen, Problem(names=NAMES, shots=2))
