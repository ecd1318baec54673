"""One model as a Ray task: the cluster it runs on, what it does there, what it says on the way."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from catalog.store import Catalog
from zoo.errors import ClusterError, first_line
from zoo.records import Candidate, Failure, MeasurementSpec, Outcome, RunOptions
from zoo.reports import TaskReport

# Ray reads these when it is imported: no usage statistics, no warning about tasks without a GPU, and
# none of its own words about lost workers on the standard output, where the ranking goes.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "^")
import ray
import ray.exceptions

MeasureFunction = Callable[..., Outcome]

KNOCK_SECONDS = 10.0
"""How long a cluster's address may take to answer."""


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Ray for the time of a block; one that is connected already is used and left as it is.

    Raises ``ClusterError`` when there is no Ray at ``address``, or none can be started here.
    """
    if ray.is_initialized():
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS")
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
    try:
        _knock(address)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(address=address, **quiet)
    except (OSError, RuntimeError, ValueError, ImportError, ray.exceptions.RayError) as error:
        raise ClusterError(_no_cluster(address, error)) from error
    try:
        yield
    finally:
        ray.shutdown()


def _knock(address: str | None) -> None:
    """Raises ``OSError`` where nobody listens, for which Ray itself would try for minutes."""
    host, colon, port = (address or "").rpartition("://")[2].rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=KNOCK_SECONDS).close()


def node_resources() -> list[Mapping[str, float]]:
    """What every living node of the connected cluster offers, as Ray counts it."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def measure_in_process(candidate: Candidate, **how: Any) -> Outcome:
    """``zoo.measure.measure``, imported where the model runs: the driver needs no torch."""
    from zoo.measure import measure

    return measure(candidate, **how)


def measure_and_commit(
    candidate: Candidate,
    *,
    catalog: Catalog,
    spec: MeasurementSpec,
    options: RunOptions,
    force: bool = False,
    measure: MeasureFunction = measure_in_process,
    on_stage: Callable[..., None] = lambda *_: None,
) -> TaskReport:
    """What a task does, callable without Ray: measures one model, commits its rows, reports."""
    started = time.monotonic()
    try:
        outcome = measure(candidate, spec=spec, options=options, on_stage=on_stage)
    except Exception as error:  # no fault of the model: a node without a library, a defect of zoo
        outcome = failure(candidate, spec=spec, reason="task_error", message=first_line(error))
    on_stage("commit")
    catalog.commit(outcome, force=force)
    return TaskReport.of(outcome, wall_seconds=time.monotonic() - started)


@ray.remote(max_calls=1, max_retries=0)  # a fresh process a model; the driver counts the retries
def task(candidate: Candidate, *, stages: Any, **how: Any) -> TaskReport:
    started = time.monotonic()

    def on_stage(stage: str, *fetched: int) -> None:
        text = f" {bytes_text(*fetched, seconds=time.monotonic() - started)}" if fetched else ""
        stages.enter.remote(candidate.stem, f"{stage}{text}")

    on_stage("start")
    return measure_and_commit(candidate, on_stage=on_stage, **how)


def bytes_text(fetched: int, planned: int, *, seconds: float) -> str:
    """How far a model's weights are, and their rate since it began."""
    return f"{fetched / 1e6:,.0f} of {planned / 1e6:,.0f} MB, {fetched / 1e6 / max(seconds, 1e-3):,.0f} MB/s"


class Stages:
    """Knows which stage every started model is in, by the candidate's stem."""

    def __init__(self) -> None:
        self._stage_by_stem: dict[str, str] = {}

    def enter(self, stem: str, stage: str) -> None:
        self._stage_by_stem[stem] = stage

    def all(self) -> dict[str, str]:
        return self._stage_by_stem


stage_board = ray.remote(num_cpus=0)(Stages)


def failure(candidate: Candidate, *, spec: MeasurementSpec, reason: str, message: str) -> Failure:
    """The transient failure of a model that ended outside of its measurement."""
    return Failure(
        candidate=candidate,
        spec=spec,
        stage="task",
        reason=reason,
        message=message,
        transient=True,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def loss(error: ray.exceptions.RayError) -> str:
    """Why a worker was lost, for a user."""
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return "the machine ran out of memory and Ray ended the worker; use a node with more memory"
    if isinstance(error, ray.exceptions.NodeDiedError):
        return "the node that ran this model was lost"
    if isinstance(error, ray.exceptions.WorkerCrashedError):
        return "the worker process died: a crash in native code, or ended by the system for memory"
    return f"the task was lost ({first_line(error)})"


def _no_cluster(address: str | None, error: BaseException) -> str:
    if address and address != "local":
        return (
            f"no Ray cluster answers at {address} ({first_line(error)}); "
            "check the address, or leave it out to run on this machine"
        )
    return f"Ray did not start ({first_line(error)}); try 'ray stop' first, or --address local"
