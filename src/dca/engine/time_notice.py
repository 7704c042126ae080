"""The notice that training will take long, given early and once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from dca.core.choices import DEFAULT_METHOD
from dca.core.progress import Progress, silent
from dca.core.wording import about_text

log = logging.getLogger(__name__)

# Training that takes longer, in seconds, is announced.
LONG = 60.0
# The pace is known after this many steps and seconds; where steps are slow, after two steps PATIENCE seconds apart.
LEAST_STEPS, LEAST_SECONDS, PATIENCE = 3, 2.0, 10.0


class TimeNotice:
    """Says how long training will take and what is faster; at most once, however many fits share it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.given = clock, False

    def pace(self, progress: Progress, fits: int = 1) -> Pace:
        """Watches the steps of one fit.

        progress: where it is silent, nothing is said. fits: fits of this length to come, this one included.
        """
        return Pace(self, fits, quiet=progress is silent)


class Pace:
    """Measures the steps of one fit until their pace is known; see `TimeNotice.pace`."""

    def __init__(self, notice: TimeNotice, fits: int, *, quiet: bool) -> None:
        self._notice, self._fits, self._known = notice, fits, quiet
        self._began = notice.clock()
        self._first: tuple[int, float] | None = None

    def step(self, done: int, total: int) -> None:
        """Steps have ended. done, total: of the whole fit; done is negative for trial steps."""
        if self._known or self._notice.given:
            return
        now = self._notice.clock()
        if self._first is None:  # takes longer than the others, and may follow long preparations
            self._first = done, now
            return
        steps, since = done - self._first[0], now - self._first[1]
        if since < (LEAST_SECONDS if steps + 1 >= LEAST_STEPS else PATIENCE):
            return
        self._known = True
        left = since / steps * (total - done)
        expected = self._fits * (now - self._began + left)
        if expected > LONG:
            self._notice.given = True
            log.warning(
                "training will take about %s; %s, the default method, trains nothing and is much faster",
                about_text(expected),
                DEFAULT_METHOD,
            )
