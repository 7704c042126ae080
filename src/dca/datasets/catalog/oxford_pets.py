"""OxfordPets: Parkhi et al."""

from dca.datasets.layouts import CatalogEntry, SplitFile

ENTRY = CatalogEntry(
    name="oxford_pets",
    title="OxfordPets",
    folder="oxford_pets",
    aliases=("pets", "oxford-iiit-pet", "OxfordIIITPet", "oxford-pet"),
    layout=SplitFile("split_zhou_OxfordPets.json", ("images", "oxford-iiit-pet/images")),
    classes=37,
    sizes=(2944, 736, 3669),
    split="official trainval and test; 20 % of trainval is val",
    template="a photo of a {}, a type of pet.",
    home="https://www.robots.ox.ac.uk/~vgg/data/pets/",
    licence="CC BY-SA 4.0",
    citation="Parkhi et al., Cats and Dogs, CVPR 2012",
)
