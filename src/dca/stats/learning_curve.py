"""How accuracy grows with the number of training images per class.

With C classes, an accuracy A is looked at as its log-odds above those of guessing,

    L(A) = log A / (1 - A) + log(C - 1),   L(1/C) = 0.

**Images that held-out models lack.** A model that predicts held-out images was fitted on n' of the n images of a class
and is a little worse than the model of all images. On training and validation images, with 2 to 8 images per class, L
rose by `RISE` times the shortage 1/n' - 1/n times what images add to guessing, or to zero-shot CLIP where that is
better: L(n) = L(n') + RISE shortage (L(n') - L_0). Where images add nothing, as with noise, nothing is added. Where
classes differ in size, the shortage is that of the images that are mistaken, the mean with all classes alike.

**Twice as many images.** L(2n) = L(n) + `GROWTH` L(n) + `REPEAT` (L(n) - L(n/2)): what a doubling brings on the mean,
and a part of what the last one brought, which alone is too uncertain where images are few. Both were fitted by least
squares to the change of the accuracy of 570 tasks (`study/measurements/more_photos.py --choose`). Where images add
nothing, more of them are expected to add nothing.
"""

from __future__ import annotations

import math

RISE = 0.6
GROWTH, REPEAT = 0.07, 0.43


def log_odds(accuracy: float, classes: int) -> float:
    """Log-odds above guessing of an accuracy; infinite at 0 and 1.

    >>> log_odds(0.25, 4)
    0.0
    """
    if accuracy <= 0 or accuracy >= 1:
        return math.inf if accuracy > 0 else -math.inf
    return math.log(accuracy / (1 - accuracy) * (classes - 1))


def accuracy_at(log_odds: float, classes: int) -> float:
    """The accuracy with these log-odds above guessing.

    >>> accuracy_at(0.0, 4)
    0.25
    """
    return 1 / (1 + (classes - 1) * math.exp(-log_odds)) if log_odds > -math.inf else 0.0


def expect_with_all(accuracy: float, base: float, classes: int, shortage: float) -> float:
    """Accuracy of the model of all images, from that of models that lack some.

    Args:
        accuracy: Of the held-out predictions.
        base: Of zero-shot CLIP on the same images; guessing counts where it is better.
        classes: C, at least 2.
        shortage: 1/n' - 1/n.

    >>> round(expect_with_all(0.7, 0.25, 4, 0.5), 3), expect_with_all(0.2, 0.1, 4, 0.5)
    (0.807, 0.2)
    """
    found, floor = log_odds(accuracy, classes), max(log_odds(base, classes), 0.0)
    if not math.isfinite(found) or found <= floor:
        return accuracy
    return accuracy_at(found + RISE * shortage * (found - floor), classes)


def expect_with_twice(accuracy: float, half: float, classes: int) -> float:
    """Accuracy with twice as many images, from those with all and with half of them; never less than with all.

    >>> round(expect_with_twice(0.8, 0.7, 4), 3), expect_with_twice(0.25, 0.3, 4)
    (0.857, 0.25)
    """
    now, before = log_odds(accuracy, classes), log_odds(half, classes)
    if not math.isfinite(now) or now <= 0:
        return accuracy
    return accuracy_at(now + GROWTH * now + REPEAT * max(now - max(before, 0.0), 0.0), classes)
