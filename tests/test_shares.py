"""A task's share fits on a node, or is refused with what the cluster has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zoo.errors import ClusterError
from zoo.shares import MAX_CPUS_PER_MODEL, NodeType, task_share

NODES = st.lists(
    st.fixed_dictionaries(
        {"CPU": st.integers(1, 128).map(float)}, optional={"GPU": st.integers(1, 8).map(float)}
    ),
    min_size=1,
    max_size=5,
)


@given(nodes=NODES)
def test_a_default_share_fits_at_least_once_and_never_more_often_than_the_nodes_hold(
    nodes: list[dict[str, float]],
) -> None:
    share = task_share(nodes)
    held = [
        min(
            node["CPU"] // share.cpus if share.cpus else node.get("GPU", 0),
            node.get("GPU", 0) // share.gpus if share.gpus else node["CPU"] // share.cpus,
        )
        for node in nodes
    ]
    assert 1 <= share.slots <= sum(held)
    assert share.cpus <= MAX_CPUS_PER_MODEL
    assert share.gpus == float(any("GPU" in node for node in nodes))


def test_a_small_machine_measures_one_model_at_a_time_with_all_its_cpus() -> None:
    share = task_share([{"CPU": 2.0}])
    assert (share.gpus, share.cpus, share.slots) == (0, 2, 1)
    assert share.text == "2 CPUs a model, 1 model at a time, no GPU"


def test_a_gpu_comes_with_its_part_of_the_cpus() -> None:
    share = task_share([{"CPU": 64.0}, {"CPU": 48.0, "GPU": 8.0}])
    assert (share.gpus, share.cpus, share.slots) == (1, 6, 8)
    assert share.text == "1 GPU and 6 CPUs a model, 8 models at a time"


def test_a_fraction_of_a_gpu_shares_it() -> None:
    share = task_share([{"CPU": 8.0, "GPU": 2.0}], gpus_per_model=0.5)
    assert (share.gpus, share.cpus, share.slots) == (0.5, 2, 4)


def test_a_share_of_the_cpus_leaves_the_gpus_alone() -> None:
    assert task_share([{"CPU": 8.0, "GPU": 2.0}], device="cpu").gpus == 0
    assert task_share([{"CPU": 8.0, "GPU": 2.0}], gpus_per_model=0).gpus == 0


@pytest.mark.parametrize(
    ("nodes", "gpus_per_model", "device", "says"),
    [
        ([{"CPU": 2.0}], 1, "auto", "1 node with 2 CPUs and no GPU; leave --gpus-per-model"),
        ([{"CPU": 2.0}], None, "cuda", "1 node with 2 CPUs and no GPU"),
        ([{"CPU": 8.0, "GPU": 2.0}] * 3, 4, "auto", "3 nodes with at most 2 GPUs each; ask for 2 or less"),
        ([{"CPU": 8.0, "GPU": 2.0}], 1.5, "auto", "a fraction up to 1, a whole number"),
        ([{"CPU": 8.0, "GPU": 2.0}], float("nan"), "auto", "cannot be served"),
        ([{"CPU": 8.0, "GPU": 2.0}], 0, "cuda", "drop one of them"),
        ([{"CPU": 8.0, "GPU": 2.0}], 1, "cpu", "drop one of them"),
        ([{"memory": 1.0}], None, "auto", "no CPUs"),
        ([], None, "auto", "no CPUs"),
    ],
)
def test_a_share_that_cannot_be_served_is_refused_with_what_the_cluster_has(
    nodes: list[dict[str, float]], gpus_per_model: float | None, device: str, says: str
) -> None:
    with pytest.raises(ClusterError, match=says):
        task_share(nodes, gpus_per_model=gpus_per_model, device=device)


GPU_NODES = NodeType(resources={"CPU": 8.0, "GPU": 2.0}, most=3)


def test_a_cluster_that_scales_from_zero_is_asked_for_what_it_can_become() -> None:
    share = task_share([{"memory": 1.0}], node_types=[GPU_NODES])
    assert (share.gpus, share.cpus, share.slots, share.most_slots, share.most_gpus) == (1, 4, 0, 6, 2)
    assert share.text == "1 GPU and 4 CPUs a model, 0 models at a time now and 6 once the cluster has grown"


def test_nodes_that_are_there_count_with_those_that_may_come() -> None:
    share = task_share([{"CPU": 8.0, "GPU": 2.0}], node_types=[GPU_NODES], gpus_per_model=0.5)
    assert (share.slots, share.most_slots) == (4, 12)
    full = task_share([{"CPU": 8.0, "GPU": 2.0}] * 3, node_types=[GPU_NODES])
    assert full.text == "1 GPU and 4 CPUs a model, 6 models at a time"


def test_a_share_that_no_node_type_can_ever_serve_is_refused() -> None:
    with pytest.raises(ClusterError, match="and may add 1 kind of them, with at most 2 GPUs each; ask for 2"):
        task_share([{"CPU": 2.0}], node_types=[GPU_NODES], gpus_per_model=4)
    none_left = NodeType(resources={"CPU": 8.0, "GPU": 2.0}, most=0)
    assert task_share([{"CPU": 2.0}], node_types=[none_left]).gpus == 0
