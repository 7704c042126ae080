"""Every number of the report is computed again from the result files that it names."""

from __future__ import annotations

import csv
import json
import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from dca.datasets.catalog import title_of
from dca.study.claims import Claim, claims
from dca.study.published_numbers import published_numbers
from oracles import significance as literal

Result = dict[str, Any]
Results = dict[str, Result]
# Tables whose numbers are means of accuracies.
MEANS = ("few-shot", "table", "variants", "base-to-new", "cross-dataset", "domain-shift", "transductive")


def tables(report: Path) -> dict[str, list[dict[str, str]]]:
    paths = sorted((report / "tables").glob("*.csv"))
    return {path.stem: list(csv.DictReader(path.read_text(encoding="utf-8").splitlines())) for path in paths}


def measured(rows: Iterable[dict[str, str]]) -> list[dict[str, str]]:
    return [row for row in rows if row["kind"] == "measured" and row["value"]]


def own(results: Results, row: dict[str, str]) -> list[Result]:
    return [results[id] for id in row["runs"].split()]


def accuracies(result: Result, column: str) -> dict[str, float]:
    """The accuracies in percent that a number in this column may be made of, by dataset."""
    first, *rest = (100 * target["accuracy"] for target in result["targets"])
    if result["protocol"] == "base-to-new":
        return {
            result["data"]: {"base": first, "new": rest[0] if rest else 0.0}.get(column, 100 * result["harmonic_mean"])
        }
    if result["protocol"] in ("few-shot", "transductive"):
        return {result["data"]: first}
    found = {target["name"]: 100 * target["accuracy"] for target in result["targets"]}
    return {
        name: value
        for name, value in found.items()
        if title_of(name) == column or (column == "average" and name != result["data"])
    }


def mean(found: list[Result], column: str) -> float:
    """Mean over datasets of the mean over runs."""
    by_dataset = defaultdict(list)
    for result in found:
        for name, value in accuracies(result, column).items():
            by_dataset[name].append(value)
    return statistics.fmean(statistics.fmean(values) for values in by_dataset.values())


def test_every_mean_is_that_of_its_runs(report: Path, results: Results) -> None:
    count = 0
    for name, rows in tables(report).items():
        for row in measured(rows) if name.startswith(MEANS) else ():
            found = own(results, row)
            assert float(row["value"]) == pytest.approx(mean(found, row["column"]), abs=1e-9), (name, row)
            seeds = {result["seed"] for result in found}
            assert int(row["n"]) == len(seeds), (name, row)
            if row["std"] and len(found) == len(seeds):
                values = [value for result in found for value in accuracies(result, row["column"]).values()]
                if len(values) == len(found):
                    assert float(row["std"]) == pytest.approx(statistics.stdev(values))
            count += 1
    assert count > 300


def test_the_deviation_of_an_average_is_over_seeds(report: Path, results: Results) -> None:
    rows = [row for row in measured(tables(report)["few-shot-4-vit-b-16-paper"]) if row["column"] == "average"]
    checked = 0
    for row in rows:
        by_seed = defaultdict(list)
        for result in own(results, row):
            by_seed[result["seed"]].append(100 * result["accuracy"])
        if len(by_seed) > 1:
            assert {len(values) for values in by_seed.values()} == {3}
            assert float(row["std"]) == pytest.approx(statistics.stdev(map(statistics.fmean, by_seed.values())))
            checked += 1
    assert checked >= 4


def test_published_numbers_and_differences_to_them(report: Path) -> None:
    printed = {number.value for number in published_numbers()}
    flagged = {(f"{n.value:.2f}", n.flag[0]) for n in published_numbers() if n.flag}
    seen = 0
    for rows in tables(report).values():
        lines = defaultdict(dict)
        for row in rows:
            if "kind" in row and row["kind"] in ("measured", "published", "delta"):
                head = next(iter(row.values()))
                lines[re.sub(", (published|difference)$", "", head), row["column"]][row["kind"]] = row
        for entry in lines.values():
            if "published" in entry and "measured" in entry:
                assert float(entry["published"]["value"]) in printed
                difference = float(entry["measured"]["value"]) - float(entry["published"]["value"])
                assert float(entry["delta"]["value"]) == pytest.approx(difference)
                flag = re.search(r"([\d.]+) \((\w)\)", entry["published"]["text"])
                assert bool(flag) == bool(entry["delta"]["note"])
                assert not flag or flag.groups() in flagged
                seen += 1
    assert seen > 40


