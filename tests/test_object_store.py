"""A catalog in an S3-compatible store: moto's server on the loopback, with faults."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import botocore.session
import pytest
import store_server
from click.testing import CliRunner
from store_server import BUCKET, ENVIRONMENT, StoreServer, at, first
from tasks import candidate, measure_by_name, measurement

from catalog import object_store
from catalog.object_store import ObjectStore, parse_uri
from catalog.panel_files import add_panel_file
from catalog.query import run_query
from catalog.store import Catalog, open_catalog
from tests.factories import SPEC, make_failure, make_measurement
from tests.test_calibration import LLMS, panel_csv, strong
from zoo.cli import cli, main
from zoo.errors import CatalogError
from zoo.prompts import make_spec
from zoo.records import Outcome, RunOptions
from zoo.screen import screen
from zoo.tasks import measure_and_commit, ray

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def server() -> Iterator[StoreServer]:
    with store_server.running() as server:
        yield server


@pytest.fixture
def store(server: StoreServer, monkeypatch: pytest.MonkeyPatch) -> StoreServer:
    """The server without faults and with an empty bucket, and the environment that leads to it."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    monkeypatch.setattr(object_store, "WAITS", (0.05, 0.05))
    monkeypatch.setattr(object_store, "ATTEMPTS", 2)
    server.calm()
    client = botocore.session.get_session().create_client("s3")
    client.create_bucket(Bucket=BUCKET)
    server.calm()
    return server


@pytest.fixture
def uri(store: StoreServer) -> str:
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"


@pytest.fixture
def remote(uri: str) -> Catalog:
    return open_catalog(uri, create=True)


def exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    assert isinstance(caught.value.code, int)
    return caught.value.code


def names(catalog: Catalog, table: str) -> list[str]:
    return [path.rpartition("/")[2] for path in catalog.list_files(table)]


def test_models_are_measured_ranked_and_shown_without_a_shared_disk(remote: Catalog) -> None:
    for name, strength in (("low", -0.5), ("high", 1.5)):
        report = measure_and_commit(
            candidate(name),
            catalog=pickle.loads(pickle.dumps(remote)),
            spec=SPEC,
            options=RunOptions(),
            measure=lambda each, s=strength, **_: measurement(each, sink_strength=s),
        )
        assert report.status == "measured"
    run = CliRunner().invoke
    assert [
        line.split()[:2]
        for line in run(cli, ["rank", "--catalog", remote.uri, "--format", "csv"])
        .stdout.replace(",", " ")
        .splitlines()[1:]
    ] == [["1", "org/high"], ["2", "org/low"]]
    assert "1.50 nats" in run(cli, ["show", "org/high", "--catalog", remote.uri]).stdout
    counted = run(cli, ["sql", "select count(*) as n from heads", "--catalog", remote.uri, "--format", "csv"])
    assert counted.stdout == "n\n48\n"
    verified = run(cli, ["verify", "--catalog", remote.uri])
    assert (verified.exit_code, verified.stderr) == (0, "6 files read, 0 problems.\n")


def test_workers_of_a_cluster_write_their_rows_to_the_store(remote: Catalog, tmp_path: Path) -> None:
    """Two nodes' worth of workers, which find the store's keys in their own environment."""
    models = [candidate(name, location=str(tmp_path)) for name in ("a", "bb", "bad", "dddd")]
    ray.init(num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False)
    try:
        how = {"catalog": remote, "spec": SPEC, "options": RunOptions(), "measure": measure_by_name}
        summary = screen(models, **how)
        again = screen(models, **how)
    finally:
        ray.shutdown()
    assert sorted(report.model_id for report in summary.measured) == ["org/a", "org/bb", "org/dddd"]
    assert [report.reason for report in summary.failed] == ["missing_tensors"]
    assert len(names(remote, "outcomes")) == len(models)
    assert not again.measured
    ranked = run_query(remote, "SELECT model_id, sink_strength FROM ranking").rows
    assert ranked == (("org/dddd", 4.0), ("org/bb", 2.0), ("org/a", 1.0))
    assert remote.verify().problems == ()


