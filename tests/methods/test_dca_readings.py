"""What is taken where the DCA paper leaves it open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch.nn import functional as F

from dca.backbones.clip import CLIP
from dca.core import seeds
from dca.methods.base import Batch, Problem
from dca.methods.dca import DCA, OPEN_POINTS, READINGS, DCAOptions, Reading, reading_options, readings_table
from dca.methods.shared.gaussian import GAMMAS, paper_gammas
from oracles import dca as oracle
from oracles.images import Images

ROOT = Path(__file__).resolve().parents[2]
CLASSES = ("cat", "dog", "a photo", "x")
PROBLEM = Problem(names=CLASSES, shots=3, seed=1)


def test_printed_trains_with_the_printed_sums(clip: CLIP) -> None:
    """Equations 9, 11, 12 and 13 with the α and β of the step, no mean over images, dimensions or pairs."""
    images = Images((3, 3, 3, 3))
    method = DCA.build(clip, PROBLEM, DCAOptions(reading="printed", alpha=3.0, beta=0.7))
    method.prepare(images)
    terms = method.step(Batch(images.pixels, images.labels, seeds.generator(0, "test"))).terms
    f = method.encode(images.pixels).detach().double()
    u = method.encode_text().detach().double()
    frozen = F.normalize(clip.encode_image(images.pixels), dim=-1).detach().double()
    own = [frozen[images.labels == c] for c in range(4)]
    centers = torch.stack([x.mean(0) for x in own])
    sigmas = [oracle.dense_covariance(x, x.mean(0), *GAMMAS[2], True) for x in own]
    expected = {
        "cls": oracle.loss_cls(f, u, images.labels, clip.tau, 1e-6),
        "in": 3.0 * oracle.loss_in(f, centers, sigmas, images.labels, "mahalanobis", "sum"),
        "ts": 0.7 * oracle.loss_ts(u.flatten(0, 1), "sum"),
    }
    assert {name: float(term.detach()) for name, term in terms.items()} == pytest.approx(expected, rel=2e-4)


def test_printed_tests_with_covariances_about_the_mean_of_the_images(clip: CLIP) -> None:
    images = Images((3, 3, 3, 3))
    method = DCA.build(clip, PROBLEM, DCAOptions(reading="printed"))
    method.finish(images)
    new = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(9))
    got = method.build_head().classify(method.encode(new)).detach()
    f, u = method.encode(new).detach().double(), method.encode_text().detach().double()
    x = method.encode(images.pixels).detach().double()
    for n in range(4):
        mean = torch.zeros(4, dtype=torch.float64)
        for m in range(4):
            distances = []
            for c in range(4):
                own = x[images.labels == c]
                sigma = oracle.dense_covariance(own, own.mean(0), *paper_gammas(3), True)
                distances.append(float(oracle.dense_distance(sigma, f[n], u[m, c])))
            mean += torch.tensor(oracle.probability(distances, clip.tau, 1e-6, "inverse")) / 4
        torch.testing.assert_close(got[n].double(), mean, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        ("own", ("chosen", "element", "mean")),
        ("plots", ("visual", "element", "mean")),
        ("printed", ("visual", "sum", "sum")),
    ],
)
def test_a_reading_decides_centre_and_reductions(reading: Reading, expected: tuple[str, ...]) -> None:
    chosen = DCA.resolve(DCAOptions(reading=reading), PROBLEM)
    assert (chosen.center, chosen.intra_reduction, chosen.separation_reduction) == expected
    assert (chosen.gamma1, chosen.gamma2) == GAMMAS[2]
    given = DCA.resolve(DCAOptions(reading=reading, center="text", gamma1=9.0, intra_reduction="mean"), PROBLEM)
    assert (given.center, given.gamma1, given.intra_reduction) == ("text", 9.0, "mean")
    assert given.separation_reduction == expected[2]


def test_every_open_point_is_what_a_fit_takes() -> None:
    assert get_args(Reading) == READINGS
    assert set(reading_options("own")) == {"center", "contexts", "intra_reduction", "separation_reduction"}
    for reading in READINGS:
        chosen = DCA.resolve(DCAOptions(reading=reading), PROBLEM)
        for point in OPEN_POINTS:
            assert getattr(chosen, point.option) == point.value(reading), (reading, point.option)


def test_the_docs_and_the_command_name_every_open_point(dca: Any) -> None:
    assert readings_table() in (ROOT / "docs" / "math.md").read_text(encoding="utf-8")
    shown = " ".join(dca("methods", "show", "dca").out.split())
    for point in OPEN_POINTS:
        assert f"{point.option}: {point.values}. The paper: {point.paper}. Why: {point.why}." in shown
    assert "center: chosen / visual / visual" in shown
    (lines,) = json.loads(dca("methods", "show", "dca", "--json").out)["explanations"].values()
    assert len(lines) == len(OPEN_POINTS) + 1
