from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
import torch
from PIL import Image
from small_pictures import picture

from dca.core.errors import UserError
from dca.data.decode import open_image
from dca.data.feature_store import FeatureCache, default_folder, space_name

ABOUT = {"backbone": "abc", "size": 8}


def feature_of(path):
    """A feature that depends on every pixel."""
    pixels = np.asarray(open_image(path), dtype=np.float64)
    return torch.tensor([pixels.mean(), pixels.std(), pixels[0].sum(), pixels[:, 0].sum()], dtype=torch.float32)


class Backbone:
    """Counts what it is asked to compute."""

    def __init__(self, batch=3):
        self.asked = []
        self.batch = batch

    def __call__(self, pictures):
        for start in range(0, len(pictures), self.batch):
            part = pictures[start : start + self.batch]
            self.asked += part
            yield torch.stack([feature_of(path) for path in part])


@pytest.fixture
def pictures(tmp_path):
    for k in range(10):
        picture(k).save(tmp_path / f"{k}.png")
    return [tmp_path / f"{k}.png" for k in range(10)]


@pytest.fixture
def cache(tmp_path):
    return FeatureCache(tmp_path / "cache")


def expected(pictures):
    return torch.stack([feature_of(path) for path in pictures])


def test_features_come_back_bit_for_bit_and_are_computed_once(cache, pictures):
    backbone = Backbone()
    first = cache.features(ABOUT, pictures, backbone)
    again = cache.features(ABOUT, pictures[::-1], backbone)
    assert torch.equal(first, expected(pictures))
    assert torch.equal(again, first.flip(0))
    assert backbone.asked == pictures


def test_only_new_pictures_are_computed(cache, pictures):
    cache.features(ABOUT, pictures[:6], Backbone())
    backbone = Backbone()
    assert torch.equal(cache.features(ABOUT, pictures, backbone), expected(pictures))
    assert backbone.asked == pictures[6:]


def test_content_decides_not_the_name(cache, pictures):
    cache.features(ABOUT, pictures, Backbone())
    os.replace(pictures[0], pictures[0].with_name("moved.png"))
    picture(99).save(pictures[1])
    backbone = Backbone()
    now = [pictures[0].with_name("moved.png"), *pictures[1:]]
    assert torch.equal(cache.features(ABOUT, now, backbone), expected(now))
    assert backbone.asked == [pictures[1]]


def test_equal_pictures_are_computed_once(cache, pictures):
    image = Image.open(pictures[0]).convert("RGB")
    backbone = Backbone()
    rows = cache.features(ABOUT, [image, image.copy()], lambda todo: [torch.ones(len(todo), 2)])
    assert torch.equal(rows, torch.ones(2, 2))
    assert cache.features(ABOUT, [], backbone).numel() == 0


def test_another_backbone_or_transform_is_another_space(cache, pictures):
    cache.features(ABOUT, pictures, Backbone())
    for other in ({**ABOUT, "backbone": "abd"}, {**ABOUT, "size": 9}):
        backbone = Backbone()
        cache.features(other, pictures, backbone)
        assert backbone.asked == pictures
    assert space_name({"a": 1, "b": 2}) == space_name({"b": 2, "a": 1})


def test_damaged_segments_are_computed_again(cache, pictures):
    cache.features(ABOUT, pictures, Backbone())
    for damage in (b"", b"x" * 10, None):
        (segment,) = (cache.folder / space_name(ABOUT)).glob("*.features")
        data = bytearray(segment.read_bytes())
        data[-1] ^= 1
        segment.write_bytes(bytes(data) if damage is None else damage)
        backbone = Backbone()
        assert torch.equal(cache.features(ABOUT, pictures, backbone), expected(pictures))
        assert backbone.asked == pictures


def test_features_that_are_not_finite_are_not_kept(cache, pictures):
    cache.features(ABOUT, pictures[:1], lambda todo: [torch.full((1, 2), torch.nan)])
    assert cache.spaces()[0].features == 0


def test_too_few_features_are_our_bug(cache, pictures):
    with pytest.raises(ValueError, match="gave 1 features for 2"):
        cache.features(ABOUT, pictures[:2], lambda todo: [torch.ones(1, 2)])


def test_an_interrupted_run_keeps_what_it_had(cache, pictures, monkeypatch):
    monkeypatch.setattr("dca.data.feature_store._gather", lambda batches: ((3 * k, b) for k, b in enumerate(batches)))

    def stopped(todo):
        for k, batch in enumerate(Backbone()(todo)):
            if k == 2:
                raise KeyboardInterrupt
            yield batch

    with pytest.raises(KeyboardInterrupt):
        cache.features(ABOUT, pictures, stopped)
    backbone = Backbone()
    assert torch.equal(cache.features(ABOUT, pictures, backbone), expected(pictures))
    assert backbone.asked == pictures[6:]