def test_a_fit_of_the_panel_is_kept_in_the_store_and_predicts_from_it(remote: Catalog) -> None:
    def under_spec(outcome: Outcome) -> Outcome:
        return replace(outcome, spec=make_spec(prompt_count=10))

    for name, (s, qk_norm, _) in LLMS.items():
        remote.commit(under_spec(strong(name, s, qk_norm)))
    add_panel_file(remote, panel_csv(*LLMS), name="mine")
    arguments = ["calibrate", "--task", "ifeval", "--prompts", "10", "--catalog-only", "--catalog"]
    result = CliRunner().invoke(cli, [*arguments, remote.uri])
    assert result.exit_code == 0, result.output
    ranked = run_query(remote, "SELECT count(*) FROM predictions WHERE predicted_low IS NOT NULL").rows
    assert ranked == ((len(LLMS),),)


RACER = """
import pickle, sys
from tests.factories import make_measurement
catalog = pickle.loads(bytes.fromhex(sys.argv[1]))
catalog.done("warm-up")
print("ready", flush=True)
sys.stdin.readline()
print(int(catalog.commit(make_measurement(seed=int(sys.argv[2]))).written))
"""


def test_of_two_processes_with_one_key_exactly_one_writes(remote: Catalog, store: StoreServer) -> None:
    store.delay_seconds = 0.02
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, pickle.dumps(remote).hex(), str(seed)],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in range(2)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    assert sorted(racer.communicate(timeout=60)[0] for racer in racers) == ["0\n", "1\n"]
    assert len(names(remote, "outcomes")) == 1
    assert remote.verify().problems == ()


def test_an_object_whose_answer_was_lost_is_known_as_ones_own(remote: Catalog, store: StoreServer) -> None:
    store.plan = first(1, "lost_answer", method="PUT", part="/outcomes/")
    assert remote.commit(make_measurement()).written
    assert store.faults == {"lost_answer": 1}
    assert names(remote, "outcomes") == [f"{make_measurement().candidate.stem}.parquet"]
    assert not remote.commit(make_measurement(seed=1)).written


def test_the_object_of_another_is_never_taken_for_ones_own(remote: Catalog, store: StoreServer) -> None:
    remote.commit(make_measurement())
    store.plan = first(2, "InternalError", method="PUT")
    forced = remote.commit(make_measurement(), force=True)
    assert (forced.written, forced.attempt) == (True, 2)
    assert len(remote.done(SPEC.spec_id)) == 1


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_passing_faults_lose_no_commit_and_double_none(
    remote: Catalog, store: StoreServer, seed: int
) -> None:
    store.plan = at(0.2, seed=seed)
    acknowledged = {f"org/m{number}" for number in range(12)}
    for model_id in sorted(acknowledged):
        assert remote.commit(make_measurement(model_id, layers=2, heads=2)).written
    done = {model_id: recorded.attempt for (model_id, _), recorded in remote.done(SPEC.spec_id).items()}
    ranked = run_query(remote, "SELECT model_id FROM ranking").rows
    store.calm()
    assert done == dict.fromkeys(acknowledged, 1)
    assert {model_id for (model_id,) in ranked} == acknowledged
    assert len(names(remote, "outcomes")) == 12
    assert (remote.verify().problems, remote.verify().uncommitted) == ((), 0)


def test_an_outage_longer_than_the_clients_own_patience_is_waited_out(
    remote: Catalog, store: StoreServer
) -> None:
    store.plan = first(2 * object_store.ATTEMPTS, "InternalError", method="PUT")
    assert remote.commit(make_failure()).written


@pytest.mark.parametrize("kind", ["InternalError", "reset"])
def test_a_store_that_stays_away_ends_in_one_line(remote: Catalog, store: StoreServer, kind: str) -> None:
    store.plan = lambda *_: kind
    for use in (
        lambda: remote.commit(make_failure()),
        lambda: remote.done(SPEC.spec_id),
        lambda: remote.verify(),
        lambda: run_query(remote, "SELECT * FROM ranking"),
        lambda: open_catalog(remote.uri),
    ):
        store.faults.clear()
        with pytest.raises(CatalogError, match=rf"^[^\n]*s3://{BUCKET}[^\n]+$"):
            use()
        assert store.faults[kind] <= 3 * object_store.ATTEMPTS


