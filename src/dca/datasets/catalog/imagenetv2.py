"""ImageNet-V2: Recht et al."""

from dca.datasets.layouts import CatalogEntry, ClassFolders

ENTRY = CatalogEntry(
    name="imagenetv2",
    title="ImageNet-V2",
    folder="imagenetv2",
    aliases=("imagenet-v2", "imagenetv2-matched-frequency", "imagenet-v2-matched-frequency"),
    layout=ClassFolders(
        names="imagenet",
        test=("imagenetv2-matched-frequency-format-val", "imagenetv2-matched-frequency"),
        numbered=True,
    ),
    classes=1000,
    sizes=(0, 0, 10_000),
    split="test only: matched-frequency images, folders 0 to 999 by label",
    test_per_class=10,
    template="a photo of a {}.",
    home="https://imagenetv2.org/",
    licence="MIT",
    citation="Recht et al., Do ImageNet Classifiers Generalize to ImageNet?, ICML 2019",
    names="imagenet",
)
