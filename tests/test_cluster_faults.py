"""What goes wrong around a task: nodes that come and go, memory and disks that end, a Hub that is gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import tasks
from checkpoints_on_disk import save_checkpoint
from tasks import SPEC, measurement

from catalog.store import Catalog
from tests.hub_client import candidate_of
from tests.hub_server import HubServer
from zoo.measure import make_spec
from zoo.records import Candidate, MeasurementSpec, Outcome, RunOptions
from zoo.reports import ScreenProgress
from zoo.screen import screen
from zoo.tasks import measure_in_process, ray

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

QUIET = {"include_dashboard": False, "log_to_driver": False}

OWN_MOUNTS = ("unshare", "--mount", "--map-root-user")
"""Runs a program that may mount what nobody else sees, and that is gone with it; no root needed."""


def reasons(summary: Any) -> dict[str, str]:
    return {report.model_id: report.reason for report in summary.failed}


@pytest.mark.slow
def test_a_node_that_comes_gets_work_and_the_model_of_one_that_goes_is_measured_elsewhere(
    tmp_path: Path, empty: Catalog
) -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    nodes: dict[str, Any] = {"first": cluster.add_node(num_cpus=1)}

    def change(look: ScreenProgress) -> None:
        if look.measured == 1 and "second" not in nodes:
            nodes["second"] = cluster.add_node(num_cpus=1)
        if look.measured >= 3 and len(look.running) == 2 and nodes["first"] in cluster.worker_nodes:
            cluster.remove_node(nodes["first"], allow_graceful=True)

    def measure(candidate: Candidate, *, spec: MeasurementSpec, on_stage: Any, **_: Any) -> Outcome:
        on_stage("probe")
        with (Path(candidate.location) / f"{candidate.model_id[4:]}.tries").open("a") as file:
            file.write(ray.get_runtime_context().get_node_id() + "\n")
        time.sleep(2)
        return measurement(candidate, spec=spec)

    try:
        models = [tasks.candidate(f"m{number}", location=str(tmp_path)) for number in range(8)]
        summary = screen(
            models,
            catalog=empty,
            spec=SPEC,
            options=RunOptions(),
            address=cluster.address,
            measure=measure,
            progress=change,
        )
        assert (len(summary.measured), summary.failed) == (8, ())
        tries = [path.read_text().split() for path in tmp_path.glob("*.tries")]
        assert {node for each in tries for node in each} == {node.node_id for node in nodes.values()}
        assert sorted(map(len, tries)) == [1] * 7 + [2]
        assert {each[-1] for each in tries if len(each) == 2} == {nodes["second"].node_id}
        assert {row.attempt for row in empty.done(SPEC.spec_id).values()} == {1}
    finally:
        cluster.shutdown()


@pytest.fixture
def small_memory() -> Iterator[int]:
    """A Ray whose memory monitor ends tasks soon; yields the bytes that may be used before it does."""
    memory, spare = psutil.virtual_memory(), 2 << 30
    if memory.available < 3 * spare:
        pytest.skip("needs 6 GB of free memory")
    threshold = (memory.total - memory.available + spare) / memory.total
    ray.init(
        num_cpus=1,
        **QUIET,
        object_store_memory=80 << 20,
        _system_config={"memory_usage_threshold": threshold, "memory_monitor_refresh_ms": 100},
    )
    yield spare
    ray.shutdown()


def is_halved_each_time(tokens: list[str]) -> bool:
    """A try may also end before it begins, for memory that another process took, and is missing then."""
    possible = iter(["512", "256", "128", "64"])
    return tokens[0] == "512" and all(each in possible for each in tokens)


@pytest.mark.slow
def test_a_task_that_the_memory_monitor_ends_gets_half_the_batch_until_there_is_none(
    tmp_path: Path, empty: Catalog, small_memory: int
) -> None:
    spare = small_memory

    def measure(candidate: Candidate, *, spec: MeasurementSpec, options: RunOptions, **_: Any) -> Outcome:
        name = candidate.model_id[4:]
        with (Path(candidate.location) / f"{name}.tries").open("a") as file:
            file.write(f"{options.tokens_per_batch}\n")
        held = []
        while (name == "huge" or options.tokens_per_batch > 128) and len(held) < 2 * spare >> 26:
            held.append(b"x" * (1 << 26))
            time.sleep(0.02)
        time.sleep(1 if held else 0)
        return measurement(candidate, spec=spec)

    started = time.monotonic()
    models = [tasks.candidate(name, location=str(tmp_path)) for name in ("huge", "halved")]
    summary = screen(models, catalog=empty, spec=SPEC, options=RunOptions(), measure=measure)
    assert time.monotonic() - started < 120
    tries = {path.stem: path.read_text().split() for path in tmp_path.glob("*.tries")}
    assert is_halved_each_time(tries["huge"])
    assert is_halved_each_time(tries["halved"])
    assert int(tries["halved"][-1]) <= 128
    assert reasons(summary) == {"org/huge": "out_of_memory"}
    assert [report.model_id for report in summary.measured] == ["org/halved"]
    recorded = empty.done(SPEC.spec_id)["org/huge", models[0].revision]
    assert (recorded.reason, recorded.transient, recorded.attempt) == ("out_of_memory", True, 1)


DISK = """
import json, shutil, sys, threading
from pathlib import Path
sys.path[:0] = sys.argv[2:]
import tasks
from tasks import measurement
from zoo.tasks import ray
from catalog.store import open_catalog
from zoo.errors import ZooError
from zoo.records import RunOptions
from zoo.screen import screen

