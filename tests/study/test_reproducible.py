"""A spec and its draw file give the same hashes and, on a CPU, the same accuracies elsewhere.

"Elsewhere" is another process with its own copy of the images, an empty cache, another hash seed and another number of
threads.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from dca.datasets import load_dataset
from dca.datasets.draws import draw_few_shot, export_draw
from dca.datasets.sample import write_sample
from dca.study import Experiment
from helpers.processes import PATIENCE, start_process

SHOTS, SEED = 2, 3
CLASSES = ("cactus", "fish", "guitar", "house")
FITS: list[dict[str, Any]] = [
    {"method": "closed_form"},
    {"method": "dca", "options": {"epochs": 2}},
]
SCRIPT = """
import json, sys
from pathlib import Path
import torch
from dca.datasets import load_dataset
from dca.datasets.draws import record_draw
from dca.datasets.draws import draw_few_shot
from dca.study import Experiment, run_experiment

place, shots, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(int(sys.argv[4]))
drawn = draw_few_shot(load_dataset(place / "photos"), shots, seed)
found = {"draw": record_draw(drawn, shots, seed).hash, "fits": []}
for given in json.loads(sys.argv[5]):
    spec = Experiment(**given, data=str(place / "photos"), draw=str(place / "draw.json"))
    outcome = run_experiment(spec, place / "runs" / spec.id, device="cpu")
    images = [image.sha256 for image in outcome.classifier.training_images_]
    found["fits"].append([spec.id, images, outcome.result.accuracy])
print(json.dumps(found))
"""


def elsewhere(place: Path, hash_seed: int, threads: int) -> AbstractContextManager[subprocess.Popen[str]]:
    """A process that makes the draw again from shots and seed, and runs every spec with the draw file."""
    settings = {"PYTHONHASHSEED": str(hash_seed), "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    environment = {**os.environ, **settings, "DCA_CACHE": str(place / "cache")}
    fits = json.dumps([{**fit, "seed": SEED} for fit in FITS])
    line = [sys.executable, "-c", SCRIPT, str(place), str(SHOTS), str(SEED), str(threads), fits]
    return start_process(line, env=environment, stdout=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two folders, each with the images and the draw file; the files of the second are listed in another order."""
    root = tmp_path_factory.mktemp("reproducible")
    photos = write_sample(root / "one" / "photos", per_class_train=4, per_class_test=8, size=48)
    for folder in photos.glob("*/*"):
        if folder.name not in CLASSES:
            shutil.rmtree(folder)
    dataset = load_dataset(photos)
    export_draw(draw_few_shot(dataset, SHOTS, SEED), SHOTS, SEED, root / "one" / "draw.json")
    for path in sorted(photos.rglob("*.png"), reverse=True):
        target = root / "two" / path.relative_to(root / "one")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    shutil.copyfile(root / "one" / "draw.json", root / "two" / "draw.json")
    return root / "one", root / "two"


@pytest.mark.slow
def test_two_processes_agree_on_ids_draws_and_accuracies(places: tuple[Path, Path]):
    with elsewhere(places[0], 1, 1) as one, elsewhere(places[1], 4242, 2) as other:
        first, second = (json.loads(process.communicate(timeout=PATIENCE)[0]) for process in (one, other))
    assert first == second
    assert first["draw"] == json.loads((places[0] / "draw.json").read_text())["hash"]
    specs = [
        Experiment(data=str(places[0] / "photos"), draw=str(places[0] / "draw.json"), seed=SEED, **fit) for fit in FITS
    ]
    assert [id for id, *_ in first["fits"]] == [spec.id for spec in specs]
    recorded = json.loads((places[0] / "draw.json").read_text())["train"]
    for _, images, accuracy in first["fits"]:
        assert images == [sha256 for *_, sha256 in recorded]
        assert 1 / len(CLASSES) < accuracy <= 1
