from __future__ import annotations

import math

import pytest
import torch

from dca.report.reported_model import ReportedModel
from dca.report.sections.feature_map import (
    REACH,
    CentredFeatures,
    draw_plane,
    find_confused_pair,
    find_main_directions,
    find_pair_plane,
    make_ellipse,
    project_left_out,
)


def cloud(seed: int = 0, n: int = 40, D: int = 6) -> CentredFeatures:
    rng = torch.Generator().manual_seed(seed)
    classes = torch.arange(3).repeat_interleave(n)
    centres = torch.zeros(3, D, dtype=torch.float64)
    centres[0, 0], centres[1, 0], centres[2, 3] = 2, -2, 9
    spread = torch.tensor([0.3, 1.5, 0.2, 0.2, 0.2, 0.2])[:D].double()
    images = centres[classes] + spread * torch.randn(len(classes), D, dtype=torch.float64, generator=rng)
    return CentredFeatures(images, classes, centres[None], ["a", "b", "c"])


def test_the_pair_plane_leads_from_one_mean_to_the_other() -> None:
    found = find_pair_plane(cloud(), 0, 1)
    torch.testing.assert_close(found @ found.T, torch.eye(2, dtype=torch.float64), atol=1e-9, rtol=0)
    assert abs(float(found[0, 0])) > 0.9, "x is the difference of the means"
    assert abs(float(found[1, 1])) > 0.9, "y is the main spread within the classes"
    places = cloud().images @ found.T
    assert places[:40, 0].mean() > places[40:80, 0].mean()


def test_directions_exist_for_a_single_image() -> None:
    step = torch.nn.functional.normalize(torch.ones(5, dtype=torch.float64), dim=0)
    found = find_main_directions(torch.zeros(1, 5, dtype=torch.float64), 1, step)
    assert abs(float(found[0] @ step)) < 1e-9
    assert float(found[0].norm()) == pytest.approx(1)


def test_an_ellipse_is_the_covariance() -> None:
    rng = torch.Generator().manual_seed(1)
    points = torch.randn(5000, 2, dtype=torch.float64, generator=rng) * torch.tensor([3.0, 1.0]) + 7
    outline = make_ellipse(points)
    assert outline is not None
    inverse = torch.linalg.inv(points.T.cov())
    away = outline - points.mean(dim=0)
    distances = torch.einsum("nd,de,ne->n", away, inverse, away).sqrt()
    torch.testing.assert_close(distances, torch.full_like(distances, REACH), atol=1e-6, rtol=0)
    inside = torch.einsum("nd,de,ne->n", points - 7, inverse, points - 7) < REACH**2
    assert float(inside.double().mean()) == pytest.approx(1 - math.exp(-(REACH**2) / 2), abs=0.02)
    assert make_ellipse(points[:2]) is None


def test_everything_is_drawn_inside_the_frame() -> None:
    import re

    found = cloud()
    plane = find_pair_plane(found, 0, 1)
    picture = str(draw_plane(found, plane, [0, 1], project_left_out(found, plane, 0, 1), "map"))
    for pair in re.findall(r'points="([^"]+)"', picture):
        for point in pair.split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= 620
            assert 0 <= y <= 440
    assert picture.count("ellipse") == 2
    assert picture.count("text-mark") == 2


def test_the_most_confused_classes_are_taken(tested: ReportedModel) -> None:
    names = list(map(str, tested.model.classes_.tolist()))
    a, b = find_confused_pair(tested, CentredFeatures(*cloud_of_ten(), names))
    assert tested.predictions is not None
    counts = tested.predictions.confusion(10)
    both = counts + counts.T
    both[range(10), range(10)] = 0
    assert both[a, b] == both.max() > 0


def cloud_of_ten() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.randn(30, 4).double(), torch.arange(10).repeat(3), torch.randn(1, 10, 4).double()


def test_classes_that_are_the_same_overlap_in_their_plane() -> None:
    """Eight images in many dimensions: means that they make themselves separate them, those of the others do not."""
    rng = torch.Generator().manual_seed(3)
    images = torch.randn(16, 200, dtype=torch.float64, generator=rng)
    classes = torch.arange(2).repeat_interleave(8)
    found = CentredFeatures(images, classes, images[:2][None], ["a", "b"])
    plane = find_pair_plane(found, 0, 1)
    plain, left_out = images @ plane.T, project_left_out(found, plane, 0, 1)
    assert plain[:8, 0].min() > plain[8:, 0].max(), "it looks as if they were separate"
    right = (left_out[:8, 0] > left_out[:8, 0].new_zeros(()) + left_out[:, 0].mean()).double().mean()
    assert right < 0.8
    for i in (0, 11):
        own, other = classes == classes[i], classes != classes[i]
        rest = own & (torch.arange(16) != i)
        means = images[rest].mean(dim=0), images[other].mean(dim=0)
        step = torch.nn.functional.normalize((means[0] - means[1]) * (1 if i < 8 else -1), dim=0)
        middle = (images[:8].mean(dim=0) + images[8:].mean(dim=0)) / 2
        expected = (images[i] - (means[0] + means[1]) / 2) @ step + middle @ plane[0]
        assert float(left_out[i, 0]) == pytest.approx(float(expected))
    assert torch.equal(left_out[:, 1], plain[:, 1])
