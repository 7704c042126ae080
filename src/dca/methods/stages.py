"""Training in stages: some values first, then others, each with the whole schedule of the learning rate."""

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
