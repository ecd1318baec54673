"""Jobs on a real Ray head with its job server and token authentication."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import ray_nodes
from checkpoints_on_disk import save_checkpoint
from ray_nodes import Head

from tests.hub_server import HubServer

LOG_LINE = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ")


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    with ray_nodes.head("--num-cpus=2", "--num-gpus=1") as started:
        yield started


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One model that can be measured."""
    folder = tmp_path_factory.mktemp("models")
    save_checkpoint(folder / "tiny" / "good")
    return folder


def submit(
    head: Head, *entry: str, options: Sequence[str] = (), **changes: str | None
) -> tuple[int, str, str]:
    """The exit code and output of a submission that waits for the job's end, and the job's status."""
    done = head.run(
        "ray", "job", "submit", "--address", head.job_server, "--working-dir", ".", "--log-color=false",
        *options, "--", *entry, **changes,
    )  # fmt: skip
    job = re.search(r"raysubmit_\w+", done.stdout + done.stderr)
    if job is None:
        return done.returncode, done.stdout + done.stderr, "not submitted"
    status = head.run("ray", "job", "status", "--address", head.job_server, "--log-color=false", job[0])
    found = re.search(r"Job '\w+' (\w+)|Status for job '\w+': (\w+)", status.stdout + status.stderr)
    assert found is not None, status.stdout + status.stderr
    return done.returncode, done.stdout, (found[1] or found[2]).upper()


def timed(log: str) -> str:
    """The lines of a log that begin with a time, without it."""
    return "\n".join(line.split(" ", 1)[1] for line in log.splitlines() if LOG_LINE.match(line))


def screen(models: Path, catalog: Path) -> list[str]:
    return f"python -m jobs.screen --source {models} --catalog {catalog} --prompts 10".split()


def test_a_job_with_a_failed_model_fails_with_code_3_and_says_why_in_its_summary(
    head: Head, tmp_path: Path
) -> None:
    bad = tmp_path / "models" / "tiny" / "bad"
    bad.mkdir(parents=True)
    (bad / "config.json").write_text("{}")
    code, log, status = submit(head, *screen(tmp_path / "models", tmp_path / "catalog"))
    assert (code, status) == (1, "FAILED")
    assert "failed with exit code 3" in log
    said = timed(log)
    assert "Measuring 1 model: 1 GPU and 2 CPUs a model" in said
    assert re.search(r"Summary\n +measured +0\n +before +0\n +failed +1 \(unknown_architecture 1\)\n", said)
    assert f"catalog   {tmp_path / 'catalog'}" in said


@pytest.mark.parametrize(
    "changes",
    [{"RAY_AUTH_TOKEN": "another-token-than-the-clusters"}, {"RAY_AUTH_MODE": None, "HOME": "/nonexistent"}],
)
def test_without_the_token_nothing_is_submitted(head: Head, changes: dict[str, str | None]) -> None:
    code, said, status = submit(head, "true", **changes)
    assert (code, status) == (1, "not submitted")
    assert "authentication token" in said


@pytest.mark.slow
def test_a_job_whose_models_are_all_measured_succeeds(head: Head, models: Path, tmp_path: Path) -> None:
    code, log, status = submit(head, *screen(models, tmp_path / "catalog"))
    assert (code, status) == (0, "SUCCEEDED"), log
    assert re.search(r"tiny/good: Sink Strength -?\d+\.\d\d, ", timed(log))
    assert re.search(r"(?m)^ +1 +tiny/good ", log)
    code, log, status = submit(head, *screen(models, tmp_path / "catalog"))
    assert (code, status) == (0, "SUCCEEDED"), log
    assert re.search(r"measured +0\n +before +1\n", timed(log))


