"""Pretraining of `mini`, the embedded model: from images with names or captions to a checkpoint."""
