from __future__ import annotations

import os
import random
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path

import pytest
import torch
from hypothesis import settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, rule
from PIL import Image

from dca.core.errors import UserError
from dca.features import database
from dca.features.store import FeatureStore, default_folder, space_name
from helpers.small_images import photo
from helpers.stored_features import ABOUT, HOUR, Backbone, expected, features, fill, keys_of, refuse, values


@pytest.fixture
def images(tmp_path):
    for k in range(10):
        photo(k).save(tmp_path / f"{k}.png")
    return [tmp_path / f"{k}.png" for k in range(10)]


@pytest.fixture
def store(tmp_path):
    return FeatureStore(tmp_path / "cache")


def test_features_come_back_bit_for_bit_and_are_computed_once(store, images):
    backbone = Backbone()
    first = features(store, ABOUT, images, backbone)
    again = features(store, ABOUT, images[::-1], backbone)
    assert torch.equal(first, expected(images))
    assert torch.equal(again, first.flip(0))
    assert backbone.asked == images
    assert first.dtype == again.dtype == torch.float32


def test_only_new_images_are_computed(store, images):
    features(store, ABOUT, images[:6], Backbone())
    backbone = Backbone()
    assert torch.equal(features(store, ABOUT, images, backbone), expected(images))
    assert backbone.asked == images[6:]


def test_content_decides_not_the_name(store, images):
    features(store, ABOUT, images, Backbone())
    os.replace(images[0], images[0].with_name("moved.png"))
    photo(99).save(images[1])
    backbone = Backbone()
    now = [images[0].with_name("moved.png"), *images[1:]]
    assert torch.equal(features(store, ABOUT, now, backbone), expected(now))
    assert backbone.asked == [images[1]]


def test_equal_images_are_computed_once(store, images):
    image = Image.open(images[0]).convert("RGB")
    asked = []

    def compute(todo):
        asked.extend(todo)
        return [torch.ones(len(todo), 2)]

    assert torch.equal(features(store, ABOUT, [image, image.copy()], compute), torch.ones(2, 2))
    assert len(asked) == 1


def test_compute_gets_the_first_place_of_each_missing_key_in_order(store):
    a, b, c, d = keys_of("abcd")
    store.get_or_compute(ABOUT, [c], lambda places: [torch.zeros(1, 1)])
    asked = []

    def compute(places):
        asked.extend(places)
        return [torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0]])]

    rows = store.get_or_compute(ABOUT, [d, c, a, d, b, a], compute)
    assert asked == [0, 2, 4]
    assert rows.flatten().tolist() == [1, 0, 2, 1, 3, 2]


def test_no_keys_give_no_rows_and_no_file(store):
    assert store.get_or_compute(ABOUT, [], refuse).shape == (0, 0)
    assert store.known_keys(ABOUT, keys_of("a")) == set()
    assert store.list_spaces() == []
    assert not store.folder.exists()


def test_known_keys(store):
    fill(store, ABOUT, range(1000))
    assert store.known_keys(ABOUT, keys_of(range(990, 1010))) == set(keys_of(range(990, 1000)))
    assert store.known_keys({"backbone": "other"}, keys_of(range(10))) == set()
    assert store.known_keys(ABOUT, []) == set()


def test_another_backbone_or_transform_is_another_space(store, images):
    features(store, ABOUT, images, Backbone())
    for other in ({**ABOUT, "backbone": "abd"}, {**ABOUT, "size": 9}):
        backbone = Backbone()
        features(store, other, images, backbone)
        assert backbone.asked == images
    assert space_name({"a": 1, "b": 2}) == space_name({"b": 2, "a": 1})


def test_what_is_only_displayed_does_not_decide_the_space(store):
    fill(store, {**ABOUT, "display": {"source": "mini"}}, range(3))
    assert fill(store, {**ABOUT, "display": {"source": "/models/mini"}}, range(4)) == 1
    (space,) = store.list_spaces()
    assert space.name == space_name(ABOUT)
    assert space.about == {**ABOUT, "display": {"source": "/models/mini"}}  # the last one written


