from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dca.core.choices import PROTOCOLS
from dca.core.errors import UserError
from dca.datasets.dataset import Dataset, LabelledImage
from dca.datasets.draws import draw_few_shot, draw_training_part
from dca.study import protocols
from dca.study.protocols import (
    base_to_new,
    cross_dataset,
    domain_shift,
    few_shot,
    harmonic_mean,
    make_task,
    subset,
    transductive,
)


def toy(name="toy", classes=5, train=20, val=10, test=3, keys=None):
    parts = [tuple(LabelledImage(Path(f"{name}/{part}/{y}/{i}.jpg"), y) for y in range(classes) for i in range(n))
             for part, n in (("train", train), ("val", val), ("test", test))]  # fmt: skip
    keys = keys or tuple(f"n{y:04d}" for y in range(classes))
    words = tuple(f"{name} {key}" for key in keys)
    return Dataset(name, words, words, *parts, keys=tuple(keys), public=name)


def images_in(value):
    """Every path that can be reached from a value."""
    if isinstance(value, Path):
        return {value}
    if dataclasses.is_dataclass(value):
        return set().union(*(images_in(getattr(value, f.name)) for f in dataclasses.fields(value)))
    if isinstance(value, tuple):
        return set().union(*map(images_in, value))
    return set()


def test_the_training_side_holds_no_test_image():
    dataset = toy()
    tests = {item.image for item in dataset.test}
    for task in (
        few_shot(dataset, 4, 1),
        few_shot(dataset, None, 1),
        few_shot(dataset, 4, 1, rules="paper", validation="full"),
        base_to_new(dataset, 4, 1),
        domain_shift(dataset, [toy("shifted")], 4, 1),
        cross_dataset(dataset, [toy("other")], 4, 1),
        transductive(dataset, 4, 1),
    ):
        assert task.source.test == ()
        assert not images_in(task.source) & tests
        assert all(target.test for target in task.targets)


@pytest.mark.parametrize(
    ("rules", "validation", "per_class", "says"),
    [
        ("strict", "few", 4, "strict: 4 validation images per class"),
        ("strict", "full", 4, "strict: 4 validation images per class"),
        ("strict", "shots", 4, "strict: 4 validation images per class"),
        ("strict", "none", 0, "strict: no validation images"),
        ("paper", "few", 4, "paper: 4 validation images per class"),
        ("paper", "shots", 8, "paper: 8 validation images per class"),
        ("paper", "full", 10, "paper: the full validation split"),
    ],
)
def test_what_may_be_tuned_on(rules, validation, per_class, says):
    task = few_shot(toy(), 8, 1, rules=rules, validation=validation)
    assert Counter(item.label for item in task.source.val) == {y: per_class for y in range(5) if per_class}
    assert task.selected_on == says
    assert task.source.train == draw_few_shot(toy(), 8, 1).train


def test_strict_few_shot_is_the_published_draw():
    drawn = draw_few_shot(toy(), 2, 3)
    task = few_shot(toy(), 2, 3)
    assert (task.source.train, task.source.val) == (drawn.train, drawn.val)
    assert task.targets[0].test == toy().test
    assert task.targets[0].from_source == (0, 1, 2, 3, 4)


@pytest.mark.parametrize("validation", ["none", "few", "shots", "full"])
def test_strict_never_selects_on_more_than_four_images_per_class_even_without_shots(validation):
    task = few_shot(toy(), None, 1, rules="strict", validation=validation)
    assert len(task.source.train) == 100
    expected = {} if validation == "none" else dict.fromkeys(range(5), 4)
    assert Counter(item.label for item in task.source.val) == expected
    assert task.selected_on == f"strict: {'4 validation images per class' if expected else 'no validation images'}"


def test_all_training_images_leave_none_to_select_on():
    task = few_shot(toy(val=0), None, 1, validation="full")
    assert task.source.val == ()
    assert task.selected_on == "strict: no validation images"


def test_paper_selects_on_the_full_split_without_shots():
    counts = {use: len(few_shot(toy(), None, 1, rules="paper", validation=use).source.val)
              for use in ("none", "few", "shots", "full")}  # fmt: skip
    assert counts == {"none": 0, "few": 20, "shots": 50, "full": 50}


def test_the_name_of_a_dataset_does_not_change_the_validation_images():
    here, there = (dataclasses.replace(toy(val=0), name=name) for name in ("here", "there"))
    assert draw_training_part(here, 4, 1)[0].val == draw_training_part(there, 4, 1)[0].val
    assert draw_training_part(here, 4, 1)[0].val != draw_training_part(here, 4, 2)[0].val


def test_without_a_validation_part_undrawn_training_images_serve():
    dataset = toy(val=0)
    task = few_shot(dataset, 8, 1)
    assert Counter(item.label for item in task.source.val) == dict.fromkeys(range(5), 4)
    assert not set(task.source.val) & set(task.source.train)
    assert "undrawn training images" in task.selected_on
    assert few_shot(toy(val=0, train=3), 8, 1).source.val == ()


