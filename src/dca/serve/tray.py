"""Which unlabelled image to label next: the least certain first, unlike those before it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def doubts(probabilities: Floats) -> Floats:
    """How unsure a model is of each image, (n,): one minus the lead of the best class over the second.

    probabilities: (n, C).

    >>> doubts(np.array([[0.9, 0.1], [0.5, 0.5]])).round(6).tolist()
    [0.2, 1.0]
    """
    if probabilities.shape[1] < 2:
        return np.zeros(len(probabilities))
    second, first = np.sort(probabilities, axis=1)[:, -2:].T
    found: Floats = 1.0 - (first - second)
    return found


def labelling_order(doubt: Floats, features: Floats) -> list[int]:
    """Places of the images, the most useful to label first.

    Each next image has the largest doubt times distance to the nearest image before it. A label also says much about
    images that look the same, so that a copy of an image that is asked for first is asked for late.

    Args:
        doubt: How unsure the model is of each image, (n,).
        features: Unit features (n, D).
    """
    score, distance = doubt.astype(np.float64), np.ones(len(doubt))
    order: list[int] = []
    for _ in range(len(doubt)):
        best = int(score.argmax())
        order.append(best)
        # Cosine distances of different photos are small numbers of about the same size; only their ratio counts.
        distance = np.minimum(distance, np.clip(1.0 - features @ features[best], 0.0, 1.0))
        score = doubt * distance
        score[order] = -1.0
    return order
