"""Heads for scikit-learn: classifiers over feature vectors that were computed before, by CLIP or anything else.

Every class is a thin wrapper of the functions that the methods use. `docs/estimators.md` shows them in pipelines and
searches.
"""

from dca.core.errors import MissingPackageError

try:
    import sklearn  # noqa: F401
except ImportError:
    raise MissingPackageError(
        "dca.estimators needs scikit-learn, which is not installed.", hint="pip install 'dca-prompt[sklearn]'"
    ) from None

from dca.estimators.heads import (
    GaussianTextHead,
    GDAHead,
    KernelRidgeHead,
    LinearProbeHead,
    NearestMeanHead,
    TipAdapterHead,
)

__all__ = ["GDAHead", "GaussianTextHead", "KernelRidgeHead", "LinearProbeHead", "NearestMeanHead", "TipAdapterHead"]
