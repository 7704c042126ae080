"""Approximate leave-one-out for logistic regression: one Newton step from the fit on all images.

    min over W, b of  ½ ‖W‖² + c Σ_i CE(W f_i + b, y_i)

    z_-i = z_i + A_i (I - L_i A_i)⁻¹ (p_i - y_i),    A_i = c J_i H⁻¹ J_iᵀ,    L_i = diag(p_i) - p_i p_iᵀ

z_i = W f_i + b are the logits, J_i = I ⊗ [f_iᵀ, 1] their derivative, and H is the Hessian of the whole objective. It is
exact for a quadratic loss; for the logistic one the error falls with the square of the influence of one image.
W is in the span of the features, so D is at most N.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

# Rows of the largest Hessian: 6000² float64 numbers are 288 MB.
MOST_WEIGHTS = 6000


@torch.no_grad()
def leave_one_out(
    features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor, c: float, most: int = MOST_WEIGHTS
) -> Tensor | None:
    """Logits (N, C) of each image without it, in float64; None if the Hessian is singular or has over `most` rows.

    features: (N, D), labels: (N,); weight (C, D) and bias (C,) minimise the objective at c.
    """
    x, W, b = features.double(), weight.double(), bias.double()
    if min(x.shape) * len(W) + len(W) > most:
        return None
    if len(x) < x.shape[1]:
        basis = torch.linalg.qr(x.T)[0]
        x, W = x @ basis, W @ basis
    x = F.pad(x, (0, 1), value=1.0)  # the bias is the weight of a constant
    z = F.linear(x, torch.cat([W, b[:, None]], dim=1))
    p = z.softmax(dim=-1)
    curvature = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    factor, failed = torch.linalg.cholesky_ex(hessian(x, curvature, c))
    if bool(failed):
        return None
    influence = c * _through(x, torch.cholesky_inverse(factor))
    wrong = p - F.one_hot(labels, len(W)).to(p)
    kept = torch.eye(len(W), dtype=p.dtype, device=p.device) - curvature @ influence
    step: Tensor = influence @ torch.linalg.solve(kept, wrong[:, :, None])
    return z + step.squeeze(-1)


def restore_balance(logits: Tensor, labels: Tensor, count: Tensor) -> Tensor:
    """Leave-one-out logits (N, C) as if the image's own class had not lost an image: + log( n / (n - 1) ) for it.

    The bias learns how frequent a class is. Without image i, its own class is rarer than the others, and a weak model
    of balanced classes would call every image something else. count: (N,) images of each image's class; where it is 1,
    the logit becomes infinite.
    """
    own = F.one_hot(labels, logits.shape[1]).to(logits)
    return torch.where(own > 0, logits + (count / (count - 1)).to(logits).log()[:, None], logits)


def hessian(x: Tensor, curvature: Tensor, c: float) -> Tensor:
    """Hessian of the objective in the weights of all classes, class after class: (C M, C M).

    x: (N, M), the last column 1. curvature: L_i (N, C, C). The objective does not change if all biases grow by the same
    number; a curvature of 1 along that direction makes the matrix invertible and changes no probability.
    """
    C, M = curvature.shape[1], x.shape[1]
    blocks = x.new_zeros(C, M, C, M)
    for one in range(C):
        for other in range(one, C):
            block = c * (x * curvature[:, one, other, None]).T @ x
            blocks[one, :, other], blocks[other, :, one] = block, block
        blocks[one, :-1, one].diagonal().add_(1.0)
    blocks[:, -1, :, -1] += 1.0
    return blocks.reshape(C * M, C * M)


def _through(x: Tensor, inverse: Tensor) -> Tensor:
    """J_i H⁻¹ J_iᵀ of every image: (N, C, C). x: (N, M), inverse: (C M, C M)."""
    M = x.shape[1]
    C = len(inverse) // M
    blocks = inverse.reshape(C, M, C, M)
    found = x.new_empty(len(x), C, C)
    for one in range(C):
        for other in range(one, C):
            found[:, one, other] = found[:, other, one] = ((x @ blocks[one, :, other]) * x).sum(dim=1)
    return found
