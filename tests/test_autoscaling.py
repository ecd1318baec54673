"""A cluster that scales from zero is waited for; what none of its nodes can ever serve is refused."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray_nodes
import tasks
from tasks import SPEC, measure_by_name

from catalog.store import Catalog
from zoo.autoscaler import node_types
from zoo.errors import ClusterError
from zoo.records import RunOptions
from zoo.screen import screen
from zoo.shares import task_share
from zoo.tasks import ray

HEAD_ID = "f" * 51 + "00000"
GPU_NODE = {"CPU": 2, "GPU": 1, "object_store_memory": 80 << 20}

OWN = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_autoscaler_v2": "1",  # as ray up sets it
    # How Ray's own tests tell its autoscaler that this machine is a cloud.
    "RAY_FAKE_CLUSTER": "1",
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    "RAY_CLOUD_INSTANCE_ID": HEAD_ID,
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
}


def autoscaling_config(port: int) -> dict[str, Any]:
    """Up to two nodes of one logical GPU, none at the start."""
    return {
        "cluster_name": "from-zero",
        "max_workers": 2,
        "provider": {
            "type": "external",
            "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
            "gcs_address": f"127.0.0.1:{port}",
            "head_node_id": HEAD_ID,
            "launch_multiple": True,
        },
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "gpu": {"resources": GPU_NODE, "node_config": {}, "min_workers": 0, "max_workers": 2},
        },
        "head_node_type": "ray.head.default",
        **{name: [] for name in ("initialization_commands", "setup_commands", "cluster_synced_files")},
        **{f"{kind}_setup_commands": [] for kind in ("head", "worker")},
        **{f"{kind}_start_ray_commands": [] for kind in ("head", "worker")},
        **{"file_mounts": {}, "auth": {}, "docker": {}},
    }


@pytest.fixture(scope="module")
def from_zero() -> Iterator[str]:
    """The address of a head without CPUs, whose autoscaler makes nodes on this machine."""
    folder = Path(tempfile.mkdtemp(prefix="scale-", dir="/tmp"))  # Ray's sockets need a short path
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "autoscaling.json").write_text(json.dumps(autoscaling_config(port)))
    options = [
        "--head",
        "--block",
        "--num-cpus=0",
        "--include-dashboard=false",
        "--node-ip-address=127.0.0.1",
    ]
    options += [f"--port={port}", f"--temp-dir={folder}", f"--autoscaling-config={folder}/autoscaling.json"]
    with (folder / "head.log").open("w") as log:
        head = subprocess.Popen(
            [Path(sys.executable).parent / "ray", "start", *options, f"--object-store-memory={80 << 20}"],
            env={**os.environ, **OWN, "RAY_TMPDIR": str(folder)},
            stdout=log,
            stderr=log,
        )
    try:
        wait_for(port, head, folder / "head.log")
        yield f"127.0.0.1:{port}"
    finally:
        head.kill()
        head.wait()
        ray_nodes.end_processes(folder)
        shutil.rmtree(folder, ignore_errors=True)


def wait_for(port: int, head: subprocess.Popen[bytes], log: Path) -> None:
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        assert head.poll() is None, log.read_text()
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        time.sleep(0.2)
    raise TimeoutError(log.read_text())


@pytest.fixture
def connection(from_zero: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    ray.init(address=from_zero, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.usefixtures("connection")
class TestFromZero:
    def test_what_no_node_type_has_is_refused_and_not_waited_for(
        self, tmp_path: Path, empty: Catalog
    ) -> None:
        started = time.monotonic()
        with pytest.raises(ClusterError, match=r"no kind of node that this cluster may add has 4 GPUs"):
            screen(
                [tasks.candidate("one", location=str(tmp_path))],
                catalog=empty,
                spec=SPEC,
                options=RunOptions(),
                gpus_per_model=4,
                measure=measure_by_name,
            )
        assert time.monotonic() - started < 50
        assert not list(tmp_path.glob("org--*"))

    def test_the_first_node_is_waited_for_and_gets_the_models(self, tmp_path: Path, empty: Catalog) -> None:
        assert not node_types()  # Ray's autoscaler publishes none, so it has to be asked
        models = [tasks.candidate(f"m{number}", location=str(tmp_path)) for number in range(3)]
        summary = screen(models, catalog=empty, spec=SPEC, options=RunOptions(), measure=measure_by_name)
        assert (len(summary.measured), summary.failed, summary.not_ended) == (3, (), ())


def test_a_cluster_that_grows_is_asked_for_a_share_that_no_node_has_yet() -> None:
    share = task_share([{"memory": 1.0}], grows=True)
    assert (share.gpus, share.cpus, share.slots) == (1, 1, 0)
    assert share.most_slots > 0
    assert task_share([{"CPU": 4.0}], grows=True, gpus_per_model=4).needs == "4 GPUs and 1 CPU"
    assert task_share([], grows=True, device="cpu").needs == "1 CPU"


def test_a_cluster_that_grows_and_has_nodes_is_shared_as_any_other() -> None:
    nodes = [{"CPU": 8.0, "GPU": 2.0}]
    assert task_share(nodes, grows=True) == task_share(nodes)