@pytest.mark.slow
@pytest.mark.parametrize("by", ["option", "variable"])
def test_the_command_line_runs_on_a_cluster_with_a_token(
    head: Head, models: Path, tmp_path: Path, by: str
) -> None:
    command = ["-c", "from zoo.cli import main; main()", *screen(models, tmp_path / "catalog")[2:]]
    command[2] = "screen"
    option = ["--address", head.address] if by == "option" else []
    done = head.run("python", *command, *option, RAY_ADDRESS=None if option else head.address)
    assert done.returncode == 0, done.stderr
    assert "1 GPU and 2 CPUs a model" in done.stderr
    assert "1 measured, 0 failed" in done.stderr


def zoo_screen(head: Head, models: Path, catalog: Path, **changes: str | None) -> tuple[int, str, float]:
    """The exit code, last line and seconds of a command line that asks for this cluster."""
    command = ["-c", "from zoo.cli import main; main()", "screen", *screen(models, catalog)[3:]]
    started = time.monotonic()
    done = head.run("python", *command, **{"RAY_ADDRESS": head.address, **changes})
    return done.returncode, done.stderr.splitlines()[-1], time.monotonic() - started


@pytest.mark.parametrize(
    "changes",
    [
        {"RAY_AUTH_TOKEN": "another-token-than-the-clusters"},
        {"RAY_AUTH_MODE": None, "HOME": "/nonexistent"},
        {"HOME": "/nonexistent"},
    ],
)
def test_without_the_token_a_run_ends_with_one_line_at_once(
    head: Head, models: Path, tmp_path: Path, changes: dict[str, str | None]
) -> None:
    code, line, seconds = zoo_screen(head, models, tmp_path / "catalog", **changes)
    assert code == 1
    assert line.startswith(f"Error: the Ray cluster at {head.address} was given no token or another")
    assert seconds < 15


def test_a_job_server_is_no_address_of_a_cluster(head: Head, models: Path, tmp_path: Path) -> None:
    code, line, _ = zoo_screen(head, models, tmp_path / "catalog", RAY_ADDRESS=head.job_server)
    assert code == 1
    assert line.startswith(f"Error: {head.job_server} is the address of a job server")


@pytest.mark.slow
def test_a_nightly_job_measures_what_is_new_and_then_nothing(
    head: Head, models: Path, tmp_path: Path
) -> None:
    (tmp_path / "zoo.toml").write_text('[profiles.tiny]\nparams = "0.."\nprompts = 10\n')
    with HubServer() as hub:
        hub.add_repo("org/tiny", models / "tiny" / "good", downloads=5, created_at="2026-05-01")
        variables = json.dumps({"env_vars": {"HF_ENDPOINT": hub.url, "ZOO_WORK": str(tmp_path / "work")}})
        job = f"python -m jobs.nightly --profile tiny --profiles {tmp_path}/zoo.toml --since 2026-01-01"
        job += f" --catalog {tmp_path}/catalog"
        for said in ("Entered the ranking", "Nothing new"):
            code, log, status = submit(head, *job.split(), options=["--runtime-env-json", variables])
            assert (code, status) == (0, "SUCCEEDED"), log
            assert said in log
    assert list((tmp_path / "catalog" / "reports").iterdir())


@pytest.mark.slow
def test_a_stopped_job_ends_with_its_summary(head: Head, models: Path, tmp_path: Path) -> None:
    """256 prompts, so that it still runs when it is stopped."""
    at = ["--address", head.job_server]
    entry = screen(models, tmp_path / "catalog")[:-2]
    said = head.run("ray", "job", "submit", *at, "--no-wait", "--working-dir", ".", "--", *entry).stdout
    job = re.search(r"raysubmit_\w+", said)
    assert job is not None, said
    give_up = time.monotonic() + 60
    while "Measuring 1 model" not in head.run("ray", "job", "logs", *at, job[0]).stdout:
        assert time.monotonic() < give_up
    assert head.run("ray", "job", "stop", *at, job[0]).returncode == 0
    log = timed(head.run("ray", "job", "logs", *at, job[0]).stdout)
    assert "Stopped: 0 measured, 0 failed" in log
    assert re.search(r"Summary\n +measured +0\n(.*\n)+ +not ended +1\n", log)
