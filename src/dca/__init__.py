"""Few-shot adaptation of CLIP: DCA prompt learning and the methods it is compared with."""

__version__ = "0.1.0.dev0"