def test_an_outage_amid_a_query_is_not_called_damage(remote: Catalog, store: StoreServer) -> None:
    remote.commit(make_measurement())
    store.plan = lambda method, path: "InternalError" if "outcomes/" in path else None
    for use in (remote.verify, lambda: run_query(remote, "SELECT * FROM outcomes")):
        with pytest.raises(CatalogError) as caught:
            use()
        assert "InternalError" in str(caught.value)
        assert "zoo verify" not in str(caught.value)


def test_a_damaged_object_is_named_by_verify_with_exit_code_3(
    remote: Catalog, capsys: pytest.CaptureFixture[str]
) -> None:
    remote.commit(make_measurement())
    path = f"{remote.folder('outcomes', SPEC.spec_id)}/org--bad@{'0' * 12}.parquet"
    remote.filesystem.handler.put_if_absent(path, b"PAR1 no more PAR1")
    assert exit_code("verify", "--catalog", remote.uri) == 3
    output = capsys.readouterr()
    assert "org--bad@" in output.out
    assert output.err == "4 files read, 1 problems.\n"


REFUSALS = {
    "AccessDenied": "s3:ListBucket",
    "ExpiredToken": "renew them",
    "InvalidAccessKeyId": "AWS_PROFILE",
    "SignatureDoesNotMatch": "AWS_SECRET_ACCESS_KEY",
}


@pytest.mark.parametrize("code", REFUSALS)
@pytest.mark.parametrize("command", [["rank"], ["screen", "--source", "."]])
def test_a_refusal_is_one_line_with_its_remedy(
    uri: str,
    store: StoreServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    code: str,
    command: list[str],
) -> None:
    store.plan = lambda *_: code
    monkeypatch.chdir(model_folder(tmp_path))
    assert exit_code(*command, "--catalog", uri) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"Error: s3://{BUCKET} at {store.endpoint} cannot be used: ")
    assert REFUSALS[code] in line
    assert store.faults[code] == 1


