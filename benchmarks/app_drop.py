"""A folder of many photos dropped on the page of `dca app`: how long until the first model, how the page feels.

    python benchmarks/app_drop.py PHOTOS [--backbone NAME] [--browser /usr/bin/chromium]

PHOTOS has one folder per class. Prints, as JSON: seconds until all photos are saved, until the first model, and until
the model of all photos; those that the encoder alone takes for the same photos and that `dca fit` takes with their
features at hand; the longest frame from the drop on, how much of it the main thread of the page ran, and how long one
thread of the browser waited for a core in it; the longest that the page ran in any frame, and in one task; and the
largest memory of the server. The load of the machine, and the longest frame before anything was dropped, are printed
beside them. Linux only: /proc/PID/task/TID/schedstat says how long each thread ran, and waited for a core.
"""

from __future__ import annotations

import argparse
import bisect
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from playwright.sync_api import expect, sync_playwright

TOKEN = "benchmark"
# How long frames are watched before anything is dropped, and seconds between two looks at the threads of the browser.
IDLE_MS, SAMPLE_SECONDS = 5000, 0.02
# Records the times of frames, in milliseconds since the epoch, and those of the drop and of the first model.
WATCH = """
    const now = () => performance.timeOrigin + performance.now();
    const estimate = document.getElementById('estimate');
    window.frames = [now()];
    new MutationObserver(() => { if (!estimate.hidden) window.firstModel ??= now(); })
        .observe(estimate, {attributes: true});
    const tick = () => { window.frames.push(now()); requestAnimationFrame(tick); };
    requestAnimationFrame(tick);
    document.addEventListener('drop', () => { window.dropped ??= now(); }, {capture: true});
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--backbone", default="auto")
    parser.add_argument("--browser", default=shutil.which("chromium"))
    parser.add_argument("--minutes", type=float, default=9, help="longest wait for the model")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        told = measure_app(args.photos, args.backbone, args.browser, Path(scratch), 60 * args.minutes)
        told |= measure_alone(args.photos, args.backbone, Path(scratch))
    told["load_before"], told["load_after"] = round(load, 1), round(os.getloadavg()[0], 1)
    print(json.dumps(told, indent=1))


def measure_app(photos: Path, backbone: str, browser: str, scratch: Path, patience: float) -> dict[str, float]:
    """Drop the photos on the page."""
    command = [sys.executable, "-m", "dca", "app", str(scratch / "work"), "--backbone", backbone, "--port", "0"]
    server = subprocess.Popen(
        command, env={**os.environ, "DCA_TOKEN": TOKEN, "PYTHONUNBUFFERED": "1"}, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    address = next(line.split()[0] for line in server.stdout if line.startswith("http"))
    peak, done = [0], threading.Event()
    threading.Thread(target=watch_memory, args=(server.pid, peak, done), daemon=True).start()
    count = sum(1 for _ in photos.glob("*/*"))
    try:
        with sync_playwright() as tools:
            program = tools.chromium.launch(executable_path=browser, args=["--no-sandbox"])
            page = program.new_page()
            page.goto(address)
            page.locator("#project-name").fill("dropped")
            page.locator("#new-project button").click()
            page.locator("body.app #teach").wait_for()
            page.evaluate(WATCH)
            page.wait_for_timeout(IDLE_MS)
            program.start_tracing(page=page, path=scratch / "trace.json", categories=["toplevel"])
            watch = ThreadWatch(list_children(os.getpid()) - {server.pid, *list_children(server.pid)})
            watch.start()
            start = time.monotonic()
            drop(page, photos)
            expect(page.locator("#progress")).to_be_visible(timeout=60_000)
            expect(page.locator("#progress")).to_be_hidden(timeout=patience * 1000)
            saved = time.monotonic() - start
            page.get_by_text("knows all").wait_for(timeout=patience * 1000)
            whole = time.monotonic() - start
            times, dropped, first = page.evaluate("[window.frames, window.dropped, window.firstModel]")
            watch.done.set()
            program.stop_tracing()
    finally:
        done.set()
        server.terminate()
        server.wait(60)
    return {
        "photos": count,
        "seconds_until_saved": round(saved, 1),
        "seconds_until_first_model": round((first - dropped) / 1000, 1),
        "seconds_until_model_of_all": round(whole, 1),
        **describe_frames(times, dropped, watch),
        "longest_task_processor_ms": round(longest_task(scratch / "trace.json"), 1),
        "server_megabytes": round(peak[0] / 1e6),
    }


def drop(page: Any, folder: Path) -> None:
    """Drop a folder as a person does."""
    session = page.context.new_cdp_session(page)
    data = {"items": [], "files": [str(folder.resolve())], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        session.send("Input.dispatchDragEvent", {"type": kind, "x": 300, "y": 300, "data": data})


@dataclass(frozen=True)
class Thread:
    """A thread of the browser, and its process. page: whether it is the main thread of a process that shows pages."""

    pid: int
    tid: int
    page: bool


class ThreadWatch(threading.Thread):
    """Records how long the threads of processes have run and have waited for a core, in milliseconds.

    Args:
        processes: Their ids.
    """

    def __init__(self, processes: set[int]) -> None:
        super().__init__(daemon=True)
        self._processes, self.done = processes, threading.Event()
        self._times: list[float] = []
        self._rows: list[dict[Thread, tuple[float, float]]] = []

    def run(self) -> None:
        """Look at all threads until `done`."""
        number, threads = 0, list[Thread]()
        while not self.done.wait(SAMPLE_SECONDS):
            if number % 50 == 0:  # threads begin and end
                threads = [thread for pid in self._processes for thread in list_threads(pid)]
            number += 1
            self._times.append(1000 * time.time())
            self._rows.append({thread: used for thread in threads if (used := read_schedule(thread)) is not None})

    def between(self, start: float, end: float) -> dict[Thread, tuple[float, float]]:
        """How long each thread ran and waited from the last look before `start` to the first one after `end`."""
        first = self._rows[max(0, bisect.bisect_right(self._times, start) - 1)]
        last = self._rows[min(len(self._rows) - 1, bisect.bisect_left(self._times, end))]
        return {one: (used[0] - first[one][0], used[1] - first[one][1]) for one, used in last.items() if one in first}


def list_children(pid: int) -> set[int]:
    """A process and all that it has started, directly or not."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(folder.name))
    found, todo = set[int](), [pid]
    while todo:
        found.add(one := todo.pop())
        todo += children.get(one, [])
    return found


