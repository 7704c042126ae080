from __future__ import annotations

from pathlib import Path

from dca.study.results import ACCURACY, BASE, HARMONIC, NEW, SECONDS, Variant
from helpers.made_runs import blocks_under, write_run


def test_runs_are_parted_by_backbone_selection_protocol_and_source(tmp_path: Path) -> None:
    write_run(tmp_path, 0.5, method="gda")
    write_run(tmp_path, 0.6, method="gda", backbone="vit-b-16")
    write_run(tmp_path, 0.6, method="gda", rules="paper")
    write_run(tmp_path, 0.6, method="gda", hold_out=0.2)
    write_run(tmp_path, [0.5, 0.4], method="gda", protocol="base-to-new")
    write_run(tmp_path, [0.5, 0.4], method="gda", protocol="domain-shift", targets=["dtd"])
    write_run(tmp_path, [0.4], method="gda", protocol="cross-dataset", targets=["dtd"])
    write_run(tmp_path, 0.7, method="gda", protocol="transductive")
    found = [(block.context.label, block.protocol, block.source) for block in blocks_under(tmp_path)]
    assert found == [
        ("mini, rules paper", "few-shot", ""),
        ("mini, rules strict", "few-shot", ""),
        ("mini, rules strict", "base-to-new", ""),
        ("mini, rules strict", "cross-dataset", "eurosat"),
        ("mini, rules strict", "domain-shift", "eurosat"),
        ("mini, rules strict", "transductive", ""),
        ("mini, rules strict, hold_out 0.2", "few-shot", ""),
        ("vit-b-16, rules strict", "few-shot", ""),
    ]


def test_figures_are_those_of_the_targets(tmp_path: Path) -> None:
    write_run(tmp_path, [0.5, 0.25], method="gda", protocol="base-to-new")
    write_run(tmp_path, [0.5, 0.4, 0.3], method="gda", protocol="domain-shift", targets=["dtd", "sun397"])
    halves, shifted = blocks_under(tmp_path)
    (runs,) = halves.cells.values()
    assert {name: runs[1].figures[name] for name in (BASE, NEW)} == {BASE: 50.0, NEW: 25.0}
    assert round(runs[1].figures[HARMONIC], 3) == 33.333
    assert shifted.datasets == ("eurosat", "dtd", "sun397"), "the source comes first"
    assert [run[1].figures[ACCURACY] for run in shifted.cells.values()] == [50.0, 40.0, 30.0]


def test_the_main_variant_is_the_one_that_was_run_most_and_is_no_head(tmp_path: Path) -> None:
    for seed in (1, 2):
        write_run(tmp_path, 0.5, method="dca", options={"alpha": 1}, seed=seed)
        for gamma in (100.0, 200.0):
            write_run(tmp_path, 0.5, {"gamma1": gamma}, method="dca", options={"alpha": 1}, seed=seed)
    write_run(tmp_path, 0.5, method="dca")
    write_run(tmp_path, 0.5, method="zero_shot")
    (block,) = blocks_under(tmp_path)
    assert block.main == {
        "zero_shot": Variant("zero_shot"),
        "dca": Variant("dca", (("alpha", 1.0),)),
    }
    assert [variant.label for variant in block.variants][-1] == "dca alpha=1 gamma1=200"


def test_of_variants_that_were_run_as_often_the_first_listed_is_the_main_one(tmp_path: Path) -> None:
    write_run(tmp_path, 0.5, method="dca")
    write_run(tmp_path, 0.5, method="dca", options={"alpha": 1})
    assert blocks_under(tmp_path)[0].main == {"dca": Variant("dca")}, "nothing is listed: the least changed"
    chosen = Variant("dca", (("alpha", 1.0),))
    assert blocks_under(tmp_path, [chosen, Variant("dca")])[0].main == {"dca": chosen}


def test_an_option_that_training_does_not_read_is_the_same_in_a_head_and_in_a_fit(tmp_path: Path) -> None:
    write_run(tmp_path, 0.5, {"test_metric": "cosine"}, method="dca", seed=1)
    write_run(tmp_path, 0.7, method="dca", options={"test_metric": "cosine"}, seed=2)
    (block,) = blocks_under(tmp_path)
    (variant,) = block.variants
    assert [run.figures[ACCURACY] for run in block.runs(variant, "eurosat", 4)] == [50.0, 70.0]


def test_zero_shot_stands_for_all_shots_and_seeds_and_others_do_not(tmp_path: Path) -> None:
    write_run(tmp_path, 0.4, method="zero_shot", shots=1, seed=1)
    write_run(tmp_path, 0.5, method="gda", shots=16, seed=3)
    (block,) = blocks_under(tmp_path)
    clip, gda = block.variants
    run = block.run(clip, "eurosat", 16, 3)
    assert run is not None
    assert run.figures[ACCURACY] == 40.0
    assert block.shots == (16,)
    assert block.run(gda, "eurosat", 16, 1) is None
    assert block.runs(gda, "eurosat", 1) == ()


def test_seconds_are_those_of_one_kind_of_device(tmp_path: Path) -> None:
    """A head has the device of its fit; a run on the CPU among runs on a GPU keeps its accuracy only."""
    for seed in (1, 2):
        write_run(tmp_path, 0.5, method="coop", seed=seed, device="cuda")
    fit = write_run(tmp_path, 0.5, method="dca", device="cuda")
    write_run(tmp_path, 0.6, {"gamma1": 100.0}, {"fit": fit}, method="dca")
    write_run(tmp_path, 0.7, method="gda", device="cpu")
    (block,) = blocks_under(tmp_path)
    seconds = {
        variant.label: {SECONDS in run.figures for run in runs.values()}
        for (variant, _, _), runs in block.cells.items()
    }
    assert seconds == {"coop": {True}, "dca": {True}, "dca gamma1=100": {True}, "gda": {False}}
    assert block.runs(Variant("gda"), "eurosat", 4)[0].figures[ACCURACY] == 70.0
