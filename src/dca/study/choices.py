"""Words with a fixed set of values of the study. This module is light: the command line imports it for its help."""

from __future__ import annotations

from typing import Literal, get_args

# The part of a dataset that accuracies are measured on.
MeasuredOn = Literal["test", "validation"]
# Where the metrics of runs are shown beside their files.
TrackerName = Literal["tensorboard", "wandb"]
# Where the cells of a sweep run: processes of this machine, or a Ray cluster.
Backend = Literal["local", "ray"]
MEASURED_ON: tuple[MeasuredOn, ...] = get_args(MeasuredOn)
TRACKER_NAMES: tuple[TrackerName, ...] = get_args(TrackerName)
BACKENDS: tuple[Backend, ...] = get_args(Backend)
