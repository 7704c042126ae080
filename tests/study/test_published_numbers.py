from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from conftest import SHARED
from dca import study as studies
from dca.core.choices import PROTOCOLS
from dca.datasets import catalog
from dca.methods.dca import PAPER_TABLE
from dca.methods.registry import all_methods
from dca.methods.shared.gaussian import paper_gammas
from dca.study.published_numbers import PublishedNumber, means, published_numbers
from dca.study.specification import load_specification

PAPER = SHARED / "paper" / "dca.tex"
# Table -> its label in the source of the paper, and how many numbers it has.
TABLES = {
    "Table 1": ("111", 60),
    "Table 2": ("tb:gen", 35),
    "Table 3": ("tb:ablation", 42),
    "Table 4": ("tb:anal", 90),
    "Table 5": ("tb:comparison", 10),
    "Table 6": ("tb:1", 10),
    "Table 7": ("2", 600),
    "Table 8": ("333", 33),
}


def of(table: str) -> list[PublishedNumber]:
    return [number for number in published_numbers() if (number.paper, number.table) == ("dca", table)]


def printed(text: str, label: str) -> list[float]:
    """All numbers of the cells of one table, row by row."""
    place = text.index(rf"\label{{{label}}}")
    found: list[float] = []
    for row in text[text.rindex(r"\begin{table", 0, place) : place].split(r"\\"):
        cells = [re.sub(r"\\(textbf|underline|downarrow|hline)\b|[{}()$\s]", " ", cell) for cell in row.split("&")[1:]]
        values = [float(word) for cell in cells if re.fullmatch(r"[\d.\s]+", cell) for word in cell.split()]
        found += values if values[:3] != [1, 2, 4] else []  # the heading with the shots
    return found


@pytest.mark.parametrize("table", TABLES)
def test_every_table_of_the_paper_is_complete(table: str):
    assert len(of(table)) == TABLES[table][1]


@pytest.mark.skipif(not PAPER.is_file(), reason="the paper is not beside the repository")
@pytest.mark.parametrize("table", TABLES)
def test_every_number_is_the_printed_one(table: str):
    found = printed(PAPER.read_text(encoding="utf-8"), TABLES[table][0])
    assert [abs(number.value) for number in of(table)] == found


def test_names_are_known():
    datasets = {*catalog.entries(), "average", "all"}
    for number in published_numbers():
        assert number.dataset in datasets
        assert number.method in {*all_methods(), ""}
        assert number.protocol in PROTOCOLS
        assert number.shots in {None, 1, 2, 4, 8, 16}
        assert number.backbone in {"vit-b-16", "RN50"}
        assert number.source
        assert number.note or not number.flag


def test_no_number_is_there_twice():
    keys = Counter(
        (n.paper, n.table, n.label, n.backbone, n.protocol, n.shots, n.dataset, n.quantity) for n in published_numbers()
    )
    assert [key for key, count in keys.items() if count > 1] == []


def test_printed_means_are_recomputed():
    found = {(m.printed.label, m.printed.shots): m for m in means(of("Table 7"))}
    assert len(found) == 50
    assert {m.datasets for m in found.values()} == {11}
    wrong = {(label, shots) for (label, shots), m in found.items() if not m.agrees}
    assert wrong == {
        *(("CoOp", shots) for shots in (1, 2, 4, 8, 16)),
        *(("VPT", shots) for shots in (1, 2, 8, 16)),
        *(("CoCoOp", shots) for shots in (1, 2, 4, 8, 16)),
        *(("DAPT", shots) for shots in (1, 2, 4, 16)),
        *(("MaPLe", shots) for shots in (1, 2, 4, 8, 16)),
        ("LAMM", 8), ("TCP*", 2), *(("DCA", shots) for shots in (1, 2, 8)),
    }  # fmt: skip
    assert found["DCA", 1].recomputed < found["TCP*", 1].recomputed, "the printed means have them the other way round"


def test_the_likely_value_explains_the_printed_mean():
    rows = [n for n in of("Table 7") if (n.label, n.shots) == ("LAMM", 8)]
    corrected = [n.likely or n.value for n in rows if n.dataset != "average"]
    assert round(sum(corrected) / 11, 2) == 78.47 == next(n.value for n in rows if n.dataset == "average")
    cocoop, probe = (
        [n.value for n in of("Table 7") if (n.label, n.dataset) == (label, "oxford_flowers")][:4]
        for label in ("CoCoOp", "LP+CLIP")
    )
    assert cocoop == probe
    assert all(n.flag == "misprint" for n in of("Table 7") if (n.label, n.dataset) == ("CoCoOp", "oxford_flowers"))