def test_features_that_are_not_finite_are_returned_but_not_kept(store):
    rows = torch.tensor([[1.0, 2.0], [torch.nan, 2.0], [3.0, torch.inf]])
    keys = keys_of("abc")
    for asked in (3, 2, 2):
        found = store.get_or_compute(
            ABOUT, keys, lambda places, n=asked: [rows[-n:]] if len(places) == n else refuse(places)
        )
        assert torch.equal(found.nan_to_num(7), rows.nan_to_num(7))
    assert store.known_keys(ABOUT, keys) == {keys[0]}
    assert store.list_spaces()[0].features == 1


@pytest.mark.parametrize("given", [1, 3])
def test_too_few_or_too_many_rows_are_our_bug(store, given):
    with pytest.raises(ValueError, match="asked for"):
        store.get_or_compute(ABOUT, keys_of("ab"), lambda places: [torch.ones(given, 2)])


def test_rows_of_different_lengths_are_never_joined(store):
    store.get_or_compute(ABOUT, keys_of("a"), lambda places: [torch.ones(1, 2)])
    with pytest.raises(ValueError, match="different lengths"):
        store.get_or_compute(ABOUT, keys_of("ab"), lambda places: [torch.ones(1, 4)])


def test_an_interrupted_run_keeps_what_it_had(store, monkeypatch):
    def stopped(places):
        for start in range(0, len(places), 100):
            if start == 2000:
                raise KeyboardInterrupt
            yield values(places[start : start + 100])

    with pytest.raises(KeyboardInterrupt):
        store.get_or_compute(ABOUT, keys_of(range(3000)), stopped)
    # Groups of 300, 300, 600: each at least as large as all before, and not more than half is lost.
    assert store.known_keys(ABOUT, keys_of(range(3000))) == set(keys_of(range(1200)))
    assert fill(store, ABOUT, range(3000)) == 1800


def test_100_of_100_000_rows_are_found_without_reading_the_others(store):
    fill(store, ABOUT, range(100_000), width=128)
    some = random.Random(0).sample(range(100_000), 100)
    with closing(sqlite3.connect(store.path)) as db:
        for query, arguments in ((database.FIND, (0, 0, b"")), (database.READ, (0,))):
            plan = [row[-1] for row in db.execute(f"EXPLAIN QUERY PLAN {query.format('?')}", arguments)]
            assert [step.split()[0] for step in plan] == ["SEARCH"]
    start, before = time.process_time(), bytes_read()
    assert torch.equal(store.get_or_compute(ABOUT, keys_of(some), refuse), values(some, 128))
    seconds, read = time.process_time() - start, bytes_read() - before
    start = time.process_time()
    store.get_or_compute(ABOUT, keys_of(range(100_000)), refuse)
    assert seconds < (time.process_time() - start) / 10
    assert read < store.path.stat().st_size / 10
    before = bytes_read()
    assert len(store.known_keys(ABOUT, keys_of(range(100_000)))) == 100_000
    assert bytes_read() - before < store.path.stat().st_size / 4  # the index, but no feature


def bytes_read():
    """Bytes that this process has asked the system for; 0 where the system does not say."""
    counters = Path("/proc/self/io")
    return int(counters.read_text().split()[1]) if counters.exists() else 0


def test_the_limit_deletes_the_rows_not_used_for_longest(tmp_path):
    now = [0]
    store = FeatureStore(tmp_path / "cache", clock=lambda: now[0])
    for k in range(4):
        now[0] = k * HOUR
        fill(store, {"backbone": k}, range(500), 256)
    one = store.path.stat().st_size // 4
    now[0] = 5 * HOUR
    fill(store, {"backbone": 0}, range(500), 256)  # used again
    small = FeatureStore(tmp_path / "cache", limit=4 * one, clock=lambda: now[0])
    now[0] = 6 * HOUR
    fill(small, {"backbone": 9}, range(500), 256)
    kept = {space.about["backbone"]: space.features for space in small.list_spaces()}
    assert kept.keys() == {9, 0, 3, 2}
    assert list(kept)[:2] == [9, 0]
    assert (kept[9], kept[0], kept[3]) == (500, 500, 500)
    assert 0 < kept[2] < 500
    assert store.path.stat().st_size <= 4 * one
    none = FeatureStore(tmp_path / "cache", limit=0)
    fill(none, {"backbone": 7}, range(500), 256)
    assert none.list_spaces() == []
    assert store.path.stat().st_size < one


