"""How training is divided: into stages, each with the whole schedule of the learning rate, and into steps."""

from __future__ import annotations


class Stages:
    """The part of `TrainedMethod` that divides training; one stage unless a method overrides these functions."""

    def stages(self, epochs: int) -> tuple[int, ...]:
        """Epochs of each stage, for methods that train other values in later epochs.

        The learning rate goes through its whole schedule in every stage.

        Args:
            epochs: Number of epochs.

        Returns:
            Numbers that sum to `epochs`; 0 for a stage that is left out.
        """
        return (epochs,)

    def begin_stage(self, stage: int) -> None:
        """Choose the values that a stage trains (`requires_grad_`) and its step; it changes no value.

        Called before the first epoch of a stage, and where an interrupted run continues. Initial values of a stage
        are set by `epoch_done` of the epoch before, so that they are saved with it.

        Args:
            stage: Number of the stage, from 0 on.
        """

    def steps_per_epoch(self, images: int, batch_size: int) -> int | None:
        """Most steps of an epoch.

        Args:
            images: Number of training images, which may be fewer than the rows of `training_rows`.
            batch_size: Rows per step.

        Returns:
            The number, or None for as many as it takes to see every row.
        """
        return None
