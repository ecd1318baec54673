"""Screens many models: one Ray task a model, each of which commits its own rows to the catalog."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from catalog.store import Catalog, Recorded
from zoo.errors import ZooError, first_line
from zoo.records import Candidate, MeasurementSpec, RunOptions
from zoo.reports import ScreenProgress, ScreenSummary, TaskReport
from zoo.shares import task_share
from zoo.tasks import (
    MeasureFunction,
    connected,
    failure,
    loss,
    measure_in_process,
    node_resources,
    ray,
    stage_board,
    task,
)

ATTEMPTS = 2
"""How often a model is tried whose worker process dies."""

LOOK_SECONDS = 0.5
"""How long the driver waits between two looks at its tasks."""


def screen(
    candidates: Sequence[Candidate],
    *,
    catalog: Catalog,
    spec: MeasurementSpec,
    options: RunOptions,
    address: str | None = None,
    gpus_per_model: float | None = None,
    force: bool = False,
    in_flight: int | None = None,
    progress: Callable[[ScreenProgress], None] = lambda _: None,
    measure: MeasureFunction = measure_in_process,
) -> ScreenSummary:
    """Measures what the catalog does not hold yet, and says how every model ended.

    Without ``address`` the running Ray is used (``RAY_ADDRESS``, or one started on this machine),
    else one is started for the time of the call. ``in_flight`` bounds the tasks submitted at a
    time, by default to twice what the cluster can run. Ctrl-C stops what runs and returns a
    summary that says so. Raises ``ClusterError`` when Ray cannot be reached or no node can ever
    serve a task, ``CatalogError`` when a row cannot be written.
    """
    todo, summary = plan(candidates, done={} if force else catalog.done(spec.spec_id))
    if not todo:
        return summary
    with connected(address):
        share = task_share(node_resources(), gpus_per_model=gpus_per_model, device=options.device)
        if not share.gpus and options.device == "auto":
            options = replace(options, device="cpu")
        shared = {"num_gpus": share.gpus, "num_cpus": share.cpus}
        stages = stage_board.remote()
        how = {"catalog": catalog, "spec": spec, "options": options, "force": force, "measure": measure}
        run = _Run(
            todo=deque(todo),
            total=len(todo),
            catalog=catalog,
            spec=spec,
            force=force,
            window=in_flight or 2 * share.slots,
            where=share.text,
            progress=progress,
            submit=lambda each: task.options(name=each.model_id, **shared).remote(each, stages=stages, **how),
            stages=stages,
        )
        return run.to_the_end(summary)


def plan(
    candidates: Sequence[Candidate], *, done: Mapping[tuple[str, str], Recorded]
) -> tuple[list[Candidate], ScreenSummary]:
    """The candidates to measure, in their order, and a summary of those that ``done`` settles.

    ``done`` holds the attempt that counts by (model_id, revision). A transient failure settles nothing.
    """
    unique = {(each.model_id, each.revision): each for each in candidates}
    todo, measured, failed = [], [], []
    for key, candidate in unique.items():
        recorded = done.get(key)
        if recorded is None or recorded.transient:
            todo.append(candidate)
        elif recorded.status == "measured":
            measured.append(candidate)
        else:
            failed.append(
                TaskReport(
                    model_id=candidate.model_id,
                    revision=candidate.revision,
                    status="failed",
                    stage=recorded.stage or "",
                    reason=recorded.reason or "",
                )
            )
    return todo, ScreenSummary(already_measured=tuple(measured), failed_before=tuple(failed))


@dataclass(slots=True, kw_only=True)
class _Run:
    """The driver's state while tasks run: every model is in ``todo``, in ``running`` or in ``reports``."""

    todo: deque[Candidate]
    total: int
    catalog: Catalog
    spec: MeasurementSpec
    force: bool
    window: int
    where: str
    progress: Callable[[ScreenProgress], None]
    submit: Callable[[Candidate], ray.ObjectRef]
    stages: Any
    running: dict[ray.ObjectRef, Candidate] = field(default_factory=dict)
    reports: dict[Candidate, TaskReport] = field(default_factory=dict)
    losses: dict[Candidate, int] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    last_end: float = 0.0
    stage_by_stem: dict[str, str] = field(default_factory=dict)
    asked_stages: ray.ObjectRef | None = None

    def to_the_end(self, summary: ScreenSummary) -> ScreenSummary:
        """Runs every model in ``todo``; returns ``summary`` with how they ended."""
        candidates = tuple(self.todo)
        interrupted = False
        try:
            while self.todo or self.running:
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
            elapsed_seconds=time.monotonic() - self.started,
            where=self.where,
        )

    def _fill(self) -> None:
        while self.todo and len(self.running) < self.window:
            candidate = self.todo.popleft()
            self.running[self.submit(candidate)] = candidate

    def _look(self) -> None:
        ended, _ = ray.wait(list(self.running), timeout=LOOK_SECONDS)
        reports = [self._settle(ref) for ref in ended] or [None]
        self._ask_stages()
        for report in reports:
            self.progress(self._seen(report))

    def _settle(self, ref: ray.ObjectRef, *, retry: bool = True) -> TaskReport | None:
        """The report of an ended task; ``None`` when its worker died and the model is tried again."""
        candidate = self.running[ref]
        try:
            report = ray.get(ref)
        except ray.exceptions.RayTaskError as error:
            # The task itself raised: its arguments did not load there, or its rows were not written.
            report = self._fail(candidate, reason="task_error", message=first_line(error.cause))
        except ray.exceptions.RayError as error:
            losses = self.losses[candidate] = self.losses.get(candidate, 0) + 1
            if losses < ATTEMPTS and retry:
                self.todo.append(candidate)
                del self.running[ref]
                return None
            report = self._fail(candidate, reason="worker_lost", message=loss(error))
        self.reports[candidate] = report
        self.last_end = time.monotonic()
        del self.running[ref]
        return report

    def _fail(self, candidate: Candidate, *, reason: str, message: str) -> TaskReport:
        record = failure(candidate, spec=self.spec, reason=reason, message=message)
        self.catalog.commit(record, force=self.force)
        return TaskReport.of(record, wall_seconds=0.0)

    def _stop(self) -> None:
        """Keeps what has ended by now and ends the rest; there is nothing to do after a full run."""
        if not self.running:
            return
        ended, open_ = ray.wait(list(self.running), num_returns=len(self.running), timeout=0)
        for ref in open_:
            ray.cancel(ref, force=True)
        for ref in ended:
            with contextlib.suppress(ZooError):
                self._settle(ref, retry=False)

    def _ask_stages(self) -> None:
        """Takes the answer to an earlier question, if it is there; never waits for one."""
        if self.asked_stages is None:
            self.asked_stages = self.stages.all.remote()
        elif ray.wait([self.asked_stages], timeout=0)[0]:
            with contextlib.suppress(ray.exceptions.RayError):
                self.stage_by_stem = ray.get(self.asked_stages)
            self.asked_stages = self.stages.all.remote()

    def _seen(self, ended: TaskReport | None) -> ScreenProgress:
        running = [(each, self.stage_by_stem.get(each.stem)) for each in self.running.values()]
        failed = sum(report.status == "failed" for report in self.reports.values())
        return ScreenProgress(
            total=self.total,
            measured=len(self.reports) - failed,
            failed=failed,
            running=tuple((each.model_id, stage) for each, stage in running if stage),
            elapsed_seconds=time.monotonic() - self.started,
            remaining_seconds=self._remaining_seconds(),
            where=self.where,
            ended=ended,
        )

    def _remaining_seconds(self) -> float | None:
        """What is left at the pace so far, a model costing a constant and its bytes."""
        done = sum(map(_work, self.reports))
        if not done:
            return None
        left = sum(map(_work, self.running.values())) + sum(map(_work, self.todo))
        seconds = (self.last_end - self.started) * left / done - (time.monotonic() - self.last_end)
        return max(0.0, seconds)


def _work(candidate: Candidate) -> float:
    """What a model costs, in bytes: what it weighs, and as much as starting a worker lasts."""
    return 1e9 + (candidate.weight_bytes or 0)
