"""The hardware one model gets: a cluster's nodes and the user's wishes become the share of a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zoo.errors import ClusterError

MAX_CPUS_PER_MODEL = 8
"""More threads than this do not make one small model's forward passes faster."""

UNKNOWN_NODES = 16
"""How many models are asked for at a time of a cluster whose nodes have yet to come."""

Resources = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeType:
    """A kind of node that the cluster's autoscaler may add, and how many of them it may have."""

    resources: Resources
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskShare:
    """What every task asks Ray for, and how many such tasks the cluster holds at a time.

    ``slots`` counts the nodes that are there, ``most_slots`` those too that an autoscaler may add;
    ``most_gpus`` is the largest number of GPUs of one node.
    """

    gpus: float
    cpus: int
    slots: int
    most_slots: int
    most_gpus: float = 0

    @property
    def needs(self) -> str:
        """What one model gets, such as ``1 GPU and 4 CPUs``."""
        parts = [_count(self.gpus, "GPU")] * (self.gpus > 0) + [_count(self.cpus, "CPU")] * (self.cpus > 0)
        return " and ".join(parts)

    @property
    def text(self) -> str:
        """The share in words, such as ``1 GPU and 4 CPUs a model, 2 models at a time``."""
        at_a_time = f"{_count(self.slots, 'model')} at a time"
        if self.most_slots > self.slots:
            at_a_time += f" now and {self.most_slots} once the cluster has grown"
        return f"{self.needs} a model, {at_a_time}" + (", no GPU" if not self.gpus else "")


def task_share(
    nodes: Sequence[Resources],
    *,
    node_types: Sequence[NodeType] = (),
    grows: bool = False,
    gpus_per_model: float | None = None,
    device: str = "auto",
) -> TaskShare:
    """The share of every task on these nodes (resources by name, as Ray counts them).

    ``node_types`` are what an autoscaler may add: a share that only they can serve is waited for. Of one
    that ``grows`` and does not say by what, a share that no node serves is asked for, with one CPU.
    Without ``gpus_per_model`` a model gets one GPU where the cluster has any and ``device`` is not
    the CPU, else CPUs alone. Raises ``ClusterError`` for a share that no node can ever serve, which
    Ray itself would wait for without end.
    """
    kinds = [*nodes, *(kind.resources for kind in node_types if kind.most > 0)]
    most_gpus = max((kind.get("GPU", 0) for kind in kinds), default=0)
    unknown = grows and not node_types
    gpus = _wanted_gpus(gpus_per_model, device=device, most_gpus=max(most_gpus, unknown))
    if unknown and not any(kind.get("GPU", 0) >= gpus and kind.get("CPU", 0) >= 1 for kind in kinds):
        return TaskShare(gpus=gpus, cpus=1, slots=0, most_slots=UNKNOWN_NODES, most_gpus=gpus)
    if gpus > most_gpus:
        raise ClusterError(_too_many_gpus(gpus, nodes=nodes, node_types=node_types, most_gpus=most_gpus))
    cpus = _cpus(kinds, gpus=gpus)
    slots = sum(_models(node, gpus=gpus, cpus=cpus) for node in nodes)
    grown = sum(kind.most * _models(kind.resources, gpus=gpus, cpus=cpus) for kind in node_types)
    return TaskShare(gpus=gpus, cpus=cpus, slots=slots, most_slots=max(slots, grown), most_gpus=most_gpus)


def _wanted_gpus(gpus_per_model: float | None, *, device: str, most_gpus: float) -> float:
    if gpus_per_model is None:
        return float(device.startswith("cuda") or (device == "auto" and most_gpus > 0))
    if not 0 <= gpus_per_model < float("inf") or (gpus_per_model > 1 and gpus_per_model % 1):
        raise ClusterError(
            f"--gpus-per-model {gpus_per_model:g} cannot be served; "
            "give a fraction up to 1, a whole number, or 0 for CPUs"
        )
    if gpus_per_model == 0 and device.startswith("cuda"):
        raise ClusterError(
            f"--device {device} needs a GPU and --gpus-per-model 0 takes none; drop one of them"
        )
    if gpus_per_model > 0 and device == "cpu":
        raise ClusterError(
            f"--device cpu uses no GPU and --gpus-per-model {gpus_per_model:g} takes some; drop one of them"
        )
    return gpus_per_model


def _cpus(kinds: Sequence[Resources], *, gpus: float) -> int:
    """The CPUs of a model: its fair part of a node, the smallest part that any kind of node offers."""
    if gpus:
        serving = [kind for kind in kinds if kind.get("GPU", 0) >= gpus]
        fair = [int(kind.get("CPU", 0)) // _models(kind, gpus=gpus, cpus=0) for kind in serving]
    else:
        fair = [int(kind["CPU"]) for kind in kinds if kind.get("CPU", 0) >= 1]
    if not fair:
        raise ClusterError("this Ray cluster has no CPUs for tasks; add a node, or leave --address out")
    return min(MAX_CPUS_PER_MODEL, *fair)


def _models(node: Resources, *, gpus: float, cpus: int) -> int:
    """How many models a node holds at a time."""
    if gpus:
        return int(node.get("GPU", 0) / gpus + 1e-9)
    return int(node.get("CPU", 0)) // cpus


def _too_many_gpus(
    gpus: float, *, nodes: Sequence[Resources], node_types: Sequence[NodeType], most_gpus: float
) -> str:
    has = f"this cluster has {_count(len(nodes), 'node')}"
    if node_types:
        has += f" and may add {_count(len(node_types), 'kind')} of them,"
    if most_gpus == 0:
        cpus = sum(int(node.get("CPU", 0)) for node in nodes)
        return (
            f"a model was to get {_count(gpus, 'GPU')}, but {has} with {_count(cpus, 'CPU')} and no GPU; "
            "leave --gpus-per-model and --device out to measure on CPUs"
        )
    return (
        f"--gpus-per-model {gpus:g} fits on no node: {has} with at most {_count(most_gpus, 'GPU')} each; "
        f"ask for {most_gpus:g} or less"
    )


def _count(number: float, noun: str) -> str:
    return f"{number:g} {noun}" + ("" if number == 1 or 0 < number < 1 else "s")
