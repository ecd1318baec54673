"""Real Ray nodes of a test's own on this machine: their home, ports, token and end."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parent.parent
TOKEN = "a-token-for-this-test-and-no-other"
START_SECONDS = 60


@dataclass(frozen=True)
class Head:
    """A running head: its addresses, and the environment of a process that may talk to it."""

    address: str
    client_address: str
    job_server: str
    environment: Mapping[str, str]

    def run(
        self, *command: str, timeout: float = 120, **changes: str | None
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program of the environment, with variables changed, or removed where they are None."""
        environment = {**self.environment, **changes}
        return subprocess.run(
            [str(Path(sys.executable).parent / command[0]), *command[1:]],
            env={name: value for name, value in environment.items() if value is not None},
            cwd=ROOT,
            text=True,
            capture_output=True,
            timeout=120,
            check=False,
        )


def free_ports(count: int) -> list[int]:
    """Ports that nobody listened on a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def write_token(home: Path, token: str = TOKEN) -> None:
    """The cluster's token, where Ray looks for it."""
    path = home / ".ray" / "auth_token"
    path.parent.mkdir(parents=True)
    path.touch(mode=0o600)
    path.write_text(token)


@contextlib.contextmanager
def own_environment() -> Iterator[dict[str, str]]:
    """An environment with a home and Ray folder of its own; what was started with it ends with the block."""
    home = Path(tempfile.mkdtemp(prefix="zoo-", dir="/tmp"))  # Ray's sockets need a short path
    write_token(home)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "ZOO_"))}
    try:
        yield kept | {
            "HOME": str(home),
            "RAY_TMPDIR": str(home / "ray"),
            "RAY_AUTH_MODE": "token",
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
    finally:
        end_processes(home / "ray")
        shutil.rmtree(home, ignore_errors=True)


def end_processes(ray_folder: Path) -> None:
    """Ends every process that was started with this Ray folder, and no other Ray's."""
    ours = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("RAY_TMPDIR") == str(ray_folder):
                ours.append(process)
    for process in ours:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(ours, timeout=10)


@contextlib.contextmanager
def head(*options: str) -> Iterator[Head]:
    """A head with its job server and token authentication on."""
    gcs, dashboard, agent, client = free_ports(4)
    ports = {
        "port": gcs,
        "dashboard-port": dashboard,
        "dashboard-agent-listen-port": agent,
        "ray-client-server-port": client,
    }
    with own_environment() as environment:
        Path(environment["RAY_TMPDIR"]).mkdir()
        server = Head(
            address=f"127.0.0.1:{gcs}",
            client_address=f"ray://127.0.0.1:{client}",
            job_server=f"http://127.0.0.1:{dashboard}",
            environment=environment,
        )
        started = server.run(
            "ray", "start", "--head", *(f"--{name}={port}" for name, port in ports.items()), *options
        )
        assert started.returncode == 0, started.stdout + started.stderr
        wait_for(server.job_server)
        yield server


def wait_for(job_server: str) -> None:
    """Returns when the job server answers."""
    request = urllib.request.Request(
        f"{job_server}/api/version", headers={"Authorization": f"Bearer {TOKEN}"}
    )
    give_up = time.monotonic() + START_SECONDS
    while time.monotonic() < give_up:
        with contextlib.suppress(urllib.error.URLError), urllib.request.urlopen(request, timeout=5):
            return
        time.sleep(0.2)
    raise TimeoutError(f"no job server answers at {job_server}")
