from __future__ import annotations

import csv
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dca.core.errors import UserError
from dca.study.report.folder import build, write_runs_report
from dca.study.report.published import paper_datasets
from dca.study.report.sections import SECTIONS
from dca.study.report.subject import Subject, read_subject
from dca.study.report.tables import Part, RunsSection
from dca.study.specification import load_specification
from dca.study.sweep import record_failure
from helpers.made_runs import write_run
from report.html_structure import structure


def test_every_section_is_filled(subject: Subject) -> None:
    built = build(subject)
    assert built.left_out == ()
    assert [section.name for section, _ in built.parts] == [section.name for section in SECTIONS]
    names = [table.name for _, part in built.parts for table in part.tables]
    assert len(set(names)) == len(names), "two tables would have one file"
    figures = [figure for _, part in built.parts for figure in part.figures]
    assert len({figure.name for figure in figures}) == len(figures)
    assert all(figure.runs for figure in figures)
    kinds = {name.split("-")[0] for name in (figure.name for figure in figures)}
    assert kinds == {"curves", "ablation", "gamma", "sensitivity", "seeds", "cost"}


def test_the_page_is_closed_loads_nothing_and_escapes(report: Path) -> None:
    html = (report / "index.html").read_text(encoding="utf-8")
    tags = structure(html)
    assert "script" not in tags.tags
    assert "my photos &amp; &lt;<wbr>" in html.replace("my_", "my ") or "my photos &amp; &lt;more&gt;" in html
    assert "<more>" not in html
    assert not [link for link in tags.links if "://" in link]
    assert len(set(tags.ids)) == len(tags.ids)


def test_tables_of_the_paper_have_its_shape_and_numbers(report: Path) -> None:
    names = {path.stem for path in (report / "tables").glob("*.csv")}
    slug = "-vit-b-16-paper"
    assert {f"table-{n}{slug}" for n in ("1-average", "7-dtd", "2-imagenet-16", "3-4", "4-dtd", "5-4", "5-16")} <= names
    rows = _rows(report / "tables" / f"table-3-4{slug}.csv")
    heads = dict.fromkeys(row["row"] for row in rows if row["kind"] == "measured")
    assert list(heads) == ["baseline", "CA", "CA + L_in", "CA + DA", "CA + L_in + DA", "CA + L_in + DA + L_ts"]
    printed = {(row["row"], row["column"]): row["value"] for row in rows if row["kind"] == "published"}
    assert printed["CA, published", "DTD"] == "63.81"
    assert not [row for row in _rows(report / "tables" / f"table-1-average{slug}.csv") if row["kind"] != "measured"], (
        "the paper's average is over other datasets"
    )
    own = [path for path in (report / "tables").glob("table-*mini-strict.csv") if path.is_file()]
    assert own
    assert all(row["kind"] == "measured" for path in own for row in _rows(path)), "another backbone"


def test_averages_over_the_same_datasets_are_compared_with_published_ones(tmp_path: Path) -> None:
    spec = {"backbone": "vit-b-16", "rules": "paper", "shots": 16}
    for data in paper_datasets():
        write_run(tmp_path / "runs", 0.8, method="gda", data=data, **spec)
        write_run(tmp_path / "runs", 0.9, method="dca", data=data, options={"recipe": "paper"}, **spec)
        write_run(tmp_path / "runs", [0.8, 0.7], method="promptsrc", data=data, protocol="base-to-new", **spec)
    subject = read_subject(tmp_path / "runs", specifications=["paper/few-shot"])
    folder = write_runs_report(subject, tmp_path / "report").parent
    text = (folder / "report.md").read_text(encoding="utf-8").replace("DCA", "dca recipe=paper")
    assert "| gda, published | 81.85 |" in text, "its own source, as the paper lacks it"
    assert "| dca recipe=paper, published | 83.51 |" in text
    assert "| dca recipe=paper, difference | +6.49 |" in text
    assert "| promptsrc, published | – | – | 79.97 |" in text


def _rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def test_the_best_and_the_second_are_marked(report: Path) -> None:
    rows = _rows(report / "tables" / "few-shot-16-vit-b-16-paper.csv")
    for column in {row["column"] for row in rows}:
        own = sorted((row for row in rows if row["column"] == column), key=lambda row: -float(row["value"]))
        assert [row["mark"] for row in own[:3]] == ["best", "second", ""]