def test_the_limit_removes_the_longest_unused(tmp_path, pictures):
    cache = FeatureCache(tmp_path / "cache")
    for k in range(4):
        cache.features({"backbone": k}, pictures, Backbone())
        for segment in (cache.folder / space_name({"backbone": k})).glob("*.features"):
            os.utime(segment, (k, k))
    one = cache.spaces()[0].bytes
    cache.features({"backbone": 0}, pictures, Backbone())  # used again
    small = FeatureCache(tmp_path / "cache", limit=3 * one)
    small.features({"backbone": 9}, pictures, Backbone())
    assert {space.about["backbone"] for space in small.spaces()} == {0, 3, 9}
    assert sum(space.bytes for space in small.spaces()) <= 3 * one


def test_half_written_files_are_ignored_and_swept_later(cache, pictures):
    cache.features(ABOUT, pictures[:5], Backbone())
    space = cache.folder / space_name(ABOUT)
    young, old = space / ".a.features.1", space / ".b.features.2"
    for file in (young, old):
        file.write_bytes(b"half")
    os.utime(old, (1, 1))
    assert torch.equal(cache.features(ABOUT, pictures, Backbone()), expected(pictures))
    assert young.exists()
    assert not old.exists()


def test_spaces_and_clear(cache, pictures):
    assert cache.spaces() == []
    cache.features(ABOUT, pictures, Backbone())
    cache.features({"backbone": "x"}, pictures[:2], Backbone())
    spaces = {space.name: space for space in cache.spaces()}
    assert spaces[space_name(ABOUT)].features == 10
    assert spaces[space_name(ABOUT)].about == ABOUT
    assert cache.clear([space_name(ABOUT)]) > 0
    assert [space.about for space in cache.spaces()] == [{"backbone": "x"}]
    cache.clear()
    assert cache.spaces() == []


def test_the_place_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("DCA_CACHE", str(tmp_path))
    assert default_folder() == tmp_path / "features"
    assert FeatureCache().limit == 4 * 2**30
    monkeypatch.setenv("DCA_CACHE_GB", "0.5")
    assert FeatureCache().limit == 500_000_000
    monkeypatch.setenv("DCA_CACHE_GB", "much")
    with pytest.raises(UserError, match="not a number of gigabytes"):
        FeatureCache()


WORKER = """
import sys, time, pathlib
sys.path.insert(0, sys.argv[1])
import test_cache
from dca.data.feature_store import FeatureCache
import dca.data.feature_store as module

module.SEGMENT_ROWS = 4
folder, pause, order = pathlib.Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
pictures = sorted(folder.glob("*.png"))[::order]

def compute(todo):
    for start in range(0, len(todo), 2):
        time.sleep(pause)
        yield test_cache.torch.stack([test_cache.feature_of(p) for p in todo[start:start + 2]])
        print("batch", flush=True)

rows = FeatureCache(folder / "cache").features(test_cache.ABOUT, pictures, compute)
assert test_cache.torch.equal(rows, test_cache.expected(pictures))
print("done", flush=True)
"""


def worker(tmp_path, folder, pause, order):
    script = tmp_path / "worker.py"
    script.write_text(textwrap.dedent(WORKER))
    here = os.path.dirname(__file__)
    command = [sys.executable, str(script), here, str(folder), str(pause), str(order)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_two_processes_at_once_and_one_killed_leave_a_correct_cache(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    pictures = []
    for k in range(40):
        picture(k).save(folder / f"{k:02d}.png")
        pictures.append(folder / f"{k:02d}.png")
    first, second, doomed = (
        worker(tmp_path, folder, pause, order) for pause, order in ((0.03, 1), (0.03, -1), (0.05, 1))
    )
    for _ in range(5):
        assert doomed.stdout.readline().strip() == "batch"
    doomed.send_signal(signal.SIGKILL)
    doomed.communicate()
    for process in (first, second):
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, output
        assert output.endswith("done\n")
    cache, backbone = FeatureCache(folder / "cache"), Backbone()
    assert torch.equal(cache.features(ABOUT, pictures, backbone), expected(pictures))
    assert backbone.asked == []
    assert cache.spaces()[0].features == 40


def test_clearing_while_another_process_fills_does_not_break_it(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for k in range(30):
        picture(k).save(folder / f"{k:02d}.png")
    filling = worker(tmp_path, folder, 0.02, 1)
    cache = FeatureCache(folder / "cache")
    while filling.poll() is None:
        cache.clear()
        time.sleep(0.01)
    output, _ = filling.communicate()
    assert filling.returncode == 0, output


def test_a_place_that_cannot_be_written_costs_only_time(tmp_path, pictures, caplog):
    (tmp_path / "cache").write_text("a file, not a folder")
    cache = FeatureCache(tmp_path / "cache")
    assert torch.equal(cache.features(ABOUT, pictures, Backbone()), expected(pictures))
    assert "features are not stored" in caplog.text
