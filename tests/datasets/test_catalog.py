from __future__ import annotations

import json
import shutil
from collections import Counter
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from conftest import shared as shared_folder
from dca.core.errors import UserError
from dca.core.text import normalize_name
from dca.datasets import catalog, load_dataset
from dca.datasets.catalog import CatalogEntry, ClassFolders
from dca.datasets.check import check_public
from dca.study.protocols import domain_shift
from helpers.miniatures import PER_CLASS, WNID_FOLDERS, miniature
from helpers.small_images import make_folder


@pytest.fixture
def shared():
    """Real images, split files and published draws, if they are beside the repository."""
    return shared_folder("data")


NAMES = tuple(catalog.entries())
FIRST_WORDS = {
    "dtd": ("banded", "blotchy", "braided"),
    "fgvc_aircraft": ("707-320", "727-200", "737-200"),
    "food101": ("apple pie", "baby back ribs", "baklava"),
    "imagenet": ("tench", "goldfish", "great white shark"),
    "stanford_cars": ("2000 AM General Hummer SUV", "2012 Acura RL Sedan", "2012 Acura TL Sedan"),
    "caltech101": ("face", "leopard", "motorbike", "accordion", "airplane"),
    "oxford_flowers": ("pink primrose", "hard-leaved pocket orchid", "canterbury bells"),
    "oxford_pets": ("abyssinian", "american bulldog", "american pit bull terrier"),
    "sun397": ("abbey", "airplane cabin", "airport terminal"),
    "ucf101": ("Apply Eye Makeup", "Apply Lipstick", "Archery"),
    "eurosat": ("Annual Crop Land", "Forest", "Herbaceous Vegetation Land", "Highway or Road"),
    "imagenetv2": ("tench", "goldfish"),
    "imagenet_sketch": ("tench", "goldfish"),
    "imagenet_a": ("stingray", "goldfinch", "junco"),
    "imagenet_r": ("goldfish", "great white shark", "hammerhead shark"),
}


@pytest.fixture(scope="module")
def minis(tmp_path_factory):
    """Miniatures, each made once and left as it is."""
    root = tmp_path_factory.mktemp("minis")
    made = {}

    def get(name):
        if name not in made:
            made[name] = miniature(name, root / name)
        return made[name]

    return get


def test_there_are_fifteen():
    assert tuple(FIRST_WORDS) == NAMES


def test_the_page_about_datasets_lists_every_entry_with_its_folder():
    page = (Path(__file__).resolve().parents[2] / "docs" / "datasets.md").read_text(encoding="utf-8")
    rows = [line.split(" | ")[:2] for line in page.splitlines() if line.startswith("| `") and "/` |" in line]
    assert rows == [[f"| `{entry.name}`", f"`{entry.folder}/`"] for entry in catalog.entries().values()]


@pytest.mark.parametrize("name", NAMES)
def test_every_entry_builds_from_a_miniature_of_its_layout(minis, name):
    entry, folder = catalog.get(name), minis(name)
    dataset = load_dataset(folder)
    assert dataset.name == dataset.public == name
    assert len(set(dataset.labels)) == entry.classes
    assert all(label.startswith(words) for label, words in zip(dataset.labels, dataset.names, strict=True))
    assert dataset.names[: len(FIRST_WORDS[name])] == FIRST_WORDS[name]
    assert len(dataset.names) == entry.classes == len(dataset.keys)
    assert dataset.template == entry.template
    expected = PER_CLASS if name not in WNID_FOLDERS else {"train": int(name == "imagenet"), "val": 0, "test": 1}
    assert dataset.counts() == {part: n * entry.classes for part, n in expected.items()}
    for part, n in expected.items():
        assert set(Counter(item.label for item in getattr(dataset, part)).values()) == ({n} if n else set())
        assert all(item.image.is_file() for item in getattr(dataset, part))


@pytest.mark.parametrize("name", NAMES)
def test_every_entry_is_found_by_name_under_a_root(minis, monkeypatch, name):
    root = minis(name).parent
    assert load_dataset(name, root=root).name == name
    monkeypatch.setenv("DCA_DATA", str(root))
    assert load_dataset(catalog.get(name).title).name == name


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("EuroSAT", "eurosat"), ("Euro_SAT", "eurosat"), ("oxford pets", "oxford_pets"), ("OxfordPets", "oxford_pets"),
        ("Oxford-IIIT-Pet", "oxford_pets"), ("food 101", "food101"), ("Food-101", "food101"),
        ("fgvc-aircraft", "fgvc_aircraft"), ("FGVCAircraft", "fgvc_aircraft"), ("stanford-cars", "stanford_cars"),
        ("StanfordCars", "stanford_cars"), ("imagenet.v2", "imagenetv2"), ("ImageNetV2", "imagenetv2"),
        ("imageneta", "imagenet_a"), ("ImageNet-R", "imagenet_r"), ("imagenetsketch", "imagenet_sketch"),
        ("flowers102", "oxford_flowers"), ("Oxford Flowers", "oxford_flowers"), ("oxfordflowers", "oxford_flowers"),
        ("SUN-397", "sun397"), ("UCF_101", "ucf101"), ("caltech 101", "caltech101"), ("Caltech101", "caltech101"),
        ("Describable-Textures", "dtd"), ("ImageNet 1k", "imagenet"),
    ],
)  # fmt: skip
def test_a_dataset_is_found_by_its_usual_spellings(spelling, name):
    assert catalog.get(spelling).name == name


