"""StanfordCars: Krause et al."""

from dca.datasets.layouts import CatalogEntry, SplitFile

ENTRY = CatalogEntry(
    name="stanford_cars",
    title="StanfordCars",
    folder="stanford_cars",
    aliases=("cars", "stanford-car"),
    layout=SplitFile("split_zhou_StanfordCars.json", (".", "stanford_cars", "car_data")),
    classes=196,
    sizes=(6509, 1635, 8041),
    split="official train and test; 20 % of train is val",
    template="a photo of a {}.",
    home="https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
    licence="non-commercial research use",
    citation="Krause et al., 3D Object Representations for Fine-Grained Categorization, 3dRR 2013",
    notes=("Kaggle's copies (cars_train/cars_train/, or car_data/car_data/train/<class>/) are found by file name."),
)
