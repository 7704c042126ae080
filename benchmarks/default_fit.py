"""How long a fit of the default takes with its estimate, beside an earlier commit, and what 100,000 images take.

    python benchmarks/default_fit.py CALTECH [--before 193db6e7] [--repeats 5] [--json FILE]

CALTECH is a dataset folder as `dca fit` takes it. Processes of both trees take turns, each with one thread; features
are stored before they are timed. Times are those of the processor (other work on the machine does not count), the
shortest of the repeats: of a whole `Classifier().fit`, and of the closed form with its estimate on the same features.
Last, the closed form with its estimate on 100,000 random features of 512 values in 100 classes: seconds and peak
memory.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "study" / "measurements"), str(ROOT / "scripts")]
SHAPES = ((6, 8), (100, 16))
# Run by the `dca` of either tree: what both have.
FIT = """
import json, sys, time
import numpy as np, torch
from pathlib import Path
from dca import Classifier, Session
from clip_features import Given, Rows
from dca.methods.base import Problem
from dca.methods.closed_form import ClosedForm, ClosedFormOptions
from dca.model.estimate import estimate_accuracy
torch.set_num_threads(1)
paths, labels = json.load(sys.stdin)
session = Session(device="cpu")
clip = session.load_backbone("mini")
x = session.frozen_features(clip, [Path(path) for path in paths]).cpu()
y = torch.from_numpy(np.unique(labels, return_inverse=True)[1])
C = int(y.max()) + 1
def fit_all():
    Classifier(backbone="mini", device="cpu").fit(paths, labels)
def fit_head():
    given, rows = Given(torch.nn.functional.normalize(torch.randn(C, x.shape[1]), dim=-1)), Rows(x, y)
    method = ClosedForm.build(given, Problem(names=tuple(map(str, range(C))), shots=len(y) // C), ClosedFormOptions())
    method.finish(rows)
    method.build_head()
    estimate_accuracy(method.predict_held_out(rows), y.numpy(), None)
times = []
for fit in (fit_all, fit_head):
    fit()
    began = time.process_time()
    fit()
    times.append(time.process_time() - began)
print(json.dumps(times))
"""
MANY = """
import json, resource, time
import torch
from clip_features import Given, Rows
from dca.methods.base import Problem
from dca.methods.closed_form import ClosedForm, ClosedFormOptions
from dca.model.estimate import estimate_accuracy
N, C, D = 100_000, 100, 512
generator = torch.Generator().manual_seed(0)
centres = torch.randn(C, D, generator=generator)
y = torch.arange(C).repeat_interleave(N // C)
x = torch.nn.functional.normalize(centres[y] + 2.5 * torch.randn(N, D, generator=generator), dim=-1)
began, used = time.perf_counter(), time.process_time()
method = ClosedForm.build(Given(torch.nn.functional.normalize(centres, dim=-1)),
                          Problem(names=tuple(map(str, range(C))), shots=N // C), ClosedFormOptions())
rows = Rows(x, y)
method.finish(rows)
method.build_head()
found = estimate_accuracy(method.predict_held_out(rows), y.numpy(), None)
print(json.dumps({"seconds": time.perf_counter() - began, "processor_seconds": time.process_time() - used,
                  "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, "estimate": found.accuracy}))
"""


def run(code: str, tree: Path, given: Any, cache: Path, threads: int) -> Any:
    """What the code prints with the `dca` of a tree."""
    paths = [tree / "src", tree / "study" / "measurements", tree / "scripts"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "XDG_CACHE_HOME": str(cache)}
    environment |= {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(given), text=True, stdout=subprocess.PIPE, env=environment
    )
    done.check_returncode()
    return json.loads(done.stdout)


def main() -> None:
    """Measure and print."""
    from estimate_coverage import EARLIER, extract_tree

    from dca.core.files import write_json
    from dca.datasets import load_dataset
    from dca.datasets.draws import draw_few_shot

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--before", default=EARLIER, metavar="COMMIT")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    dataset, found = load_dataset(chosen.data), dict[str, Any]()
    with extract_tree(chosen.before) as earlier, tempfile.TemporaryDirectory() as folder:
        trees = {"before": earlier, "now": ROOT}
        for classes, shots in SHAPES:
            items = [item for item in draw_few_shot(dataset, shots, 1).train if item.label < classes]
            given = [str(item.image) for item in items], [dataset.labels[item.label] for item in items]
            times: dict[str, list[list[float]]] = {name: [] for name in trees}
            for _ in range(chosen.repeats):
                for name, tree in trees.items():
                    times[name].append(run(FIT, tree, given, Path(folder) / name, 1))
            for place, what in enumerate(("fit", "closed form")):
                least = {name: min(one[place] for one in own) for name, own in times.items()}
                ratio = least["now"] / least["before"]
                found[f"{what}, {classes} x {shots}"] = least | {"ratio": ratio}
                click.echo(
                    f"{what}, {classes} x {shots}: {least['before']:.3f} s before, {least['now']:.3f} s now, "
                    f"{ratio:.2f} times"
                )
        many = found["100,000 x 512"] = run(MANY, ROOT, None, Path(folder), os.cpu_count() or 1)
    click.echo(
        f"100,000 x 512: {many['seconds']:.0f} s ({many['processor_seconds']:.0f} s of processor time), "
        f"{many['peak_gb']:.1f} GB"
    )
    if chosen.json:
        write_json(chosen.json, found)


if __name__ == "__main__":
    main()
