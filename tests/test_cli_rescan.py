"""zoo rescan as a night runs it, against the loopback Hub."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from checkpoints_on_disk import save_checkpoint
from test_cli_hub import Run, zoo

from catalog.query import run_query
from catalog.store import open_catalog
from tests.factories import make_measurement
from tests.hub_client import candidate_of
from tests.hub_faults import FaultPlan
from tests.hub_models import write_model
from tests.hub_server import HubServer
from zoo.prompts import make_spec

NOW = datetime.now(UTC)
SPEC = make_spec(prompt_count=12)
PROFILE = """
[profiles.small]
filter = "7B"
params = "0.."
prompts = 12
"""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    """One model that can be measured, and the profile of a night in the working folder."""
    with HubServer(page_size=3) as server:
        folder = write_model(tmp_path / "first", seed=1)
        server.add_repo("alpha/First-7B", folder, downloads=900, created_at=NOW - timedelta(days=9))
        yield server


@pytest.fixture(autouse=True)
def _profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("zoo.toml").write_text(PROFILE)


def settle(hub: HubServer, tmp_path: Path, model_id: str, *, sink_strength: float) -> None:
    """Commits a measurement of the repository's latest revision."""
    catalog = open_catalog(str(tmp_path / "catalog"), create=True)
    made = make_measurement(sink_strength=sink_strength, spec=SPEC)
    catalog.commit(replace(made, candidate=candidate_of(hub, model_id)))


NIGHT = ("rescan", "--profile", "small")


def test_a_night_measures_ranks_and_reports_through_the_job(hub: HubServer, tmp_path: Path) -> None:
    settle(hub, tmp_path, "alpha/First-7B", sink_strength=-9.0)
    tiny = save_checkpoint(tmp_path / "tiny")
    hub.add_repo("beta/New-7B", tiny, created_at=NOW)
    hub.add_repo("beta/Gated-7B", tiny, created_at=NOW, gated="auto")
    ray_folder = Path(tempfile.mkdtemp(prefix="zr", dir="/tmp"))
    job = [sys.executable, "-W", "error", "-m", "jobs.nightly", "--profile", "small"]
    options = ["--since", f"{NOW - timedelta(days=1):%Y-%m-%d}", "--address", "local", "--report", "night.md"]
    try:
        result = zoo(*options, endpoint=hub.url, home=tmp_path, command=job, RAY_TMPDIR=str(ray_folder))
    finally:
        shutil.rmtree(ray_folder, ignore_errors=True)
    assert result.returncode == 0, result.stderr
    catalog = open_catalog(str(tmp_path / "catalog"))
    ((strength,),) = run_query(
        catalog, "select sink_strength from outcomes where model_id like 'beta/%'"
    ).rows
    assert re.search(rf"^ +1  beta/New-7B +{strength:.2f} ", result.stdout, re.MULTILINE)
    assert "1 -> 2  alpha/First-7B  -9.00     others moved" in result.stdout
    assert "gated (1): beta/Gated-7B" in result.stdout
    assert "1 measured, 0 failed" in result.stdout
    lines = result.stderr.splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", line) for line in lines)
    assert any("[1/1] beta/New-7B: Sink Strength" in line for line in lines)
    page = (tmp_path / "night.md").read_text()
    assert "| 1 | beta/New-7B |" in page
    (kept,) = (tmp_path / "catalog" / "reports").glob("*.md")
    assert kept.read_text() == page