def list_threads(pid: int) -> Iterator[Thread]:
    """The threads of a process, if it is one of the browser."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text()
        if "chrom" not in command.partition("\0")[0]:
            return
        for folder in Path(f"/proc/{pid}/task").iterdir():
            tid = int(folder.name)
            yield Thread(pid, tid, tid == pid and "--type=renderer" in command)
    except OSError:
        return


def read_schedule(thread: Thread) -> tuple[float, float] | None:
    """Milliseconds for which a thread has run, and has waited for a core; None if it has ended."""
    try:
        ran, waited, _ = Path(f"/proc/{thread.pid}/task/{thread.tid}/schedstat").read_text().split()
    except OSError:
        return None
    return int(ran) / 1e6, int(waited) / 1e6


def describe_frames(times: list[float], dropped: float, watch: ThreadWatch) -> dict[str, float]:
    """The longest frames. times: when each began; dropped: when the photos were."""
    frames = list(pairwise(times))
    idle = [end - start for start, end in frames if end < dropped]
    used = [(end - start, watch.between(start, end)) for start, end in frames if end >= dropped]
    total = Counter[Thread]()
    for _, threads in used:
        total.update({one: ran for one, (ran, _) in threads.items() if one.page})
    (page, _), *_ = total.most_common(1)
    longest, threads = max(used, key=lambda row: row[0])
    return {
        "longest_idle_frame_ms": round(max(idle), 1),
        "frames_over_100_ms": sum(length > 100 for length, _ in used),
        "longest_frame_ms": round(longest, 1),
        "page_ran_in_it_ms": round(threads[page][0], 1),
        "page_waited_in_it_ms": round(threads[page][1], 1),
        "longest_wait_in_it_ms": round(max(waited for _, waited in threads.values()), 1),
        "longest_run_in_a_frame_ms": round(max(threads.get(page, (0.0,))[0] for _, threads in used), 1),
    }


def longest_task(trace: Path) -> float:
    """Milliseconds of processor time of the longest task of the page's main thread."""
    events = json.loads(trace.read_text())["traceEvents"]
    main = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    return max([0.0, *(float(e["tdur"]) / 1000 for e in events if "tdur" in e and (e["pid"], e["tid"]) in main)])


def watch_memory(pid: int, peak: list[int], done: threading.Event) -> None:
    """Record the largest resident memory of a process."""
    while not done.wait(0.5):
        try:
            used = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:
            return
        peak[0] = max(peak[0], used)


def measure_alone(photos: Path, backbone: str, scratch: Path) -> dict[str, float]:
    """The time of the encoder alone, from files to features, and of a fit with these features."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as in `dca`; torch reads it once
    from dca.datasets.folder import load_folder
    from dca.features.store import FeatureStore
    from dca.runs.run import run
    from dca.runs.spec import FitSpec
    from dca.training.session import Session

    session = Session(device="cpu", store=FeatureStore(scratch / "features"))
    encoder, dataset = session.load_backbone(backbone), load_folder(photos)
    images = [item.image for item in dataset.train]
    session.hash_images(images)
    start = time.monotonic()
    session.frozen_features(encoder, images)
    encoded = time.monotonic() - start
    session.require_readable(encoder, images, summaries=True)
    start = time.monotonic()
    run(FitSpec(data=str(photos), backbone=backbone), scratch / "m.dca", dataset=dataset, session=session, gallery=True)
    return {"encoder_seconds": round(encoded, 1), "fit_seconds": round(time.monotonic() - start, 1)}


if __name__ == "__main__":
    main()
