"""One model as a Ray task: the cluster it runs on, what it does there, what it says on the way."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from catalog.store import Catalog
from zoo.board import BOARD_NAMESPACE, Board, ScreenRun
from zoo.errors import CatalogError, ClusterError, NoClusterHereError, first_line
from zoo.hub_limits import PROCESS_LIMITS
from zoo.logs import RunLog, kept_loggers, log_encoding
from zoo.records import Candidate, Failure, MeasurementSpec, Outcome, RunOptions
from zoo.reports import TaskReport
from zoo.retries import Loss

# Ray reads these when it is imported: no usage statistics, no warning about tasks without a GPU, and
# none of its own words about lost workers on the standard output, where the ranking goes.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "^")
import ray
import ray._private.services
import ray._private.state
import ray._private.worker
import ray.core.generated.autoscaler_pb2
import ray.exceptions
from ray._private.authentication.authentication_token_setup import ensure_token_if_auth_enabled
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

MeasureFunction = Callable[..., Outcome]

KNOCK_SECONDS = 10.0
"""How long a cluster's address may take to answer."""

MODELS_A_PROCESS = 20
"""How many models one process measures on CPUs, before whatever it has gathered goes with it."""

COMMIT_PATIENCE_SECONDS = 600.0
"""How long a task holds a finished measurement whose catalog cannot be written."""


@contextlib.contextmanager
def connected(address: str | None, *, start: bool = True) -> Iterator[None]:
    """Ray for the time of a block; one that is connected already is used and left as it is.

    Without ``start`` none is started: it is for looking at one that runs. Raises ``ClusterError`` when
    there is no Ray at ``address``, when it asks for another token, or when none can be started here, and
    ``NoClusterHereError`` when one should run on this machine and none does. A handler of SIGTERM stays
    the one that it was.
    """
    if ray.is_initialized():
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS")
    if not address or address == "auto":
        address = _ray_here(start=start and not address)
    how = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
    if start and (encoding := log_encoding()):
        how |= {"logging_config": ray.LoggingConfig(encoding, additional_log_standard_attrs=["name"])}
    with kept_loggers():
        _connect(address, how)
        try:
            yield
        finally:
            ray.shutdown()


def _ray_here(*, start: bool) -> str:
    """The address of the Ray that runs on this machine, as Ray finds it; ``local``, to ``start`` one.

    Ray itself would take the one that ``ray start`` recorded for running, and try it for minutes after it
    was killed. Raises NoClusterHereError.
    """
    recorded: str | None = ray._private.services.find_bootstrap_address(None)
    with contextlib.suppress(OSError, ValueError):
        if recorded:
            _reach(recorded)
            return recorded
    if start:
        return "local"
    running: list[str] = sorted(ray._private.services.find_gcs_addresses())
    if not running:
        raise NoClusterHereError("no Ray runs on this machine; name a cluster's address with --address")
    return running[0]


