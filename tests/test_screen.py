"""Screening keeps every model's outcome, whatever the model does to its worker."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tasks
from checkpoints_on_disk import candidate, save_checkpoint
from tasks import SPEC, measure_by_name

from catalog.store import Catalog, open_catalog
from zoo.errors import CatalogError, ClusterError, NoClusterHereError
from zoo.records import Candidate, RunOptions
from zoo.reports import ScreenProgress, ScreenSummary
from zoo.screen import screen
from zoo.tasks import commit_patiently, connected, measure_and_commit, ray
from zoo.timelimits import TimeLimits


@pytest.fixture(scope="class")
def two_gpus() -> Iterator[None]:
    """A Ray with two logical GPUs and four CPUs on this machine."""
    ray.init(num_cpus=4, num_gpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return open_catalog(str(tmp_path / "catalog"), create=True)


def candidates(folder: Path, *names: str) -> list[Candidate]:
    return [tasks.candidate(name, location=str(folder)) for name in names]


def run(models: list[Candidate], catalog: Catalog, **how: Any) -> ScreenSummary:
    how = {"options": RunOptions(), "measure": measure_by_name, "spec": SPEC} | how
    return screen(models, catalog=catalog, **how)


def names(reports: Any) -> list[str]:
    return sorted(report.model_id.removeprefix("org/") for report in reports)


@pytest.mark.usefixtures("two_gpus")
class TestOnACluster:
    def test_every_model_ends_with_a_row_and_no_model_stops_another(
        self, tmp_path: Path, catalog: Catalog, capfd: pytest.CaptureFixture[str]
    ) -> None:
        capfd.readouterr()
        models = candidates(tmp_path, "one", "crash", "raise", "bad", "nan", "three")
        seen: list[ScreenProgress] = []
        summary = run(models, catalog, progress=seen.append)
        assert names(summary.measured) == ["one", "three"]
        assert {report.model_id: (report.stage, report.reason) for report in summary.failed} == {
            "org/crash": ("task", "worker_lost"),
            "org/raise": ("task", "task_error"),
            "org/bad": ("load", "missing_tensors"),
            "org/nan": ("task", "task_error"),
        }
        assert all("\n" not in report.message for report in summary.failed)
        done = catalog.done(SPEC.spec_id)
        assert {key[0]: recorded.status for key, recorded in done.items()} == {
            each.model_id: "measured" if each.model_id in ("org/one", "org/three") else "failed"
            for each in models
        }
        assert {report.model_id for look in seen if (report := look.ended)} == {m.model_id for m in models}
        assert seen[-1].measured == 2
        assert seen[-1].failed == 4
        assert seen[-1].remaining_seconds == 0
        assert len(list(tmp_path.glob("org--crash.*"))) == 3  # and twice more
        assert capfd.readouterr().out == ""

    def test_each_model_gets_its_own_process_and_its_own_gpu(self, tmp_path: Path, catalog: Catalog) -> None:
        run(candidates(tmp_path, "a", "b", "c"), catalog)
        marks = list(tmp_path.glob("org--*"))
        assert len({mark.suffix for mark in marks}) == 3
        assert {mark.read_text() for mark in marks} <= {"0", "1"}

    def test_what_was_measured_is_not_measured_again_unless_forced(
        self, tmp_path: Path, catalog: Catalog
    ) -> None:
        models = candidates(tmp_path, "one", "bad", "flaky")
        run(models, catalog)
        marks = set(tmp_path.glob("org--*"))
        again = run(models, catalog)
        assert [each.model_id for each in again.already_measured] == ["org/one"]
        assert names(again.failed_before) == ["bad"]
        assert names(again.failed) == ["flaky"]
        assert {mark.name.split(".")[0] for mark in set(tmp_path.glob("org--*")) - marks} == {"org--flaky"}
        forced = run(models, catalog, force=True)
        assert names(forced.measured) == ["one"]
        assert names(forced.failed) == ["bad", "flaky"]
        assert catalog.done(SPEC.spec_id)["org/one", models[0].revision].attempt == 2

    def test_the_window_bounds_what_is_submitted(self, tmp_path: Path, catalog: Catalog) -> None:
        seen: list[ScreenProgress] = []
        models = candidates(tmp_path, "steady-a", "steady-b")
        summary = run(models, catalog, in_flight=1, progress=seen.append)
        assert max(len(look.running) for look in seen) == 1
        assert names(summary.measured) == ["steady-a", "steady-b"]
        assert ("org/steady-a", "probe") in {each for look in seen for each in look.running}

    def test_a_model_past_a_limit_is_ended_and_the_others_go_on(
        self, tmp_path: Path, catalog: Catalog
    ) -> None:
        limits = TimeLimits(stage_seconds={"probe": 3.0})
        models = candidates(tmp_path, "slow", "one", "two")
        summary = run(models, catalog, limits=limits)
        assert names(summary.measured) == ["one", "two"]
        (late,) = summary.failed
        assert (late.stage, late.reason, late.transient) == ("probe", "out_of_time", True)
        assert late.message.endswith("allow more with --stage-timeout probe=DURATION")
        assert len(list(tmp_path.glob("org--slow.*"))) == 1  # not tried again in this run

    def test_a_run_out_of_time_starts_no_further_model(self, tmp_path: Path, catalog: Catalog) -> None:
        models = candidates(tmp_path, "steady-a", "steady-b", "steady-c")
        summary = run(models, catalog, in_flight=1, stop_after_seconds=1.0)
        assert summary.out_of_time
        assert not summary.interrupted
        assert names(summary.measured) == ["steady-a"]
        assert names(summary.not_ended) == ["steady-b", "steady-c"]

    def test_a_catalog_that_a_node_does_not_see_ends_the_run_and_keeps_its_summary(
        self, tmp_path: Path, catalog: Catalog
    ) -> None:
        def take_away(look: ScreenProgress) -> None:
            if look.ended and look.measured == 1 and not look.failed:
                Path(catalog.root).rename(tmp_path / "away")

        models = candidates(tmp_path, "a", "b", "c", "d")
        summary = run(models, catalog, in_flight=1, order="given", progress=take_away)
        assert names(summary.measured) == ["a"]
        assert [(each.model_id, each.reason) for each in summary.failed] == [("org/b", "not_kept")]
        assert names(summary.not_ended) == ["c", "d"]
        assert "cannot be written" in summary.catalog_error

    def test_the_largest_model_goes_first_unless_an_order_is_given(
        self, tmp_path: Path, catalog: Catalog
    ) -> None:
        sizes = {"small": 1, "large": 10**12, "middle": 10**9}
        models = [
            replace(each, weight_bytes=sizes[each.model_id[4:]]) for each in candidates(tmp_path, *sizes)
        ]
        ended: list[str] = []

        def note(look: ScreenProgress) -> None:
            ended.extend([look.ended.model_id[4:]] if look.ended else [])

        run(models, catalog, in_flight=1, progress=note)
        assert ended == ["large", "middle", "small"]
        ended.clear()
        run(models, catalog, in_flight=1, progress=note, order="given", force=True)
        assert ended == ["small", "large", "middle"]

    def test_a_model_that_needs_more_gpus_gets_them_and_leaves_one_row(
        self, tmp_path: Path, catalog: Catalog
    ) -> None:
        models = candidates(tmp_path, "needs-two", "needs-two-and-more")
        summary = run(models, catalog)
        assert names(summary.measured) == ["needs-two"]
        assert [(each.model_id, each.reason) for each in summary.failed] == [
            ("org/needs-two-and-more", "gpu_memory")
        ]
        assert len(list(tmp_path.glob("org--needs-two.*"))) == 2
        assert catalog.done(SPEC.spec_id)["org/needs-two", models[0].revision].attempt == 1

    def test_ctrl_c_keeps_what_ended_and_stops_what_runs(self, tmp_path: Path, catalog: Catalog) -> None:
        def interrupt(look: ScreenProgress) -> None:
            if look.measured and len(look.running) == 1:
                raise KeyboardInterrupt

        models = candidates(tmp_path, "one", "slow-a", "slow-b", "slow-c")
        summary = run(models, catalog, progress=interrupt, in_flight=2)
        assert summary.interrupted
        assert names(summary.measured) == ["one"]
        assert names(summary.not_ended) == ["slow-a", "slow-b", "slow-c"]
        assert summary.elapsed_seconds < 60
        assert list(catalog.done(SPEC.spec_id)) == [("org/one", models[0].revision)]

    def test_a_model_is_ended_in_time_although_the_board_was_lost(
        self, tmp_path: Path, catalog: Catalog
    ) -> None:
        lost: list[str] = []

        def lose_board(look: ScreenProgress) -> None:
            if look.running and not lost:
                (board,) = ray.util.list_named_actors(all_namespaces=True)
                ray.kill(ray.get_actor(**board), no_restart=False)
                lost.append(board["name"])

        limits = TimeLimits(model_seconds=5)
        summary = run(candidates(tmp_path, "slow"), catalog, progress=lose_board, limits=limits)
        assert lost
        assert [report.reason for report in summary.failed] == ["out_of_time"]
        assert summary.elapsed_seconds < 60

    @pytest.mark.parametrize(
        ("how", "says"),
        [
            ({"gpus_per_model": 4}, r"fits on no node: this cluster has 1 node with at most 2 GPUs"),
            ({"gpus_per_model": 1.5}, r"cannot be served"),
            ({"gpus_per_model": 0, "options": RunOptions(device="cuda")}, r"takes none"),
        ],
    )
    def test_a_share_that_no_node_can_serve_is_refused_at_once(
        self, tmp_path: Path, catalog: Catalog, how: dict[str, Any], says: str
    ) -> None:
        with pytest.raises(ClusterError, match=says):
            run(candidates(tmp_path, "one"), catalog, **how)
        assert not list(tmp_path.glob("org--*"))

    def test_without_a_gpu_share_a_model_runs_on_the_cpu(self, tmp_path: Path, catalog: Catalog) -> None:
        summary = run(candidates(tmp_path, "one"), catalog, gpus_per_model=0)
        assert "no GPU" in summary.where
        path = next(Path(catalog.root).glob("outcomes/*/*.parquet"))
        import pyarrow.parquet as pq

        assert pq.read_table(path)["device"].to_pylist() == ["cpu"]


def test_four_streamed_models_share_one_gpu(tmp_path: Path, catalog: Catalog) -> None:
    """A logical GPU: where there is no real one, the models run on the CPU all the same."""
    from zoo.measure import make_spec

    spec = make_spec(prompt_count=10)
    models = [candidate(save_checkpoint(tmp_path / f"m{number}", seed=number)) for number in range(4)]
    ray.init(num_cpus=4, num_gpus=1, include_dashboard=False, log_to_driver=False)
    try:
        summary = screen(
            models,
            catalog=catalog,
            spec=spec,
            options=RunOptions(load="stream"),
            gpus_per_model=0.25,
        )
    finally:
        ray.shutdown()
    assert summary.failed == ()
    assert summary.where == "0.25 GPU and 1 CPU a model, 4 models at a time"
    assert sorted(report.model_id for report in summary.measured) == [f"tiny/m{n}" for n in range(4)]
    assert len({report.sink_strength for report in summary.measured}) == 4


def test_nothing_to_do_starts_no_ray(tmp_path: Path, catalog: Catalog) -> None:
    model = tasks.candidate("one", location=str(tmp_path))
    catalog.commit(tasks.measurement(model))
    summary = run([model, replace(model)], catalog, address="127.0.0.1:1")
    assert summary.already_measured == (model,)


def test_a_cluster_that_is_not_there_is_refused_at_once(tmp_path: Path, catalog: Catalog) -> None:
    started = time.monotonic()
    with pytest.raises(
        ClusterError, match=r"no Ray cluster answers at 127.0.0.1:1 \(ConnectionRefused"
    ) as caught:
        run(candidates(tmp_path, "one"), catalog, address="127.0.0.1:1")
    assert "\n" not in str(caught.value)
    assert time.monotonic() - started < 10


def test_an_address_that_a_killed_ray_left_behind_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(tempfile.mkdtemp(prefix="zoo-", dir="/tmp"))  # Ray's sockets need a short path
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    (folder / "ray").mkdir()
    started = time.monotonic()
    try:
        (folder / "ray" / "ray_current_cluster").write_text("127.0.0.1:1")
        with (
            pytest.raises(NoClusterHereError, match=r"no Ray runs on this machine; name a cluster"),
            connected("auto"),
        ):
            pass
        with connected(None):
            assert len(ray.nodes()) == 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert time.monotonic() - started < 60


def test_the_task_runs_in_process_without_ray(tmp_path: Path, catalog: Catalog) -> None:
    model = tasks.candidate("one", location=str(tmp_path))
    report = measure_and_commit(
        model, catalog=catalog, spec=SPEC, options=RunOptions(), measure=measure_by_name
    )
    assert report.status == "measured"
    assert report.sink_strength == 3.0
    assert catalog.done(SPEC.spec_id)["org/one", model.revision].status == "measured"


def test_what_an_earlier_try_committed_is_not_measured_again(tmp_path: Path, catalog: Catalog) -> None:
    model = tasks.candidate("one", location=str(tmp_path))
    catalog.commit(tasks.measurement(model, sink_strength=7.0))
    how = {"catalog": catalog, "spec": SPEC, "options": RunOptions(), "measure": measure_by_name}
    report = measure_and_commit(model, **how)
    assert (report.status, report.sink_strength) == ("measured", 7.0)
    assert not list(tmp_path.glob("org--one.*"))
    assert measure_and_commit(model, force=True, **how).sink_strength == 3.0


def test_a_finished_measurement_waits_for_a_catalog_that_cannot_be_written(
    tmp_path: Path, catalog: Catalog
) -> None:
    outcome = tasks.measurement(tasks.candidate("one"))
    root, away = Path(catalog.root), tmp_path / "away"
    root.rename(away)
    root.touch()  # a file where the folder was: nothing can be written below it
    back = threading.Timer(1.5, lambda: (root.unlink(), away.rename(root)))
    back.start()
    commit_patiently(catalog, outcome, force=False, patience_seconds=30)
    assert ("org/one", outcome.candidate.revision) in catalog.done(SPEC.spec_id)
    root.rename(away)
    root.touch()
    with pytest.raises(CatalogError, match=r"cannot be (written|read)"):
        commit_patiently(catalog, outcome, force=True, patience_seconds=0.1)


def test_on_cpus_one_process_serves_several_models(tmp_path: Path, catalog: Catalog) -> None:
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        summary = run(candidates(tmp_path, "a", "b", "c"), catalog)
    finally:
        ray.shutdown()
    assert names(summary.measured) == ["a", "b", "c"]
    assert len({mark.suffix for mark in tmp_path.glob("org--*")}) == 1


@pytest.mark.slow
def test_a_model_on_a_node_that_dies_is_measured_on_another(tmp_path: Path, catalog: Catalog) -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        doomed = cluster.add_node(num_cpus=2, num_gpus=1)

        def end_node(look: ScreenProgress) -> None:
            if look.running and doomed in cluster.worker_nodes:
                cluster.add_node(num_cpus=2, num_gpus=1)
                cluster.remove_node(doomed, allow_graceful=False)

        models = candidates(tmp_path, "first-slow")
        summary = run(models, catalog, address=cluster.address, progress=end_node)
        assert names(summary.measured) == ["first-slow"]
        assert len(list(tmp_path.glob("org--first-slow.*"))) == 2
        assert not ray.is_initialized()
    finally:
        cluster.shutdown()
