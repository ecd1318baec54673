"""Who looks at a run from outside: its board, its metrics and its log hear every look of its driver."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from zoo.board import RunCounts, ScreenRun
from zoo.logs import RunLog
from zoo.metrics import RunMetrics
from zoo.reports import ScreenProgress

TELL_SECONDS = 2.0
"""How often the board is told how far the run is."""

_Model = tuple[str, str]


@dataclass(slots=True)
class Tally:
    """Counts a run from the looks of its driver."""

    measured: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    fetched_bytes: int = 0
    _of_running: dict[_Model, int] = field(default_factory=dict)
    _ended: set[_Model] = field(default_factory=set)

    def hear(self, look: ScreenProgress) -> RunCounts:
        """How far the run is with this look; an ended model is in one look alone."""
        for stem, running in (look.seen.running if look.seen else {}).items():
            self._fetched((running.model_id, stem.rpartition("@")[2]), running.fetched_bytes)
        if report := look.ended:
            model = report.model_id, report.revision[:12]
            self._fetched(model, max(report.bytes_fetched, self._of_running.get(model, 0)))
            self._ended.add(model)
            self.measured += report.status == "measured"
            self.failed.update([report.reason] if report.status == "failed" else [])
        return RunCounts(
            measured=self.measured,
            failed=dict(self.failed),
            fetched_bytes=self.fetched_bytes,
            elapsed_seconds=look.elapsed_seconds,
            remaining_seconds=look.remaining_seconds,
        )

    def _fetched(self, model: _Model, so_far: int) -> None:
        """A model has fetched so much in this try. The board may show one that has ended for a while."""
        if model in self._ended:
            return
        before = self._of_running.get(model, 0)
        self.fetched_bytes += so_far - before if so_far >= before else so_far
        self._of_running[model] = so_far


class Watch:
    """Hears the looks of one run's driver and passes them on; ``progress`` is the caller's own."""

    def __init__(
        self, facts: ScreenRun, *, board: Any, log: RunLog, progress: Callable[[ScreenProgress], None]
    ) -> None:
        self._board, self._log, self._progress = board, log, progress
        self._metrics = RunMetrics(refused=facts.refused)
        self._tally, self._told_at = Tally(), 0.0

    def hear(self, look: ScreenProgress) -> None:
        """One look of the driver."""
        counts = self._tally.hear(look)
        self._metrics.hear(look, counts)
        if look.ended:
            self._log.ended(look.ended)
        if look.ended or time.monotonic() - self._told_at >= TELL_SECONDS:
            self._told_at = time.monotonic()
            self._board.tell.remote(counts)
        self._progress(look)

    def end(self) -> None:
        """The run is over; what the board knew goes with it."""
        self._metrics.end()
