from __future__ import annotations

import json
import shutil
from collections import Counter
from importlib.metadata import EntryPoint

import pytest

from conftest import shared as shared_folder
from dca.core.errors import UserError
from dca.core.text import normalize_name
from dca.datasets import catalog, load_dataset
from dca.datasets.catalog import CatalogEntry
from dca.datasets.check import check_public
from dca.datasets.protocols import domain_shift
from helpers.miniatures import PER_CLASS, SPLIT_FILES, WNID_FOLDERS, miniature, split_path
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


@pytest.mark.parametrize("name", NAMES)
def test_check_of_a_miniature_finds_only_the_sizes_wrong(minis, name):
    report = check_public(catalog.get(name), minis(name))
    assert [f.what for f in report.findings] == ["the split sizes differ from the official ones"]
    assert report.ok


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


@pytest.mark.parametrize("name", ["eurosat", "dtd", "stanford_cars"])
def test_a_folder_with_the_name_of_a_public_dataset_is_not_that_dataset(tmp_path, name):
    folder = make_folder(tmp_path / name, {"cat": 2, "dog": 2})
    dataset = load_dataset(folder)
    assert (dataset.name, dataset.public, dataset.template) == (name, "", "a photo of a {}.")
    assert dataset.keys == ()


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


def test_the_sample_is_found_by_name(monkeypatch):
    monkeypatch.setattr("dca.datasets.sample.load_sample", lambda: "the sample")
    assert load_dataset("sample") == "the sample"


# What check names


@pytest.fixture
def mini(tmp_path):
    return lambda name: miniature(name, tmp_path)


@pytest.mark.parametrize("name", sorted(SPLIT_FILES))
def test_check_names_a_deleted_file(mini, name):
    folder = mini(name)
    key, _ = catalog.get(name).class_list()[1]
    gone = split_path(name, 1, key, "test", 0)
    (folder / SPLIT_FILES[name][1] / gone).unlink()
    report = check_public(catalog.get(name), folder)
    finding = next(f for f in report.findings if "missing" in f.what)
    assert finding.what == f"1 of {catalog.get(name).classes:,} test images is missing"
    assert finding.examples == (gone,)
    assert not report.ok


@pytest.mark.parametrize("name", sorted(SPLIT_FILES))
def test_check_names_a_missing_split_and_a_wrong_class(mini, name):
    folder = mini(name)
    file = folder / SPLIT_FILES[name][0]
    split = json.loads(file.read_text())
    for rows in split.values():
        for row in rows:
            row[2] = "teapot" if row[1] == 2 else row[2]
    file.write_text(json.dumps(split))
    wrong = next(f for f in check_public(catalog.get(name), folder).findings if "wrong" in f.what)
    assert wrong.examples == (f"label 2: 'teapot', expected '{catalog.get(name).class_list()[2][1]}'",)
    file.unlink()
    missing = check_public(catalog.get(name), folder)
    assert file.name in missing.findings[0].what
    assert not missing.ok


def test_check_of_aircraft(mini):
    folder, entry = mini("fgvc_aircraft"), catalog.get("fgvc_aircraft")
    (folder / "images/train10.jpg").unlink()
    report = check_public(entry, folder)
    assert "images/train10.jpg" in next(f for f in report.findings if "missing" in f.what).examples
    (folder / "variants.txt").write_text((folder / "variants.txt").read_text().replace("727-200", "727-201"))
    assert "'727-200' is not in variants.txt" in str(check_public(entry, folder).findings[0])
    (folder / "images_variant_val.txt").unlink()
    assert "images_variant_val.txt is missing" in check_public(entry, folder).findings[0].what


@pytest.mark.parametrize("name", sorted(WNID_FOLDERS))
def test_check_names_missing_class_folders_and_parts(mini, name):
    folder, entry = mini(name), catalog.get(name)
    part = WNID_FOLDERS[name][-1]
    first = folder / part / ("0" if name == "imagenetv2" else entry.class_list()[0][0])
    shutil.rmtree(first)
    key, words = entry.class_list()[0]
    finding = next(f for f in check_public(entry, folder).findings if "no test images" in f.what)
    assert finding.examples == (f"{key} ({words})",)
    (folder / part).rename(folder / "elsewhere")
    report = check_public(entry, folder)
    assert not report.ok
    assert "are not in it" in report.findings[0].what


def test_check_names_the_class_that_lacks_an_image(mini):
    folder, entry = mini("imagenetv2"), catalog.get("imagenetv2")
    base = folder / WNID_FOLDERS["imagenetv2"][0]
    for y in range(1000):
        for i in range(9 if y != 7 else 8):
            (base / str(y) / f"{i}.jpeg").symlink_to(folder.parent / "one.jpg")
    report = check_public(entry, folder)
    key, words = entry.class_list()[7]
    assert report.findings[0].examples == (
        "test: 9,999 listed, 10,000 official",
        f"test, {key} ({words}): 9 of 10",
    )