def test_two_classes_of_imagenet_that_share_a_name_have_two_labels(minis):
    dataset = load_dataset(minis("imagenet"))
    labels = [label for label, words in zip(dataset.labels, dataset.names, strict=True) if words == "missile"]
    assert sorted(labels) == ["missile (n03773504)", "missile (n04008634)"]


def test_no_two_datasets_share_a_spelling():
    spellings = [
        (normalize_name(text), entry.name)
        for entry in catalog.entries().values()
        for text in {normalize_name(t): t for t in (entry.name, entry.title, entry.folder, *entry.aliases)}
    ]
    assert len({text for text, _ in spellings}) == len(spellings)


@pytest.mark.parametrize("name", NAMES)
def test_facts_are_complete(name):
    entry = catalog.get(name)
    facts = entry.describe()
    assert json.loads(json.dumps(facts))["name"] == name
    for key in ("title", "home", "licence", "citation", "split", "layout", "template"):
        assert facts[key]
    assert "{}" in entry.template
    assert len(entry.class_list()) == entry.classes


def test_shifted_versions_of_imagenet_find_their_classes_by_wordnet_id(minis):
    source = load_dataset(minis("imagenet"))
    targets = [load_dataset(minis(name)) for name in ("imagenetv2", "imagenet_sketch", "imagenet_a", "imagenet_r")]
    task = domain_shift(source, targets, 1, 1)
    assert [len(target.names) for target in task.targets] == [1000, 1000, 1000, 200, 200]
    for target in task.targets:
        assert target.carries_over
        assert target.names == tuple(source.names[y] for y in target.from_source)


@pytest.fixture
def mini(tmp_path):
    return lambda name: miniature(name, tmp_path)


# Copies in other layouts


def test_eurosat_rgb_and_no_image_folder_are_recognised(mini):
    folder = mini("eurosat")
    (folder / "2750").rename(folder / "EuroSAT_RGB")
    assert all(item.image.is_file() for item in load_dataset(folder).train)
    plain = load_dataset((folder / "EuroSAT_RGB").rename(folder.parent / "EuroSAT_RGB"))
    assert (plain.name, plain.public) == ("eurosat", "eurosat")
    assert plain.labels[0] == "AnnualCrop"
    assert plain.names[0] == "Annual Crop Land"
    assert plain.template == "a centered satellite photo of {}."
    assert "not its public split" in plain.split


@pytest.mark.parametrize("nesting", ["cars_train/cars_train", "car_data/car_data/train/any class"])
def test_kaggle_copies_of_cars_are_found_by_file_name(mini, nesting):
    folder = mini("stanford_cars")
    for part in ("train", "test"):
        target = folder / nesting.replace("train", part)
        moved = (folder / f"cars_{part}").rename(folder / f"moving_{part}")
        target.mkdir(parents=True)
        for file in moved.iterdir():
            file.rename(target / file.name)
        moved.rmdir()
    # In the official files train and test images share their names; only the folders differ.
    dataset = load_dataset(folder)
    assert all(item.image.is_file() for item in dataset.train + dataset.val + dataset.test)
    assert check_public(catalog.get("stanford_cars"), folder).ok


def test_equal_file_names_are_told_apart_by_their_folders(mini):
    folder = mini("stanford_cars")
    file = folder / "split_zhou_StanfordCars.json"
    split = json.loads(file.read_text())
    for part, rows in split.items():
        side = "test" if part == "test" else "train"
        for row in rows:
            new = f"cars_{side}/{row[0].split('/')[1].replace(part, '0')}"
            if part != "val":
                target = folder / "data" / side / "Some Car 2012" / new.split("/")[1]
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(folder.parent / "one.jpg")
            row[0] = new
    file.write_text(json.dumps({**split, "val": []}))
    shutil.rmtree(folder / "cars_train")
    shutil.rmtree(folder / "cars_test")
    dataset = load_dataset(folder)
    assert {item.image.parts[-3] for item in dataset.train} == {"train"}
    assert {item.image.parts[-3] for item in dataset.test} == {"test"}


