"""EuroSAT: Helber et al."""

from dca.datasets.layouts import CatalogEntry, SplitFile

ENTRY = CatalogEntry(
    name="eurosat",
    title="EuroSAT",
    folder="eurosat",
    aliases=("EuroSAT_RGB", "euro sat"),
    layout=SplitFile("split_zhou_EuroSAT.json", ("2750", "EuroSAT_RGB", "EuroSAT/2750", "EuroSAT", "images")),
    classes=10,
    sizes=(13_500, 5400, 8100),
    split="50/20/30 per class by the CoOp authors; there is no official split",
    template="a centered satellite photo of {}.",
    home="https://github.com/phelber/EuroSAT",
    licence="MIT",
    citation=(
        "Helber et al., EuroSAT: A Novel Dataset and Deep Learning Benchmark for Land Use and Land "
        "Cover Classification, JSTARS 2019"
    ),
)
