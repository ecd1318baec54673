"""What a cluster's autoscaler may still add: read where it is published, asked for where it is not."""

from __future__ import annotations

import time
from typing import Any

from zoo.errors import ClusterError
from zoo.shares import NodeType, TaskShare
from zoo.tasks import KNOCK_SECONDS, ray

MANY_NODES = 10_000
"""Stands for as many nodes as an autoscaler likes."""

VERDICT_SECONDS = 30.0
"""How long an autoscaler may take to say that none of its nodes can ever serve a share."""


def node_types() -> list[NodeType]:
    """The kinds of nodes that the autoscaler may add, where it publishes them; Ray's own does not."""
    config = ray._private.state.state.get_cluster_config()
    groups = config.node_group_configs if config is not None else ()
    return [
        NodeType(
            resources={name: float(count) for name, count in group.resources.items()},
            most=MANY_NODES if group.max_count < 0 else group.max_count,
        )
        for group in groups
    ]


def autoscaler_says() -> Any | None:
    """The autoscaler's last report, Ray's ``AutoscalingState``; ``None`` where there is none."""
    reply = ray.core.generated.autoscaler_pb2.GetClusterStatusReply()
    gcs = ray._private.worker.global_worker.gcs_client
    try:
        reply.ParseFromString(gcs.get_cluster_status(timeout_s=KNOCK_SECONDS))
    except (ray.exceptions.RayError, TimeoutError):
        return None
    return reply.autoscaling_state if reply.autoscaling_state.autoscaler_state_version else None


def ask_autoscaler(share: TaskShare) -> None:
    """Asks for one share that no node has, and waits for what the autoscaler makes of it.

    Raises ``ClusterError`` when none of its nodes can ever serve it. A node that comes late, or an
    autoscaler that says nothing within half a minute, is waited for with the run itself.
    """
    asked = {"GPU": share.gpus, "CPU": float(share.cpus)}
    asked = {name: count for name, count in asked.items() if count}
    probe = _nothing.options(num_gpus=share.gpus, num_cpus=share.cpus).remote()
    give_up = time.monotonic() + VERDICT_SECONDS
    while time.monotonic() < give_up and not ray.wait([probe], timeout=1)[0]:
        said = autoscaler_says()
        infeasible = said.infeasible_resource_requests if said is not None else ()
        if any(dict(each.resources_bundle) == asked for each in infeasible):
            ray.cancel(probe)  # only here: Ray aborts where it cancels a task that it is about to start
            raise ClusterError(
                f"no kind of node that this cluster may add has {share.needs}; "
                "ask for less with --gpus-per-model, or add a kind of node"
            )


@ray.remote(max_calls=1, max_retries=0)
def _nothing() -> None:
    """Only its share matters."""
