"""The finished head of the closed form: a linear part and a kernel part."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.methods.shared.heads import Head
from dca.methods.shared.kernel_ridge import KernelRidge
from dca.methods.shared.pooled_choice import Experts, Numbers


@dataclass(frozen=True)
class PooledHead(Head):
    """Softmax of w_y · f + b_y + Σ_i exp(k_i · f - rate) a_iy.

    weight: (C, D). bias: (C,). keys: rate times the training features (N, D). coefficients: (N, C). The last two
    are None without a kernel.
    """

    weight: Tensor
    bias: Tensor
    keys: Tensor | None
    coefficients: Tensor | None
    rate: float

    @classmethod
    def of(
        cls,
        weight: Tensor,
        bias: Tensor,
        kernel: KernelRidge | None = None,
        coefficients: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> PooledHead:
        """From float64 weight (C, D) and bias (C,), and coefficients (N, C) of a kernel."""
        # What all classes share changes no probability, but would cost digits in float32.
        weight, bias = (weight - weight.mean(dim=0)).to(dtype), (bias - bias.mean()).to(dtype)
        if kernel is None or coefficients is None:
            return cls(weight, bias, None, None, 0.0)
        return cls(weight, bias, (kernel.rate * kernel.x).to(dtype), coefficients.to(dtype), kernel.rate)

    @classmethod
    def of_experts(cls, experts: Experts, numbers: Numbers, dtype: torch.dtype = torch.float32) -> PooledHead:
        """The three experts, weighed by the numbers."""
        W, bias = experts.gaussian.whitened(numbers.ridge).linear(numbers.text_shots)
        W = numbers.gaussian * W + numbers.text * experts.tau * experts.gaussian.text
        kernel = experts.kernel if numbers.kernel > 0 else None
        coefficients = None if kernel is None else numbers.kernel * kernel.coefficients(numbers.kernel_ridge)
        return cls.of(W, numbers.gaussian * bias, kernel, coefficients, dtype)

    def on(self, device: torch.device) -> PooledHead:
        """The head on a device."""
        keys, coefficients = (t if t is None else t.to(device) for t in (self.keys, self.coefficients))
        return PooledHead(self.weight.to(device), self.bias.to(device), keys, coefficients, self.rate)

    def logits(self, f: Tensor) -> Tensor:
        """Inputs of the softmax for image features f (B, D): (B, C)."""
        logits = F.linear(f, self.weight, self.bias)
        if self.keys is None or self.coefficients is None:
            return logits
        return logits + (F.linear(f, self.keys) - self.rate).exp() @ self.coefficients

    def __call__(self, f: Tensor) -> Tensor:
        """Image features f (B, D) -> probabilities (B, C)."""
        return self.logits(f).softmax(dim=-1)

    @property
    def numbers_per_image(self) -> int:
        """One kernel value per training image, one logit per class."""
        return len(self.weight) + (0 if self.keys is None else len(self.keys))
