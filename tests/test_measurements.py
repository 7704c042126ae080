"""The scripts under study/measurements/ that compare options on the same test images, here on a few drawn images."""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from conftest import shared
from dca import Classifier, Session
from dca.backbones.clip import CLIP
from dca.datasets.folder import load_folder
from dca.datasets.sample import load_sample, write_sample
from dca.methods.base import Problem
from dca.methods.dca import DCA, DCAOptions
from dca.training.loop import Trainer
from oracles.images import Images

ROOT = Path(__file__).resolve().parents[1]
MEASUREMENTS = ROOT / "study" / "measurements"
Load = Callable[[str], ModuleType]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    monkeypatch.syspath_prepend(MEASUREMENTS)
    return importlib.import_module


def test_a_difference_is_paired_and_its_interval_is_over_images(load: Load) -> None:
    paired = load("paired")
    ours = np.array([[True, False, False, True], [True, False, True, True]])
    theirs = np.array([[True, True, False, True], [True, True, False, True]])
    each = np.array([0.0, 1.0, -0.5, 0.0])  # mean over the two seeds
    half = 1.959963984540054 * np.sqrt(((each - each.mean()) ** 2).sum() / 3) / 2
    assert paired.mean_difference(ours, theirs) == pytest.approx((12.5, 12.5 - 100 * half, 12.5 + 100 * half))
    assert paired.mean_accuracy(theirs)[0] == pytest.approx(75)


def test_a_generated_part_of_a_page_is_replaced_between_its_marks(load: Load, tmp_path: Path) -> None:
    pages, page = load("pages"), tmp_path / "page.md"
    page.write_text("a\n<!-- x.py -->\nold\n<!-- end -->\nb\n<!-- z.py -->\n<!-- end -->\n")
    pages.write_part("x.py", "new", page)
    pages.write_part("z.py", "first", page)
    assert page.read_text() == "a\n<!-- x.py -->\nnew\n<!-- end -->\nb\n<!-- z.py -->\nfirst\n<!-- end -->\n"
    with pytest.raises(SystemExit, match="no marks of y"):
        pages.write_part("y.py", "new", page)
    with pytest.raises(SystemExit, match="no page in"):
        pages.page_of("y.py")


