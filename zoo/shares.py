"""The hardware one model gets: a cluster's nodes and the user's wishes become the share of a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zoo.errors import ClusterError

MAX_CPUS_PER_MODEL = 8
"""More threads than this do not make one small model's forward passes faster."""

Resources = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskShare:
    """What every task asks Ray for, and how many such tasks the cluster holds at a time."""

    gpus: float
    cpus: int
    slots: int

    @property
    def text(self) -> str:
        """The share in words, such as ``1 GPU and 4 CPUs a model, 2 models at a time``."""
        parts = [_count(self.gpus, "GPU")] * (self.gpus > 0) + [_count(self.cpus, "CPU")] * (self.cpus > 0)
        at_a_time = f"{_count(self.slots, 'model')} at a time"
        return f"{' and '.join(parts)} a model, {at_a_time}" + (", no GPU" if not self.gpus else "")


def task_share(
    nodes: Sequence[Resources], *, gpus_per_model: float | None = None, device: str = "auto"
) -> TaskShare:
    """The share of every task on these nodes (resources by name, as Ray counts them).

    Without ``gpus_per_model`` a model gets one GPU where the cluster has any and ``device`` is not
    the CPU, else CPUs alone. Raises ``ClusterError`` for a share that no node can ever serve, which
    Ray itself would wait for without end.
    """
    most_gpus = max((node.get("GPU", 0) for node in nodes), default=0)
    gpus = _wanted_gpus(gpus_per_model, device=device, most_gpus=most_gpus)
    if gpus > most_gpus:
        raise ClusterError(_too_many_gpus(gpus, nodes=nodes, most_gpus=most_gpus))
    if gpus:
        return _gpu_share([node for node in nodes if node.get("GPU", 0) >= gpus], gpus=gpus)
    cpu_counts = [int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1]
    if not cpu_counts:
        raise ClusterError("this Ray cluster has no CPUs for tasks; add a node, or leave --address out")
    cpus = min(MAX_CPUS_PER_MODEL, *cpu_counts)
    return TaskShare(gpus=0, cpus=cpus, slots=sum(count // cpus for count in cpu_counts))


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


def _gpu_share(nodes: Sequence[Resources], *, gpus: float) -> TaskShare:
    """One GPU share with its fair part of the node's CPUs, the smallest part that any node offers."""
    models = [int(node["GPU"] / gpus + 1e-9) for node in nodes]
    cpus = min(int(node.get("CPU", 0)) // count for node, count in zip(nodes, models, strict=True))
    return TaskShare(gpus=gpus, cpus=min(MAX_CPUS_PER_MODEL, cpus), slots=sum(models))


def _too_many_gpus(gpus: float, *, nodes: Sequence[Resources], most_gpus: float) -> str:
    has = f"this cluster has {_count(len(nodes), 'node')}"
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
