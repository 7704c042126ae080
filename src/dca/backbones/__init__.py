"""TODO backbones."""
