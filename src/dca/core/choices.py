"""Words with a fixed set of values that several packages share."""

from __future__ import annotations

from typing import Literal, get_args

# The method that a fit uses unless another is named.
DEFAULT_METHOD = "closed_form"
ProtocolName = Literal["few-shot", "base-to-new", "cross-dataset", "domain-shift", "transductive"]
# "paper" allows values that authors chose per dataset on more images than the draw has; "strict" does not.
Rules = Literal["strict", "paper"]
# What the official code of a method chooses its settings on: nothing, min(K, 4) or K validation
# images per class, or the full validation split.
ValidationUse = Literal["none", "few", "shots", "full"]
PROTOCOLS: tuple[ProtocolName, ...] = get_args(ProtocolName)
RULES: tuple[Rules, ...] = get_args(Rules)
