"""DTD: Cimpoi et al."""

from dca.datasets.layouts import CatalogEntry, SplitFile

ENTRY = CatalogEntry(
    name="dtd",
    title="DTD",
    folder="dtd",
    aliases=("DescribableTextures", "describable textures"),
    layout=SplitFile("split_zhou_DescribableTextures.json", ("images", "dtd/images")),
    classes=47,
    sizes=(2820, 1128, 1692),
    split="all images re-split 50/20/30 per class by the CoOp authors; not one of the ten official splits",
    template="{} texture.",
    home="https://www.robots.ox.ac.uk/~vgg/data/dtd/",
    licence="research use only",
    citation="Cimpoi et al., Describing Textures in the Wild, CVPR 2014",
)
