"""Food101: Bossard et al."""

from dca.datasets.layouts import CatalogEntry, SplitFile

ENTRY = CatalogEntry(
    name="food101",
    title="Food101",
    folder="food-101",
    aliases=("food",),
    layout=SplitFile("split_zhou_Food101.json", ("images", "food-101/images")),
    classes=101,
    sizes=(50_500, 20_200, 30_300),
    split="all images re-split 50/20/30 per class by the CoOp authors; the official test list is not used",
    template="a photo of {}, a type of food.",
    home="https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101/",
    licence="images from Foodspotting; research use",
    citation="Bossard et al., Food-101: Mining Discriminative Components with Random Forests, ECCV 2014",
)