def test_train_valid_test_copies_keep_the_catalogs_names_and_say_so(tmp_path):
    entry = catalog.get("oxford_flowers")
    for part in ("train", "valid", "test"):
        make_folder(tmp_path / "oxford_flowers" / "data" / part, {key: 1 for key, _ in entry.class_list()})
    for dataset in (load_dataset("flowers", root=tmp_path), load_dataset(tmp_path / "oxford_flowers/data")):
        assert dataset.names == tuple(words for _, words in entry.class_list())
        assert [item.image.parent.name for item in dataset.train[:3]] == ["1", "2", "3"]
        assert "not" in dataset.split
        assert dataset.template == entry.template


def test_kaggle_imagenet_with_a_flat_validation_folder(mini):
    folder, entry = mini("imagenet"), catalog.get("imagenet")
    (folder / "ILSVRC/Data").mkdir(parents=True)
    (folder / "images").rename(folder / "ILSVRC/Data/CLS-LOC")
    val = folder / "ILSVRC/Data/CLS-LOC/val"
    rows = []
    for y, (key, _) in enumerate(entry.class_list()):
        (val / key / "x.JPEG").rename(val / f"ILSVRC2012_val_{y:08d}.JPEG")
        (val / key).rmdir()
        rows.append(f"ILSVRC2012_val_{y:08d},{key} 1 2 3 4")
    (folder / "LOC_val_solution.csv").write_text("ImageId,PredictionString\n" + "\n".join(rows) + "\n")
    dataset = load_dataset(folder)
    assert len(dataset.test) == len(dataset.train) == 1000
    assert dataset.test[3].label == 3


# Names


@pytest.mark.parametrize("spelling", ["Flowers102", "oxford-flowers", "OxfordFlowers", "flowers"])
def test_spellings(spelling):
    assert catalog.get(spelling).name == "oxford_flowers"


FACTS = {"classes": 2, "sizes": (2, 0, 2), "split": "s", "home": "h", "licence": "l", "citation": "c"}


@pytest.fixture
def outside(monkeypatch):
    """Lets another package offer this object as a dataset."""

    def offer(entry):
        monkeypatch.setattr(EntryPoint, "load", lambda self: entry)
        points = [EntryPoint("mine", "somewhere:ENTRY", "dca.datasets")]
        monkeypatch.setattr(catalog, "entry_points", lambda group: points)
        catalog.entries.cache_clear()

    yield offer
    catalog.entries.cache_clear()


def test_an_outside_package_can_add_a_dataset(outside):
    mine = CatalogEntry(name="mine", title="Mine", folder="mine", layout=catalog.get("dtd").layout, **FACTS)
    outside(mine)
    assert catalog.get("Mine") is mine
    assert len(catalog.entries()) == 16


def test_a_dataset_of_an_outside_package_may_have_class_names_of_its_own(outside, tmp_path):
    class Birds(CatalogEntry):
        def class_list(self):
            return (("n1", "robin"), ("n2", "wren"))

    outside(Birds(name="birds", title="Birds", folder="birds", layout=ClassFolders(("test",), ("train",)), **FACTS))
    for part in ("train", "test"):
        make_folder(tmp_path / "any name" / part, {"n1": 1, "n2": 1})
    dataset = load_dataset(tmp_path / "any name")
    assert (dataset.public, dataset.names, dataset.keys) == ("birds", ("robin", "wren"), ("n1", "n2"))
    assert dataset.counts() == {"train": 2, "val": 0, "test": 2}


def test_without_class_names_no_folder_is_taken_for_the_dataset(outside, tmp_path):
    layout = ClassFolders(("test",), ("train",))
    outside(CatalogEntry(name="mine", title="Mine", folder="mine", layout=layout, **FACTS))
    for part in ("train", "test"):
        make_folder(tmp_path / part, {"cat": 1, "dog": 1})
    assert load_dataset(tmp_path).public == ""


def test_an_entry_point_to_something_else_is_named(outside):
    outside("no entry")
    with pytest.raises(UserError, match="'mine' is not a CatalogEntry but a str"):
        catalog.entries()


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"train": []}', '{"train": [["a"]], "val": [], "test": []}',
     '{"train": [["../../x.jpg", 0, "a"]], "val": [], "test": []}',
     '{"train": [["x.jpg", 0, "a"], ["y.jpg", 0, "b"]], "val": [], "test": []}',
     '{"train": [["x.jpg", 5, "a"]], "val": [], "test": []}'],
)  # fmt: skip
def test_damaged_or_hostile_split_files_are_refused(tmp_path, content):
    (tmp_path / "split_zhou_EuroSAT.json").write_text(content)
    with pytest.raises(UserError):
        load_dataset(tmp_path)


# The real ones


@pytest.mark.parametrize(
    ("folder", "name"), [("caltech-101", "caltech101"), ("oxford_flowers", "oxford_flowers"), ("eurosat", "eurosat")]
)
def test_real_datasets_load_whole(shared, folder, name):
    dataset = load_dataset(shared / "images" / folder)
    entry = catalog.get(name)
    assert tuple(dataset.counts().values()) == entry.sizes
    assert dataset.names == tuple(words for _, words in entry.class_list())
