"""ImageNet-Sketch: Wang et al."""

from dca.datasets.layouts import CatalogEntry, ClassFolders

ENTRY = CatalogEntry(
    name="imagenet_sketch",
    title="ImageNet-Sketch",
    folder="imagenet-sketch",
    aliases=("sketch", "ImageNetSketch"),
    layout=ClassFolders(names="imagenet", test=("images", "sketch")),
    classes=1000,
    sizes=(0, 0, 50_889),
    split="test only: one folder per WordNet id",
    template="a photo of a {}.",
    home="https://github.com/HaohanWang/ImageNet-Sketch",
    licence="MIT",
    citation="Wang et al., Learning Robust Global Representations by Penalizing Local Predictive Power, NeurIPS 2019",
    names="imagenet",
)