def _reach(address: str) -> None:
    """Raises OSError when nobody listens at an address ``host:port``, ValueError when it is none."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), timeout=KNOCK_SECONDS).close()


def _connect(address: str, how: Mapping[str, Any]) -> None:
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        _knock(address)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(address=address, **how)
    except ray.exceptions.AuthenticationError as error:
        raise ClusterError(
            f"the Ray cluster at {address} was given no token or another than its own; set "
            "RAY_AUTH_MODE=token and put its token into ~/.ray/auth_token, or name the token's file in "
            "RAY_AUTH_TOKEN_PATH"
        ) from error
    except (OSError, RuntimeError, ValueError, ImportError, ray.exceptions.RayError) as error:
        raise ClusterError(_no_cluster(address, error)) from error
    if callable(on_sigterm) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, on_sigterm)


def _knock(address: str) -> None:
    """Raises at once where Ray itself would try on: ``OSError`` where nobody listens, for minutes, and
    ``AuthenticationError`` for the wrong token, for 20 s, after which it names no reason.
    """
    scheme, _, place = address.rpartition("://")
    _, colon, port = place.rpartition(":")
    if scheme.startswith("http"):
        raise ClusterError(
            f"{address} is the address of a job server, which takes whole runs: "
            f"ray job submit --address {address} --working-dir . -- python -m jobs.screen ..."
        )
    if colon and port.isdecimal():
        _reach(place)
        if not scheme:
            ensure_token_if_auth_enabled(create_token_if_missing=False)  # without one the next line aborts
            ray._raylet.GcsClient(address=place)


def node_resources() -> list[Mapping[str, float]]:
    """What every living node of the connected cluster offers, as Ray counts it."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def start_board(facts: ScreenRun) -> Any:
    """The run's board, on the driver's own node: workers' nodes come and go."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    actor = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Board)
    named = {"name": facts.run_id, "namespace": BOARD_NAMESPACE, "scheduling_strategy": here}
    return actor.options(**named).remote(facts)


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
    gpus: float = 0,
    most_gpus: float = 0,
) -> TaskReport:
    """What a task does, callable without Ray: measures one model, commits its rows, reports.

    What the catalog holds by now, written by an earlier try that was lost after its commit, is not
    measured again. A model that needs more than its ``gpus``, up to ``most_gpus``, is reported and
    leaves no row: it is about to be tried with them.
    """
    catalog.check_here()
    if not force and (recorded := catalog.settled(candidate, spec)) is not None:
        return TaskReport.of_recorded(candidate, recorded)
    started = time.monotonic()
    try:
        outcome = measure(candidate, spec=spec, options=options, on_stage=on_stage)
    except Exception as error:  # no fault of the model: a node without a library, a defect of zoo
        outcome = failure(candidate, spec=spec, reason="task_error", message=first_line(error))
    report = TaskReport.of(outcome, wall_seconds=time.monotonic() - started)
    if not gpus < report.gpus_needed <= most_gpus:
        on_stage("commit")
        commit_patiently(catalog, outcome, force=force)
    return report


def commit_patiently(
    catalog: Catalog, outcome: Outcome, *, force: bool, patience_seconds: float = COMMIT_PATIENCE_SECONDS
) -> None:
    """Commits an outcome that may have cost an hour; a store that fails is asked again after 1, 2, 4, ... s.

    Raises CatalogError when it still fails after ``patience_seconds``.
    """
    give_up, wait = time.monotonic() + patience_seconds, 1.0
    while True:
        try:
            catalog.commit(outcome, force=force)
            return
        except CatalogError:
            if time.monotonic() + wait > give_up:
                raise
        time.sleep(wait)
        wait = min(2 * wait, 60.0)


def run_task(candidate: Candidate, *, board: Any, log: RunLog, **how: Any) -> TaskReport:
    """One model: what ``measure_and_commit`` does, with its stages on the board and in the log."""
    board.start.remote(candidate.stem, candidate.model_id)
    share_hub_limits(board)

    def on_stage(stage: str, *fetched: int) -> None:
        board.enter.remote(candidate.stem, stage, *fetched)
        if not fetched:
            log.say(f"{stage} begins", model=candidate, stage=stage)

    report = measure_and_commit(candidate, on_stage=on_stage, **how)
    log.ended(report)
    return report


# A fresh process for every model with a GPU: only its end frees all of the GPU's memory. On CPUs a process
# serves several, since its imports take longer than a small model. The driver counts the retries.
gpu_task = ray.remote(max_calls=1, max_retries=0)(run_task)
cpu_task = ray.remote(max_calls=MODELS_A_PROCESS, max_retries=0)(run_task)


def share_hub_limits(board: Any) -> None:
    """A rate limit of the Hub that one process meets is waited for by all tasks of the board."""

    def ask() -> Mapping[str, float]:
        try:
            return ray.get(board.hub_waits.remote(), timeout=KNOCK_SECONDS)
        except (ray.exceptions.RayError, TimeoutError):
            return {}

    PROCESS_LIMITS.share(tell=board.close_hub.remote, ask=ask)


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


def loss(error: ray.exceptions.RayError) -> tuple[Loss, str]:
    """How a worker was lost, and that for a user."""
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return (
            "out_of_memory",
            "its machine ran out of memory with the smallest batch too; use a node with more, or give fewer "
            "models a node",
        )
    if isinstance(error, ray.exceptions.NodeDiedError):
        return "node_lost", "the node that ran this model was lost"
    if isinstance(error, ray.exceptions.WorkerCrashedError):
        return "worker_lost", "the worker process died: a crash in native code, or ended by the system"
    return "worker_lost", f"the task was lost ({first_line(error)})"


def _no_cluster(address: str, error: BaseException) -> str:
    if address != "local":
        return (
            f"no Ray cluster answers at {address} ({first_line(error)}); "
            "check the address, or leave it out to run on this machine"
        )
    return f"Ray did not start ({first_line(error)}); try 'ray stop' first, or --address local"
