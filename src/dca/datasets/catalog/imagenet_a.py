"""ImageNet-A: Hendrycks et al."""

from dca.datasets.layouts import CatalogEntry, ClassFolders

ENTRY = CatalogEntry(
    name="imagenet_a",
    title="ImageNet-A",
    folder="imagenet-adversarial",
    aliases=("imagenet-a", "ImageNetA"),
    layout=ClassFolders(names="imagenet_a", test=("imagenet-a", "ImageNetA")),
    classes=200,
    sizes=(0, 0, 7500),
    split="test only: 200 classes, one folder per WordNet id",
    template="a photo of a {}.",
    home="https://github.com/hendrycks/natural-adv-examples",
    licence="MIT",
    citation="Hendrycks et al., Natural Adversarial Examples, CVPR 2021",
    notes="Labels are 0 to 199 over its own classes; the classifier is 200-way.",
)
