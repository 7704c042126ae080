"""ImageNet: Deng et al."""

from dca.datasets.layouts import CatalogEntry, ClassFolders

ENTRY = CatalogEntry(
    name="imagenet",
    title="ImageNet",
    folder="imagenet",
    aliases=("ImageNet-1k", "ImageNet1k", "ilsvrc2012", "ilsvrc-2012"),
    layout=ClassFolders(
        names="imagenet",
        train=("images/train", "train", "ILSVRC/Data/CLS-LOC/train"),
        test=("images/val", "val", "ILSVRC/Data/CLS-LOC/val"),
        solution="LOC_val_solution.csv",
    ),
    classes=1000,
    sizes=(1_281_167, 0, 50_000),
    split="official training and validation images; the validation images are the test part",
    test_per_class=50,
    template="a photo of a {}.",
    home="https://www.image-net.org/",
    licence="non-commercial research and education",
    citation="Deng et al., ImageNet: A Large-Scale Hierarchical Image Database, CVPR 2009",
    notes=(
        "No public draw exists that does not depend on someone's file system: file names are sorted "
        "before drawing, or an index file is imported. Two pairs of classes share a name (missile, "
        "sunglasses)."
    ),
)
