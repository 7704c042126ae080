"""Processes and threads that work for this one."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading

# By how much a thread is nicer that works in the background.
BACKGROUND_NICENESS = 5


def end_with_parent() -> None:
    """Let this process end as soon as the process that started it has ended, however that was."""
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def work_in_background() -> None:
    """Let other threads and programs use the cores before this thread and those that it starts, where threads can."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + BACKGROUND_NICENESS)


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
