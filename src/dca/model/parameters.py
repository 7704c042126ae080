"""The arguments of a classifier as scikit-learn expects them: to be read, changed, copied and shown."""

from __future__ import annotations

from dataclasses import fields
from inspect import Parameter, signature
from typing import Any, Self

from dca.core.errors import unknown_name
from dca.methods.registry import get_method

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

        Raises:
            UserError: If a name is neither an argument of `Classifier` nor an option of its method.

        Example:
            >>> from dca import Classifier
            >>> Classifier().set_params(method="gda", shots=4)
            Classifier('gda', shots=4)
        """
        options = {field.name for field in fields(get_method(params.get("method", self.method)).Options)}
        if unknown := [name for name in params if name not in OWN and name not in options]:
            raise unknown_name("parameter", unknown[0], [*OWN, *sorted(options)])
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
        defaults = {name: p.default for name, p in signature(type(self)).parameters.items()}
        given = {
            name: value for name, value in self.get_params().items() if value != defaults.get(name, Parameter.empty)
        }
        method = [repr(given.pop("method"))] if "method" in given else []
        return f"{type(self).__name__}({', '.join([*method, *(f'{k}={_short(v)}' for k, v in given.items())])})"


def _short(value: Any) -> str:
    """A value on one line; a loaded backbone by its name."""
    return repr(getattr(value, "source", value))