def test_check_can_open_the_images(mini):
    folder = mini("eurosat")
    bad = folder / "2750/Forest/train0.jpg"
    bad.unlink()
    bad.write_text("not an image")
    entry = catalog.get("eurosat")
    assert check_public(entry, folder).ok
    report = check_public(entry, folder, open_images=True)
    assert any("Forest/train0.jpg: not an image" in line for f in report.findings for line in f.examples)


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


def test_own_folders_are_not_mistaken_for_public_ones(tmp_path):
    make_folder(tmp_path / "a/train", {"x": 1, "y": 1})
    make_folder(tmp_path / "a/val", {"x": 1, "y": 1})
    make_folder(tmp_path / "b/images", {"x": 1, "y": 1})
    assert load_dataset(tmp_path / "a").name == "a"
    assert load_dataset(tmp_path / "b/images").name == "images"


# Names


def test_unknown_and_unplaced_names(monkeypatch, tmp_path):
    monkeypatch.delenv("DCA_DATA", raising=False)
    with pytest.raises(UserError, match="Did you mean 'eurosat'"):
        load_dataset("eurosatt")
    with pytest.raises(UserError, match="where is EuroSAT") as error:
        load_dataset("eurosat")
    assert "path of its folder" in error.value.hint
    assert "DCA_DATA=DIR, the folder that holds eurosat/" in error.value.hint
    with pytest.raises(UserError, match="no folder eurosat/ here"):
        load_dataset("eurosat", root=tmp_path)
    with pytest.raises(UserError, match="no such folder"):
        load_dataset(tmp_path / "none")


def test_a_mistyped_folder_is_answered_with_the_one_beside_it(tmp_path, monkeypatch):
    for name in ("photos", "zebra", *(f"{n:02}" for n in range(9))):
        (tmp_path / name).mkdir()
    (tmp_path / "labels.csv").touch()
    monkeypatch.chdir(tmp_path)
    for typed, meant in (
        ("photoz", "photos"),
        ("./photoz", "photos"),
        ("photoz/", "photos"),
        ("label.csv", "labels.csv"),
    ):
        with pytest.raises(UserError, match=f"Did you mean '{meant}'"):
            load_dataset(typed)
    with pytest.raises(UserError, match=f"Did you mean '{tmp_path / 'photos'}'"):
        load_dataset(tmp_path / "photso")
    for typed in ("nofolder", "./nofolder"):
        with pytest.raises(UserError) as error:
            load_dataset(typed)
        assert "Did you mean" not in str(error.value)
    assert error.value.details == ("beside it: 00, 01, 02, 03, 04, 05, 06, 07 ...",)


@pytest.mark.parametrize("spelling", ["Flowers102", "oxford-flowers", "OxfordFlowers", "flowers"])
def test_spellings(spelling):
    assert catalog.get(spelling).name == "oxford_flowers"


def test_an_outside_package_can_add_a_dataset(monkeypatch):
    mine = CatalogEntry(
        name="mine", title="Mine", folder="mine", layout=catalog.get("dtd").layout, classes=47, sizes=(1, 1, 1),
        split="s", home="h", licence="l", citation="c",
    )  # fmt: skip
    monkeypatch.setattr(EntryPoint, "load", lambda self: mine)
    points = [EntryPoint("mine", "somewhere:ENTRY", "dca.datasets")]
    monkeypatch.setattr(catalog, "entry_points", lambda group: points)
    catalog.entries.cache_clear()
    try:
        assert catalog.get("Mine") is mine
        assert len(catalog.entries()) == 16
    finally:
        catalog.entries.cache_clear()


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


@pytest.mark.parametrize(("folder", "name"), [("caltech-101", "caltech101"), ("oxford_flowers", "oxford_flowers")])
def test_check_finds_nothing_wrong_with_whole_datasets(shared, folder, name):
    report = check_public(catalog.get(name), shared / "images" / folder)
    assert report.findings == ()
    assert report.facts["present"] == report.facts["official"]


def test_check_says_what_is_there_of_eurosat(shared):
    report = check_public(catalog.get("eurosat"), shared / "images/eurosat")
    assert report.facts["present"]["test"] == 8100
    assert sum(report.facts["present"].values()) == 9394
    assert len(report.facts["complete_draws"]) == 15
    assert report.ok
    assert [f.level for f in report.findings] == ["warning", "warning"]
    assert all("every image that the public draws" in f.advice for f in report.findings)
