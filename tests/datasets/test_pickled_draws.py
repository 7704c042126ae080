"""CoOp's pickled draws are read as plain data; a pickle that would execute anything is refused."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from test_draws import PUBLISHED, dataset_of, labels_of

from conftest import shared
from dca.core.errors import UserError
from dca.datasets.draws import draw_few_shot, import_draw
from dca.datasets.pickled_draws import MAX_BYTES, read_pickled_draw

MODULE = "dassl.data.datasets.base_dataset"


@pytest.fixture
def datum(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Dassl's Datum, as pickles of CoOp's code hold it; its module is gone when they are read."""

    class Datum:
        def __init__(self, impath: str = "", label: Any = 0, domain: int = 0, classname: str = "") -> None:
            self._impath, self._label, self._domain, self._classname = impath, label, domain, classname

    Datum.__module__, Datum.__qualname__ = MODULE, "Datum"
    module = ModuleType(MODULE)
    vars(module)["Datum"] = Datum
    for name in ("dassl", "dassl.data", "dassl.data.datasets"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, MODULE, module)
    return Datum


def write(path: Path, content: Any, protocol: int = pickle.HIGHEST_PROTOCOL) -> Path:
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_draw_is_read_in_every_protocol_that_coop_may_have_written(tmp_path: Path, datum: Any, protocol: int) -> None:
    dataset = dataset_of([0, 0, 0, 1, 1, 1], [0, 1])
    rows = {
        "train": [datum(f"/home/someone/data/toy/train/{i}.jpg", i // 3, classname=f"class {i // 3}") for i in (4, 1)],
        "val": [datum("C:\\data\\toy\\val\\1.jpg", 1, classname="class 1")],
    }
    path = write(tmp_path / "shot_1-seed_1.pkl", rows, protocol)
    del sys.modules[MODULE]
    drawn = import_draw(path, dataset)
    assert drawn.train == (dataset.train[4], dataset.train[1])
    assert drawn.val == (dataset.val[1],)
    assert drawn.split.endswith("draw shot_1-seed_1.pkl")
    assert read_pickled_draw(path)["train"]["data"][0] == {
        "impath": "/home/someone/data/toy/train/4.jpg",
        "classname": "class 1",
        "label": 1,
    }


def pickled_positions(positions: dict[str, list[int]], labels: dict[str, list[int]], datum: Any) -> dict[str, Any]:
    """The draw as CoOp's code would have pickled it: images of the split file, with paths of another machine."""
    return {
        part: [
            datum(f"/root/DATA/toy/{part}/{i}.jpg", labels[part][i], classname=f"class {labels[part][i]}") for i in rows
        ]
        for part, rows in positions.items()
    }


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_pickles_of_the_published_positions_give_the_draws_that_we_make(tmp_path: Path, datum: Any, name: str) -> None:
    """Ten datasets; positions of the published draws, labels of the split files."""
    published = json.loads((shared("data", "draws") / f"{name}.json").read_text())
    labels = dict(zip(("train", "val"), labels_of(PUBLISHED[name]), strict=True))
    dataset = dataset_of(labels["train"], labels["val"])
    for key in ("shot_1-seed_1", "shot_4-seed_2"):
        shots, seed = (int(part.split("_")[1]) for part in key.split("-"))
        path = write(tmp_path / f"{key}.pkl", pickled_positions(published[key], labels, datum))
        read, ours = import_draw(path, dataset), draw_few_shot(dataset, shots, seed)
        assert (read.train, read.val) == (ours.train, ours.val)


class Runs:
    """What a hostile pickle holds: a call of any function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def hostile(target: Path) -> dict[str, bytes]:
    """Pickles that would make a file if anything in them were executed, or take all memory."""
    touch = f"open({str(target)!r}, 'w').close()"
    path = str(target).encode()
    text = struct.pack("<I", len(path)) + path
    return {
        "system": pickle.dumps({"train": [Runs(os.system, f"touch {target}")]}),
        "exec": pickle.dumps({"train": [Runs(exec, touch)]}),
        "popen": pickle.dumps({"train": [Runs(subprocess.Popen, ["touch", str(target)])]}, protocol=2),
        "protocol 0": pickle.dumps({"train": [Runs(os.system, f"touch {target}")]}, protocol=0),
        "inst": b"(S'touch " + path + b"'\nios\nsystem\n.",
        "obj": b"\x80\x02(cos\nsystem\nX" + text + b"o.",
        "a call by the name of Datum": b"\x80\x02cos\nDatum\nX" + text + b"\x85R.",
        "newobj of another class": b"\x80\x02cpathlib\nPath\nX" + text + b"\x85\x81.",
        "a name with a dot": b"\x80\x04\x8c\x02os\x8c\x0bDatum.popen\x93.",
        "extension": b"\x80\x02\x82\x01.",
        "persistent id": b"\x80\x02X" + text + b"Q.",
        "buffer": b"\x80\x05\x97.",
        "large memo": b"\x80\x02]r\xff\xff\xff\x7f.",
        "bytearray": b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"x.",
        "state of another object": b"\x80\x02}X\x01\x00\x00\x00a]b.",
        "state that is no dictionary": b"\x80\x02c" + MODULE.encode() + b"\nDatum\n)\x81]b.",
        "object without state": b"\x80\x02}X\x05\x00\x00\x00train]c" + MODULE.encode() + b"\nDatum\n)\x81as.",
        "cut off": pickle.dumps({"train": ["a", "b"]})[:-4],
        "no pickle": b"\x80hello",
        "empty": b"",
    }


@pytest.mark.parametrize("kind", sorted(hostile(Path("x"))))
def test_a_hostile_pickle_is_refused_and_nothing_runs(tmp_path: Path, kind: str) -> None:
    target, path = tmp_path / "executed", tmp_path / "draw.pkl"
    path.write_bytes(hostile(target)[kind])
    with pytest.raises(UserError, match="not a draw of CoOp") as caught:
        import_draw(path, dataset_of([0, 1]))
    assert "Nothing in it was executed" in str(caught.value)
    assert not target.exists()


def test_the_hostile_ones_would_have_run(tmp_path: Path) -> None:
    """So that the test above can fail."""
    target = tmp_path / "executed"
    pickle.load(io.BytesIO(hostile(target)["exec"]))
    assert target.exists()


@pytest.mark.parametrize("row", ["text", 3, ["a"], {"_impath": "a"}])
def test_rows_that_are_no_datum_are_refused(tmp_path: Path, row: Any) -> None:
    with pytest.raises(UserError, match="instead of a Datum"):
        read_pickled_draw(write(tmp_path / "draw.pkl", {"train": [row]}))


@pytest.mark.parametrize("fields", [{"impath": 3}, {"label": "1"}, {"label": True}, {"classname": None}])
def test_fields_of_another_type_are_refused(tmp_path: Path, datum: Any, fields: dict[str, Any]) -> None:
    row = datum(**{"impath": "a.jpg", "label": 1, "classname": "cat", **fields})
    with pytest.raises(UserError, match="without path, label and class name"):
        read_pickled_draw(write(tmp_path / "draw.pkl", {"train": [row]}))


@pytest.mark.parametrize("content", [[], {"test": []}, {"train": ()}, "train", 3])
def test_what_holds_no_draw_is_refused(tmp_path: Path, content: Any) -> None:
    with pytest.raises(UserError, match="not a draw of CoOp"):
        read_pickled_draw(write(tmp_path / "draw.pkl", content))


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "draw.pkl"
    with path.open("wb") as file:
        file.write(b"\x80\x04")
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(UserError, match="larger than"):
        read_pickled_draw(path)


def test_a_pickle_is_known_by_its_first_byte_too(tmp_path: Path, datum: Any) -> None:
    dataset = dataset_of([0, 1])
    rows = [datum("train/1.jpg", 1, classname="class 1")]
    assert import_draw(write(tmp_path / "draw", {"train": rows}), dataset).train == (dataset.train[1],)


def test_a_missing_file_is_an_error_of_the_user(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_pickled_draw(tmp_path / "draw.pkl")
