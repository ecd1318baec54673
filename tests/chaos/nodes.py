"""Several Ray nodes on this machine: added, removed, and their processes found."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import psutil
import ray._private.ray_constants
from ray.cluster_utils import Cluster

OBJECT_STORE_BYTES = 80 << 20
PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """From now on every process below this one stays below it, even when its parent is killed."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "this kernel has no child subreaper")


def processes_left(*, seconds: float) -> list[str]:
    """The processes below this one that do not end by themselves within so long."""
    give_up = time.monotonic() + seconds
    while living := [each for each in psutil.Process().children(recursive=True) if is_running(each)]:
        if time.monotonic() > give_up:
            return [f"{each.pid} {_title(each)[:80]}" for each in living]
        time.sleep(0.2)
    return []


def is_running(process: psutil.Process) -> bool:
    """Whether it still runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Nodes:
    """A head without CPUs, which is never a victim, and workers with one logical CPU each."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.cluster = Cluster(
            initialize_head=True,
            shutdown_at_exit=False,
            head_node_args={
                "num_cpus": 0,
                "include_dashboard": False,
                "object_store_memory": OBJECT_STORE_BYTES,
            },
        )
        for _ in range(count):
            self.add()
        self._due: list[float] = []

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    @property
    def workers(self) -> list[Any]:
        return sorted(self.cluster.worker_nodes, key=lambda node: node.unique_id)

    def add(self) -> None:
        self.cluster.add_node(num_cpus=1, object_store_memory=OBJECT_STORE_BYTES)

    def replace_later(self, seconds: float) -> None:
        """As a cloud does: another node comes a while after one was lost."""
        self._due.append(time.monotonic() + seconds)

    def add_due(self) -> int:
        """Adds the nodes that are due; returns how many."""
        due = [at for at in self._due if at <= time.monotonic()]
        self._due = [at for at in self._due if at not in due]
        for _ in due:
            self.add()
        return len(due)

    def remove(self, node: Any, *, gracefully: bool) -> None:
        self.cluster.remove_node(node, allow_graceful=gracefully)

    def raylet(self, node: Any) -> psutil.Process:
        (info,) = node.all_processes[ray._private.ray_constants.PROCESS_TYPE_RAYLET]
        return psutil.Process(info.process.pid)

    def tasks(self) -> list[psutil.Process]:
        """The worker processes that run a model now."""
        return self._workers_named(self.workers, lambda title: title.startswith("ray::tiny/"))

    def boards(self) -> list[psutil.Process]:
        """The actor that the tasks of a run share, on the head or, where Ray likes it better, elsewhere."""
        return self._workers_named(
            [self.cluster.head_node, *self.workers], lambda title: title.startswith("ray::Board")
        )

    def _workers_named(self, nodes: list[Any], fits: Callable[[str], bool]) -> list[psutil.Process]:
        found = []
        for node in nodes:
            try:
                children = self.raylet(node).children()
            except psutil.NoSuchProcess:
                continue
            found += [each for each in children if fits(_title(each)) and is_running(each)]
        return sorted(found, key=lambda each: each.pid)

    def shutdown(self) -> None:
        for node in self.workers:
            self.remove(node, gracefully=True)
        self.cluster.remove_node(self.cluster.head_node)


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""
