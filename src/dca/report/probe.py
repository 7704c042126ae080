"""A linear probe on the images of a page: what the training images tell without the names of their classes."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from dca.methods.linear_probe import LinearProbeOptions, solve
from dca.report.subject import Subject

# Training images times classes up to which it is solved: 100 classes of 16 images take about a second.
MOST = 200_000


def probe_is_right(subject: Subject) -> NDArray[np.bool_] | None:
    """Whether a linear probe over frozen features is right about each test image, (N,).

    It is fitted on the features in the model's gallery with the c of CLIP's authors. None where there are no test
    images or no gallery, where a class has no training image, where the test images are of other classes, or where it
    would take long.
    """
    found, gallery, classes = subject.predictions, subject.gallery, list(map(str, subject.model.classes_.tolist()))
    if found is None or not found.tested or gallery is None or subject.labels != classes:
        return None
    if len(gallery) * len(classes) > MOST or len(set(gallery.labels)) < len(classes):
        return None
    features = subject.features(range(len(found)))
    if features is None:
        return None
    options, labels = LinearProbeOptions(), torch.tensor(gallery.labels)
    weight, bias = solve(
        gallery.features.double().cpu(), labels, len(classes), options.default_c, iterations=options.iterations
    )
    answer = (features.double().cpu() @ weight.T + bias).argmax(dim=-1)
    right: NDArray[np.bool_] = answer.numpy() == found.truth
    return right