def test_reading_marks_rows_as_used_once_per_hour(tmp_path, monkeypatch):
    now, marked, mark = [10 * HOUR], [], database._mark_used
    monkeypatch.setattr(database, "_mark_used", lambda db, rows: marked.append(len(rows)) or mark(db, rows))
    store = FeatureStore(tmp_path, clock=lambda: now[0])
    fill(store, ABOUT, range(5))
    now[0] += HOUR - 1
    fill(store, ABOUT, range(5))
    assert marked == []
    now[0] += 1
    store.known_keys(ABOUT, keys_of(range(5)))
    assert store.list_spaces()[0].used == 10 * HOUR
    fill(store, ABOUT, range(3))
    fill(store, ABOUT, range(5))
    fill(store, ABOUT, range(5))
    assert marked == [3, 2]
    assert store.list_spaces()[0].used == 11 * HOUR


def test_spaces_and_clear(store):
    fill(store, ABOUT, range(5000), 64)
    fill(store, {"backbone": "x"}, range(2), 64)
    spaces = {space.name: space for space in store.list_spaces()}
    assert spaces[space_name(ABOUT)].features == 5000
    assert spaces[space_name(ABOUT)].about == ABOUT
    full = store.path.stat().st_size
    assert store.clear([space_name(ABOUT), "0" * 16]) == 5000 * 64 * 4
    assert full - store.path.stat().st_size > 5000 * 64 * 4
    assert [space.about for space in store.list_spaces()] == [{"backbone": "x"}]
    assert store.clear([]) == 0
    assert store.clear() == 2 * 64 * 4
    assert store.list_spaces() == []
    with closing(sqlite3.connect(store.path)) as db:
        assert [db.execute(f"SELECT count(*) FROM {table}").fetchone() for table in ("spaces", "vectors")] == [(0,)] * 2


def test_the_place_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("DCA_CACHE", str(tmp_path))
    assert default_folder() == tmp_path / "features"
    assert FeatureStore().limit == 4 * 2**30
    monkeypatch.setenv("DCA_CACHE_GB", "0.5")
    assert FeatureStore().limit == 500_000_000
    monkeypatch.setenv("DCA_CACHE_GB", "much")
    with pytest.raises(UserError, match="not a number of gigabytes"):
        FeatureStore()


class AgainstDict(RuleBasedStateMachine):
    """Whatever is done in whatever order, the store answers as a dictionary would."""

    numbers = strategies.lists(strategies.integers(0, 11), max_size=12)
    spaces = strategies.sampled_from([{"backbone": "a"}, {"backbone": "b", "display": "x"}])

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.stored = {}

    def teardown(self):
        self.folder.cleanup()

    @property
    def store(self):
        return FeatureStore(Path(self.folder.name))

    @rule(about=spaces, numbers=numbers, batch=strategies.integers(1, 5))
    def rows(self, about, numbers, batch):
        """The row of 11 is not finite, so it is computed each time."""
        known = self.stored.setdefault(about["backbone"], set())
        want = values(numbers)
        want[torch.tensor(numbers, dtype=torch.long) == 11, 0] = torch.inf
        todo = [n for n, number in enumerate(numbers) if number not in known and number not in numbers[:n]]

        def compute(places):
            assert places == todo
            return torch.split(want[places], batch)

        rows = self.store.get_or_compute(about, keys_of(numbers), compute)
        assert torch.equal(rows, want) if numbers else rows.shape == (0, 0)
        known |= set(numbers) - {11}

    @rule(about=spaces, numbers=numbers)
    def known(self, about, numbers):
        want = set(keys_of(set(numbers) & self.stored.get(about["backbone"], set())))
        assert self.store.known_keys(about, keys_of(numbers)) == want

    @rule(about=strategies.none() | spaces)
    def clear(self, about):
        cleared = list(self.stored) if about is None else [about["backbone"]]
        freed = sum(len(self.stored.pop(backbone, ())) for backbone in cleared)
        assert self.store.clear(None if about is None else [space_name(about)]) == freed * 8 * 4

    @rule()
    def list_spaces(self):
        found = {space.about["backbone"]: space.features for space in self.store.list_spaces()}
        assert found == {backbone: len(keys) for backbone, keys in self.stored.items() if keys}


TestAgainstDict = AgainstDict.TestCase
TestAgainstDict.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