def test_the_heads_of_the_centre_study_are_what_they_are_called(load: Load, clip: CLIP) -> None:
    images = Images((3, 3, 3))
    method = DCA.build(clip, Problem(names=("cat", "dog", "x"), shots=3), DCAOptions())
    method.finish(images)
    heads = load("centres").build_heads(method.build_head())
    f = method.encode(torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(9))).detach()
    for name, options in (
        ("text alone", {"test_metric": "euclidean"}),
        ("centre text", {"center": "text"}),
        ("centre visual", {"center": "visual"}),
    ):
        torch.testing.assert_close(heads[name](f), method.with_options(options).classify(f))
    x, u = method.encode(images.pixels).detach(), method.encode_text().detach()
    means = F.normalize(torch.stack([x[images.labels == c].mean(0) for c in range(3)]), dim=-1)
    for name, vectors in (("image means", means[None]), ("text + means", F.normalize(u + means, dim=-1))):
        distances = (f[None, :, None] - vectors[:, None]).square().sum(-1)
        wanted = (clip.tau / (distances + 1e-6)).softmax(-1).mean(0)
        torch.testing.assert_close(heads[name](f), wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("script", "more", "part"),
    [
        ("centres", [], "| photos | 2 | 1 | 30 |"),
        ("published_options", ["--method", "gda", "--method", "tip_adapter_f"], "| `gda` | `crop_low=0.08` |"),
    ],
)
def test_a_study_prints_its_tables_and_writes_its_figures(
    script: str,
    more: list[str],
    part: str,
    load: Load,
    photos: Path,
    tiny_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    study, file, page = load(script), tmp_path / "found.json", tmp_path / "page.md"
    page.write_text(f"<!-- study/measurements/{script}.py -->\n<!-- end -->\n", encoding="utf-8")
    common = ["--shots", "2", "--seed", "1", "--epochs", "1", "--backbone", str(tiny_folder), "--device", "cpu"]
    monkeypatch.setattr("sys.argv", [script, str(photos), *common, "--json", str(file), *more])
    assert study.main() == 0
    printed = capsys.readouterr().out
    assert part in printed
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
    assert all(row["n"] == 30 for row in rows)
    monkeypatch.setattr("sys.argv", [script, "--show", str(file), "--page", str(page)])
    assert study.main() == 0
    assert capsys.readouterr().out == printed
    assert printed.strip() in page.read_text(encoding="utf-8")
    assert load("pages").read_part(f"study/measurements/{script}.py")


def test_the_centre_of_dca_is_measured_on_validation_images(
    load: Load,
    photos: Path,
    tiny_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    study, file, page = load("dca_centre"), tmp_path / "found.json", tmp_path / "page.md"
    shutil.copytree(photos, tmp_path / "photos")
    (tmp_path / "photos" / "test").rename(tmp_path / "photos" / "val")
    common = ["--shots", "3", "--epochs", "0", "--classes", "4", "--backbone", str(tiny_folder), "--device", "cpu"]
    for prompts in ("2", "1"):
        more = [*common, "--prompts", prompts, "--json", str(file)]
        monkeypatch.setattr("sys.argv", ["dca_centre", str(tmp_path / "photos"), *more])
        assert study.main() == 0
    printed = capsys.readouterr().out
    first, second = json.loads(file.read_text(encoding="utf-8"))["rows"]
    assert [(row["M"], row["classes"], row["shots"], row["n"]) for row in (first, second)] == [
        (2, 4, 3, 12),
        (1, 4, 3, 12),
    ]
    wanted = {"text": "text, γ by shots", "visual": "images, γ by shots"}[first["chosen"]]
    assert first["accuracy"]["chosen"] == first["accuracy"][wanted]
    page.write_text(f"<!-- {study.SCRIPT} -->\n<!-- end -->\n", encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["dca_centre", "--show", str(file), "--page", str(page)])
    assert study.main() == 0
    assert printed.endswith(shown := capsys.readouterr().out)
    assert shown.strip() in page.read_text(encoding="utf-8")


def test_the_docs_show_the_centre_of_dca_on_validation_images(load: Load) -> None:
    study = load("dca_centre")
    rows = load("paired").read_rows(ROOT / "study" / "dca_centre.json")
    assert study.make_table(rows) == load("pages").read_part(study.SCRIPT)


def test_the_docs_show_the_settings_that_were_chosen(load: Load) -> None:
    script = load("selection_table")
    selection, pages = json.loads(script.SELECTION.read_text(encoding="utf-8")), load("pages")
    for mark, table in (
        (script.SCRIPT, script.make_table(selection)),
        (script.SETTINGS, script.make_settings_table(selection)),
    ):
        assert table == pages.read_part(mark), "run: python scripts/selection_table.py"


@pytest.mark.parametrize(
    ("script", "table", "mark", "file"),
    [
        ("closed_form", "make_label_table", "study/measurements/closed_form.py labels", "closed_form_labels.json"),
        ("gda_alpha", "make_tables", "study/measurements/gda_alpha.py", "gda_alpha.json"),
        ("estimate_coverage", "make_table", "study/measurements/estimate_coverage.py", "estimate_coverage.json"),
        ("rivals", "make_tables", "study/measurements/rivals.py", "rivals.json"),
        ("more_photos", "make_table", "study/measurements/more_photos.py", "more_photos.json"),
        ("rare_classes", "make_table", "study/measurements/rare_classes.py", "rare_classes.json"),
    ],
)
def test_the_docs_show_the_committed_figures(script: str, table: str, mark: str, file: str, load: Load) -> None:
    rows = json.loads((ROOT / "study" / file).read_text(encoding="utf-8"))["rows"]
    assert getattr(load(script), table)(rows) == load("pages").read_part(mark)


def test_no_choice_of_alpha_is_better_than_the_best_of_the_measured_images(load: Load, tiny_folder: Path) -> None:
    sample = load_sample(per_class_train=3, per_class_test=4, size=32)
    study, source = load("gda_alpha"), replace(sample, val=sample.test)
    found = study.measure_choices(source, 2, 1, Session(device="cpu"), str(tiny_folder))
    assert found["n"] == 20, "two of each class are validation images of the draw"
    assert max(found["loo"], found["validation"]) <= found["best"] <= 1
    row = {"dataset": "x", "shots": 2, **found}
    lines = study.make_tables([{**row, "loo": 0.5}, {**row, "loo": 0.6}]).splitlines()
    assert lines[-1].startswith("| 2 | 55.0 / ")
    assert lines[-1].endswith(" | 20 |")


def test_the_example_of_the_readme_is_copied_into_two_folders(load: Load, tmp_path: Path) -> None:
    folder = write_sample(tmp_path / "data", per_class_train=12, per_class_test=5, size=32)
    load("closed_form").copy_example(load_folder(folder), tmp_path)
    for name, images in (("photos", 8), ("more_photos", 9)):
        counts = [len(list(each.iterdir())) for each in (tmp_path / name).iterdir()]
        assert counts == [images] * 6


@pytest.mark.parametrize(("file", "more"), [("rejection.json", []), ("rejection_held_back.json", ["--held-back"])])
def test_the_docs_show_the_false_rejections_and_they_are_as_many_as_stated(
    load: Load, tmp_path: Path, monkeypatch: Any, file: str, more: list[str]
) -> None:
    script, pages, path = load("rejection"), load("pages"), ROOT / "study" / file
    mark, page = " ".join([script.SCRIPT, *more]), tmp_path / "page.md"
    page.write_text(f"<!-- {mark} -->\n<!-- end -->\n", encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["rejection", "--show", str(path), "--page", str(page), *more])
    script.main()
    assert pages.split_page(page.read_text(encoding="utf-8"), mark)[1] == pages.read_part(mark)
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    same_source = [row for row in rows if not row["apart"] and not row["other"]]
    assert len(same_source) > 10
    for row in same_source:
        share, error = row["after"]["false"]
        assert share < 1.3 * 5
        assert row["siblings"] or share + 2 * error > 5 / 1.3
        assert row["after"]["area"][0] > row["before"]["area"][0] - 0.2


def test_false_rejections_can_be_measured(load: Load, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    centers = torch.randn(30, 24, generator=generator)
    labels = torch.arange(30).repeat_interleave(24)
    rows = F.normalize(centers[labels] + torch.randn(len(labels), 24, generator=generator), dim=-1)
    names = {"ucf101": ("val", "test"), "sun397": ("val",), "food101": ("train16",)}
    for name, parts in names.items():
        tensors = {f"{p}_features": rows.half().clone() for p in parts} | {f"{p}_labels": labels.clone() for p in parts}
        save_file(tensors, tmp_path / f"{name}.safetensors")
    line = ["rejection", "--features", str(tmp_path), "--held-back", "--draws", "2", "--json", str(tmp_path / "x.json")]
    monkeypatch.setattr("sys.argv", line)
    load("rejection").main()
    printed = capsys.readouterr().out
    for part in ("| 6 x 8 |", "half siblings, 6 x 16", "ucf101, ViT-B/32, 6 x 8", "| 6 x 4, 10 |"):
        assert part in printed
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))["rows"]


def make_pool(load: Load) -> Any:
    """Six classes of 40 images around centres."""
    generator = torch.Generator().manual_seed(2)
    labels = torch.arange(6).repeat_interleave(40)
    x = torch.randn(6, 16, generator=generator)[labels] + torch.randn(240, 16, generator=generator)
    pool = load("rejection").Pool("six", F.normalize(x.double(), dim=-1), labels, torch.zeros_like(labels))
    return pool, F.normalize(torch.randn(6, 16, generator=generator), dim=-1)


def test_estimates_are_measured_beside_the_truth(load: Load) -> None:
    study, task = load("estimate_coverage"), load("estimate_task")
    pool, text = make_pool(load)
    source = study.Source("kind", pool, text, 10.0)
    situations = {(row.name, row.situation) for row in study.list_rows([source], noise=True)}
    assert {("six", "6 x 2"), ("random features", "6 x 8"), ("six", "200, 2")} <= situations
    assert study.draw_photos(source, (200, 2), 0) is None, "no class has so many"
    drawn = study.draw_photos(source, (8,) * 6, 0)
    assert drawn.x.shape == (48, 16)
    own, others = np.bincount(drawn.labels), np.bincount(drawn.new_labels)
    assert own.tolist() == [8] * 6
    assert others.tolist() == [32] * 6
    related = study.draw_siblings(source, 0)
    assert related.x.shape == (48, 16)
    assert np.bincount(related.new_labels).tolist() == [16] * 6
    found = task.measure(drawn)
    assert found["low"] <= found["estimate"] <= found["high"]
    assert abs(found["estimate"] - found["accuracy"]) < 0.25
    copies = task.measure(study.draw_copies(study.Source("kind", pool, torch.zeros_like(text), 10.0), 0))
    assert copies["accuracy"] == pytest.approx(0.5)
    assert copies["low"] < 0.5 < copies["high"]
    rows = [{"kind": "kind", "set": "six", "situation": "6 x 8", "now": [found, copies], "before": [copies, copies]}]
    line = study.make_table(rows).splitlines()[2]
    assert line.startswith(f"| 6 x 8 | kind | 50.0 | {100 * (copies['estimate'] - 0.5):+.1f} ± 0.0 | 2 of 2 | ")


def test_another_process_measures_the_same_estimate(load: Load) -> None:
    study, task = load("estimate_coverage"), load("estimate_task")
    drawn, estimator = study.draw_noise((3, 3), 1, D=8), study.Estimator(ROOT)
    found, own = estimator.measure(drawn), task.measure(drawn)
    estimator.close()
    assert [found[key] for key in ("estimate", "low", "high", "accuracy")] == pytest.approx(
        [own[key] for key in ("estimate", "low", "high", "accuracy")]
    )


def test_the_committed_estimates_are_right_and_cover(load: Load) -> None:
    study = load("estimate_coverage")
    rows = [row for row in study.read_rows(ROOT / "study" / "estimate_coverage.json") if row["now"]]
    for kind, situation in {(row["kind"], row["situation"]) for row in rows}:
        found = study.summarize([r for r in rows if (r["kind"], r["situation"]) == (kind, situation)])["now"]
        assert found["covered"] >= 0.95 * found["tasks"], (kind, situation)
        assert abs(found["bias"]) - found["half"] < (4 if situation.endswith("2") else 2), (kind, situation)


def test_rivals_are_measured_on_the_same_draws_and_kept(load: Load) -> None:
    rivals = load("rivals")
    pool, text = make_pool(load)
    source = rivals.Source(pool, text, 10.0, apart=False)
    draw = rivals.draw_rows(source, 4, 0)
    assert (len(draw.train.labels), len(draw.train.validation.labels), len(draw.new.labels)) == (24, 24, 6 * 32)
    row = rivals.measure(source, 4, 0, {})
    assert set(row["accuracy"]) == {"closed_form", *rivals.rivals_of(source, 4)}
    assert min(row["accuracy"].values()) > 30
    again = rivals.measure(source, 4, 0, {**row, "accuracy": {**row["accuracy"], "ridge": -1.0}})
    assert again["accuracy"] == {**row["accuracy"], "ridge": -1.0}, "what is there is kept"
    (cell,) = rivals.summarize([row, {**row, "accuracy": {**row["accuracy"], "closed_form": 100.0}}])
    assert cell.ours == pytest.approx((row["accuracy"]["closed_form"] + 100) / 2)
    assert cell.theirs == max(value for name, value in row["accuracy"].items() if name != "closed_form")


def test_what_more_photos_bring_is_measured(load: Load) -> None:
    more, study = load("more_photos"), load("estimate_coverage")
    pool, text = make_pool(load)
    source = study.Source("kind", pool, torch.zeros_like(text), 10.0)
    row = more.measure_task((source, 8, 0))
    assert row == {"shots": 8, "kind": "kind", "set": "six", "task": 0, "new": 6 * 24} | {
        key: row[key] for key in more.KEYS
    }
    assert 0.5 < row["half"] < row["now"] < 1
    assert abs(row["estimate"] - row["now"]) < 0.2
    line = more.make_table([row]).splitlines()[2]
    change = 100 * (row["twice"] - row["now"])
    assert line.startswith(f"| 8 to 16 | kind | 1 | {100 * row['now']:.1f} | {change:+.1f} | ")
    assert more.measure_task((source, 40, 0)) is None, "too few images"


def test_what_more_photos_bring_is_expected_without_bias(load: Load) -> None:
    """On the committed tasks, also of sets that nothing was chosen on; and the interval covers."""
    more = load("more_photos")
    lines = more.make_table(more.read_rows(ROOT / "study" / "more_photos.json")).splitlines()[2:]
    covered = tasks = 0
    for line in lines:
        cells = line.strip("| ").split(" | ")
        bias, error = map(float, cells[6].split(" ± "))
        assert abs(bias) - error < 1, line
        inside, of = map(int, cells[8].split(" of "))
        covered, tasks = covered + inside, tasks + of
    assert 0.93 <= covered / tasks <= 0.99


def test_rates_are_compared_where_all_are_measured(load: Load) -> None:
    rate = load("dca_rate")
    row = {"dataset": "eurosat", "shots": 4, "n": 9, "classes": 10}
    rows = [{**row, "seed": 1, "factor": f, "accuracy": 50 + 2 * f} for f in rate.FACTORS]
    rows += [{**row, "seed": 2, "factor": 1.0, "accuracy": 10.0}]
    lines = rate.make_table(rows).splitlines()
    assert lines[2] == "| eurosat | 4 | 1 | 9 | 52.0 | -1.0 ± 0.0 | +2.0 ± 0.0 |"
    assert lines[3].startswith("| all | 4 | 1 |")


def test_a_rate_is_multiplied_and_the_rule_is_kept(load: Load) -> None:
    rate, rule, sample = load("dca_rate"), Trainer.probe_learning_rate, load_sample()
    few = load("dca_centre").keep_classes(replace(sample, val=sample.test), 2)
    few = replace(few, val=few.val[:4])
    with patch.object(rate, "Classifier", lambda method, **given: Classifier(method, epochs=1, **given)):
        row = rate.measure(few, 1, 1, 2.0, Session(device="cpu"))
    assert (row["factor"], row["n"]) == (2.0, 4)
    assert Trainer.probe_learning_rate is rule


def test_variances_are_measured_on_the_same_tasks(load: Load) -> None:
    variances, study = load("variances"), load("estimate_coverage")
    pool, text = make_pool(load)
    wide = torch.tensor([30.0] * 4 + [0.3] * 12, dtype=torch.float64)  # noise in four features hides the others
    pool = replace(pool, features=F.normalize(pool.features * wide, dim=-1))
    row = variances.measure((study.Source("kind (words)", pool, torch.zeros_like(text), 10.0), 8, 0, False))
    assert (row["kind"], row["classes"], row["images"]) == ("kind", 6, 6 * 32)
    assert row["accuracy"]["20"] > row["accuracy"]["inf"] + 2
    line = variances.make_table([row]).splitlines()[2]
    assert line.startswith(f"| 6 | 8 | kind | 1 | {row['accuracy']['inf']:.1f} | ")
    committed = variances.read_rows(ROOT / "study" / "variances.json")
    own = [row["accuracy"] for row in committed if row["kind"] == "ViT-B/32, no text"]
    assert sum(row["20"] - row["inf"] for row in own) > 0.3 * len(own)


CLIP_FEATURES = ROOT / "study" / "clip_features.json"


def test_the_docs_show_the_accuracies_on_real_clip_features(load: Load, tmp_path: Path, monkeypatch: Any) -> None:
    study, page = load("clip_features"), tmp_path / "page.md"
    shown = load("pages").page_of(study.SCRIPT).read_text(encoding="utf-8")
    page.write_text(shown, encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["clip_features", "--show", str(CLIP_FEATURES), "--page", str(page)])
    study.main()
    assert page.read_text(encoding="utf-8") == shown


@pytest.mark.slow
def test_the_accuracies_on_real_clip_features_can_be_made_again(load: Load) -> None:
    study, recorded = load("clip_features"), json.loads(CLIP_FEATURES.read_text(encoding="utf-8"))
    tensors = load_file(shared("data", "clip_features") / "oxford_pets.safetensors")
    for shots in (1, 16):
        train, test = study.split_rows(tensors, shots)
        row = recorded["OxfordPets, no text"]["accuracy"][str(shots)]
        for head, accuracy in study.measure_heads(train, test, shots, 37).items():
            assert accuracy == pytest.approx(row[head], abs=0.03), (head, shots)  # one of 3,669 test images


def test_methods_run_on_given_features(load: Load, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    """A small twin of the real files: three classes of six features, of which the text knows two."""
    generator, made = torch.Generator().manual_seed(1), {}
    for part, each in (("train2", 2), ("val", 6), ("test", 6)):
        labels = torch.arange(3).repeat_interleave(each)
        noise = 0.1 * torch.randn(len(labels), 8, generator=generator)
        made |= {f"{part}_features": (F.one_hot(labels, 8) + noise).half(), f"{part}_labels": labels}
    for name in ("caltech101", "oxford_flowers", "oxford_pets"):
        save_file(made, tmp_path / f"{name}.safetensors")
    save_file({"lvis": torch.eye(8)[:2].half()}, tmp_path / "text_a_cname_detic.safetensors")
    names = {"text": {"lvis_names": ["cat", "dog_(animal)"]}, "caltech101": {"classnames": ["cat", "dog", "zebra"]}}
    (tmp_path / "meta.json").write_text(json.dumps(names), encoding="utf-8")
    arguments = ["--data", str(tmp_path), "--shots", "2", "--json", str(tmp_path / "found.json")]
    monkeypatch.setattr("sys.argv", ["clip_features", *arguments])
    load("clip_features").main()
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert [table["test_images"] for table in found.values()] == [18, 18, 18, 12]
    assert found["Caltech101, 2 classes, with text"]["accuracy"]["2"]["zero_shot"] == 100
    assert found["OxfordPets, no text"]["accuracy"]["2"]["nearest mean, cosine"] == 100
    assert "| Caltech101, 2 classes, with text, n = 12 | 2 shots |" in capsys.readouterr().out


def test_worked_examples_have_wrong_labels_and_disjoint_folders(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = load("worked_examples")
    data = write_sample(tmp_path / "data", per_class_train=6, per_class_test=0, size=32) / "train"
    wanted = examples.Example(("cactus", "fish", "house"), shots=3, wrong=2, more=2, other=4)
    monkeypatch.setitem(examples.EXAMPLES, "flowers", wanted)
    out = tmp_path / "out"
    examples.write_example("flowers", load_folder(data), out)
    read = {part: [p.read_bytes() for p in (out / part).rglob("*.png")] for part in ("photos", "more_photos", "other")}
    assert {part: len(found) for part, found in read.items()} == {"photos": 9, "more_photos": 6, "other": 4}
    assert len({data for found in read.values() for data in found}) == 19
    assert sorted(read["photos"]) == sorted(p.read_bytes() for p in (out / "sorted").rglob("*.png"))
    planted = sorted((out / "photos").rglob("wrong-*"))
    assert len(planted) == 2
    for path in planted:
        _, label, name = path.name.split("-")
        assert label != path.parent.name
        assert (out / "sorted" / label / name).read_bytes() == path.read_bytes()
