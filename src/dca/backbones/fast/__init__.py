"""Fused operations of the towers: each is a Triton kernel with a gradient, and a plain implementation that it equals.

One module per operation has the function that chooses between the two, the plain implementation and the gradient; the
kernels themselves are in `*_triton.py` beside it, which is imported only where they run. Weights are frozen, so no
kernel computes gradients of weights.
"""