def model_folder(folder: Path) -> Path:
    """A folder in which a source finds one model, whose weights nobody reads here."""
    (folder / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    (folder / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    return folder


def test_what_cannot_be_reached_is_one_line_with_its_remedy(
    uri: str, store: StoreServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refusal(uri: str) -> str:
        assert exit_code("rank", "--catalog", uri) == 1
        (line,) = capsys.readouterr().err.splitlines()
        return line

    assert "there is no such bucket" in refusal("s3://not-there/x")
    assert "does not answer" in refusal(f"{uri}?endpoint_override=127.0.0.1:9&scheme=http")
    assert "Invalid bucket name" in refusal("s3://a_b%20/x")
    assert "keys do not belong in a URI" in refusal(f"s3://key:secret@{BUCKET}/x")
    assert "make one with zoo screen" in refusal(uri)
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    assert "AWS_PROFILE" in refusal(uri)
    monkeypatch.delenv("AWS_PROFILE")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    assert "no credentials were found" in refusal(uri) or "partial" in refusal(uri).lower()
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert "no credentials were found" in refusal(uri)


@pytest.mark.parametrize(
    ("code", "remedy"),
    [("AccessDenied", "PutObject"), ("QuotaExceeded", "make room"), ("NotImplemented", "conditional writes")],
)
def test_a_store_that_cannot_be_written_is_refused_before_anything_is_measured(
    uri: str, store: StoreServer, code: str, remedy: str
) -> None:
    store.plan = lambda method, path: code if method == "PUT" else None
    with pytest.raises(CatalogError, match=remedy):
        open_catalog(uri, create=True)
    assert store.faults == {code: 1}


def test_a_store_that_would_replace_objects_is_refused(uri: str, store: StoreServer) -> None:
    store.ignores_conditions = True
    with pytest.raises(CatalogError, match="If-None-Match"):
        open_catalog(uri, create=True)


def test_opening_for_writing_leaves_nothing_behind(remote: Catalog, store: StoreServer) -> None:
    selector = object_store.pafs.FileSelector(remote.root, recursive=True, allow_not_found=True)
    assert remote.filesystem.get_file_info(selector) == []
    store.plan = first(1, "AccessDenied", method="DELETE")  # the right to remove is not needed
    open_catalog(remote.uri, create=True)
    assert remote.done(SPEC.spec_id) == {}
    assert remote.verify().files == 0


def test_a_catalog_that_is_sent_away_carries_no_secret(remote: Catalog) -> None:
    remote.commit(make_failure())
    sent = pickle.dumps(remote)
    for secret in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        assert ENVIRONMENT[secret].encode() not in sent
    assert len(pickle.loads(sent).done(SPEC.spec_id)) == 1


def test_endpoint_keys_and_region_come_from_the_standard_places(
    uri: str, store: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def works(uri: str) -> None:
        store.requests.clear()
        catalog = open_catalog(uri, create=True)
        catalog.commit(make_failure(), force=True)
        assert len(catalog.done(SPEC.spec_id)) == 1
        assert store.requests["GET"] > 0
        assert store.requests["PUT"] > 0

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", store.endpoint)
    works(uri)
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    works(f"{uri}?endpoint_override={store.endpoint.removeprefix('http://')}&scheme=http&region=eu-west-1")
    works(f"{uri}?endpoint_override={store.endpoint}")
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    config = tmp_path / "config"
    config.write_text(
        f"[profile lab]\nendpoint_url = {store.endpoint}\nregion = eu-west-1\n"
        "aws_access_key_id = a\naws_secret_access_key = b\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_PROFILE", "lab")
    works(uri)


@pytest.mark.parametrize(
    "uri", ["s3://", "s3:///x", "s3://key:secret@bucket/x", "s3://bucket/x?access_key=1", "s3://bucket/x#y"]
)
def test_a_uri_that_says_too_little_or_too_much_is_refused(uri: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_uri(uri)


def test_a_uri_names_a_bucket_and_a_prefix() -> None:
    assert parse_uri("s3://bucket/a/b%20c/")[1] == "bucket/a/b c"
    assert parse_uri("s3://bucket")[1] == "bucket"
    assert parse_uri("s3://bucket?endpoint_override=host:1")[0].endpoint == "https://host:1"


def test_prefixes_that_begin_alike_are_two_catalogs(remote: Catalog) -> None:
    other = open_catalog(f"{remote.uri}-other", create=True)
    other.commit(make_failure())
    assert remote.done(SPEC.spec_id) == {}
    with pytest.raises(CatalogError, match="there is no catalog"):
        open_catalog(remote.uri)
    assert len(open_catalog(other.uri).done(SPEC.spec_id)) == 1


def test_a_listing_of_many_pages_is_whole(remote: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(7):
        remote.commit(make_failure(f"org/m{number}"))
    one_page = ObjectStore.list_page

    def small(self: ObjectStore, folder: str, **how: object) -> dict[str, object]:
        return one_page(self, folder, **{"MaxKeys": 2} | how)  # type: ignore[arg-type]

    monkeypatch.setattr(ObjectStore, "list_page", small)
    assert len(names(remote, "outcomes")) == 7


def test_a_query_fetches_each_object_of_its_tables_once_and_many_at_a_time(
    remote: Catalog, store: StoreServer
) -> None:
    for number in range(20):
        remote.commit(make_measurement(f"org/m{number}", layers=1, heads=2))
    fetched: list[str] = []
    store.plan = lambda method, path: fetched.append(path) if path.endswith(".parquet") else None

    def fetches(use: Callable[[], object]) -> list[str]:
        fetched.clear()
        use()
        return sorted(path.split("/")[3] for path in fetched)

    from catalog.lookup import model_details, rank_rows

    store.most_at_once, store.delay_seconds = 0, 0.02
    assert fetches(lambda: remote.done(SPEC.spec_id)) == ["outcomes"] * 20
    assert store.most_at_once > 8
    store.delay_seconds = 0.0
    assert fetches(lambda: run_query(remote, "SELECT * FROM ranking")) == ["outcomes"] * 20
    assert fetches(lambda: rank_rows(remote)) == ["heads"] * 20 + ["outcomes"] * 20 + ["sweep"] * 20
    assert fetches(lambda: model_details(remote, "org/m3")) == ["heads", "outcomes", "sweep"]
    hidden = "SELECT count(*) FROM query_table('out' || 'comes')"
    assert run_query(remote, hidden).rows == ((20,),)


def test_fetched_files_are_removed_with_the_query(
    remote: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote.commit(make_measurement())
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert len(run_query(remote, "SELECT * FROM ranking").rows) == 1
    assert list(tmp_path.iterdir()) == []
