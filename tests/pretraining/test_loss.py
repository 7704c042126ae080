import math

import pytest
import torch
from torch.nn import functional as F

from pretrain.augment import Mix
from pretrain.loss import contrastive_loss, instance_loss, mix_targets, relation_loss, same_image_targets, soft_targets


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(0)


def units(rng, *shape):
    return F.normalize(torch.randn(*shape, generator=rng, dtype=torch.float64), dim=-1)


def test_targets_share_evenly_among_equal_keys():
    target = soft_targets(torch.tensor([5, 7, 5, 9]), None, 0.2, 0.1)
    assert target.tolist() == [[0.5, 0, 0.5, 0], [0, 1, 0, 0], [0.5, 0, 0.5, 0], [0, 0, 0, 1]]


def test_targets_give_the_teacher_its_share(rng):
    vectors = units(rng, 5, 3).float()
    target = soft_targets(torch.arange(5), vectors, 0.3, 0.1)
    assert torch.allclose(target.sum(1), torch.ones(5))
    for i in range(5):
        weights = [math.exp(float(vectors[i] @ vectors[j]) / 0.1) for j in range(5)]
        for j in range(5):
            wanted = 0.3 * weights[j] / sum(weights) + (0.7 if i == j else 0.0)
            assert float(target[i, j]) == pytest.approx(wanted, abs=1e-5)


def test_contrastive_equals_the_literal_loops(rng):
    image, text = units(rng, 4, 3), units(rng, 4, 3)
    target = soft_targets(torch.tensor([1, 2, 1, 3]), None, 0, 1).double()
    scale, total = 7.0, 0.0
    columns = [sum(float(target[i, j]) for i in range(4)) for j in range(4)]
    for i in range(4):
        over_texts = math.log(sum(math.exp(scale * float(image[i] @ text[j])) for j in range(4)))
        over_images = math.log(sum(math.exp(scale * float(image[j] @ text[i])) for j in range(4)))
        for j in range(4):
            total -= float(target[i, j]) * (scale * float(image[i] @ text[j]) - over_texts) / 8
            total -= float(target[j, i]) / columns[i] * (scale * float(image[j] @ text[i]) - over_images) / 8
    assert float(contrastive_loss(image, text, torch.tensor(scale), target)) == pytest.approx(total)


def test_mixed_target_follows_the_area():
    mix = Mix(partner=torch.tensor([1, 0]), share=torch.tensor([0.75, 1.0]))
    assert mix_targets(torch.eye(2), mix).tolist() == [[0.75, 0.25], [0, 1]]


def test_relation_equals_the_literal_loops(rng):
    text, vectors, scale, temperature = units(rng, 5, 3), units(rng, 5, 4), 4.0, 0.2
    total = 0.0
    for i in (3, 4):
        others = [j for j in range(5) if j != i]
        theirs = {j: math.exp(float(vectors[i] @ vectors[j]) / temperature) for j in others}
        ours = {j: math.exp(scale * float(text[i] @ text[j])) for j in others}
        for j in others:
            wanted, given = theirs[j] / sum(theirs.values()), ours[j] / sum(ours.values())
            total += wanted * math.log(wanted / given) / 2
    assert float(relation_loss(text, torch.tensor(scale), vectors, temperature, rows=2)) == pytest.approx(total)


def test_relation_is_zero_when_neighbourhoods_agree(rng):
    vectors = units(rng, 6, 4)
    assert float(relation_loss(vectors, torch.tensor(5.0), vectors, 0.2, rows=6)) == pytest.approx(0, abs=1e-9)


def test_instance_equals_the_literal_loops(rng):
    views = units(rng, 6, 4)
    target = same_image_targets(3, None, torch.device("cpu")).double()
    total = 0.0
    for i in range(3):
        forward = [math.exp(float(views[i] @ views[3 + j]) / 0.5) for j in range(3)]
        backward = [math.exp(float(views[3 + i] @ views[j]) / 0.5) for j in range(3)]
        total -= (math.log(forward[i] / sum(forward)) + math.log(backward[i] / sum(backward))) / 6
    assert float(instance_loss(views, target, 0.5)) == pytest.approx(total)


def test_views_of_one_image_share_a_row_even_when_mixed():
    mix = Mix(partner=torch.tensor([3, 0, 1, 2]), share=torch.tensor([0.6, 1.0, 1.0, 1.0]))
    target = same_image_targets(2, mix, torch.device("cpu"))
    assert target[0].tolist() == pytest.approx([0.6, 0.4])  # place 3 shows image 1
    assert target[2].tolist() == [1, 0]
