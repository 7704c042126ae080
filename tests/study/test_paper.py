from __future__ import annotations

from pathlib import Path

import pytest

from dca.methods.registry import get_method
from dca.study.claims import TABLE_ROWS, PaperRow, claims, match_rows, paper_rows
from dca.study.published_numbers import published_numbers
from dca.study.report.sections.ablation import CHARTS
from dca.study.results import Variant, name_rows
from dca.study.specification import load_specification
from helpers.made_runs import blocks_under, write_run


def test_rows_name_methods_and_options_that_exist() -> None:
    for row in paper_rows().values():
        kind = get_method(row.method)
        kind.parse_options(dict(row.change))
        options = set(kind.Options.__dataclass_fields__)
        assert {*row.vary, *row.allow, *row.ranges, *row.without} <= options


def test_every_row_is_in_a_claim_a_table_or_a_figure_and_claims_have_names_of_their_own() -> None:
    used = {row.name for claim in claims() for row in claim.rows}
    used |= {name for rows in TABLE_ROWS.values() for name in rows}
    used |= {name for _, _, pairs in CHARTS for pair in pairs for name in pair}
    assert set(paper_rows()) == used
    names = [claim.name for claim in claims()]
    assert len(set(names)) == len(names) >= 30
    assert all(claim.low < claim.high and claim.place and claim.printed for claim in claims())


@pytest.mark.parametrize("number", [3, 4, 5])
def test_ablation_tables_have_the_rows_that_the_paper_prints(number: int) -> None:
    printed = [n.label for n in published_numbers() if n.paper == "dca" and n.table == f"Table {number}"]
    assert TABLE_ROWS[number] == tuple(dict.fromkeys(printed))


@pytest.mark.parametrize("name", ["components", "metric", "intra-loss"])
def test_rows_are_those_of_the_shipped_specifications(name: str) -> None:
    """Each named grid is exactly the variant that the row of that name stands for."""
    base = {"dca": Variant("dca", (("recipe", "paper"),)), "dapt": Variant("dapt")}
    cells = {row: cell for cell in load_specification(f"paper/{name}").cells for row in cell.rows}
    known = {row: cell for row, cell in cells.items() if row in paper_rows()}
    assert len(known) >= 3
    for row, cell in known.items():
        variant = Variant.of(cell.experiment.method, cell.experiment.changed_options, cell.head)
        assert paper_rows()[row].fits(variant, base[variant.method]), row
        assert not any(paper_rows()[row].fits(other, base[other.method]) for other in _others(known, row)), row


def _others(cells: dict[str, object], row: str) -> list[Variant]:
    variants = {
        name: Variant.of(c.experiment.method, c.experiment.changed_options, c.head) for name, c in cells.items()
    }  # type: ignore[attr-defined]
    return [variant for variant in variants.values() if variant != variants[row]]


def test_rows_of_a_method_share_the_base_with_which_most_are_found(tmp_path: Path) -> None:
    write_run(tmp_path, 0.5, method="dca")
    write_run(tmp_path, 0.5, method="dca", data="dtd")
    for change in ({}, {"intra": "l1"}, {"intra": "l2"}):
        write_run(tmp_path, 0.5, method="dca", options={"epochs": 3, **change})
    (block,) = blocks_under(tmp_path)
    assert block.main["dca"] == Variant("dca")
    rows = [paper_rows()[name] for name in TABLE_ROWS[5]]
    found = match_rows(rows, block)
    assert [found[row][0].settings for row in rows] == [
        {"epochs": 3, "intra": "l1"},
        {"epochs": 3, "intra": "l2"},
        {"epochs": 3},
    ]


def test_a_row_is_not_taken_for_another_one(tmp_path: Path) -> None:
    """The baseline of another study has settings that the rows of Table 3 change: it is no base for them."""
    changed = dict(paper_rows()["Baseline+d_m"].change)
    write_run(tmp_path, 0.5, method="dca")
    write_run(tmp_path, 0.5, method="dca", options=changed)
    write_run(tmp_path, 0.5, {"test_metric": "cosine"}, method="dca", options=changed)
    (block,) = blocks_under(tmp_path)
    rows = [paper_rows()[name] for name in TABLE_ROWS[3]]
    found = {row.name: [variant.settings for variant in variants] for row, variants in match_rows(rows, block).items()}
    full = "CA + L_in + DA + L_ts"
    assert found == {
        **{name: [] for name in TABLE_ROWS[3]},
        "baseline": [{**changed, "test_metric": "cosine"}],
        full: [{}],
    }