def test_a_night_with_nothing_new_is_quick_and_starts_no_ray(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(hub, tmp_path, "alpha/First-7B", sink_strength=1.0)
    code = (
        "import sys, zoo.cli\n"
        "try: zoo.cli.main(sys.argv[1:])\n"
        "finally: print(sorted({'ray', 'torch', 'transformers'} & set(sys.modules)))"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    result = zoo(*NIGHT, "--since", "2020-01-01", endpoint=hub.url, home=tmp_path, command=command)
    assert result.returncode == 0, result.stderr
    line, modules = result.stdout.splitlines()
    assert line.startswith('Nothing new for --filter "7B" --params 0.. since 2020-01-01 00:00 UTC (1 known')
    assert modules == "[]"
    assert hub.requests["info"] == 1  # that of the measurement


def test_a_dry_run_shows_the_plan_and_keeps_nothing(hub: HubServer, run: Run, tmp_path: Path) -> None:
    settle(hub, tmp_path, "alpha/First-7B", sink_strength=1.0)
    for number in range(3):
        folder = write_model(tmp_path / str(number), seed=number + 2)
        hub.add_repo(f"beta/New{number}-7B", folder, created_at=NOW)
    size = sum(path.stat().st_size for path in folder.iterdir())
    options = ("--since", "2020-01-01", "--dry-run", "--budget-bytes", f"{1.5 * size:.0f}")
    code, text, errors = run(*NIGHT, *options)
    assert code == 0
    assert "To measure: 1 model" in text
    assert "3 new or changed, 0 left by earlier nights, 1 known at their revision." in errors
    assert "Left for later nights by the budget: 2 repositories." in errors
    assert run("sql", "select * from scans", "--format", "json")[1].strip() == "[]"


def test_past_its_hours_a_night_starts_nothing_and_the_next_one_goes_on(hub: HubServer, run: Run) -> None:
    options = ("--since", "2020-01-01", "--budget-hours", "1e-6", "--bandwidth", "1000GB/s")
    code, text, errors = run(*NIGHT, *options)
    assert (code, errors) == (0, "")
    assert "tonight's time       1  alpha/First-7B" in text
    _, text, errors = run(*NIGHT, "--dry-run")
    assert "To measure: 1 model" in text
    assert "0 new or changed, 1 left by earlier nights" in errors


def test_a_screen_says_where_the_next_rescan_begins(hub: HubServer, run: Run, tmp_path: Path) -> None:
    hub.add_repo("beta/Gated-7B", write_model(tmp_path / "m"), created_at=NOW, gated="auto")
    hub.repos["alpha/First-7B"].facts["gated"] = "auto"
    assert run("screen", "--filter", "7b", "--params", "0..")[0] == 1  # both are gated
    code, text, _ = run("rescan")
    assert (code, text.partition(" since")[0]) == (0, 'Nothing new for --filter "7B" --params 0..')
    hub.add_repo("beta/Later-7B", write_model(tmp_path / "later"), created_at=NOW, gated="auto")
    code, text, errors = run("rescan")
    assert (code, errors) == (0, "")
    assert "gated (1): beta/Later-7B" in text
    assert text.splitlines()[-2].startswith("0 measured, 0 failed")
    catalog = open_catalog(str(tmp_path / "catalog"))
    rows = run_query(
        catalog, "select kind, watermark <= now()::timestamp from scans order by scanned_at"
    ).rows
    assert rows == (("screen", True), ("rescan", True), ("rescan", True))


def test_a_failed_listing_is_one_line_and_exit_code_1(hub: HubServer, run: Run, tmp_path: Path) -> None:
    settle(hub, tmp_path, "alpha/First-7B", sink_strength=1.0)
    hub.faults = FaultPlan(1, kinds=["html_page"], where=["list"], most=None)
    import zoo.hub

    waits = zoo.hub.Hub.__init__.__kwdefaults__
    waits["first_wait_seconds"], kept = 0.01, waits["first_wait_seconds"]
    try:
        code, text, errors = run(*NIGHT, "--since", "2020-01-01")
    finally:
        waits["first_wait_seconds"] = kept
    (line,) = errors.splitlines()
    assert (code, text) == (1, "")
    assert "broke off" in line
    assert run("sql", "select * from scans", "--format", "json")[1].strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["rescan"], 1, "there is no catalog"),
        ([*NIGHT], 1, "give --since 2026-01-31"),
        (["rescan", "--profile", "large"], 1, "has no profile large; it has small"),
        (["rescan", "--profiles", "zoo.toml"], 2, "needs a --profile"),
        ([*NIGHT, "--since", "2020-01-01", "--budget-bytes", "much"], 1, "write it like 2TB"),
        ([*NIGHT, "--since", "2020-01-01", "--report", "no/such/night.md"], 1, "name another file with"),
        ([*NIGHT, "--since", "2120-01-01"], 1, "lies in the future"),
    ],
)
def test_a_mistake_is_one_line_with_its_remedy(
    run: Run,
    arguments: list[str],
    code: int,
    text: str,
) -> None:
    exit_code, _, errors = run(*arguments)
    assert exit_code == code, errors
    assert text in errors.splitlines()[-1]
