"""Screens many models: one Ray task a model, each of which commits its own rows to the catalog."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Literal
from uuid import uuid4

from catalog.store import Catalog, Recorded
from zoo.autoscaler import ask_autoscaler, autoscaler_says, node_types
from zoo.board import ScreenRun
from zoo.driver import Driver
from zoo.logs import RunLog
from zoo.records import Candidate, MeasurementSpec, Refusal, RunOptions
from zoo.reports import ScreenProgress, ScreenSummary, TaskReport
from zoo.retries import Try
from zoo.shares import TaskShare, task_share
from zoo.tasks import (
    MeasureFunction,
    connected,
    cpu_task,
    gpu_task,
    measure_in_process,
    node_resources,
    ray,
    start_board,
)
from zoo.timelimits import TimeLimits
from zoo.watching import Watch


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
    limits: TimeLimits | None = None,
    stop_after_seconds: float | None = None,
    order: Literal["largest", "given"] = "largest",
    refusals: Sequence[Refusal] = (),
    progress: Callable[[ScreenProgress], None] = lambda _: None,
    measure: MeasureFunction = measure_in_process,
) -> ScreenSummary:
    """Measures what the catalog does not hold yet, and says how every model ended.

    Without ``address`` the running Ray is used (``RAY_ADDRESS``, or one started on this machine),
    else one is started for the time of the call. The largest models go first, so that none is left to
    run alone at the end, unless ``order`` is ``given``. ``in_flight`` bounds the tasks submitted at a
    time, by default to twice what the cluster can run; ``limits`` ends models that take too long, and
    past ``stop_after_seconds`` none is started. ``refusals`` are for those who watch the run. Ctrl-C
    stops what runs and returns a summary that says so; a catalog that cannot be written any more ends
    the run early, which the summary says too. Raises ``ClusterError`` when Ray cannot be reached or no
    node can ever serve a task, ``CatalogError`` when the catalog cannot be read.
    """
    todo, summary = plan(candidates, done={} if force else catalog.done(spec.spec_id))
    if not todo:
        return summary
    if order == "largest":
        todo.sort(key=lambda each: -(each.weight_bytes or 0))
    with connected(address):

        def new_share() -> TaskShare:
            return task_share(
                node_resources(),
                node_types=node_types(),
                grows=autoscaler_says() is not None,
                gpus_per_model=gpus_per_model,
                device=options.device,
            )

        share = new_share()
        if not share.slots and not node_types():
            ask_autoscaler(share)
        run_options = replace(options, device="cpu") if not share.gpus else options
        refused = Counter(refusal.reason for refusal in refusals)
        facts = _facts(len(todo), catalog=catalog, spec=spec, share=share, refused=refused)
        board, log = start_board(facts), RunLog(facts.run_id)
        watch = Watch(facts, board=board, log=log, progress=progress)
        how = {"catalog": catalog, "spec": spec, "force": force, "measure": measure, "log": log}

        def submit(each: Try) -> ray.ObjectRef:
            asked = {"name": each.candidate.model_id, "num_gpus": each.gpus, "num_cpus": each.cpus}
            gpus = {"gpus": each.gpus, "most_gpus": share.most_gpus if each.gpus else 0}
            task = gpu_task if each.gpus else cpu_task
            return task.options(**asked).remote(
                each.candidate, board=board, options=each.options, **gpus, **how
            )

        tries = [Try(candidate=each, gpus=share.gpus, cpus=share.cpus, options=run_options) for each in todo]
        driver = Driver(
            todo=deque(tries),
            catalog=catalog,
            spec=spec,
            force=force,
            share=share,
            new_share=new_share,
            submit=submit,
            board=board,
            limits=limits or TimeLimits(),
            progress=watch.hear,
            log=log,
            in_flight=in_flight,
            stop_after_seconds=stop_after_seconds,
        )
        try:
            return driver.to_the_end(summary)
        finally:
            watch.end()
            ray.kill(board)


def _facts(
    models: int, *, catalog: Catalog, spec: MeasurementSpec, share: TaskShare, refused: Mapping[str, int]
) -> ScreenRun:
    return ScreenRun(
        run_id=f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{uuid4().hex[:6]}",
        catalog_uri=catalog.uri,
        spec_id=spec.spec_id,
        models=models,
        where=share.text,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        refused=dict(refused),
    )


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
            failed.append(TaskReport.of_recorded(candidate, recorded))
    return todo, ScreenSummary(already_measured=tuple(measured), failed_before=tuple(failed))
