"""Frozen backbones: pretrained encoders whose weights no method changes. No method, dataset or training is known here.

Every family uses:

- `sources`: short names, hub ids and local folders; download and cache.
- `state_dict`: read the tensors of a checkpoint safely, rename them to ours, and hash a backbone.
- `preprocess`: an image as the pixels that a checkpoint requires.
- `fast`: fused operations, each a Triton kernel with a plain implementation that it equals.

One package per family:

- `clip`: CLIP with a ViT image tower. Its small embedded checkpoint, `mini`, lies in the folder of that name.
"""
