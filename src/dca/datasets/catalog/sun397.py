"""SUN397: Xiao et al."""

from dca.datasets.layouts import CatalogEntry, SplitFile

ENTRY = CatalogEntry(
    name="sun397",
    title="SUN397",
    folder="sun397",
    aliases=("sun", "sun-397"),
    layout=SplitFile("split_zhou_SUN397.json", ("SUN397", ".")),
    classes=397,
    sizes=(15_880, 3970, 19_850),
    split="official Training_01 and Testing_01; 20 % of training is val",
    template="a photo of a {}.",
    home="https://vision.princeton.edu/projects/2010/SUN/",
    licence="not stated; research use",
    citation="Xiao et al., SUN Database: Large-scale Scene Recognition from Abbey to Zoo, CVPR 2010",
    notes="Folders such as a/apartment_building/outdoor read 'outdoor apartment building'.",
)
