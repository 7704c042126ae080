"""The terms of the loss, as pure functions."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from pretrain.augment import Mix


def soft_targets(keys: Tensor, vectors: Tensor | None, soft: float, temperature: float) -> Tensor:
    """Target probabilities of texts for images: (B, B), rows sum to 1.

    keys: (B,); pairs with equal keys share the target evenly. vectors: (B, E) unit vectors of
    the teacher; `soft` of the target goes to texts in proportion to exp(similarity / temperature).
    """
    same = (keys[:, None] == keys[None, :]).float()
    hard = same / same.sum(1, keepdim=True)
    if vectors is None or not soft:
        return hard
    similar = (vectors @ vectors.T / temperature).softmax(1)
    return (1 - soft) * hard + soft * similar


def mix_targets(target: Tensor, mix: Mix | None) -> Tensor:
    """The target (B, B) of images that contain a rectangle of their partner."""
    if mix is None:
        return target
    share = mix.share[:, None]
    return share * target + (1 - share) * target[mix.partner]


def same_image_targets(half: int, mix: Mix | None, device: torch.device) -> Tensor:
    """Which image each of 2·half views shows: (2·half, half). Views i and i + half are of one image."""
    target = torch.eye(half, device=device).repeat(2, 1)
    if mix is None:
        return target
    share = mix.share[:, None]
    return share * target + (1 - share) * target[mix.partner]


def instance_loss(views: Tensor, target: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of finding the other view of the same image among those of all images.

    views: (2·half, P) unit vectors, first all first views, then all second ones.
    target: (2·half, half), see `same_image`.
    """
    half = len(views) // 2
    similar = views[:half] @ views[half:].T / temperature
    first = -(target[:half] * similar.log_softmax(1)).sum(1).mean()
    second = -(target[half:] * similar.T.contiguous().log_softmax(1)).sum(1).mean()
    return (first + second) / 2


def contrastive_loss(image: Tensor, text: Tensor, scale: Tensor, target: Tensor) -> Tensor:
    """Mean of image-to-text and text-to-image cross-entropy against a soft target.

    image, text: (B, D) unit vectors. target: (B, B), image by text. The second direction uses
    the same target with its columns normalised to sum 1.
    """
    # The logits are computed twice: softmax over rows is several times faster than over columns.
    rows = -(target * (scale * image @ text.T).log_softmax(1)).sum(1).mean()
    flipped = target.T / target.sum(0)[:, None].clamp(min=1e-6)
    columns = -(flipped * (scale * text @ image.T).log_softmax(1)).sum(1).mean()
    return (rows + columns) / 2


def relation_loss(text: Tensor, scale: Tensor, vectors: Tensor, temperature: float, rows: int) -> Tensor:
    """Cross-entropy between the teacher's and our neighbourhoods of the last `rows` texts.

    text: (N, D) and vectors: (N, E), unit vectors of the same texts. A text is not its own
    neighbour. Returns the Kullback-Leibler divergence, so that 0 is perfect.
    """
    count = len(text)
    own = torch.arange(count - rows, count, device=text.device)
    theirs = vectors[own] @ vectors.T / temperature
    ours = scale * text[own] @ text.T
    self_pair = F.one_hot(own, count).bool()
    wanted = theirs.masked_fill(self_pair, float("-inf")).log_softmax(1)
    given = ours.masked_fill(self_pair, float("-inf")).log_softmax(1)
    gap = (wanted - given).masked_fill(self_pair, 0.0)
    return (wanted.exp() * gap).sum(1).mean()
