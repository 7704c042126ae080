"""Transduction: classes of many images without labels at once, by Gaussians over all of them (TransCLIP's equations).

A model gives every unlabelled image f_i a prediction ŷ_i. Images near each other should have the same class, and the
images of a class lie about one centre. So the predictions z_i, the centres μ_c and one diagonal covariance Σ for all
classes are sought together; N_U unlabelled images, N_L labelled ones (possibly none) with one-hot labels y_j:

    max over z, μ, Σ of   Σ_i Σ_c z_ic log p_ic  +  a Σ_ij w_ij z_i·z_j  -  s Σ_i KL_λ(z_i ‖ ŷ_i)
                          + γ s N_U / N_L Σ_j log p_{j, y_j}
    p_ic = exp( -½ (f_i - μ_c)ᵀ Σ⁻¹ (f_i - μ_c) ),    KL_λ(z ‖ ŷ) = Σ_c z_c log z_c - λ z_c log ŷ_c

w_ij is the cosine of an image, labelled or not, and each of its k nearest unlabelled images, 0 for all others; labelled
images have z_j = y_j. s = 50 weighs one Gaussian in hundreds of dimensions against a prediction. In turns:

    z_i ∝ ŷ_i^λ exp( (1/s) log p_i + 1/(2k) Σ_j (w_ij + w_ji) z_j )      five times
    μ_c ∝ (1/N_U) Σ_i z_ic f_i + (γ s / N_L) Σ_j y_jc f_j                to unit length
    Σ   = weighted mean of (f - μ)² by the same weights

γ is the best of four on validation images, if there are any: each stands for the unlabelled image nearest to it.

It starts at z = ŷ, Σ = I / D, and at the mean labelled image of each class; a class without one starts at the mean of
the eight unlabelled images that most probably belong to it. λ is 1 without labelled images and ½ with them.

Every prediction depends on all images: such accuracies stand in no table beside those of models that see one image at
a time. `Transduction.classify` is for an image that came later: its ŷ with the Gaussians that were found, and without
neighbours.

PAPER: the equations are those of the authors' code; the text of the paper was not at hand. Without labelled images the
predictions equal those of that code. With labelled images it has rows of w and of z in different orders (labelled ones
first and last), and lets a labelled image leave out its nearest unlabelled one as if that were itself; here each row
is that of its image.

Zanella, Gérin and Ben Ayed, Boosting Vision-Language Models with Transduction, NeurIPS 2024.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

# Values in the largest tensor of similarities: bounds memory, not results.
MAX_VALUES = 2**24
# Log of the smallest prediction: a class that a model rules out stays possible.
LOG_TINY = -80.0
# Values of γ that are compared on validation images.
LABELLED_WEIGHTS = (0.002, 0.01, 0.02, 0.2)


@dataclass(frozen=True, kw_only=True)
class TransductionOptions:
    """Constants of the equations.

    Attributes:
        prediction_weight: λ; None: 1 without labelled images, ½ with them.
        labelled_weight: γ, of the labelled images among the Gaussians.
        scale: s, what the Gaussians are divided by.
        neighbours: k.
        rounds: How often centres and covariance are computed.
        inner_rounds: How often z is computed in each of them.
        confident: Images that a class without labelled ones starts at.
    """

    prediction_weight: float | None = None
    labelled_weight: float = 0.02
    scale: float = 50.0
    neighbours: int = 3
    rounds: int = 10
    inner_rounds: int = 5
    confident: int = 8


@dataclass(frozen=True)
class Labelled:
    """Labelled images. features: unit, (L, D). labels: (L,)."""

    features: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Transduction:
    """What was found.

    predictions: z (U, C). means: μ (C, D), unit. variances: the diagonal of Σ, (D,).
    """

    predictions: Tensor
    means: Tensor
    variances: Tensor
    scale: float
    prediction_weight: float

    def classify(self, features: Tensor, predictions: Tensor) -> Tensor:
        """Predictions for other images, without neighbours. features: unit (B, D). predictions: ŷ (B, C) -> (B, C)."""
        gaussian = log_gaussians(features, self.means, self.variances) / self.scale
        return (self.prediction_weight * log_predictions(predictions) + gaussian).softmax(dim=-1)


def transduce(
    features: Tensor,
    predictions: Tensor,
    labelled: Labelled | None = None,
    options: TransductionOptions | None = None,
) -> Transduction:
    """Classify unlabelled images together.

    Args:
        features: Unit features (U, D) of the unlabelled images.
        predictions: ŷ (U, C), a model's probabilities for them.
        labelled: Labelled images; None where the predictions know all there is to know of them.
        options: Constants; the authors' unless given.

    Returns:
        Predictions, centres and covariance, in the type of `features`.
    """
    options = options or TransductionOptions()
    weight = options.prediction_weight
    if weight is None:
        weight = 1.0 if labelled is None else 0.5
    z = predictions.to(features)
    text = weight * log_predictions(z)
    neighbours = _Neighbours.find(features, labelled, z.shape[1], options.neighbours)
    means = start_means(features, z, labelled, options.confident)
    variances = torch.full_like(features[0], 1 / features.shape[1])
    for done in range(options.rounds + 1):
        fixed = text + log_gaussians(features, means, variances) / options.scale
        for _ in range(options.inner_rounds):
            z = (fixed + neighbours.sum_predictions(z)).softmax(dim=-1)
        if done < options.rounds:
            means, variances = estimate_gaussians(features, z, labelled, means, options.labelled_weight * options.scale)
    return Transduction(z, means, variances, options.scale, weight)


def transduce_with_best_weight(
    features: Tensor,
    predictions: Tensor,
    labelled: Labelled,
    validation: Labelled,
    options: TransductionOptions | None = None,
) -> Transduction:
    """Classify unlabelled images together with the γ that is best on validation images; of equal ones the first.

    Args:
        features, predictions, labelled, options: As for `transduce`.
        validation: Further labelled images; each is given the class of the unlabelled image nearest to it.

    Returns:
        What was found with the best of `LABELLED_WEIGHTS`.
    """
    nearest, _ = _nearest(validation.features, features, 1, itself=False)

    def count_right(found: Transduction) -> int:
        return int((found.predictions[nearest[:, 0]].argmax(dim=-1) == validation.labels).sum())

    options = options or TransductionOptions()
    tried = (
        transduce(features, predictions, labelled, replace(options, labelled_weight=weight))
        for weight in LABELLED_WEIGHTS
    )
    return max(tried, key=count_right)


def log_predictions(predictions: Tensor) -> Tensor:
    """Logarithms of ŷ, bounded below."""
    return predictions.log().clamp_min(LOG_TINY)


def log_gaussians(features: Tensor, means: Tensor, variances: Tensor) -> Tensor:
    """Values of log p, (N, C), of features (N, D), without what all classes share. means: (C, D). variances: (D,)."""
    scaled = means / variances
    return features @ scaled.T - (scaled * means).sum(dim=-1) / 2


def start_means(features: Tensor, z: Tensor, labelled: Labelled | None, confident: int) -> Tensor:
    """Unit centres (C, D) to start at: of the labelled images, else of the most probable ones. z: (U, C)."""
    best, rows = z.topk(min(confident, len(z)), dim=0)
    found = torch.einsum("kc,kcd->cd", best, features[rows])
    if labelled is not None:
        sums, counts = _sum_by_class(labelled, z.shape[1])
        found = torch.where(counts[:, None] > 0, sums, found)
    return F.normalize(found, dim=-1)


def estimate_gaussians(
    features: Tensor, z: Tensor, labelled: Labelled | None, means: Tensor, labelled_weight: float
) -> tuple[Tensor, Tensor]:
    """Unit centres (C, D) and variances (D,) given z (U, C). A class without any weight keeps its centre of `means`.

    labelled_weight: γ s.
    """
    sums, weights = z.T @ features / len(z), z.sum(dim=0) / len(z)
    squares = features.square().mean(dim=0)
    if labelled is not None:
        own, counts = _sum_by_class(labelled, z.shape[1])
        share = labelled_weight / len(labelled.labels)
        sums, weights = sums + share * own, weights + share * counts
        squares = squares + share * labelled.features.square().sum(dim=0)
    found = F.normalize(sums, dim=-1)
    means = torch.where((weights > 0)[:, None], found, means)
    # Σ over images and classes of weight · (f - μ)², without a tensor (N, C, D).
    variances = squares - 2 * (sums * means).sum(dim=0) + (weights[:, None] * means.square()).sum(dim=0)
    return means, (variances / weights.sum()).clamp_min(1e-12)


def _sum_by_class(labelled: Labelled, classes: int) -> tuple[Tensor, Tensor]:
    """Sums (C, D) and numbers (C,) of the labelled images of each class."""
    one_hot = F.one_hot(labelled.labels, classes).to(labelled.features)
    return one_hot.T @ labelled.features, one_hot.sum(dim=0)


@dataclass(frozen=True)
class _Neighbours:
    """w as lists: rows (U, k) of the nearest others of each unlabelled image, with their cosines.

    labelled: 1/(2k) Σ_j w_ji y_j over the labelled images j, (U, C); constant.
    """

    rows: Tensor
    cosines: Tensor
    labelled: Tensor

    @classmethod
    def find(cls, features: Tensor, labelled: Labelled | None, classes: int, k: int) -> _Neighbours:
        """The k nearest of each image, fewer if there are fewer others."""
        U = len(features)
        rows, cosines = _nearest(features, features, min(k, U - 1), itself=True)
        constant = features.new_zeros(U, classes)
        if labelled is not None:
            near, own = _nearest(labelled.features, features, min(k, U), itself=False)
            labels = labelled.labels[:, None].expand_as(near)
            constant.index_put_((near.flatten(), labels.flatten()), own.flatten(), accumulate=True)
        return cls(rows, cosines / (2 * k), constant / (2 * k))

    def sum_predictions(self, z: Tensor) -> Tensor:
        """1/(2k) Σ_j (w_ij + w_ji) z_j over all images j, (U, C)."""
        total = self.labelled.clone()
        for rows, cosines in zip(self.rows.T, self.cosines.T, strict=True):
            total += cosines[:, None] * z[rows]
            total.index_add_(0, rows, cosines[:, None] * z)
        return total


def _nearest(queries: Tensor, features: Tensor, k: int, *, itself: bool) -> tuple[Tensor, Tensor]:
    """Rows and cosines (N, k) of the features (U, D) nearest to each query (N, D); itself: queries are the features."""
    found = []
    for start in range(0, len(queries), step := max(1, MAX_VALUES // len(features))):
        cosines = queries[start : start + step] @ features.T
        if itself:
            own = torch.arange(len(cosines), device=cosines.device)
            cosines[own, own + start] = -torch.inf
        found.append(cosines.topk(k, dim=-1))
    return torch.cat([part.indices for part in found]), torch.cat([part.values for part in found])
