"""What is seen of a run from outside: its status while it goes on, its log and its metrics."""

from __future__ import annotations

import json
import logging
import socket
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import tasks
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families
from tasks import FETCHED, SPEC

from catalog.scans import record_scan
from catalog.store import Catalog, open_catalog
from tests.factories import make_measurement
from zoo.cli import cli, main
from zoo.errors import ZooError
from zoo.logs import LOG, log_encoding
from zoo.records import MeasurementSpec, Refusal, RunOptions
from zoo.reports import ScreenProgress, ScreenSummary
from zoo.screen import screen
from zoo.status import ClusterLook, catalog_look, cluster_look
from zoo.tasks import ray

NAMES = ("one", "bad", "crash", "streamed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Everything that was seen of one run."""

    summary: ScreenSummary
    look: ClusterLook
    page: str
    record: dict[str, Any]
    log: list[logging.LogRecord]
    worker_lines: list[dict[str, Any]]
    metrics: dict[str, dict[tuple[str, ...], float]]


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A Ray of two CPUs and two logical GPUs with its dashboard."""
    from ray.cluster_utils import Cluster

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    head = {"num_cpus": 2, "num_gpus": 2, "include_dashboard": True, "dashboard_port": port}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    yield cluster.address
    cluster.shutdown()


@pytest.fixture(scope="module")
def seen(address: str, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """One run, looked at while its last model runs, and what is left of it."""
    folder = tmp_path_factory.mktemp("run")
    marks = folder / "marks"
    marks.mkdir()
    looks: dict[str, Any] = {}

    def progress(look: ScreenProgress) -> None:
        node = ray.nodes()[0]
        looks["metrics_url"] = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
        looks["logs"] = ray._private.worker.global_worker.node.get_logs_dir_path()
        fetched = look.seen and [each for each in look.seen.running.values() if each.fetched_bytes]
        if fetched and look.measured + look.failed and "look" not in looks:
            now = cluster_look()
            if not now.tasks or not now.tasks["running"]:
                return  # Ray's own counts come a second or two late
            looks["look"] = now
            for format in ("table", "json"):
                looks[format] = CliRunner().invoke(cli, ["status", "--format", format])
            (marks / "go").touch()

    kept = Kept()
    LOG.addHandler(kept)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZOO_LOG", "json")
        summary = screen(
            [tasks.candidate(name, location=str(marks)) for name in NAMES],
            catalog=open_catalog(str(folder / "catalog"), create=True),
            spec=SPEC,
            options=RunOptions(),
            address=address,
            gpus_per_model=1,
            order="given",
            refusals=[
                Refusal(model_id=f"org/r{n}", revision=None, reason="gated", message="") for n in "abc"
            ],
            progress=progress,
            measure=tasks.measure_streamed,
        )
    LOG.removeHandler(kept)
    assert looks["table"].exit_code == looks["json"].exit_code == 0
    return Seen(
        summary=summary,
        look=looks["look"],
        page=looks["table"].output,
        record=json.loads(looks["json"].output),
        log=kept.records,
        worker_lines=json_lines(Path(looks["logs"])),
        metrics=scrape(looks["metrics_url"]),
    )


def json_lines(folder: Path) -> list[dict[str, Any]]:
    """The records of the logger zoo in the logs of Ray's workers."""
    lines = [line for path in folder.glob("worker-*.err") for line in path.read_text().splitlines()]
    records = [json.loads(line) for line in lines if line.startswith("{")]
    return [record for record in records if record["name"] == "zoo"]


def scrape(url: str) -> dict[str, dict[tuple[str, ...], float]]:
    """The values of zoo's series by their own labels, as Prometheus would read them."""
    own = ("status", "reason", "stage", "bucket", "le")
    found: dict[str, dict[tuple[str, ...], float]] = {}
    with urllib.request.urlopen(url, timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        for sample in (sample for family in families for sample in family.samples):
            labels = tuple(sample.labels[label] for label in own if label in sample.labels)
            if sample.name.startswith("ray_zoo_"):
                found.setdefault(sample.name, {})[labels] = sample.value
    return found


def test_without_a_cluster_the_catalog_is_shown_and_that_there_is_none(catalog: Catalog) -> None:
    if ray._private.services.find_gcs_addresses():
        pytest.skip("another Ray runs on this machine")
    shown = CliRunner().invoke(cli, ["status", "--catalog", catalog.uri])
    assert shown.exit_code == 0
    assert "No Ray cluster was found (none runs here), so no run is seen" in shown.output
    assert "3 measured, 1 failed" in shown.output
    with pytest.raises(ZooError, match="no Ray runs on this machine"):
        CliRunner().invoke(cli, ["status", "--address", "auto"], catch_exceptions=False)


def test_the_status_shows_what_runs_since_when_and_how_fast(seen: Seen) -> None:
    (run,) = seen.look.runs
    assert run.facts.models == len(NAMES)
    assert run.counts.done >= 1
    (streamed,) = [model for model in run.running.values() if model.model_id == "org/streamed"]
    assert (streamed.stage, streamed.fetched_bytes, streamed.planned_bytes) == ("fetch", FETCHED, 2 * FETCHED)
    assert 0 < streamed.stage_seconds <= streamed.model_seconds
    assert seen.look.tasks is not None
    assert seen.look.tasks["running"] >= 1
    assert (seen.look.nodes, seen.look.gpus, seen.look.cpus) == (1, 2, 2)
    assert seen.look.gpus_used >= 1


def test_the_page_and_the_json_say_the_same(seen: Seen) -> None:
    (run,) = seen.record["runs"]
    assert f"Run {run['run_id']}: {run['done']} of 4 models done in" in seen.page
    assert run["models_per_hour"] == pytest.approx(3600 * run["done"] / run["elapsed_seconds"])
    assert run["bytes_per_second"] == pytest.approx(run["fetched_bytes"] / run["elapsed_seconds"])
    assert [model["fetched_bytes"] for model in run["running"] if model["model_id"] == "org/streamed"] == [
        FETCHED
    ]
    assert "refused before it began: 3 gated" in seen.page
    (line,) = [line for line in seen.page.splitlines() if line.startswith("org/streamed")]
    assert line.split()[1] == "fetch"
    assert line.split()[-3:-1] == ["30", "60"]
    assert "of 2 GPUs" in seen.page
    (catalog,) = seen.record["catalogs"]
    assert (catalog["uri"], catalog["spec_id"]) == (run["catalog_uri"], run["spec_id"])
    assert f"Catalog {catalog['uri']}, spec {SPEC.spec_id}" in seen.page
    assert seen.record["notes"] == []


def test_a_task_logs_the_stages_it_enters_and_how_it_ended(seen: Seen) -> None:
    of_streamed = [line for line in seen.worker_lines if line["model"] == "org/streamed"]
    assert [(line["stage"], line["message"]) for line in of_streamed] == [
        ("fetch", "fetch begins"),
        ("probe", "probe begins"),
        ("commit", "commit begins"),
        ("commit", "measured"),
    ]
    (run_id,) = {line["run"] for line in seen.worker_lines}
    assert run_id == seen.look.runs[0].facts.run_id
    assert {line["levelname"] for line in of_streamed} == {"INFO"}
    assert {line["task_name"] for line in of_streamed} == {"org/streamed"}
    assert {len(line["revision"]) for line in seen.worker_lines} == {40}
    (failed,) = [line for line in seen.worker_lines if line["model"] == "org/bad" and "reason" in line]
    assert (failed["levelname"], failed["stage"], failed["reason"]) == ("WARNING", "load", "missing_tensors")


def test_the_driver_logs_every_end_and_warns_of_what_is_tried_again(seen: Seen) -> None:
    ends = {record.__dict__["model"]: record for record in seen.log if "seconds" in record.__dict__}
    assert set(ends) == {f"org/{name}" for name in NAMES}
    warned = [record for record in seen.log if record.levelno == logging.WARNING]
    tried_again = [record for record in warned if "tried again" in record.getMessage()]
    assert [record.__dict__["model"] for record in tried_again] == ["org/crash", "org/crash"]
    assert ends["org/crash"].__dict__["reason"] == "worker_lost"


def test_loggers_are_as_before_after_a_run(seen: Seen) -> None:
    root = logging.getLogger()
    assert not any(type(handler) is logging.StreamHandler for handler in root.handlers)
    assert not LOG.isEnabledFor(logging.INFO)


def test_the_metrics_hold_what_happened_once_the_driver_is_gone(seen: Seen) -> None:
    metrics = seen.metrics
    assert metrics["ray_zoo_models_done_total"] == {("measured",): 2, ("failed",): 2}
    assert metrics["ray_zoo_models_failed_total"] == {
        ("missing_tensors", "load"): 1,
        ("worker_lost", "task"): 1,
    }
    assert metrics["ray_zoo_models_refused_total"] == {("gated",): 3}
    assert metrics["ray_zoo_bytes_fetched_total"] == {(): FETCHED}
    stages: dict[str, int] = {}
    for report in (*seen.summary.measured, *seen.summary.failed):
        for stage in report.stage_seconds:
            stages[stage] = stages.get(stage, 0) + 1
    assert stages
    assert metrics["ray_zoo_stage_seconds_count"] == {(stage,): count for stage, count in stages.items()}
    assert metrics["ray_zoo_models_waiting"] == {(): 0}
    assert set(metrics["ray_zoo_models_running"].values()) == {0}


def test_a_cluster_without_a_run_says_so(seen: Seen, address: str, catalog: Catalog) -> None:
    shown = CliRunner().invoke(cli, ["status", "--address", address, "--catalog", catalog.uri])
    assert shown.exit_code == 0
    assert "No run of zoo is on this cluster." in shown.output
    assert "tasks: 0 running, 0 waiting" in shown.output
    assert f"Catalog {catalog.uri}, spec {SPEC.spec_id}: 3 measured, 1 failed" in shown.output
    assert not ray.is_initialized()


@pytest.mark.slow
def test_a_cluster_without_a_dashboard_counts_no_tasks_and_none_of_another(catalog: Catalog) -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        shown = CliRunner().invoke(cli, ["status", "--address", cluster.address, "--catalog", catalog.uri])
    finally:
        cluster.shutdown()
    assert shown.exit_code == 0
    assert "1 node, 0 of 1 CPUs in use\n" in shown.output
    assert shown.output.splitlines()[-1].startswith("Tasks are not counted: Ray's state API does not answer")


@pytest.mark.parametrize("arguments", [["--address", "127.0.0.1:1"], []])
def test_a_wrong_address_is_one_line_and_exit_code_1(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(SystemExit) as caught:
        main(["status", *arguments])
    assert caught.value.code == 1
    error = capsys.readouterr().err
    assert "no Ray cluster answers at 127.0.0.1:1" in error
    assert error.count("\n") == 1


def test_the_catalog_alone_tells_counts_refusals_and_what_ended_last(catalog: Catalog) -> None:
    for verdict, at in (("refused", 1), ("measure", 2)):
        row = {"model_id": "org/once", "verdict": verdict, "reason": "gated" if at == 1 else None}
        record_scan(catalog, [row], query="q")
    record_scan(catalog, [{"model_id": "org/no", "verdict": "refused", "reason": "adapter"}], query="q")
    last = make_measurement("org/last", sink_strength=3.25)
    catalog.commit(replace(last, run=replace(last.run, started_at="2027-01-01T00:00:00+00:00")))
    look = catalog_look(catalog)
    assert (look.spec_id, look.measured, sum(look.failed.values())) == (SPEC.spec_id, 4, 1)
    assert look.refused == {"adapter": 1}
    assert look.last is not None
    assert look.last.sink_strength == 3.25
    other = MeasurementSpec(prompts_digest="1" * 64)
    assert catalog_look(catalog, spec_id=other.spec_id).measured == 0


def test_an_unknown_kind_of_log_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOO_LOG", "yaml")
    with pytest.raises(ZooError, match="give json, text or none"):
        log_encoding()
