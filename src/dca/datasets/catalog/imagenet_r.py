"""ImageNet-R: Hendrycks et al."""

from dca.datasets.layouts import CatalogEntry, ClassFolders

ENTRY = CatalogEntry(
    name="imagenet_r",
    title="ImageNet-R",
    folder="imagenet-rendition",
    aliases=("imagenet-r", "ImageNetR"),
    layout=ClassFolders(names="imagenet_r", test=("imagenet-r", "ImageNetR")),
    classes=200,
    sizes=(0, 0, 30_000),
    split="test only: 200 classes, one folder per WordNet id",
    template="a photo of a {}.",
    home="https://github.com/hendrycks/imagenet-r",
    licence="MIT",
    citation="Hendrycks et al., The Many Faces of Robustness, ICCV 2021",
    notes="Labels are 0 to 199 over its own classes; the classifier is 200-way.",
)
