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

from dca.estimators.cache import TipAdapterHead
from dca.estimators.gaussian_text import GaussianTextHead
from dca.estimators.kernel import KernelRidgeHead
from dca.estimators.linear import GDAHead, LinearProbeHead, NearestMeanHead

__all__ = ["GDAHead", "GaussianTextHead", "KernelRidgeHead", "LinearProbeHead", "NearestMeanHead", "TipAdapterHead"]
