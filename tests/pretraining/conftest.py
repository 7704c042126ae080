"""A pack of drawn shapes, small enough that everything runs in a second or two."""

import gzip
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from pretrain import bpe
from pretrain.config import AugmentConfig, DataConfig, LossConfig, ModelConfig, PretrainConfig, TrainConfig
from pretrain.drawn import draw_image
from pretrain.pack import pack_folder
from pretrain.prepare import prepare

NOUNS = [
    ("n00001930", ["physical entity"], "an entity that has physical existence", []),
    ("n01", ["plant"], "a living organism without the power of movement", ["n00001930"]),
    ("n02", ["flower"], "a plant grown for its blossoms; or a blossom", ["n01"]),
    ("n03", ["daisy", "oxeye"], "a flower with white rays", ["n02"]),
    ("n04", ["idea"], "something thought", []),
]


@pytest.fixture(scope="session")
def lexicon_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("lexicon") / "nouns.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8") as lines:
        for wnid, lemmas, gloss, above in NOUNS:
            row = {"wnid": wnid, "lemmas": lemmas, "gloss": gloss, "hypernyms": above}
            lines.write(json.dumps(row) + "\n")
    return path


@pytest.fixture(scope="session")
def shapes_pack(tmp_path_factory):
    """24 captioned images, packed as the source 'shapes'."""
    folder, pack = tmp_path_factory.mktemp("pictures"), tmp_path_factory.mktemp("pack")
    rng, rows = random.Random(0), []
    for n in range(24):
        image, captions = draw_image(rng)
        image.resize((90, 80)).save(folder / f"{n}.png")
        rows.append({"file": f"{n}.png", "captions": captions, "split": "val" if n % 4 == 0 else "train"})
    (folder / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert pack_folder(folder, folder / "captions.jsonl", pack, "shapes") == 24
    return pack


@pytest.fixture(scope="session")
def small_config(tmp_path_factory, shapes_pack, lexicon_file):
    """A run of a few steps over that pack, prepared."""
    place: Path = tmp_path_factory.mktemp("run")
    data = DataConfig(
        pack=str(shapes_pack), prepared=str(place / "prepared"), tokenizer=str(place / "tokenizer"),
        lexicon=str(lexicon_file), validation="shapes", drawn=16, side=32,
    )  # fmt: skip
    config = PretrainConfig(
        data=data,
        model=ModelConfig(image_size=16, patch_size=4, width=16, heads=2, layers=2, text_layers=1, context=16, embed=8),
        augment=AugmentConfig(grey=0.125, blurry=0.125),
        loss=LossConfig(lexicon_batch=2),
        train=TrainConfig(out=str(place / "out"), batch=8, steps=6, log_every=2, save_every=0, device="cpu"),
    )
    bpe.save(bpe.learn(bpe.corpus_texts(config), 600), Path(data.tokenizer), 16)
    prepare(config)
    return config


@pytest.fixture
def at(tmp_path, small_config):
    """The same run in a folder of its own: at("name", steps=...)."""

    def make(name, **changes):
        return replace(small_config, train=replace(small_config.train, out=str(tmp_path / name), **changes))

    return make