def test_base_to_new_draws_first_and_splits_then():
    dataset = toy(classes=5)
    task = base_to_new(dataset, 4, 1)
    drawn = draw_few_shot(dataset, 4, 1)
    assert task.source.names == dataset.names[:3]
    assert task.source.train == tuple(item for item in drawn.train if item.label < 3)
    base, new = task.targets
    assert (base.names, new.names) == (dataset.names[:3], dataset.names[3:])
    assert {item.label for item in new.test} == {0, 1}
    assert base.from_source == (0, 1, 2)
    assert base.carries_over
    assert new.from_source == (None, None)
    assert not new.carries_over


def test_domain_shift_matches_classes_by_key():
    source, part = toy(classes=5), toy("sketch", classes=3, train=0, val=0, keys=("n0004", "n0000", "n0002"))
    task = domain_shift(source, [part], 4, 1)
    own, shifted = task.targets
    assert own.name == "toy"
    assert shifted.from_source == (4, 0, 2)
    assert shifted.carries_over
    assert shifted.names == part.names


def test_domain_shift_refuses_foreign_classes():
    with pytest.raises(UserError, match="1 target class is not among the classes of toy"):
        domain_shift(toy(), [toy("x", classes=2, keys=("n0001", "n9999"))], 4, 1)


def test_cross_dataset_matches_words_not_folder_numbers():
    task = cross_dataset(toy(keys=("1", "2", "3", "4", "5")), [toy("other", keys=("1", "2", "3", "4", "5"))], 4, 1)
    assert task.targets[0].from_source == (None,) * 5


def test_domain_shift_of_folders_matches_classes_by_label_then_by_name():
    def folder(name, labels, names):
        items = tuple(LabelledImage(Path(f"{name}/{label}.jpg"), y) for y, label in enumerate(labels))
        return Dataset(name, labels, names, items, test=items)

    source = folder("day", ("bkr", "tnt", "dog"), ("bike rack", "tent", "dog"))
    target = folder("night", ("Dog", "bkr", "9"), ("dog", "something", "Tent"))
    own, shifted = domain_shift(source, [target], None, 1).targets
    assert own.from_source == (0, 1, 2)
    assert shifted.from_source == (2, 0, 1)
    assert (shifted.labels, shifted.names, shifted.dataset) == (target.labels, target.names, "")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_make_task_is_the_function_of_the_protocol(protocol):
    alone = protocol in ("few-shot", "base-to-new", "transductive")
    targets = [] if alone else [toy("other")]
    function = getattr(protocols, protocol.replace("-", "_"))
    given = {"rules": "paper", "validation": "full"}
    task = make_task(protocol, toy(), targets, 4, 2, **given)
    assert task == (function(toy(), 4, 2, **given) if alone else function(toy(), targets, 4, 2, **given))
    assert (task.rules, task.selected_on) == ("paper", "paper: the full validation split")


@pytest.mark.parametrize(
    ("protocol", "targets", "says"),
    [
        ("few-shot", 1, "1 target is given"),
        ("base-to-new", 2, "2 targets are given"),
        ("transductive", 1, "1 target is given"),
        ("cross-dataset", 0, "needs at least one other dataset"),
        ("domain-shift", 0, "needs at least one other dataset"),
        ("few-shots", 0, "Did you mean 'few-shot'"),
    ],
)
def test_targets_that_are_missing_or_superfluous_are_refused(protocol, targets, says):
    with pytest.raises(UserError, match=says) as error:
        make_task(protocol, toy(), [toy("other")] * targets, 4, 1)
    assert error.value.hint


def test_transduction_trains_and_tests_on_the_images_of_few_shot():
    few, together = few_shot(toy(), 4, 1), transductive(toy(), 4, 1)
    assert together.source == few.source
    (alone,), (target,) = few.targets, together.targets
    assert (alone.together, target.together, target.name) == (False, True, "toy together")
    assert dataclasses.replace(target, name="toy", together=False) == alone


def test_a_target_needs_test_images():
    with pytest.raises(UserError, match="no test images"):
        cross_dataset(toy(), [toy("other", test=0)], 4, 1)


@pytest.mark.parametrize("protocol", [few_shot, base_to_new, transductive])
def test_without_a_test_part_the_same_fifth_is_held_out_for_every_seed(protocol):
    tasks = [protocol(toy(test=0), 4, seed) for seed in (1, 2)]
    assert tasks[0].targets == tasks[1].targets
    assert sum(len(target.test) for target in tasks[0].targets) == 20
    held = {item.image for target in tasks[0].targets for item in target.test}
    assert not held & images_in(tasks[0].source)
    assert "held out" in tasks[0].source.split


def test_unknown_selection_is_named():
    with pytest.raises(UserError, match="Did you mean 'strict'"):
        few_shot(toy(), 4, 1, rules="strikt")


@given(st.permutations(range(5)), st.integers(1, 5))
def test_subset_keeps_images_with_their_words(order, n):
    dataset = toy()
    part = subset(dataset, order[:n])
    words = {item.image: part.names[item.label] for item in part.train + part.test}
    whole = {item.image: dataset.names[item.label] for item in dataset.train + dataset.test}
    assert words.items() <= whole.items()
    assert len(part.train) == 20 * n


def test_harmonic_mean():
    assert harmonic_mean(0.5, 0.5) == 0.5
    assert harmonic_mean(0.0, 0.9) == 0.0
    assert harmonic_mean(0.8, 0.4) == pytest.approx(8 / 15)
