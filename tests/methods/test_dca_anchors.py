"""What DCA's finished head measures distances to: texts, class means, or both."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from dca.backbones.clip import CLIP
from dca.core.errors import UserError
from dca.methods.base import Problem
from dca.methods.dca import DCA, DCAOptions, head_anchors
from dca.methods.shared.class_features import ClassFeatures
from dca.methods.shared.gaussian import paper_gammas
from oracles import dca as oracle
from oracles.images import Images

NAMES = ("cat", "dog", "x")


def finished(clip: CLIP, images: Images, **options: object) -> DCA:
    method = DCA.build(clip, Problem(names=NAMES, shots=3, seed=1), DCAOptions(n_prompts=2, **options))  # type: ignore[arg-type]
    method.finish(images)
    return method.build_head()


@pytest.mark.parametrize("anchors", ["text", "means", "both"])
@pytest.mark.parametrize(("metric", "center"), [("cosine", "text"), ("euclidean", "text"), *(
    ("mahalanobis", center) for center in ("text", "visual"))])  # fmt: skip
def test_probabilities_equal_the_equations(clip: CLIP, anchors: str, metric: str, center: str) -> None:
    images = Images((3, 2, 4))
    method = finished(clip, images, anchors=anchors, test_metric=metric, center=center)
    new = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(9))
    f, x = (method.encode(pixels).detach().double() for pixels in (new, images.pixels))
    u = method.encode_text().detach().double()
    got = method.classify(f.float()).double()
    for n in range(4):
        mean = torch.zeros(3, dtype=torch.float64)
        for m in range(2):
            values = []
            for c in range(3):
                own = x[images.labels == c]
                unit = own.sum(0) / len(own) / (own.sum(0) / len(own)).norm()
                point = {"text": u[m, c], "means": unit, "both": (u[m, c] + unit) / (u[m, c] + unit).norm()}[anchors]
                middle = u[m, c] if center == "text" else own.mean(0)
                if metric == "mahalanobis":
                    sigma = oracle.dense_covariance(own, middle, *paper_gammas(3), True)
                    values.append(float(oracle.dense_distance(sigma, f[n], point)))
                else:
                    values.append(float(f[n] @ point) if metric == "cosine" else float((f[n] - point).square().sum()))
            if metric == "cosine":
                mean += (clip.tau * torch.tensor(values, dtype=torch.float64)).softmax(-1) / 2
            else:
                mean += torch.tensor(oracle.probability(values, clip.tau, 1e-6, "inverse")) / 2
        torch.testing.assert_close(got[n], mean, atol=1e-5, rtol=1e-4)


def test_the_means_with_one_covariance_for_all_are_a_linear_discriminant(clip: CLIP) -> None:
    """GDA's estimate about the class means: differences of distances are linear in f, whatever the prompts."""
    images = Images((4, 4, 4))
    f = torch.randn(2, clip.config.embed_dim, generator=torch.Generator().manual_seed(8))
    middle = f.mean(0, keepdim=True)

    def bend(covariance: str) -> float:
        method = finished(clip, images, anchors="means", covariance=covariance, center="visual")
        one, other = method.head.distances(f), method.head.distances(middle)  # type: ignore[attr-defined]
        assert torch.equal(one[:, 0], one[:, 1])
        gaps, gap = one[:, 0, 1:] - one[:, 0, :1], other[:, 0, 1:] - other[:, 0, :1]
        return float((gaps.mean(0) - gap).abs().max() / gaps.abs().max())

    assert bend("gda") < 1e-4 < 1e-2 < bend("class")


def test_other_classes_are_compared_with_their_texts(clip: CLIP) -> None:
    method = finished(clip, Images((3, 3, 3)), anchors="both")
    known = method.retarget(Problem(names=("dog", "cat"), shots=3, seed=1), (1, 0))
    assert known.options.anchors == "both"
    new = method.retarget(Problem(names=("dog", "bird"), shots=3, seed=1), (1, None))
    assert (new.options.anchors, new.options.test_metric) == ("text", "euclidean")


def test_a_class_without_images_has_no_mean() -> None:
    u = F.normalize(torch.randn(2, 2, 5), dim=-1)
    shots = ClassFeatures(F.normalize(torch.randn(3, 5), dim=-1), torch.tensor([3, 0]))
    assert head_anchors(u, shots, "text") is u
    with pytest.raises(UserError, match="anchors=means needs images of every class; 1 class has none"):
        head_anchors(u, shots, "means")
