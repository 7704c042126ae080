"""Which rates of false rejections a model can keep when it answers "none of these".

An image is rejected if its p-value is at most the rate. Where the held-out images are worth n (`stats/conformal.py`: n
images with as many of each class, fewer where classes are unequal), no p-value is below 1/(n + 1), so that a smaller
rate would reject nothing, without a word; it is refused instead.
"""

from __future__ import annotations

import math

from dca.core.errors import UserError
from dca.core.hints import Action, fit_with_estimate
from dca.stats.conformal import min_images_for_rate

# The usual rate, and the largest that `choose_rate` takes by itself.
USUAL_RATE, LARGEST_RATE = 0.05, 0.1


def require_rate(rate: float | None, smallest: float | None) -> None:
    """Raise if a model cannot reject at this rate.

    Args:
        rate: Wanted share of false rejections; None and 0 reject nothing.
        smallest: The model's smallest p-value; None if it has no p-values.

    Raises:
        UserError: If the rate is no share, the model has no p-values, or the rate is below the smallest.
    """
    if rate is None:
        return
    if not 0 <= rate <= 1:
        raise UserError(f"the rate of false rejections is {rate:g}", hint=_use_rate(USUAL_RATE))
    if smallest is None:
        raise UserError("the model cannot tell images of none of its classes", hint=fit_with_estimate())
    if 0 < rate < smallest:
        raise UserError(
            f"a rate of {rate:g} false rejections needs {min_images_for_rate(rate):,} training images that can be left "
            f"out, as many of each class; the model's are worth {count_held_out(smallest):,}",
            hint=[_use_rate(round_up(smallest)), "fit with more images, first of the classes that have the fewest"],
        )


def choose_rate(smallest: float | None) -> float | None:
    """The usual rate, or the smallest that the model can keep; None if that is above `LARGEST_RATE`.

    >>> choose_rate(0.01), choose_rate(1 / 13), choose_rate(0.2)
    (0.05, 0.077, None)
    """
    if smallest is None or smallest > LARGEST_RATE:
        return None
    return max(USUAL_RATE, round_up(smallest))


def count_held_out(smallest: float) -> int:
    """What the held-out images of a model with this smallest p-value are worth.

    >>> count_held_out(1 / 13), count_held_out(0.0625)
    (12, 15)
    """
    return math.floor(1 / smallest - 1 + 1e-9)


def round_up(rate: float) -> float:
    """The rate with three decimals, rounded up, so that it can be kept.

    >>> round_up(1 / 13), round_up(0.05)
    (0.077, 0.05)
    """
    return math.ceil(1000 * rate - 1e-9) / 1000


def describe_limit(smallest: float | None) -> str | None:
    """One line for models that cannot keep the usual rate; None for those that can.

    >>> describe_limit(1 / 13)
    'works from --reject 0.077 on; --reject 0.05 takes 19 images, as many of each class, and these are worth 12'
    """
    if smallest is None or smallest <= USUAL_RATE:
        return None
    need, have = min_images_for_rate(USUAL_RATE), count_held_out(smallest)
    takes = f"--reject {USUAL_RATE:g} takes {need} images, as many of each class, and these are worth {have}"
    return f"works from --reject {round_up(smallest):g} on; {takes}"


def _use_rate(rate: float) -> Action:
    """Use another rate."""
    return Action(f"use --reject {rate:g}", f"use reject={rate:g}")
