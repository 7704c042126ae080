import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dca.core.errors import UserError
from pretrain import bpe
from pretrain.config import TrainConfig, read_config
from pretrain.evaluate import probe, zero_shot

ROOT = Path(__file__).resolve().parents[2]


def test_toml_sets_what_it_names_and_nothing_else(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[train]\nsteps = 7\nkeep = [0.5, 1.0]\nuntil = [0.5, 1.0]\n[weights]\nmine = 2.0\n")
    config = read_config(path)
    assert (config.train.steps, config.train.keep, config.weights) == (7, (0.5, 1.0), {"mine": 2.0})
    assert config.train.batch == TrainConfig().batch


@pytest.mark.parametrize(
    ("text", "message"),
    [("[trian]\n", "train"), ("[train]\nstep = 3\n", "step"), ("[train]\nlr = -1\n", "lr"),
     ("[train]\nuntil = [0.9, 0.5, 1.0]\n", "phases"), ("[train", "not readable TOML")],
)  # fmt: skip
def test_mistakes_are_named(tmp_path, text, message):
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(UserError, match=message):
        read_config(tmp_path / "run.toml")


@pytest.mark.parametrize("name", ["mini.toml", "mini_more.toml"])
def test_shipped_recipes_are_readable(name: str):
    recipe = ROOT / "pretrain" / name
    assert read_config(recipe).model.clip(10240).embed_dim == 256


def test_no_text_is_unknown_to_the_tokenizer():
    engine = bpe.learn(["a cat", "a dog", "cats and dogs"] * 5, 560)
    assert engine.get_vocab_size() <= 560
    assert all(i < engine.get_vocab_size() for i in engine.encode("naïve café 日本 ~ÿ").ids)


def test_zero_shot_and_probe_find_separable_classes():
    labels = torch.arange(60).numpy() % 3
    features = torch.nn.functional.one_hot(torch.from_numpy(labels), 3).float()
    assert zero_shot(features, labels, torch.eye(3)) == 100
    assert probe(features, labels, 4, features, labels) == [100, 100, 100]


def test_command_line_reports_mistakes_without_a_traceback(tmp_path):
    (tmp_path / "run.toml").write_text("[trian]\n")
    command = [sys.executable, "-m", "pretrain", "train", str(tmp_path / "run.toml")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Did you mean 'train'" in done.stderr
    assert "Traceback" not in done.stderr


def test_folder_to_pack_on_the_command_line(tmp_path):
    from PIL import Image

    (tmp_path / "photos" / "sky").mkdir(parents=True)
    Image.new("RGB", (80, 80), "blue").save(tmp_path / "photos" / "sky" / "1.png")
    command = [sys.executable, "-m", "pretrain", "pack", str(tmp_path / "photos")]
    command += ["--out", str(tmp_path / "pack"), "--source", "mine"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("1 images")
    import gzip

    with gzip.open(tmp_path / "pack" / "mine.jsonl.gz", "rt") as lines:
        assert json.loads(next(iter(lines)))["names"] == ["sky"]