def test_missing_cells_are_dashes(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", 0.5, method="gda")
    write_run(tmp_path / "runs", 0.6, method="gda", data="dtd")
    write_run(tmp_path / "runs", 0.7, method="coop", data="dtd")
    folder = write_runs_report(read_subject(tmp_path / "runs"), tmp_path / "report").parent
    assert "| coop | **70.00** | – | – |" in (folder / "report.md").read_text(encoding="utf-8")
    assert r"coop & \textbf{70.00} & -- & --" in (folder / "tables" / "few-shot-4.tex").read_text()
    assert len(_rows(folder / "tables" / "few-shot-4.csv")) == 4


def test_figures_are_drawings_of_their_own(report: Path) -> None:
    paths = list((report / "figures").glob("*.svg"))
    assert len(paths) > 15
    for path in paths:
        root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        links = [element.get("href", "") for element in root.iter("{http://www.w3.org/2000/svg}a")]
        assert links
        assert all(link.startswith("../index.html#runs-") for link in links)


def test_a_new_section_is_one_function(subject: Subject) -> None:
    section = RunsSection("count", "Count", lambda subject: Part(notes=(f"{len(subject.rows)} runs",)))
    (built,) = build(subject, [section]).parts
    assert built[1].notes == (f"{len(subject.rows)} runs",)


def test_a_report_that_is_written_again_is_the_same_and_keeps_what_is_not_its_own(tmp_path: Path) -> None:
    runs, folder = tmp_path / "runs", tmp_path / "report"
    write_run(runs, 0.5, method="gda")
    other = write_run(runs, 0.5, method="gda", shots=8)
    write_runs_report(read_subject(runs), folder)
    first = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    (folder / "tables" / "notes.csv").write_text("mine")
    write_runs_report(read_subject(runs), folder)
    assert {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == {
        **first,
        "notes.csv": b"mine",
    }
    shutil.rmtree(runs / other)
    write_runs_report(read_subject(runs), folder)
    assert (folder / "tables" / "notes.csv").exists()
    assert not (folder / "tables" / "few-shot-8.csv").exists()


def test_the_latex_compiles(report: Path, tmp_path: Path) -> None:
    program = shutil.which("pdflatex")
    if program is None:
        pytest.skip("needs pdflatex")
    shutil.copytree(report, tmp_path / "report")
    command = [program, "-interaction=nonstopmode", "-halt-on-error", "tables.tex"]
    done = subprocess.run(command, cwd=tmp_path / "report", capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Float too large" not in done.stdout
    assert (tmp_path / "report" / "tables.pdf").stat().st_size > 10_000


def test_a_dataset_that_few_methods_were_run_on_is_in_no_average(tmp_path: Path) -> None:
    for data in ("dtd", "eurosat"):
        for method in ("gda", "coop", "clap"):
            write_run(tmp_path / "runs", 0.5 if data == "dtd" else 0.7, method=method, data=data)
    write_run(tmp_path / "runs", 0.9, method="gda", data="mine")
    subject = read_subject(tmp_path / "runs", specifications=["paper/few-shot"])
    folder = write_runs_report(subject, tmp_path / "report").parent
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert "| gda | 50.00 | 70.00 | 90.00 | 60.00 |" in text.replace("*", "")
    assert "The average is over DTD, EuroSAT." in text
    assert "Table 1 of the paper: average over 2 datasets" in text


def test_changed_versions_of_several_datasets_have_an_average(tmp_path: Path) -> None:
    accuracies = {"eurosat": (0.9, 0.5, 0.1), "dtd": (0.7, 0.3, 0.2)}
    for data, found in accuracies.items():
        targets = (f"{data}@noise", f"{data}@blur")
        for method in ("gda", "dca"):
            write_run(tmp_path / "runs", found, protocol="domain-shift", targets=targets, data=data, method=method)
    write_run(tmp_path / "runs", (0.8, 0.6, 0.6), protocol="domain-shift", targets=targets, data="dtd", method="coop")
    folder = write_runs_report(read_subject(tmp_path / "runs"), tmp_path / "report").parent
    rows = _rows(folder / "tables" / "domain-shift-average-4.csv")
    assert {row["method"] for row in rows} == {"gda", "dca"}, "CoOp was run on one dataset alone"
    own = {row["column"]: float(row["value"]) for row in rows if row["method"] == "dca"}
    assert own == pytest.approx({"unchanged": 80.0, "noise": 40.0, "blur": 15.0, "average": 27.5})
    names = {path.stem for path in (folder / "tables").glob("*.csv")}
    assert not any(name.startswith("table-2") for name in names), "Table 2 of the paper is about ImageNet"


def test_cells_of_a_specification_that_are_missing_are_listed(tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    study.write_text(
        '[common]\ndata = ["eurosat", "dtd"]\nshots = [1, 4]\nseed = [2, 1]\nbackbone = "mini"\n'
        '[[grid]]\nname = "one"\nmethod = "gda"\n[[grid]]\nname = "two"\nmethod = "coop"\nshots = 4\n'
    )
    cells = {cell.label: cell for cell in load_specification(study).cells}
    for cell in cells.values():
        if cell.experiment.method == "gda" and cell.experiment.shots == 4:
            write_run(
                tmp_path / "runs",
                0.5,
                data=cell.experiment.data,
                method="gda",
                seed=cell.experiment.seed,
                backbone="mini",
            )
    record_failure(tmp_path / "runs", cells["gda eurosat 1 shot seed 1"], "no memory", "")
    subject = read_subject(tmp_path / "runs", specifications=[str(study), "paper/few-shot"])
    folder = write_runs_report(subject, tmp_path / "report").parent
    counts = {row["column"]: row["value"] for row in _rows(folder / "tables" / "specifications.csv")}
    assert counts == {"cells": "12", "finished": "4", "failed": "1", "not run": "7"}
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert "| one | 3 | EuroSAT, DTD | K=1 | 1, 2 |" in text
    assert "| two | 4 | EuroSAT, DTD | K=4 | 1, 2 |" in text
    assert "no memory" in text
    assert "paper/few-shot" not in text.split("How it was made")[0], "none of its cells is here"


OWN = """
title = "Three methods on four sets"

[common]
data = ["mine", "eurosat", "dtd", "oxford_pets"]
shots = [1, 4]
seed = [1, 2]

[[grid]]
name = "Probe"
method = "linear_probe"

[[grid]]
name = "Ridge"
method = "proker"

[[grid]]
name = "Gaussians"
method = "gda"
"""


@pytest.fixture(scope="module")
def own_study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A specification of one's own, and the folder of its runs; EuroSAT has 150 test images."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "study.toml").write_text(OWN)
    level = {"linear_probe": 0.6, "proker": 0.7, "gda": 0.65}
    for number, cell in enumerate(load_specification(folder / "study.toml").cells):
        experiment = cell.experiment
        accuracy = level[experiment.method] + 0.02 * (experiment.shots or 0) + 0.001 * (number % 7)
        spec = {name: getattr(experiment, name) for name in ("data", "method", "shots", "seed")}
        target = {"name": experiment.data, "classes": 10, "test_images": 150, "accuracy": accuracy,
                  "zero_shot_accuracy": 0.3, "ece": 0.05, "metric": None}  # fmt: skip
        few = {"targets": [target]} if experiment.data == "eurosat" else {}
        write_run(folder / "runs", accuracy, result=few, **spec)
    return folder / "study.toml", folder / "runs"


def test_a_study_of_ones_own_has_its_rows_in_order_and_no_word_of_the_paper(
    own_study: tuple[Path, Path], tmp_path: Path
) -> None:
    specification, runs = own_study
    subject = read_subject(runs, specifications=[str(specification)], reference="Probe")
    folder = write_runs_report(subject, tmp_path / "report").parent
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert text.startswith("# Three methods on four sets")
    rows = [row["method"] for row in _rows(folder / "tables" / "few-shot-4.csv") if row["column"] == "DTD"]
    assert rows == ["Probe", "Ridge", "Gaussians"]
    assert {row["method minus Probe"] for row in _rows(folder / "tables" / "differences-4.csv")} == {
        "Ridge", "Gaussians",
    }  # fmt: skip
    assert "EuroSAT (n = 150 of 8,100)" in text
    assert "mine (n = 100)" in text
    assert "| DTD |" in text
    assert "Pets" in text
    for file in (*folder.glob("*.*"), *folder.glob("*/*")):
        written = file.read_text(encoding="utf-8")
        for word in ("the paper", "of DCA", "DCA paper", "γ1", "claims"):
            assert word not in written, (file, word)


def test_a_reference_that_no_row_has_is_refused(own_study: tuple[Path, Path]) -> None:
    with pytest.raises(UserError) as caught:
        read_subject(own_study[1], specifications=[str(own_study[0])], reference="Prob")
    assert "Probe" in str(caught.value)


def test_rows_of_one_method_that_a_specification_names_stand_side_by_side(tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    study.write_text(
        '[common]\ndata = ["eurosat", "dtd"]\nshots = 4\nseed = 1\n'
        '[[grid]]\nname = "sums"\nmethod = "dca"\noptions = {reading = "printed"}\n'
        '[[grid]]\nname = "means"\nmethod = "dca"\n'
        '[[grid]]\nname = "many"\nmethod = "gda"\noptions = {alpha = [1, 2]}\n'
    )
    for cell in load_specification(study).cells:
        spec = {name: getattr(cell.experiment, name) for name in ("data", "method")}
        write_run(tmp_path / "runs", 0.5, options=cell.experiment.changed_options, **spec)
    subject = read_subject(tmp_path / "runs", specifications=[str(study)])
    (block,) = subject.blocks
    assert [subject.names(row) for row in subject.methods(block)] == ["sums", "means", "many, alpha=1"]
