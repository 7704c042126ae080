"""Fused parts of the towers: each is one GPU kernel with a gradient, and a plain implementation that it equals.

Weights are frozen, so no kernel computes gradients of weights.
"""