def variant(result: Result) -> tuple[Any, ...]:
    tested = {k: v for k, v in result["head"].items() if k == "test_metric"}
    options = {**result["options"], **tested}
    rest = {k: v for k, v in result["head"].items() if k != "test_metric"}
    return result["method"], *(tuple(sorted((k, str(v)) for k, v in some.items())) for some in (options, rest))


Key = tuple[str, int | None, int]


def values_of(result: Result, quantity: str, targets: Sequence[str]) -> dict[Key, float]:
    """The value of a run by dataset, shots and seed; of the targets of a run that is tested on others."""
    place = result["shots"], result["seed"]
    if result["protocol"] == "domain-shift":
        found = {t["name"]: 100 * t["accuracy"] for t in result["targets"] if t["name"] != result["data"]}
        return {(name, *place): value for name, value in found.items() if not targets or name in targets}
    figures = {
        "seconds": result["seconds"],
        "log2 seconds": math.log2(result["seconds"]),
        "trained parameters": result["trained_parameters"],
    }
    return {(result["data"], *place): figures.get(quantity, 100 * result["accuracy"])}


def differences(found: list[Result], quantity: str = "accuracy", targets: Sequence[str] = ()) -> dict[Key, float]:
    """The difference of the two variants among these runs, up to its sign: by dataset, shots and seed."""
    one, other = sorted({variant(result) for result in found}, key=lambda v: v[0] == "zero_shot")
    table: dict[Any, dict[Key, float]] = {one: {}, other: {}}
    for result in found:
        table[variant(result)].update(values_of(result, quantity, targets))
    fixed = {key[0]: value for key, value in table[other].items()} if other[0] == "zero_shot" else {}
    paired = {key: fixed.get(key[0], table[other].get(key)) for key in table[one]}
    return {key: table[one][key] - value for key, value in paired.items() if value is not None}


def deviations(found: list[Result]) -> dict[Key, float]:
    """The difference of the standard deviations over seeds, by dataset and shots."""
    one, other = {variant(result) for result in found}
    cells: dict[Any, list[float]] = defaultdict(list)
    for result in found:
        cells[variant(result), result["data"], result["shots"]].append(100 * result["accuracy"])
    keys = {key[1:] for key in cells}
    return {(*key, 0): statistics.stdev(cells[one, *key]) - statistics.stdev(cells[other, *key]) for key in keys}


def test_what_classifying_together_adds_is_the_difference_of_pairs(report: Path, results: Results) -> None:
    """Each number from its runs: as many of each protocol, alike in everything else."""
    count = 0
    for name, rows in tables(report).items():
        for row in measured(rows) if name.startswith("together-minus-alone") else ():
            found = own(results, row)
            by_protocol = {
                protocol: {
                    (result["data"], result["seed"]): 100 * result["targets"][0]["accuracy"]
                    for result in found
                    if result["protocol"] == protocol
                }
                for protocol in ("transductive", "few-shot")
            }
            together, alone = by_protocol.values()
            assert together.keys() == alone.keys()
            assert len(found) == 2 * len(together)
            assert len({variant(result) for result in found}) == 1
            by_data = defaultdict(list)
            for (data, seed), value in together.items():
                by_data[data].append(value - alone[data, seed])
            assert float(row["value"]) == pytest.approx(statistics.fmean(map(statistics.fmean, by_data.values())))
            count += 1
    assert count > 20


def test_transductive_runs_are_in_no_table_of_others(report: Path, results: Results) -> None:
    own_tables = ("transductive", "together-minus-alone", "runs")
    hidden = {id for id, result in results.items() if result["protocol"] == "transductive"}
    assert len(hidden) > 10
    for name, rows in tables(report).items():
        found = {id for row in rows for id in row.get("runs", "").split()} & hidden
        assert not found or name.startswith(own_tables), name


def draws(found: dict[Key, float]) -> dict[str, list[float]]:
    """The mean difference of each draw, by the dataset that it counts for: changed images count for their dataset."""
    by_draw: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (dataset, _, seed), value in found.items():
        by_draw[dataset.partition("@")[0]][seed].append(value)
    return {dataset: [statistics.fmean(some) for some in own.values()] for dataset, own in by_draw.items()}


def effect(found: dict[Key, float]) -> float:
    """Mean over datasets of the mean difference of each, without its sign."""
    return abs(statistics.fmean(map(statistics.fmean, draws(found).values())))


