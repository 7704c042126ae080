"""UCF101: Soomro et al."""

from dca.datasets.layouts import CatalogEntry, SplitFile

ENTRY = CatalogEntry(
    name="ucf101",
    title="UCF101",
    folder="ucf101",
    aliases=("ucf", "ucf-101"),
    layout=SplitFile("split_zhou_UCF101.json", ("UCF-101-midframes", ".")),
    classes=101,
    sizes=(7639, 1898, 3783),
    split="official trainlist01 and testlist01; 20 % of train is val",
    template="a photo of a person doing {}.",
    home="https://www.crcv.ucf.edu/data/UCF101.php",
    licence="not stated; research use",
    citation=(
        "Soomro et al., UCF101: A Dataset of 101 Human Action Classes From Videos in The Wild, arXiv:1212.0402, 2012"
    ),
    notes="The middle frame of each video.",
)
