"""How `mini`, the embedded model, is made: from images with names or captions to a checkpoint."""
