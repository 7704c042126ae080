"""Fused operations of the towers, each with a plain implementation that it equals.

They are Triton kernels with gradients; only `convolution` is an operation of torch itself, for x86 CPUs. One module per
operation has the function that chooses between the two, the plain implementation and the gradient; the kernels
themselves are in `*_triton.py` beside it, which is imported only where they run. Weights are frozen, so no kernel
computes gradients of weights.
"""
