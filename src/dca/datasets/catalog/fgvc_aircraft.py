"""FGVCAircraft: Maji et al."""

from dca.datasets.layouts import CatalogEntry, VariantLists

ENTRY = CatalogEntry(
    name="fgvc_aircraft",
    title="FGVCAircraft",
    folder="fgvc_aircraft",
    aliases=("aircraft", "FGVC-Aircraft", "fgvc-aircraft-2013b"),
    layout=VariantLists(),
    classes=100,
    sizes=(3334, 3333, 3333),
    split="official variant lists",
    template="a photo of a {}, a type of aircraft.",
    home="https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/",
    licence="non-commercial research use",
    citation="Maji et al., Fine-Grained Visual Classification of Aircraft, arXiv:1306.5151, 2013",
)