def test_a_main_variant_that_is_a_row_by_itself_decides_nothing(tmp_path: Path) -> None:
    write_run(tmp_path, 0.5, method="dca", options={"n_prompts": 1})
    (block,) = blocks_under(tmp_path)
    assert not any(match_rows([paper_rows()["DCA"], paper_rows()["M = 1"]], block).values())


def test_rows_that_vary_a_setting_are_bounded(tmp_path: Path) -> None:
    for head in ({}, {"gamma1": 50.0, "gamma2": 5.0}, {"gamma1": 100.0, "gamma2": 5.0}, {"gamma1": 100.0}):
        write_run(tmp_path, 0.5, head, method="dca")
    for center in ("text", "visual"):
        write_run(tmp_path, 0.5, {"gamma1": 700.0, "gamma2": 500.0, "center": center}, method="dca")
    (block,) = blocks_under(tmp_path)
    row = paper_rows()["other γ"]
    found = match_rows([row, PaperRow("base", "dca")], block)[row]
    assert [variant.settings for variant in found] == [
        {"center": "text", "gamma1": 700.0, "gamma2": 500.0},
        {"gamma1": 100.0, "gamma2": 5.0},
    ]


def test_rows_are_named_by_specifications(tmp_path: Path) -> None:
    spec = tmp_path / "study.toml"
    spec.write_text(
        '[common]\ndata = "eurosat"\n[[grid]]\nname = "ours"\nmethod = "dca"\nshots = [1, 2]\n'
        '[[grid]]\nname = "weights"\nmethod = "dca"\noptions = {alpha = [1, 5], epochs = 2}\n'
        '[[grid]]\nmethod = "gda"\n'
    )
    names = name_rows([load_specification(spec)])
    weighted = Variant.of("dca", {"alpha": 5.0, "epochs": 2}, {})
    assert [names(v) for v in (Variant("dca"), weighted, Variant("gda"))] == ["ours", "weights, alpha=5", "gda"]


def test_a_row_with_an_allowed_setting_is_the_variant_that_has_it(tmp_path: Path) -> None:
    """The paper's centre is the text: where a head says so, it goes before the default, and others do not count."""
    write_run(tmp_path, 0.5, method="dca")
    write_run(tmp_path, 0.5, {"center": "visual"}, method="dca")
    row = paper_rows()["DCA+d_m"]
    assert [v.settings for v in match_rows([row], blocks_under(tmp_path)[0])[row]] == [{}]
    write_run(tmp_path, 0.5, {"center": "text"}, method="dca")
    assert [v.settings for v in match_rows([row], blocks_under(tmp_path)[0])[row]] == [{"center": "text"}]


def test_a_name_of_several_methods_is_told_apart(tmp_path: Path) -> None:
    spec = tmp_path / "study.toml"
    spec.write_text('[common]\ndata = "eurosat"\n[[grid]]\nname = "ours"\nmethod = ["gda", "coop"]\n')
    assert name_rows([load_specification(spec)])(Variant("gda")) == "ours, method=gda"


STUDY = Path(__file__).resolve().parents[2] / "study"


@pytest.mark.parametrize("name", ["components", "metric", "intra-loss"])
def test_rows_of_the_study_are_those_of_the_paper(name: str) -> None:
    """The committed study names its rows as the paper's tables are looked for."""
    of_dca = {"center": "text", "gamma1": 100.0, "gamma2": 50.0}  # both as study/selection.json
    base = {"dca": Variant.of("dca", of_dca, {}), "dapt": Variant.of("dapt", {"recipe": "own"}, {})}
    cells = {
        row: cell
        for cell in load_specification(STUDY / f"{name}.toml").cells
        for row in cell.rows
        if row in paper_rows()
    }
    assert len(cells) >= 3
    for row, cell in cells.items():
        variant = Variant.of(cell.experiment.method, cell.experiment.changed_options, cell.head)
        assert paper_rows()[row].fits(variant, base[variant.method]), row


def test_a_varied_setting_without_a_number_does_not_count() -> None:
    row = PaperRow("varied", "dca", vary=["alpha"])
    assert row.fits(Variant("dca", (("alpha", 1.0),)), Variant("dca"))
    assert not row.fits(Variant("dca", (("alpha", None),)), Variant("dca"))
    assert not row.fits(Variant("dca"), Variant("dca"))


def test_a_setting_that_a_row_varies_may_have_another_value_in_the_base() -> None:
    row = PaperRow("varied", "dca", vary=["gamma1"])
    base = Variant("dca", (("alpha", 1.0), ("gamma1", 100.0)))
    assert row.fits(Variant("dca", base.options, (("gamma1", 200.0),)), base)
    assert not row.fits(Variant("dca", (("alpha", 2.0), ("gamma1", 200.0))), base)
    assert not row.fits(base, base), "it is no variation of itself"
