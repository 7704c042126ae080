from __future__ import annotations

import json

import pytest
from PIL import Image

from dca.cli import main


@pytest.fixture
def photos(tmp_path):
    for c, name in enumerate(("cat", "dog")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(5):
            stripes = Image.effect_mandelbrot((64, 64), (-2 + c, -1 + i / 5, 1 + c, 1), 40).convert("RGB")
            stripes.save(tmp_path / "photos" / name / f"{i}.png")
    return tmp_path / "photos"


def run(capsys, *args):
    code = main(["datasets", *map(str, args)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_list_is_a_json_list_of_objects(capsys, monkeypatch):
    monkeypatch.delenv("DCA_DATA", raising=False)
    code, out, _ = run(capsys, "--json")
    rows = json.loads(out)
    assert code == 0
    assert len(rows) == 15
    assert rows[10]["name"] == "eurosat"
    assert rows[10]["sizes"] == {"train": 13500, "val": 5400, "test": 8100}
    assert "recipe" not in rows[10]
    code, out, _ = run(capsys)
    assert "stanford_cars" in out


def test_show(capsys):
    code, out, _ = run(capsys, "show", "dtd", "--json")
    shown = json.loads(out)
    assert code == 0
    assert shown["template"] == "{} texture."
    assert len(shown["class_names"]) == 47
    code, out, _ = run(capsys, "show", "DTD")
    assert "split_zhou_DescribableTextures.json" in out
    # Values that a paper chose for a dataset belong to its method, which need not use them.
    assert not [word for word in ("alpha", "beta", "learning", "α", "β", "gamma") if word in out]
    code, _, err = run(capsys, "show", "dtdd")
    assert code == 2
    assert "Did you mean 'dtd'" in err


def test_check_of_a_good_and_a_bad_folder(capsys, photos):
    code, out, _ = run(capsys, "check", photos, "--json")
    report = json.loads(out)
    assert code == 0
    assert report["ok"] is True
    assert report["facts"]["classes"] == 2
    (photos / "cat/9.jpg").write_text("text")
    code, out, _ = run(capsys, "check", photos)
    assert code == 2
    assert "cat/9.jpg: not an image" in out
    code, _, _ = run(capsys, "check", photos, "--no-images")
    assert code == 0


def test_check_of_the_sample(capsys):
    code, out, _ = run(capsys, "check", "sample", "--no-images")
    assert code == 0
    assert "nothing wrong found" in out


def test_check_of_what_is_not_there(capsys, tmp_path, monkeypatch):
    monkeypatch.delenv("DCA_DATA", raising=False)
    code, out, _ = run(capsys, "check", tmp_path / "none")
    assert code == 2
    assert "no such folder" in out
    code, _, err = run(capsys, "check", "eurosat")
    assert code == 2
    assert "--root DIR" in err


def test_a_dataset_without_show_is_answered_with_the_command(capsys):
    code, _, err = run(capsys, "EuroSAT")
    assert code == 2
    assert "fix: dca datasets show eurosat" in err
    code, _, err = run(capsys, "shwo")
    assert code == 2
    assert "Did you mean 'show'?" in err


def test_draw_prints_and_writes_the_hash(capsys, photos, tmp_path):
    code, out, _ = run(capsys, "draw", photos, "--shots", 2, "--seed", 3, "-o", tmp_path / "draw.json", "--json")
    assert code == 0
    assert json.loads(out) == json.loads((tmp_path / "draw.json").read_text())
    code, out, err = run(capsys, "draw", photos, "--shots", 9)
    assert "class 'cat' has only 5 images; all are drawn" in err
    assert "10 train" in out
