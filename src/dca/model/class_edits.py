"""The methods of `Classifier` that change the classes or the head of a finished model."""

from __future__ import annotations

from typing import Any, Self

from dca.core.progress import Progress, silent
from dca.model import edit
from dca.model.fitted import Fitted
from dca.model.inputs import Images, as_images


class ClassEdits(Fitted):
    """Add, remove and rename classes, and change options of the head; the classifier itself stays as it is.

    The new model has no figures, since they were measured on another model: `evaluate` measures it.
    """

    def add_class(self, name: str, images: Images = (), *, label: Any = None, progress: Progress = silent) -> Self:
        """The model with one more class, without the images of the others.

        Args:
            name: Words that CLIP reads for the class.
            images: Its images, in the forms of `predict_proba`; methods that learn prompts need none.
            label: What `predict` returns for the class; its name by default.
            progress: Receives the progress.

        Returns:
            Another classifier; the new class is the last.

        Raises:
            UserError: If the classifier is not fitted, there is such a class, an image cannot be read, or the
                method cannot take another class.

        Example:
            >>> from dca import Classifier
            >>> from dca.data.sources.sample import load_sample
            >>> model = Classifier("zero_shot", device="cpu").fit(load_sample(per_class_train=1, per_class_test=1))
            >>> model.add_class("zebra").classes_.tolist()[-2:]
            ['sunflower', 'zebra']
        """
        self._require_fitted()
        session = self._session.with_progress(progress)
        return edit.add_class(self, name, as_images(images), label=label, session=session)

    def remove_class(self, label: Any) -> Self:
        """The model without one of its classes.

        Args:
            label: Label of the class, or its name.

        Returns:
            Another classifier.

        Raises:
            UserError: If the classifier is not fitted, there is no such class, only one would be left, or the
                method cannot give up a class.
        """
        return edit.remove_class(self, label)

    def rename_class(self, label: Any, new: Any, *, label_only: bool = False) -> Self:
        """The model with another label, and name, for one of its classes.

        Args:
            label: Label of the class, or its name.
            new: The new label, whose words CLIP reads from now on.
            label_only: Keep the name that CLIP reads, and so all probabilities.

        Returns:
            Another classifier.

        Raises:
            UserError: If the classifier is not fitted, there is no such class, there is another of the new name, or
                the method has learned the old name.
        """
        return edit.rename_class(self, label, new, label_only=label_only)

    def with_options(self, **options: Any) -> Self:
        """The model with other options of its head; nothing is trained again.

        Args:
            **options: Options that only the head reads (`Method.head_options`): of DCA γ1, γ2 and how distances
                are measured. Its probabilities are not calibrated.

        Returns:
            Another classifier with the same parameters; this one if no value is different.

        Raises:
            UserError: If the classifier is not fitted, an option is unknown, has a wrong value, or is not one of
                the head.

        Example:
            >>> from dca import Classifier
            >>> from dca.data.sources.sample import load_sample
            >>> model = Classifier("dca", shots=2, epochs=0, device="cpu").fit(load_sample(per_class_train=2))
            >>> model.with_options(gamma1=100, gamma2=50).method_.options.gamma1
            100.0
        """
        return edit.change_options(self, options)
