"""The specifications under experiments/: they can be read, and the README counts them rightly."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from dca.datasets.shifts import SHIFTS
from dca.methods.registry import all_methods
from dca.runs.spec import Spec
from dca.study.report.folder import write_runs_report
from dca.study.report.subject import subject_of
from dca.study.selection import select
from dca.study.specification import load_specification

FOLDER = Path(__file__).resolve().parents[1] / "experiments"
README = (FOLDER / "README.md").read_text(encoding="utf-8")
FLAT = " ".join(README.split())
NAMES = sorted(path.stem for path in FOLDER.glob("*.toml"))
THREE = {"eurosat", "caltech101", "oxford_flowers"}


def specs(name: str) -> dict[str, Spec]:
    return {cell.spec.id: cell.spec for cell in load_specification(FOLDER / f"{name}.toml").cells}


@pytest.mark.parametrize("name", NAMES)
def test_a_specification_is_of_the_embedded_model_and_the_three_datasets(name: str) -> None:
    found = specs(name).values()
    assert {spec.data for spec in found} == THREE
    assert {(spec.backbone, spec.rules, spec.measured_on) for spec in found} == {("mini", "strict", "test")}
    assert {spec.seed for spec in found} <= {1, 2, 3}


def test_the_readme_counts_cells_and_fits() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| .* \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$", README, re.MULTILINE)
    assert sorted(row[0] for row in rows) == NAMES
    before: set[str] = set()
    for name, *stated in rows:
        own = specs(name)
        new = {id: spec for id, spec in own.items() if id not in before}
        images = [spec for spec in new.values() if spec.kind.trains_on == "images" or spec.kind.fits_others]
        cells = len(load_specification(FOLDER / f"{name}.toml").cells)
        assert [int(text.replace(",", "")) for text in stated] == [cells, len(own), len(new), len(images)], name
        before |= set(own)
    (loop,) = re.findall(r"^for name in (.*); do$", README, re.MULTILINE)
    assert loop.split() == [row[0] for row in rows]
    study = load_specification("selection")
    assert f"{len(study.cells)} cells in {len({cell.spec.id for cell in study.cells})} fits" in README


def test_the_few_shot_study_has_every_method_shot_and_seed() -> None:
    cells = {(s.method, s.data, s.shots, s.seed) for s in specs("few-shot").values() if s.method != "zero_shot"}
    methods = set(all_methods()) - {"zero_shot"}
    wanted = {(m, d, k, s) for m in methods for d in THREE for k in (1, 2, 4, 8, 16) for s in (1, 2, 3)}
    assert cells == {cell for cell in wanted if cell[0] != "blend" or cell[2] <= 4}


def test_the_domain_shifts_are_of_their_own_dataset_and_complete() -> None:
    for spec in specs("domain-shift").values():
        assert set(spec.targets) == {f"{spec.data}@{kind}" for kind in SHIFTS}


def test_finished_models_of_the_few_shot_study_are_used_again() -> None:
    few = set(specs("few-shot"))
    assert set(specs("gamma")) < few
    assert len(set(specs("metric")) & few) == 18 + 27 + 27, "DCA, DAPT with the cosine, GDA"
    assert len(set(specs("components")) & set(specs("metric"))) == 2 * 18, "the baseline, and DCA itself"


def test_the_readme_quotes_the_selection() -> None:
    digest = hashlib.sha256((FOLDER / "selection.json").read_bytes()).hexdigest()
    assert f"has the sha256 `{digest}`" in README


def test_the_selection_is_what_the_committed_runs_give() -> None:
    found = select(load_specification("selection"), FOLDER / "runs" / "selection")
    assert json.loads(json.dumps(found)) == json.loads((FOLDER / "selection.json").read_text(encoding="utf-8"))


def test_the_committed_report_is_that_of_the_committed_results(tmp_path: Path) -> None:
    """Every table of the report, with the ids of the runs behind each number, made again from the result files."""
    (loop,) = re.findall(r"^for name in (.*); do$", README, re.MULTILINE)
    specifications = [str(FOLDER / f"{name}.toml") for name in loop.split()]
    subject = subject_of(FOLDER / "runs" / "study", specifications=specifications, selection=FOLDER / "selection.json")
    made = write_runs_report(subject, tmp_path / "report").parent / "tables"
    committed = FOLDER / "report" / "tables"
    assert sorted(path.name for path in made.iterdir()) == sorted(path.name for path in committed.iterdir())
    other = [path.name for path in made.glob("*.csv") if path.read_bytes() != (committed / path.name).read_bytes()]
    assert not other, "make the report again with the command of experiments/README.md"


def test_the_readme_counts_the_claims() -> None:
    text = (FOLDER / "report" / "tables" / "claims.csv").read_text(encoding="utf-8")
    outcomes = Counter(row["text"] for row in csv.DictReader(text.splitlines()) if row["column"] == "outcome")
    stated = re.search(r"Of (\d+) claims (\d+) hold and (\d+) do not; (\d+) are not decided .* and (\d+), about", FLAT)
    assert stated is not None
    each = [outcomes[name] for name in ("holds", "does not hold", "not decided", "not measured")]
    assert [int(number) for number in stated.groups()] == [sum(each), *each]


def test_the_readme_quotes_differences_of_the_report() -> None:
    """Every difference with its interval is a comparison behind a claim, or a bar of an ablation, to one digit."""
    number = r"([+−]\d+\.\d+)"
    lines = (FOLDER / "report" / "report.md").read_text(encoding="utf-8").splitlines()
    found = [re.search(rf"\| {number} \({number} to {number}\) \|", line) for line in lines]
    bars = [path.read_text(encoding="utf-8") for path in (FOLDER / "report" / "figures").glob("ablation-*.svg")]
    triples = [match.groups() for match in found if match]
    triples += [match for bar in bars for match in re.findall(rf"<title>{number}: {number} to {number}", bar)]
    known = {tuple(float(text.replace("−", "-")) for text in triple) for triple in triples}
    known |= {(-effect, -high, -low) for effect, low, high in known}
    quoted = re.findall(rf"{number},? \(?{number} to {number}", FLAT)
    assert len(quoted) > 10
    for triple in quoted:
        values = [float(text.replace("−", "-")) for text in triple]
        near = [one for one in known if all(abs(a - b) < 0.051 for a, b in zip(one, values, strict=True))]
        assert near, triple


def test_the_docs_about_classes_without_photos_have_the_figures_of_the_report() -> None:
    path = FOLDER / "report" / "tables" / "base-to-new-16-average.csv"
    others = {"`two_sfs`": "2SFS", "`promptsrc`": "PromptSRC", "`prolip`": "ProLIP", "`dca`": "DCA", "`coop`": "CoOp"}
    titles = {"zero-shot CLIP": "CLIP", **others}
    reported: dict[str, list[str]] = {}
    for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()):
        spread = f" ± {float(row['std']):.1f}" if row["std"] else ""
        reported.setdefault(row["method"], []).append(f"{float(row['value']):.1f}{spread}")
    text = (FOLDER.parent / "docs" / "choose-a-method.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| (.+?) \| (.+?) \| (.+?) \| (.+?) \|$", text.split("## Classes without photos")[1], re.MULTILINE
    )
    assert len(rows) == 7, "a head and six methods"
    for name, *figures in rows[1:]:
        assert figures == reported[titles[name]], name
