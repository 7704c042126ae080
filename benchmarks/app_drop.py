"""A folder of many photos dropped on the page of `dca app`: how long until the first model, how the page feels.

    python benchmarks/app_drop.py PHOTOS [--backbone NAME] [--browser /usr/bin/chromium]

PHOTOS has one folder per class. Prints, as JSON: seconds until all photos are saved, until the first model, and until
the model of all photos; those that the encoder alone takes for the same photos and that `dca fit` takes with their
features at hand; the longest frame and the longest task of the page from when the browser has handed the files over,
and the longest processor time of a task, which other programs do not prolong; and the largest memory of the server. The
load of the machine, and the longest frame before anything was dropped, are printed beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from playwright.sync_api import expect, sync_playwright

from dca.datasets.folder import load_folder
from dca.features.store import FeatureStore
from dca.runs.run import run
from dca.runs.spec import FitSpec
from dca.training.session import Session

TOKEN = "benchmark"
# How long frames are watched before anything is dropped.
IDLE_MS = 5000
# Records the gaps between frames, and tasks that block the page.
WATCH = """
    window.gaps = []; window.tasks = [];
    let last = performance.now();
    const start = last, estimate = document.getElementById('estimate');
    new MutationObserver(() => { if (!estimate.hidden) window.firstModel ??= performance.now() - start; })
        .observe(estimate, {attributes: true});
    const tick = (now) => { window.gaps.push(now - last); last = now; requestAnimationFrame(tick); };
    requestAnimationFrame(tick);
    document.addEventListener('change', () => {
        window.gaps = []; window.tasks = []; last = performance.now();
    }, {capture: true});
    new PerformanceObserver((list) => { for (const e of list.getEntries()) window.tasks.push(e.duration); })
        .observe({entryTypes: ['longtask']});
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
            idle = page.evaluate("window.gaps")
            program.start_tracing(page=page, path=scratch / "trace.json", categories=["toplevel"])
            start = time.monotonic()
            page.set_input_files("#folder-input", str(photos))
            expect(page.locator("#progress")).to_be_visible(timeout=60_000)
            expect(page.locator("#progress")).to_be_hidden(timeout=patience * 1000)
            saved = time.monotonic() - start
            page.get_by_text("knows all").wait_for(timeout=patience * 1000)
            whole = time.monotonic() - start
            gaps, tasks, first = page.evaluate("[window.gaps, window.tasks, window.firstModel / 1000]")
            program.stop_tracing()
    finally:
        done.set()
        server.terminate()
        server.wait(60)
    return {
        "photos": count,
        "seconds_until_saved": round(saved, 1),
        "seconds_until_first_model": round(first, 1),
        "seconds_until_model_of_all": round(whole, 1),
        "longest_idle_frame_ms": round(max(idle), 1),
        "longest_frame_ms": round(max(gaps), 1),
        "longest_task_ms": round(max([0, *tasks]), 1),
        "longest_task_processor_ms": round(longest_task(scratch / "trace.json"), 1),
        "server_megabytes": round(peak[0] / 1e6),
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
