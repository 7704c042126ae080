"""Caltech101: Fei-Fei et al."""

from dca.datasets.layouts import CatalogEntry, SplitFile

ENTRY = CatalogEntry(
    name="caltech101",
    title="Caltech101",
    folder="caltech-101",
    aliases=("caltech",),
    layout=SplitFile(
        "split_zhou_Caltech101.json",
        ("101_ObjectCategories", "caltech-101/101_ObjectCategories", "caltech101"),
    ),
    classes=100,
    sizes=(4128, 1649, 2465),
    split="50/20/30 per class by the CoOp authors",
    template="a photo of a {}.",
    home="https://data.caltech.edu/records/mzrjq-6wc02",
    licence="CC BY 4.0",
    citation="Fei-Fei et al., Learning Generative Visual Models from Few Training Examples, CVPR Workshop 2004",
    notes=(
        "Without BACKGROUND_Google and Faces_easy. Labels follow folder names sorted upper case "
        "first: face, leopard, motorbike, accordion, ..."
    ),
)
