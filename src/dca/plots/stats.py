"""Confidence intervals for the charts."""

from __future__ import annotations

import numpy as np

_Z95 = 1.959963984540054


def wilson(right: float, count: float) -> tuple[float, float]:
    """95 % interval of `right / count` (Wilson score), which also holds near 0 and 1 and for few images.

    >>> low, high = wilson(10, 10)
    >>> round(low, 3), high
    (0.722, 1.0)
    """
    if count <= 0:
        return 0.0, 1.0
    share, slack = right / count, _Z95**2 / count
    middle = (share + slack / 2) / (1 + slack)
    half = _Z95 * np.sqrt(share * (1 - share) / count + slack / (4 * count)) / (1 + slack)
    # Rounding must not push an end past the share itself.
    return max(0.0, min(share, float(middle - half))), min(1.0, max(share, float(middle + half)))
