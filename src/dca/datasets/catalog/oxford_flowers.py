"""Flowers102: Nilsback and Zisserman."""

from dca.datasets.layouts import CatalogEntry, SplitFile

ENTRY = CatalogEntry(
    name="oxford_flowers",
    title="Flowers102",
    folder="oxford_flowers",
    aliases=("flowers", "OxfordFlowers", "flowers-102", "OxfordFlowers102", "oxford-flowers-102", "oxford-flowers102"),
    layout=SplitFile("split_zhou_OxfordFlowers.json", ("jpg", "flowers-102/jpg")),
    classes=102,
    sizes=(4093, 1633, 2463),
    split="all images re-split 50/20/30 per class by the CoOp authors; not the official 10/10/rest",
    template="a photo of a {}, a type of flower.",
    home="https://www.robots.ox.ac.uk/~vgg/data/flowers/102/",
    licence="not stated; research use",
    citation="Nilsback and Zisserman, Automated Flower Classification over a Large Number of Classes, ICVGIP 2008",
    notes="Draws take the classes in order of first appearance, which is not label order here.",
)