def test_every_difference_is_that_of_its_pairs(report: Path, results: Results) -> None:
    count = 0
    for name, rows in tables(report).items():
        for row in rows if name.startswith("differences") else ():
            found = differences(own(results, row))
            if row["column"] == "difference":
                assert abs(float(row["value"])) == pytest.approx(effect(found)), row
                assert_over_datasets(row, found)
                count += 1
            elif row["column"] == "p":
                assert_over_datasets(row, found, level=1 - float(row["value"]))
            elif row["column"] == "above on":
                assert row["text"] in [f"{n} of {len(draws(found))}" for n in range(len(draws(found)) + 1)]
            elif row["column"] in ("pairs", "datasets"):
                expected = found if row["column"] == "pairs" else {key[0] for key in found}
                assert float(row["value"]) == len(expected)
    assert count >= 20


def assert_over_datasets(row: dict[str, str], found: dict[Key, float], level: float = 0.95) -> None:
    """The interval over datasets is the literal one; at the level of a p-value it ends at zero."""
    values = [[statistics.fmean(some)] for some in draws(found).values()]
    quantile = literal.t_quantile((1 + level) / 2, len(values) - 1)
    low, high = literal.interval_over_datasets(values, quantile)
    if row["column"] == "p":
        assert min(abs(low), abs(high)) == pytest.approx(0.0, abs=1e-5 * (high - low)), row
    else:
        ends = float(row["low"]), float(row["high"])
        assert ends == pytest.approx((low, high), rel=1e-6) or ends == pytest.approx((-high, -low), rel=1e-6), row


Verdicts = dict[tuple[str, str], tuple[str, list[list[float]]]]


def literal_verdicts(rows: list[dict[str, str]], results: Results) -> Verdicts:
    """Outcome of every comparison, and its values by dataset and draw, from the result files of its runs."""
    by_name = {claim.name: claim for claim in claims()}
    found: Verdicts = {}
    for row in rows:
        if row["column"] != "difference":
            continue
        claim = by_name[row["claim"]]
        values = claim_differences(claim, own(results, row))
        by_draw = list(draws(values).values())
        effect = statistics.fmean(map(statistics.fmean, by_draw))
        sign = 1 if effect * float(row["value"]) >= 0 else -1
        assert sign * effect == pytest.approx(float(row["value"]), abs=1e-6)
        signed = [[sign * value for value in some] for some in by_draw]
        found[row["claim"], row["comparison"]] = literal_outcome(claim, signed, 0.95), signed
    return found


def literal_outcome(claim: Claim, by_draw: list[list[float]], level: float) -> str:
    """Over datasets, and over draws where each dataset has several: both inside, both outside, or undecided."""
    if len(by_draw) < 3:
        return "not decided"
    share = (1 + level) / 2
    ends = [literal.interval_over_datasets(by_draw, literal.t_quantile(share, len(by_draw) - 1))]
    if min(map(len, by_draw)) > 1:
        varies = any(literal.variance(some) > 1e-12 for some in by_draw)
        quantile = literal.t_quantile(share, literal.welch_freedom(by_draw)) if varies else 0.0
        ends.append(literal.interval_over_draws(by_draw, quantile))
    if all(claim.low < low and high < claim.high for low, high in ends):
        return "holds"
    outside = all(high <= claim.low for _, high in ends) or all(low >= claim.high for low, _ in ends)
    return "does not hold" if outside else "not decided"


def assert_verdicts(found: dict[str, list[dict[str, str]]], slug: str, results: Results) -> Counter[str]:
    """Every verdict of a report follows from the datasets of its comparisons; returns how many there are of each."""
    rows = found[f"comparisons{slug}"]
    verdicts = literal_verdicts(rows, results)
    said = {(row["claim"], row["comparison"]): row["text"] for row in rows if row["column"] == "outcome"}
    assert {key: text for key, text in said.items() if text != "not measured"} == {k: v[0] for k, v in verdicts.items()}
    outcomes = {row["claim"]: row["text"] for row in found[f"claims{slug}"] if row["column"] == "outcome"}
    counts = Counter[str]()
    for claim in claims():
        mine = {key: text for key, text in said.items() if key[0] == claim.name}
        measured = [verdicts[key] for key in mine if key in verdicts]
        level = 1 - 0.05 / max(len(measured), 1)
        if not measured:
            expected = "not measured"
        elif any(literal_outcome(claim, by_draw, level) == "does not hold" for _, by_draw in measured):
            expected = "does not hold"
        else:
            expected = "holds" if set(mine.values()) == {"holds"} else "not decided"
        assert outcomes[claim.text] == expected, claim.name
        counts[expected] += 1
    return counts


