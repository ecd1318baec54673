"""``ray up`` with cluster.yaml on this machine: Ray's local provider, with a folder for every node.

Not run here: AWS, ssh and rsync themselves (``ssh_here.py`` stands in), Docker, the setup commands that
install packages, and ``ray stop``, which would end every Ray on this machine.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray_nodes
import yaml
from checkpoints_on_disk import save_checkpoint
from ray_nodes import ROOT, Head, free_ports, own_environment

HEAD_IP, WORKER_IPS = "127.0.0.1", ["127.0.0.2", "127.0.0.3"]


def local_config(home: Path, *, dashboard: int, gcs: int) -> dict[str, Any]:
    """cluster.yaml for the local provider: other nodes and ports, the same files and commands."""
    config = yaml.safe_load((ROOT / "cluster.yaml").read_text())
    for name in ("docker", "head_node_type", "available_node_types", "idle_timeout_minutes"):
        del config[name]
    config["provider"] = {"type": "local", "head_ip": HEAD_IP, "worker_ips": WORKER_IPS}
    config["auth"]["ssh_private_key"] = str(home / "key")
    config |= {"min_workers": 2, "max_workers": 2}  # the local provider counts the head as a worker
    agent, other_agent, client = free_ports(3)
    options = {
        "head": f"--dashboard-port={dashboard} --dashboard-agent-listen-port={agent} "
        f"--ray-client-server-port={client}",
        "worker": f"--dashboard-agent-listen-port={other_agent} --num-gpus=2 --num-cpus=2",
    }
    for node, ports in options.items():
        name = f"{node}_start_ray_commands"
        kept = [line for line in config[name] if line != "ray stop"]
        assert len(kept) == len(config[name]) - 1
        config[name] = [line.replace("6379", str(gcs)) + f" {ports}" for line in kept]
    config["setup_commands"] = [line for line in config["setup_commands"] if "pip install" not in line]
    config["worker_setup_commands"] = []
    return config


@pytest.fixture
def cluster() -> Iterator[tuple[Head, Path]]:
    """The head of a running cluster, and the folder with its nodes' homes."""
    with own_environment() as environment:
        home = Path(environment["HOME"])
        (home / ".cache" / "huggingface").mkdir(parents=True)
        (home / ".cache" / "huggingface" / "token").write_text("a-token-for-no-hub")
        (home / "key").touch()
        nodes = home / "nodes"
        nodes.mkdir()
        for name in ("ssh", "rsync"):
            shutil.copy(Path(__file__).parent / "ssh_here.py", nodes / name)
            text = (nodes / name).read_text()
            (nodes / name).write_text(f"#!{sys.executable}\n{text}")
            (nodes / name).chmod(0o755)
        environment["PATH"] = f"{nodes}:{environment['PATH']}"
        gcs, dashboard = free_ports(2)
        (home / "cluster.yaml").write_text(yaml.safe_dump(local_config(home, dashboard=dashboard, gcs=gcs)))
        server = Head(
            address=f"{HEAD_IP}:{gcs}",
            client_address="",
            job_server=f"http://{HEAD_IP}:{dashboard}",
            environment=environment,
        )
        up = server.run("ray", "up", "--yes", "--no-config-cache", str(home / "cluster.yaml"))
        assert up.returncode == 0, up.stdout[-5000:] + up.stderr[-3000:]
        ray_nodes.wait_for(server.job_server)
        yield server, nodes


def wait_for_worker(head: Head) -> str:
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        status = head.run("ray", "status", "--address", head.address).stdout
        if "2.0 GPU" in status:
            return status
        time.sleep(1)
    raise TimeoutError(status)


@pytest.mark.slow
def test_the_head_starts_a_worker_and_a_job_measures_on_it(
    cluster: tuple[Head, Path], tmp_path: Path
) -> None:
    head, nodes = cluster
    wait_for_worker(head)
    started = [ip for ip in WORKER_IPS if (nodes / ip).exists()]
    assert len(started) == 1
    for ip in (HEAD_IP, *started):
        token = nodes / ip / ".ray" / "auth_token"
        assert token.read_text() == ray_nodes.TOKEN
        assert token.stat().st_mode & 0o777 == 0o600
        assert (nodes / ip / ".hf_token").stat().st_mode & 0o777 == 0o600
        assert (nodes / ip / "zoo-sources" / "zoo" / "screen.py").exists()
    save_checkpoint(tmp_path / "models" / "tiny" / "good")
    job = head.run(
        "ray", "job", "submit", "--address", head.job_server, "--working-dir", ".", "--",
        *f"python -m jobs.screen --source {tmp_path / 'models'} --catalog {tmp_path / 'catalog'}".split(),
        "--prompts", "10", "--gpus-per-model", "0.5",
    )  # fmt: skip
    assert job.returncode == 0, job.stdout
    assert "0.5 GPU" in job.stdout
    assert "tiny/good: Sink Strength" in job.stdout
