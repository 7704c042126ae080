"""Frozen backbones: pretrained encoders whose weights no method changes. No method, dataset or training is known here.

Every family uses:

- `sources`: short names, hub ids and local folders; download and cache.
- `state_dict`: read the tensors of a checkpoint safely, rename them to ours, and hash a backbone.
- `preprocess`: an image as the pixels that a checkpoint requires.
- `fast`: fused operations, each a Triton kernel with a plain implementation that it equals.

Encoders with two towers:

- `dual_encoder`: what methods use of them, whatever their family.
- `blocks`: what their towers are built of.
- `clip`: CLIP with a ViT or a ResNet as image tower. Its small embedded checkpoint, `mini`, lies in its own folder.
- `siglip`: SigLIP and SigLIP 2 of fixed resolution.
"""
