"""The arguments of a classifier as scikit-learn expects them: to be read, changed, copied and shown."""

from __future__ import annotations

from typing import Any, Self

# Parameters of every classifier; the others belong to its method.
OWN = ("method", "shots", "seed", "backbone", "device", "precision", "estimate", "calibrate")


class Parameters:
    """Base class of `Classifier`: its constructor sets one attribute per name in `OWN`, and `settings`."""

    _estimator_type = "classifier"  # what scikit-learn before 1.6 asks for
    method: str
    settings: dict[str, Any]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments of the constructor, as scikit-learn expects it.

        Args:
            deep: Ignored; there are no nested estimators.

        Returns:
            Values by name, options of the method included.

        Example:
            >>> from dca import Classifier
            >>> Classifier("gda", shots=4, views=0).get_params()["views"]
            0
        """
        return {**{name: getattr(self, name) for name in OWN}, **self.settings}

    def set_params(self, **params: Any) -> Self:
        """Change arguments of the constructor; takes effect at the next `fit`.

        Args:
            **params: New values by name.

        Returns:
            The classifier itself.
        """
        for name, value in params.items():
            if name in OWN:
                setattr(self, name, value)
            else:
                self.settings[name] = value
        return self

    def __sklearn_tags__(self) -> Any:
        """Properties that scikit-learn's `cross_val_score`, `GridSearchCV` and similar functions need."""
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=False),
            classifier_tags=ClassifierTags(),
            input_tags=InputTags(one_d_array=True, two_d_array=False, string=True),
            no_validation=True,
        )

    def __repr__(self) -> str:
        given = [f"{k}={v!r}" for k, v in self.get_params().items() if k not in ("method", "backbone")]
        return f"Classifier({self.method!r}, {', '.join(given)})"