def test_every_verdict_follows_from_its_datasets(report: Path, results: Results) -> None:
    counts = assert_verdicts(tables(report), "-vit-b-16-paper", results)
    assert counts.total() == len(claims())
    assert len(counts) >= 3, "invented runs that decide some claims and not others"


STUDY = Path(__file__).resolve().parents[3] / "study"


@pytest.mark.slow
def test_every_verdict_of_the_committed_study_follows_from_its_datasets() -> None:
    lines = map(json.loads, (STUDY / "results" / "study.jsonl").read_text(encoding="utf-8").splitlines())
    results = {
        line["id"]: {**line["spec"], **line["result"], "head": line.get("head", {})}
        for line in lines
        if "result" in line
    }
    counts = assert_verdicts(tables(STUDY / "report"), "", results)
    said = ", ".join(f"{counts[outcome]} {word}" for outcome, word in WORDS.items())
    assert f"Of {len(claims())} claims of the paper: {said}." in (STUDY / "report" / "report.md").read_text("utf-8")


WORDS = {"holds": "hold", "does not hold": "do not hold", "not decided": "not decided", "not measured": "not measured"}


def claim_differences(claim: Claim, ran: list[Result]) -> dict[Key, float]:
    """The differences that decide a comparison of a claim, up to their sign."""
    found = deviations(ran) if claim.quantity == "spread" else differences(ran, claim.quantity, claim.datasets)
    if claim.less_shots is None:
        return found
    at = {shots: {(d, s): v for (d, k, s), v in found.items() if k == shots} for shots in (1, claim.less_shots)}
    return {(d, 1, s): value - at[claim.less_shots][d, s] for (d, s), value in at[1].items()}


def test_every_comparison_of_a_claim_is_that_of_its_pairs(report: Path, results: Results) -> None:
    by_name = {claim.name: claim for claim in claims()}
    rows = [row for row in tables(report)["comparisons-vit-b-16-paper"] if row["column"] in ("difference", "pairs")]
    assert len(rows) > 100
    for row in rows:
        found = claim_differences(by_name[row["claim"]], own(results, row))
        expected = effect(found) if row["column"] == "difference" else len(found)
        assert abs(float(row["value"])) == pytest.approx(expected), row


def test_the_effect_of_a_claim_is_that_of_one_of_its_comparisons(report: Path) -> None:
    found = tables(report)
    words = {claim.text: claim.name for claim in claims()}
    rows = {(row["claim"], row["comparison"], row["column"]): row for row in found["comparisons-vit-b-16-paper"]}
    table = {(words[row["claim"]], row["column"]): row for row in found["claims-vit-b-16-paper"]}
    effects = [name for name, column in table if column == "effect"]
    assert len(effects) >= 25
    for name in effects:
        compared = table[name, "least favourable comparison"]["text"]
        assert table[name, "effect"]["value"] == rows[name, compared, "difference"]["value"]
        assert table[name, "pairs"]["value"] == rows[name, compared, "pairs"]["value"]


def test_deviations_and_costs_are_those_of_the_runs(report: Path, results: Results) -> None:
    found = tables(report)
    for row in measured(found["seeds-vit-b-16-paper"]):
        cells = defaultdict(list)
        for result in own(results, row):
            cells[result["data"], result["shots"]].append(100 * result["accuracy"])
        spread = [statistics.stdev(values) for values in cells.values()]
        expected = {
            "mean": statistics.fmean(spread),
            "least": min(spread),
            "greatest": max(spread),
            "cells": len(spread),
        }
        assert float(row["value"]) == pytest.approx(expected[row["column"]]), row
    for row in measured(found["costs-vit-b-16-paper"]):
        key = {"trained parameters": "trained_parameters"}.get(row["column"], row["column"])
        by_dataset = defaultdict(list)
        for result in own(results, row):
            by_dataset[result["data"]].append(result[key] * (100 if key == "accuracy" else 1))
        expected_cost = statistics.fmean(map(statistics.fmean, by_dataset.values()))
        assert float(row["value"]) == pytest.approx(expected_cost), row


