"""The driver of a run: submits tasks, waits for them, tries lost models again, ends those out of time."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from catalog.store import Catalog
from zoo.board import BoardLook, RunningModel
from zoo.errors import CatalogError, ZooError, first_line
from zoo.logs import RunLog
from zoo.pace import remaining_seconds, stage_text
from zoo.records import Candidate, MeasurementSpec
from zoo.reports import ScreenProgress, ScreenSummary, TaskReport
from zoo.retries import Try
from zoo.shares import TaskShare
from zoo.tasks import failure, loss, ray
from zoo.timelimits import TimeLimits

LOOK_SECONDS = 0.5
"""How long the driver waits between two looks at its tasks."""

SHARE_SECONDS = 15.0
"""How often the driver looks for nodes that came or went."""

WAITING_SECONDS = 20.0
"""How long nothing may run before a person is told what is waited for."""


@dataclass(slots=True, kw_only=True)
class Driver:
    """A run's state: every model is in ``todo``, in ``running`` or in ``reports``.

    ``submit`` starts a task; ``new_share`` looks at the cluster again; ``in_flight`` bounds the tasks
    submitted at a time, by default to twice what the cluster holds, so that nothing waits for the driver.
    """

    todo: deque[Try]
    catalog: Catalog
    spec: MeasurementSpec
    force: bool
    share: TaskShare
    new_share: Callable[[], TaskShare]
    submit: Callable[[Try], ray.ObjectRef]
    board: Any
    limits: TimeLimits
    progress: Callable[[ScreenProgress], None]
    log: RunLog
    in_flight: int | None = None
    stop_after_seconds: float | None = None
    running: dict[ray.ObjectRef, Try] = field(default_factory=dict)
    reports: dict[Candidate, TaskReport] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    last_end: float = 0.0
    shared_at: float = field(default_factory=time.monotonic)
    idle_since: float = field(default_factory=time.monotonic)
    total: int = 0
    notice: str = ""
    catalog_error: str = ""
    """Once the catalog cannot be written nothing is started: its measurements would be lost."""
    seen: BoardLook | None = None
    carried: dict[str, RunningModel] = field(default_factory=dict)
    carried_at: float = 0.0
    asked: ray.ObjectRef | None = None
    ended: dict[ray.ObjectRef, str] = field(default_factory=dict)
    """Tasks that were ended for being out of time, and why."""

    def to_the_end(self, summary: ScreenSummary) -> ScreenSummary:
        """Runs every model in ``todo``; returns ``summary`` with how they ended."""
        candidates = tuple(each.candidate for each in self.todo)
        self.total = len(candidates)
        interrupted = False
        try:
            while self.running or (self.todo and self._may_start()):
                self._fill()
                self._look()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            self._stop()
        reports = self.reports.values()
        return replace(
            summary,
            measured=tuple(report for report in reports if report.status == "measured"),
            failed=tuple(report for report in reports if report.status == "failed"),
            not_ended=tuple(candidate for candidate in candidates if candidate not in self.reports),
            interrupted=interrupted,
            out_of_time=not interrupted and self._is_out_of_time() and bool(self.todo),
            catalog_error=self.catalog_error,
            elapsed_seconds=time.monotonic() - self.started,
            where=self.share.text,
        )

    def _may_start(self) -> bool:
        return not self.catalog_error and not self._is_out_of_time()

    def _is_out_of_time(self) -> bool:
        limit = self.stop_after_seconds
        return limit is not None and time.monotonic() - self.started >= limit

    def _fill(self) -> None:
        """Submits what fits into the window, and nothing while the Hub asks everybody to wait."""
        window = self.in_flight or 2 * max(1, self.share.slots, min(self.share.most_slots, len(self.todo)))
        while self.todo and len(self.running) < window and self._may_start():
            if self.todo[0].candidate.format == "hub" and self._hub_wait_seconds() > 0:
                return
            each = self.todo.popleft()
            self.running[self.submit(each)] = each

    def _look(self) -> None:
        if self.running:
            done, _ = ray.wait(list(self.running), timeout=LOOK_SECONDS)
        else:  # everything waits for the Hub
            done = []
            time.sleep(LOOK_SECONDS)
        reports = [self._settle(ref) for ref in done] or [None]
        self._ask_board()
        self._end_late()
        self._renew_share()
        for report in reports:
            self.progress(self._progress(report))
            self.notice = ""

    def _settle(self, ref: ray.ObjectRef, *, retry: bool = True) -> TaskReport | None:
        """The report of an ended task; ``None`` when the model is tried again."""
        tried = self.running[ref]
        report: TaskReport | None
        try:
            report = ray.get(ref)
            if report.gpus_needed and (
                more := tried.with_gpus(report.gpus_needed, most=self.share.most_gpus)
            ):
                self._again(more, f"needs {more.gpus:g} GPUs to be loaded whole")
                report = None
        except ray.exceptions.RayTaskError as error:
            # The task itself raised: its arguments did not load there, or its rows were not written.
            if isinstance(error.cause, CatalogError):
                self.catalog_error = str(error.cause)
            report = self._fail(tried.candidate, reason="task_error", message=first_line(error.cause))
        except ray.exceptions.RayError as error:
            report = self._lost(tried, error, why=self.ended.pop(ref, None), retry=retry)
        del self.running[ref]
        self._forget(tried.candidate)
        if report is not None:
            self.reports[tried.candidate] = report
            self.last_end = time.monotonic()
        return report

    def _lost(
        self, tried: Try, error: ray.exceptions.RayError, *, why: str | None, retry: bool
    ) -> TaskReport | None:
        """The report of a model whose worker is gone; ``None`` when it is tried again."""
        if why is not None:
            return self._fail(tried.candidate, reason="out_of_time", message=why)
        kind, sentence = loss(error)
        if retry and (again := tried.after(kind)) is not None:
            self._again(again, f"{kind.replace('_', ' ')}, tried again")
            return None
        return self._fail(tried.candidate, reason=kind, message=sentence)

    def _again(self, tried: Try, what: str) -> None:
        self.todo.append(tried)
        self.notice = f"{tried.candidate.model_id}: {what}"
        self.log.warn(what, model=tried.candidate)

    def _fail(self, candidate: Candidate, *, reason: str, message: str) -> TaskReport:
        """Records a failure, unless the model's own task had committed before it was lost."""
        running = self._running(candidate)
        record = failure(candidate, spec=self.spec, reason=reason, message=message)
        if running is not None and reason == "out_of_time":
            record = replace(record, stage=running.stage)
        try:
            if not self.catalog.commit(record, force=self.force).written:
                recorded = self.catalog.settled(candidate, self.spec)
                if recorded is not None:
                    return TaskReport.of_recorded(candidate, recorded)
        except CatalogError as error:
            self.catalog_error = str(error)
            record = replace(record, reason="not_kept", message=str(error))
        return TaskReport.of(record, wall_seconds=running.model_seconds if running else 0.0)

    def _running(self, candidate: Candidate) -> RunningModel | None:
        return self.seen.running.get(candidate.stem) if self.seen else None

    def _forget(self, candidate: Candidate) -> None:
        """The next try of a model begins with a clock of its own."""
        self.board.leave.remote(candidate.stem)
        self.carried.pop(candidate.stem, None)
        if self.seen:
            self.seen = replace(
                self.seen, running={k: v for k, v in self.seen.running.items() if k != candidate.stem}
            )

    def _end_late(self) -> None:
        """Ends the tasks that are past their limits; they are settled when Ray says that they are gone."""
        for ref, tried in self.running.items():
            seen = self._running(tried.candidate)
            if seen is None or ref in self.ended:
                continue
            why = self.limits.exceeded(seen, weight_bytes=tried.candidate.weight_bytes)
            if why is not None:
                self.ended[ref] = why
                self.log.warn(f"ended: {why}", model=tried.candidate, stage=seen.stage)
                ray.cancel(ref, force=True)

    def _stop(self) -> None:
        """Keeps what has ended by now and ends the rest; there is nothing to do after a full run."""
        if not self.running:
            return
        done, open_ = ray.wait(list(self.running), num_returns=len(self.running), timeout=0)
        for ref in open_:
            ray.cancel(ref, force=True)
        for ref in done:
            with contextlib.suppress(ZooError):
                self._settle(ref, retry=False)

    def _ask_board(self) -> None:
        """Takes the answer to an earlier question, if it is there; never waits for one."""
        if self.asked is not None and ray.wait([self.asked], timeout=0)[0]:
            with contextlib.suppress(ray.exceptions.RayError):
                self._take(ray.get(self.asked))
            self.asked = None
        if self.asked is None:
            self.asked = self.board.look.remote()

    def _take(self, look: BoardLook) -> None:
        """A board that was lost with its node begins anew; the clocks of the models that run go on."""
        now = time.monotonic()
        if self.seen and look.born != self.seen.born:
            self.carried, self.carried_at = dict(self.seen.running), now
        running = {each.candidate.stem for each in self.running.values()}
        carried = {
            stem: its.later(now - self.carried_at) for stem, its in self.carried.items() if stem in running
        }
        self.seen = replace(look, running=carried | dict(look.running))

    def _renew_share(self) -> None:
        if time.monotonic() - self.shared_at >= SHARE_SECONDS:
            self.shared_at = time.monotonic()
            with contextlib.suppress(ZooError):  # its last node just left; another may come
                self.share = self.new_share()

    def _hub_wait_seconds(self) -> float:
        waits = self.seen.hub_waits if self.seen else {}
        return max((seconds for key, seconds in waits.items() if key.endswith(" resolvers")), default=0.0)

    def _progress(self, ended: TaskReport | None) -> ScreenProgress:
        seen = [(each.candidate, self._running(each.candidate)) for each in self.running.values()]
        running = tuple((each, its) for each, its in seen if its is not None)
        if running or ended:
            self.idle_since = time.monotonic()
        failed = sum(report.status == "failed" for report in self.reports.values())
        return ScreenProgress(
            total=self.total,
            measured=len(self.reports) - failed,
            failed=failed,
            running=tuple((each.model_id, stage_text(its)) for each, its in running),
            elapsed_seconds=time.monotonic() - self.started,
            remaining_seconds=remaining_seconds(
                done=self.reports,
                left=[each.candidate for each in (*self.running.values(), *self.todo)],
                ended_after_seconds=self.last_end - self.started,
                since_then_seconds=time.monotonic() - self.last_end,
            ),
            where=self.share.text,
            ended=ended,
            notice=self.notice or self._waits_for(),
            seen=self.seen,
        )

    def _waits_for(self) -> str:
        """What holds the run up, as far as that can be told."""
        if (seconds := self._hub_wait_seconds()) > 0:
            return f"the Hub's rate limit is used up; no model is started for {seconds:.0f} s"
        if self.running and time.monotonic() - self.idle_since > WAITING_SECONDS:
            return "waiting for the cluster to give the first model its share" if not self.reports else ""
        return ""