def test_a_contradiction_is_flagged_wherever_two_tables_differ():
    appendix = {(n.method, n.shots, n.dataset): n.value for n in of("Table 7")}
    for table in ("Table 1", "Table 2", "Table 4"):
        for number in of(table):
            if number.label in ("DAPT+d_m", "DCA+d_cos") or number.label.startswith("Baseline"):
                continue
            there = appendix.get((number.method, number.shots, number.dataset), number.value)
            if there != number.value:
                assert number.flag == "contradiction"
            elif number.flag != "misprint":
                assert number.flag == ""


def test_differences_of_the_table_of_losses_are_checked():
    table = {(n.label, n.shots, n.quantity): n for n in of("Table 5")}
    for label in ("L_in-L1", "L_in-L2"):
        for shots in (4, 16):
            ours, theirs = table["L_in-d_m", shots, "accuracy"], table[label, shots, "accuracy"]
            stated = table[label, shots, "difference"]
            right = stated.value if stated.likely is None else stated.likely
            assert right == pytest.approx(theirs.value - ours.value)
            assert bool(stated.flag) == (label == "L_in-L2")


def test_the_tables_of_settings_are_those_of_the_method():
    for dataset, (alpha, beta, rate) in PAPER_TABLE.items():
        found = {n.quantity: n.value for n in of("Table 8") if n.dataset == dataset}
        assert found == {"alpha": alpha, "beta": beta, "learning_rate": rate}
    for shots in (1, 2, 4, 8, 16):
        assert tuple(n.value for n in of("Table 6") if n.shots == shots) == paper_gammas(shots)


@pytest.mark.parametrize(
    ("table", "name"), [("Table 3", "paper/components"), ("Table 4", "paper/metric"), ("Table 5", "paper/intra-loss")]
)
def test_rows_are_called_as_in_the_specification(table: str, name: str):
    cells = load_specification(name).cells
    for number in of(table):
        assert any(
            number.label in cell.rows
            and number.shots == cell.experiment.shots
            and number.dataset in (cell.experiment.data, "average")
            for cell in cells
        )


def test_methods_of_the_tables_have_cells():
    few = {(c.experiment.method, c.experiment.data) for c in load_specification("paper/few-shot").cells}
    assert {(n.method, n.dataset) for n in of("Table 7") if n.dataset != "average"} <= few
    assert {n.method for n in of("Table 1")} <= {method for method, _ in few}
    shifted = load_specification("paper/domain-shift").cells
    assert {n.method for n in of("Table 2")} == {c.experiment.method for c in shifted}
    assert {n.dataset for n in of("Table 2")} == {shifted[0].experiment.data, *shifted[0].experiment.targets}


def test_records_are_those_of_their_sources():
    records = {(n.paper, n.label, n.shots, n.dataset): n for n in published_numbers() if n.quantity == "accuracy"}
    assert records["clip_svd", "CLIP-SVD", 1, "average"].value == 73.20
    assert records["gallop", "GalLoP", 16, "stanford_cars"].value == 89.2
    assert records["plot", "PLOT++", 4, "eurosat"].value == 83.21
    assert records["promptsrc", "PromptSRC", 16, "average"].flag == "unverified"
    assert records["clip_svd", "LP++", 16, "average"].method == "lp_plus_plus"
    proker = records["clip_svd", "ProKeR", 16, "average"]
    assert (proker.method, proker.value) == ("proker", 82.01)
    by_label = {(m.printed.paper, m.printed.label): m for m in means(published_numbers()) if m.printed.paper != "dca"}
    assert by_label["gda", "GDA"].recomputed == pytest.approx(81.85, abs=0.005)
    assert by_label["gallop", "GalLoP"].recomputed == pytest.approx(84.4, abs=0.05)
    assert not by_label["plot", "PLOT++"].agrees


def test_the_files_are_sorted_into_papers():
    folder = Path(studies.__path__[0]) / "published"
    assert {path.name for path in folder.glob("*.csv")} == {"dca.csv", "records.csv"}
    assert {n.paper for n in published_numbers() if n.source == "dca.tex"} == {"dca"}