class Page(HTMLParser):
    """The numbers of every table by the name of its file, and where every link leads."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.cell, self.lists, self.within = "", "", defaultdict(list), ""
        self.numbers: dict[str, list[str]] = defaultdict(list)
        self.links: list[str] = []
        self.titles: list[tuple[str, str]] = []
        self.href, self.taking = "", ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if tag == "a":
            self.href = found["href"]
            self.links.append(self.href)
            if self.href.startswith("tables/") and self.href.endswith(".csv"):
                self.table = Path(self.href).stem
            if self.within and "result.json" in self.href:
                self.lists[self.within].append(self.href)
            self.taking = "number" if found.get("class") == "run" else ""
        if tag == "title":
            self.taking = "title"
        if tag == "div":
            self.within = found.get("id", "") if found.get("class") == "behind" else ""

    def handle_endtag(self, tag: str) -> None:
        if tag in ("a", "title"):
            self.taking = ""
        if tag == "div":
            self.within = ""

    def handle_data(self, data: str) -> None:
        if self.taking == "number":
            self.numbers[self.table].append(data)
        elif self.taking == "title":
            self.titles.append((data, self.href))


@pytest.fixture(scope="module")
def page(report: Path) -> Page:
    parser = Page()
    parser.feed((report / "index.html").read_text(encoding="utf-8"))
    return parser


def shown(row: dict[str, str], table: str) -> str:
    if row["text"]:
        return row["text"]
    signed = row["kind"] == "delta" or row["column"] == "difference" or table.startswith("together-minus-alone")
    return f"{float(row['value']):{'+' if signed else ''},.2f}".replace("-", "−")


def test_the_page_has_the_numbers_of_the_files_and_links_them_to_their_runs(report: Path, page: Page) -> None:
    found = tables(report)
    assert set(page.numbers) == set(found) - {"runs", "specifications", "not-run", "failed"}, "no numbers made of runs"
    for name, numbers in page.numbers.items():
        expected = [shown(row, name) for row in found[name] if row["runs"]]
        assert "".join(numbers) == "".join(expected), name


def test_every_link_leads_to_a_file_or_a_list_of_runs(report: Path, page: Page) -> None:
    anchors = [link for link in page.links if link.startswith("#runs-")]
    assert len(anchors) > 200
    assert all(page.lists[anchor[1:]] for anchor in anchors)
    files = [link for link in page.links if not link.startswith("#")]
    assert all((report / link).is_file() for link in set(files))


def seeds_deviation(found: list[Result]) -> float:
    """Mean of the standard deviations over seeds, over datasets and shots."""
    cells = defaultdict(list)
    for result in found:
        cells[result["data"], result["shots"]].append(100 * result["accuracy"])
    return statistics.fmean(map(statistics.stdev, cells.values()))


# What a mark says, and how its number is computed from its runs.
MARKS: dict[str, tuple[str, Callable[[list[Result]], float]]] = {
    "mean": (r".+: ([\d.]+) (± [\d.]+)?, n = \d+", lambda found: mean(found, "")),
    "difference": (r"[+−]([\d.]+): .+ pairs of \d+ datasets", lambda found: effect(differences(found))),
    "deviation": (r"([\d.]+): [\d.]+ to [\d.]+, \d+ cells", seeds_deviation),
    "cost": (r"([\d.]+): .+ (seconds|trained parameters)", lambda found: mean(found, "")),
}


def test_every_mark_of_a_figure_is_that_of_its_runs(page: Page, results: Results) -> None:
    counts = dict.fromkeys(MARKS, 0)
    marks = [(title, href) for title, href in page.titles if href.startswith("#runs-")]
    for title, href in marks:
        found = [results[link.split("/")[-2]] for link in page.lists[href[1:]]]
        ((kind, said),) = [(k, m) for k, (pattern, _) in MARKS.items() if (m := re.fullmatch(pattern, title))]
        assert float(said[1]) == pytest.approx(MARKS[kind][1](found), abs=0.0051), title
        counts[kind] += 1
    assert counts["mean"] > 150
    assert min(counts.values()) >= 5


def test_runs_on_validation_images_are_in_no_table(report: Path, results: Results) -> None:
    hidden = [id for id, result in results.items() if result.get("measured_on") == "validation"]
    assert len(hidden) == 1
    for path in report.rglob("*"):
        assert not path.is_file() or hidden[0] not in path.read_text(encoding="utf-8"), path
    assert "1 run is measured on validation images" in (report / "report.md").read_text(encoding="utf-8")