disk, patience = Path("/mnt"), float(sys.argv[1])
catalog = open_catalog(str(disk / "catalog"), create=True)

def measure(candidate, *, spec, **_):
    import zoo.tasks  # ten minutes of patience with a full disk are too long for a test
    zoo.tasks.commit_patiently.__kwdefaults__["patience_seconds"] = patience
    return measurement(candidate, spec=spec)

def look(progress):
    if progress.measured == 3 and not filled:
        filled.append(True)
        free = shutil.disk_usage(disk).free
        ballast.write_bytes(bytes(max(0, free - 8192)))
        if patience > 10:
            threading.Timer(6, ballast.unlink).start()

ballast, filled = disk / "ballast", []
models = [tasks.candidate(f"m{number}") for number in range(6)]
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=80 << 20)
said, summary = "", None
try:
    summary = screen(models, catalog=catalog, spec=tasks.SPEC, options=RunOptions(), measure=measure,
                     progress=look, in_flight=1)
    said = summary.catalog_error
except ZooError as error:
    said = str(error)
finally:
    ray.shutdown()
done = catalog.done(tasks.SPEC.spec_id).values()
verified = catalog.verify()
print(json.dumps({
    "said": said,
    "measured": len(summary.measured) if summary else None,
    "rows": sorted(each.status for each in done),
    "problems": len(verified.problems),
}))
"""


def on_a_small_disk(folder: Path, *, patience_seconds: float) -> dict[str, Any]:
    """What the script says of a run whose catalog lies on a disk of its own, of 4 MB."""
    try:
        mount = [*OWN_MOUNTS, "mount", "-t", "tmpfs", "none", "/mnt"]
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this machine lets nobody mount a small disk")
    tests = Path(__file__).parent
    script = folder / "disk.py"
    script.write_text(textwrap.dedent(DISK))
    inner = f'mount -t tmpfs -o size=4m none /mnt && exec "{sys.executable}" "$@"'
    run = subprocess.run(
        [*OWN_MOUNTS, "sh", "-c", inner, "sh", script, str(patience_seconds), tests, tests.parent],
        env={**os.environ, "PYTHONPATH": f"{tests.parent}:{tests}"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_full_disk_ends_the_run_with_one_line_and_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    told = on_a_small_disk(tmp_path, patience_seconds=3)
    assert "cannot be written (No space left on device)" in told["said"]
    assert "\n" not in told["said"]
    assert told["rows"][:3] == ["measured"] * 3
    assert told["problems"] == 0


@pytest.mark.slow
def test_a_disk_that_has_room_again_gets_the_finished_measurement(tmp_path: Path) -> None:
    told = on_a_small_disk(tmp_path, patience_seconds=60)
    assert told == {"said": "", "measured": 6, "rows": ["measured"] * 6, "problems": 0}


def impatient(candidate: Candidate, **how: Any) -> Outcome:
    """The real measurement by a client that gives a Hub that is gone three seconds, not sixty."""
    import zoo.hub_files

    zoo.hub_files.PATIENCE_SECONDS = 3.0
    return measure_in_process(candidate, **how)


@pytest.mark.slow
def test_a_hub_that_is_gone_for_long_fails_the_models_for_now_and_the_next_run_measures_them(
    tmp_path: Path, empty: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HubServer() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("ZOO_WORK", str(tmp_path / "work"))
        for name in ("a", "b"):
            folder = save_checkpoint(tmp_path / name, seed=ord(name), num_hidden_layers=6)
            server.add_repo(f"org/{name}", folder)
        models = [candidate_of(server, f"org/{name}") for name in ("a", "b")]
        server.bucket.bytes_per_second = 60_000
        spec = make_spec(prompt_count=10)
        how = {"catalog": empty, "spec": spec, "options": RunOptions(device="cpu", load="stream")}

        def gone_while_it_streams(look: ScreenProgress) -> None:
            if server.sent_bytes["cdn"] > 20_000 and not server.is_down:
                server.outage(300)

        ray.init(num_cpus=1, **QUIET)
        try:
            summary = screen(models, **how, measure=impatient, progress=gone_while_it_streams)
            assert len(summary.failed) == 2
            assert all(report.transient and "\n" not in report.message for report in summary.failed)
            assert summary.elapsed_seconds < 120
            server.outage(0)
            server.bucket.bytes_per_second = None
            again = screen(models, **how)
        finally:
            ray.shutdown()
        assert [report.model_id for report in again.measured] == ["org/a", "org/b"]
        rows = empty.done(spec.spec_id).values()
        assert {(row.status, row.attempt) for row in rows} == {("measured", 2)}
