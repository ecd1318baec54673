"""What runs on a Ray cluster and how far it is: from the runs' boards, Ray's own state and the catalog."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from catalog.query import connect, run_query
from catalog.store import Catalog
from zoo.board import BOARD_NAMESPACE, BoardLook
from zoo.errors import ClusterError, NoClusterHereError, first_line
from zoo.tasks import connected, ray, run_task

ANSWER_SECONDS = 10.0
"""How long a board and Ray's state API may take to answer."""

MOST_TASKS = 10_000
"""The most tasks that Ray's state API tells of."""

_ENDED = """
SELECT status, reason, count(*) FROM outcomes WHERE counts AND spec_id = ? GROUP BY ALL ORDER BY 3 DESC, 2
"""
_LAST = """
SELECT model_id, status, stage, reason, sink_strength, finished_at FROM outcomes
WHERE spec_id = ? ORDER BY finished_at DESC NULLS LAST, model_id LIMIT 1
"""
_REFUSED = """
SELECT reason, count(*) FROM (
    SELECT verdict, reason FROM models
    QUALIFY row_number() OVER (PARTITION BY model_id ORDER BY scanned_at DESC) = 1
) WHERE verdict = 'refused' GROUP BY reason ORDER BY 2 DESC, 1
"""
_LATEST_SPEC = "SELECT spec_id FROM outcomes ORDER BY finished_at DESC NULLS LAST LIMIT 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLook:
    """One look at a cluster: living nodes, what of their CPUs and GPUs is in use, and zoo's tasks."""

    address: str
    nodes: int
    cpus_used: float
    cpus: float
    gpus_used: float
    gpus: float
    tasks: Mapping[str, int] | None
    """``running`` and ``waiting``; ``None`` where Ray's state API does not answer."""
    runs: tuple[BoardLook, ...]
    silent_runs: tuple[str, ...] = ()
    """The ids of runs whose board did not answer in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastEnded:
    """The attempt that ended last. ``sink_strength`` in nats, ``None`` for a failure."""

    model_id: str
    status: str
    stage: str | None
    reason: str | None
    sink_strength: float | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogLook:
    """What a catalog holds under one spec, and the repositories that were refused when last looked at."""

    uri: str
    spec_id: str | None
    measured: int = 0
    failed: Mapping[str, int] = field(default_factory=dict)
    """By reason."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """By reason, whatever the spec."""
    last: LastEnded | None = None


@contextlib.contextmanager
def running_cluster(address: str | None) -> Iterator[str | None]:
    """A connection to a running Ray for the time of a block; yields why there is none, or ``None``.

    Raises ClusterError when an address was given, by name or in ``RAY_ADDRESS``, and none answers there.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(connected(address, start=False))
        except ClusterError as error:
            if address or os.environ.get("RAY_ADDRESS"):
                raise
            if isinstance(error, NoClusterHereError):
                why: str | None = "none runs here"
            elif isinstance(error.__cause__, ConnectionError):
                why = first_line(error.__cause__)
            else:
                raise
        else:
            why = None
        yield why


def cluster_look() -> ClusterLook:
    """The connected cluster and all runs on it."""
    total, free = ray.cluster_resources(), ray.available_resources()
    address = ray.get_runtime_context().gcs_address
    asked = {name: _board(name) for name in _run_ids()}
    looks = {name: _answer(ref) for name, ref in asked.items() if ref is not None}
    return ClusterLook(
        address=address,
        nodes=sum(node["Alive"] for node in ray.nodes()),
        cpus=total.get("CPU", 0),
        cpus_used=total.get("CPU", 0) - free.get("CPU", 0),
        gpus=total.get("GPU", 0),
        gpus_used=total.get("GPU", 0) - free.get("GPU", 0),
        tasks=_tasks(address),
        runs=tuple(look for look in looks.values() if look is not None),
        silent_runs=tuple(name for name, look in looks.items() if look is None),
    )


def catalog_look(catalog: Catalog, *, spec_id: str | None = None) -> CatalogLook:
    """The counts of one spec, by default of the one whose attempt ended last. Raises CatalogError."""
    connection = connect(catalog)

    def rows(sql: str, *parameters: object) -> tuple[tuple[Any, ...], ...]:
        return run_query(catalog, sql, parameters=parameters, connection=connection).rows

    refused = dict(rows(_REFUSED))
    if spec_id is None:
        if not (latest := rows(_LATEST_SPEC)):
            return CatalogLook(uri=catalog.uri, spec_id=None, refused=refused)
        ((spec_id,),) = latest
    ended, last = rows(_ENDED, spec_id), rows(_LAST, spec_id)
    return CatalogLook(
        uri=catalog.uri,
        spec_id=spec_id,
        measured=sum(count for status, _, count in ended if status == "measured"),
        failed={reason: count for status, reason, count in ended if status != "measured"},
        refused=refused,
        last=LastEnded(**dict(zip(LastEnded.__slots__, last[0], strict=True))) if last else None,
    )


def _run_ids() -> list[str]:
    from ray.util import list_named_actors

    named = list_named_actors(all_namespaces=True)
    return sorted(each["name"] for each in named if each["namespace"] == BOARD_NAMESPACE)


def _board(run_id: str) -> Any:
    """What the board of a run is about to answer; ``None`` when the run has just ended."""
    try:
        return ray.get_actor(run_id, namespace=BOARD_NAMESPACE).look.remote()
    except ValueError:
        return None


def _answer(ref: Any) -> BoardLook | None:
    try:
        look: BoardLook = ray.get(ref, timeout=ANSWER_SECONDS)
    except (ray.exceptions.RayError, TimeoutError):
        return None
    return look


def _tasks(address: str) -> Mapping[str, int] | None:
    """zoo's tasks that have not ended, from Ray's state API, which the dashboard serves.

    Where a cluster has no dashboard, another cluster's may listen at its address: its nodes give it away.
    """
    from ray.util import state

    how = {"address": address, "limit": MOST_TASKS, "timeout": round(ANSWER_SECONDS)}
    how |= {"raise_on_missing_output": False}
    is_open = [("state", "!=", "FINISHED"), ("state", "!=", "FAILED"), ("type", "=", "NORMAL_TASK")]
    try:
        nodes = {node.node_id for node in state.list_nodes(**how)}
        found = state.list_tasks(filters=[*is_open, ("func_or_class_name", "=", run_task.__name__)], **how)
    except (state.exception.RayStateApiException, OSError, ValueError, RuntimeError):
        return None
    if nodes.isdisjoint(node["NodeID"] for node in ray.nodes()):
        return None
    counts = Counter("running" if each.state.startswith("RUNNING") else "waiting" for each in found)
    return {"running": counts["running"], "waiting": counts["waiting"]}
