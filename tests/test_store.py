from __future__ import annotations

import dataclasses
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalog import files
from catalog.query import run_query
from catalog.rows import outcome_table
from catalog.schemas import HEADS, OUTCOMES
from catalog.store import Catalog, Recorded, counting, open_catalog
from tests.factories import SPEC, make_candidate, make_failure, make_measurement
from zoo.errors import CatalogError
from zoo.records import SCHEMA_VERSION

ROOT = Path(__file__).parents[1]


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return open_catalog(str(tmp_path / "catalog"), create=True)


def committed(catalog: Catalog, table: str) -> list[Path]:
    return [Path(path) for path in catalog.list_files(table)]


def test_a_measurement_comes_back_exactly_as_it_was_committed(catalog: Catalog) -> None:
    measurement = make_measurement(seed=3, layers=12, heads=5)
    catalog.commit(measurement)
    (row,) = run_query(catalog, "SELECT * FROM outcomes").records()
    strength, run = measurement.strength, measurement.run
    assert row["sink_strength"] == strength.sink_strength
    assert row["sink_strength_content"] == strength.sink_strength_content
    assert (row["interval_low"], row["interval_high"]) == (strength.interval.low, strength.interval.high)
    assert row["sink_token"] == "<s>"
    assert row["versions"] == run.versions
    assert row["stage_seconds"] == run.wall_seconds
    assert row["wall_seconds"] == sum(run.wall_seconds.values())
    assert row["started_at"].isoformat() + "+00:00" == run.started_at
    assert (row["attention_layers"], row["heads"], row["heads_per_layer"], row["kv_heads"]) == (12, 60, 5, 1)
    assert row["sliding_layers"] == 6
    assert (row["parameters"], row["prompt_count"], row["window_layers"]) == (134_515_008, 24, 10)
    sweep = run_query(catalog, "SELECT size, seed, sink_strength, sink_strength_content FROM sweep")
    assert set(sweep.rows) == {dataclasses.astuple(cell) for cell in strength.sweep}


def test_heads_come_back_exactly_with_null_for_nan(catalog: Catalog) -> None:
    measurement = make_measurement(seed=4)
    catalog.commit(measurement)
    rows = run_query(catalog, "SELECT * FROM heads ORDER BY layer, head").records()
    assert len(rows) == len(measurement.strength.heads)
    for row, head in zip(rows, measurement.strength.heads, strict=True):
        for name in ("layer", "model_layer", "head", "kv_head", "in_window", "sliding_window", "log_odds"):
            assert row[name] == getattr(head, name)
        assert row["log_odds_content"] == head.log_odds_content
        assert row["mass"] == pytest.approx(head.mass, rel=1e-12)
        assert tuple(row["candidate_masses"]) == head.candidate_masses
        assert row["prompt_log_odds"] == head.prompt_log_odds.tolist()
        assert row["prompt_log_odds_content"][0] is None
        assert row["prompt_log_odds_content"][1:] == head.prompt_log_odds_content[1:].tolist()


def test_a_failure_has_a_stage_and_a_reason_and_no_numbers(catalog: Catalog) -> None:
    catalog.commit(make_failure())
    (row,) = run_query(catalog, "SELECT * FROM outcomes").records()
    assert (row["status"], row["stage"], row["reason"]) == ("failed", "load", "truncated_weights")
    numbers = (
        "sink_strength",
        "sink_mass",
        "sweep_spread",
        "parameters",
        "peak_memory_bytes",
        "interval_low",
    )
    assert [row[name] for name in numbers] == [None] * len(numbers)
    assert run_query(catalog, "SELECT * FROM measurements").rows == ()
    assert committed(catalog, "heads") == []


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, np.float32("nan")])
def test_a_sink_strength_that_is_no_number_is_never_committed(catalog: Catalog, number: float) -> None:
    with pytest.raises(ValueError, match="sink_strength is"):
        catalog.commit(make_measurement(sink_strength=number))
    assert committed(catalog, "outcomes") == []


def test_a_key_must_be_a_whole_revision(catalog: Catalog) -> None:
    with pytest.raises(ValueError, match="40 hex digits"):
        catalog.commit(make_failure(revision="main"))


def test_text_that_is_no_unicode_is_kept_readable(catalog: Catalog) -> None:
    failure = dataclasses.replace(make_failure(), message="no file caf\udce9.gguf")
    catalog.commit(failure)
    assert run_query(catalog, "SELECT message FROM outcomes").rows == (("no file caf\\udce9.gguf",),)


def test_a_second_commit_is_dropped_and_a_forced_one_is_the_next_attempt(catalog: Catalog) -> None:
    first = catalog.commit(make_measurement(seed=1))
    dropped = catalog.commit(make_measurement(seed=2))
    forced = catalog.commit(make_measurement(seed=3), force=True)
    assert (first.written, first.attempt) == (True, 1)
    assert (dropped.written, dropped.attempt, dropped.attempt_id) == (False, 1, first.attempt_id)
    assert (forced.written, forced.attempt) == (True, 2)
    ((strength,),) = run_query(catalog, "SELECT sink_strength FROM ranking").rows
    assert strength == make_measurement(seed=3).sink_strength
    assert [path.name for path in committed(catalog, "outcomes")] == [
        f"{make_candidate().stem}.2.parquet",
        f"{make_candidate().stem}.parquet",
    ]


def test_a_transient_failure_is_tried_again_and_never_hides_a_measurement(catalog: Catalog) -> None:
    key = (make_candidate().model_id, make_candidate().revision)
    catalog.commit(make_failure(transient=True))
    assert catalog.done(SPEC.spec_id)[key].transient
    assert catalog.commit(make_measurement()).attempt == 2
    assert catalog.commit(make_failure(transient=True), force=True).attempt == 3
    assert catalog.done(SPEC.spec_id)[key].status == "measured"
    assert len(run_query(catalog, "SELECT * FROM ranking").rows) == 1


def test_a_permanent_failure_of_a_forced_attempt_takes_the_model_off_the_ranking(catalog: Catalog) -> None:
    catalog.commit(make_measurement())
    catalog.commit(make_failure(), force=True)
    assert run_query(catalog, "SELECT * FROM ranking").rows == ()
    assert run_query(catalog, "SELECT count(*) FROM heads").rows == ((0,),)


attempt_lists = st.lists(
    st.sampled_from([("measured", False), ("failed", False), ("failed", True)]), min_size=1, max_size=6
)


@given(attempt_lists)
@settings(max_examples=30, deadline=None)
def test_sql_and_python_agree_on_the_attempt_that_counts(
    tmp_path_factory: pytest.TempPathFactory, attempts: list[tuple[str, bool]]
) -> None:
    catalog = open_catalog(str(tmp_path_factory.mktemp("counts")), create=True)
    for status, transient in attempts:
        outcome = (
            make_failure(transient=transient) if status == "failed" else make_measurement(layers=1, heads=1)
        )
        catalog.commit(outcome, force=True)
    (done,) = catalog.done(SPEC.spec_id).values()
    ((attempt,),) = run_query(catalog, "SELECT attempt FROM outcomes WHERE counts").rows
    assert attempt == done.attempt
    settled = [number for number, (_, transient) in enumerate(attempts, 1) if not transient]
    assert attempt == (settled or [len(attempts)])[-1]


def test_the_latest_attempt_that_says_something_counts() -> None:
    def recorded(attempt: int, transient: bool) -> Recorded:
        return Recorded(
            attempt=attempt, attempt_id="", status="", stage=None, reason=None, transient=transient
        )

    assert counting([recorded(1, False), recorded(2, False), recorded(3, True)]).attempt == 2
    assert counting([recorded(1, True), recorded(2, True)]).attempt == 2


def test_two_models_with_one_file_name_are_not_taken_for_each_other(catalog: Catalog) -> None:
    revision = "a" * 40
    catalog.commit(make_failure("a/b--c", revision=revision))
    with pytest.raises(CatalogError, match="rename one of them"):
        catalog.commit(make_failure("a--b/c", revision=revision))


def test_specs_are_kept_apart(catalog: Catalog) -> None:
    other = dataclasses.replace(SPEC, prompt_count=12)
    catalog.commit(make_measurement())
    assert catalog.done(other.spec_id) == {}
    assert catalog.commit(make_measurement(spec=other)).written


RACER = """
import sys
from catalog.store import open_catalog
from tests.factories import make_measurement
catalog = open_catalog(sys.argv[1])
measurement = make_measurement(layers=1, heads=2, seed=int(sys.argv[2]))
print("ready", flush=True)
sys.stdin.readline()
print(int(catalog.commit(measurement).written))
"""


def spawn(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_of_many_processes_with_one_key_exactly_one_writes(catalog: Catalog) -> None:
    racers = [spawn(RACER, catalog.uri, str(seed)) for seed in range(4)]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    written = [racer.communicate("go\n", timeout=60)[0] for racer in racers]
    assert sorted(written) == ["0\n", "0\n", "0\n", "1\n"]
    assert run_query(catalog, "SELECT attempt FROM outcomes").rows == ((1,),)
    assert run_query(catalog, "SELECT count(*) FROM heads").rows == ((2,),)


def test_of_many_threads_that_force_each_gets_its_own_attempt(catalog: Catalog) -> None:
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(catalog.commit(make_failure(), force=True)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(result.attempt for result in results) == list(range(1, 9))


ENDLESS_WRITER = """
import sys
from catalog.store import open_catalog
from tests.factories import make_measurement
catalog = open_catalog(sys.argv[1])
number = 0
print("ready", flush=True)
while True:
    catalog.commit(make_measurement(f"{sys.argv[2]}/m{number}", layers=2, heads=2))
    number += 1
"""


def test_a_writer_killed_anywhere_leaves_a_catalog_that_reads(catalog: Catalog) -> None:
    random = np.random.default_rng(0)
    for run in range(4):
        writer = spawn(ENDLESS_WRITER, catalog.uri, f"run{run}")
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        time.sleep(random.uniform(0.02, 0.4))
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        outcomes = len(committed(catalog, "outcomes"))
        query = "SELECT count(*), (SELECT count(*) FROM heads), (SELECT count(*) FROM sweep) FROM ranking"
        assert run_query(catalog, query).rows == ((outcomes, 4 * outcomes, 18 * outcomes),)
        assert catalog.verify().problems == ()
    assert outcomes > 0


def test_a_reader_never_fails_while_a_writer_commits_hundreds(catalog: Catalog) -> None:
    errors: list[BaseException] = []

    def write() -> None:
        try:
            for number in range(200):
                catalog.commit(make_measurement(f"org/m{number}", layers=1, heads=2))
        except BaseException as error:
            errors.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    seen = [0]
    while writer.is_alive():
        ((models, heads),) = run_query(
            catalog, "SELECT count(*), (SELECT count(*) FROM heads) FROM measurements"
        ).rows
        assert heads == 2 * models
        seen.append(models)
    writer.join()
    assert errors == []
    assert seen == sorted(seen)
    assert len(set(seen)) > 2
    assert len(catalog.done(SPEC.spec_id)) == 200


def test_the_heads_of_a_run_that_never_committed_are_not_seen(catalog: Catalog) -> None:
    catalog.commit(make_measurement("org/crashed"))
    committed(catalog, "outcomes")[0].unlink()  # as if the writer had died before its last step
    catalog.commit(make_measurement("org/fine", layers=1, heads=3))
    assert run_query(catalog, "SELECT count(*), any_value(model_id) FROM heads").rows == ((3, "org/fine"),)
    assert run_query(catalog, "SELECT DISTINCT model_id FROM sweep").rows == (("org/fine",),)
    verification = catalog.verify()
    assert (verification.files, verification.problems, verification.uncommitted) == (5, (), 2)


def test_only_old_leftovers_of_other_machines_are_removed_from_staging(catalog: Catalog) -> None:
    staging = Path(catalog.root) / files.STAGING
    old, new = staging / "old.elsewhere.partial", staging / "new.elsewhere.partial"
    for path in (old, new):
        path.write_bytes(b"half a file")
    os.utime(old, (0, time.time() - 2 * files.STALE_SECONDS))
    open_catalog(catalog.uri, create=True)
    assert sorted(path.name for path in staging.iterdir()) == ["new.elsewhere.partial"]


STAGER = """
import os, sys
from catalog.store import open_catalog
from tests.factories import make_failure
catalog = open_catalog(sys.argv[1])
def staged(*_):
    print("staged", flush=True)
    sys.stdin.read()
os.link = staged
catalog.commit(make_failure())
"""


def test_a_staged_file_disturbs_nobody_and_goes_when_its_writer_is_dead(catalog: Catalog) -> None:
    catalog.commit(make_measurement("org/done"))
    staging = Path(catalog.root) / files.STAGING
    writer = spawn(STAGER, catalog.uri)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "staged\n"
    open_catalog(catalog.uri, create=True)
    assert len(list(staging.iterdir())) == 1  # its writer lives
    writer.kill()
    writer.communicate()
    assert len(list(staging.iterdir())) == 1
    assert len(catalog.done(SPEC.spec_id)) == 1
    assert len(run_query(catalog, "SELECT * FROM outcomes").rows) == 1
    assert (catalog.verify().files, catalog.verify().problems) == (3, ())
    open_catalog(catalog.uri, create=True)
    assert list(staging.iterdir()) == []


def test_a_link_whose_answer_was_lost_is_known_as_ones_own(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def answer_lost(source: Path, target: Path) -> None:
        link(source, target)
        raise FileExistsError  # what a client of NFS says when it sends the request again

    monkeypatch.setattr("os.link", answer_lost)
    assert catalog.commit(make_failure()).written
    assert not catalog.commit(make_failure()).written
    assert len(committed(catalog, "outcomes")) == 1


FULL_DISK = """
import resource, signal, sys
from catalog.store import open_catalog
from tests.factories import make_measurement
from zoo.errors import CatalogError
catalog = open_catalog(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
try:
    catalog.commit(make_measurement())
except CatalogError as error:
    print(error)
"""


def test_a_file_that_does_not_fit_is_one_line_and_leaves_no_part_of_it(catalog: Catalog) -> None:
    line, _ = spawn(FULL_DISK, catalog.uri).communicate(timeout=60)
    assert line.startswith(f"the catalog {catalog.uri} cannot be written (File too large): name a folder")
    assert line.count("\n") == 1
    assert list((Path(catalog.root) / files.STAGING).iterdir()) == []
    assert committed(catalog, "heads") == committed(catalog, "outcomes") == []
    assert catalog.done(SPEC.spec_id) == {}


@pytest.mark.parametrize("table", ["outcomes", "heads", "sweep"])
def test_verify_finds_every_flipped_bit_that_changes_a_value(catalog: Catalog, table: str) -> None:
    catalog.commit(make_measurement(layers=2, heads=2))
    (path,) = committed(catalog, table)
    sound, rows = path.read_bytes(), pq.read_table(path)
    assert catalog.verify().problems == ()
    random = np.random.default_rng(1)
    found = 0
    for _ in range(80):
        flipped = bytearray(sound)
        flipped[random.integers(len(sound))] ^= 1 << int(random.integers(8))
        path.write_bytes(flipped)
        problems = catalog.verify().problems
        found += bool(problems)
        if not problems:
            assert files.read_verified(catalog.filesystem, str(path), table=table).equals(rows)
        else:
            assert str(path).endswith(problems[0].path)
    assert found > 20


def test_a_query_over_a_flipped_page_fails_and_names_the_remedy(catalog: Catalog) -> None:
    catalog.commit(make_measurement())
    (path,) = committed(catalog, "heads")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)
    with pytest.raises(CatalogError, match="zoo verify"):
        run_query(
            catalog, "SELECT sum(list_sum(prompt_log_odds) + list_sum(prompt_log_odds_content)) FROM heads"
        )


def test_verify_names_a_measurement_whose_heads_are_gone(catalog: Catalog) -> None:
    catalog.commit(make_measurement(layers=2, heads=2))
    committed(catalog, "heads")[0].unlink()
    (problem,) = catalog.verify().problems
    assert problem.problem == "has 0 of its 4 heads"
    assert problem.path.startswith("outcomes/")


@pytest.mark.parametrize("content", [b"", b"not parquet at all", b"PAR1" * 20])
def test_a_damaged_outcome_is_named_in_one_line(catalog: Catalog, content: bytes) -> None:
    catalog.commit(make_failure())
    committed(catalog, "outcomes")[0].write_bytes(content)
    for read in (
        lambda: catalog.done(SPEC.spec_id),
        lambda: catalog.commit(make_failure()),
        lambda: run_query(catalog, "SELECT * FROM ranking"),
    ):
        with pytest.raises(CatalogError, match=r"^[^\n]*zoo verify[^\n]*$"):
            read()
    assert len(catalog.verify().problems) == 1


def test_an_older_and_a_newer_file_are_read_together(catalog: Catalog) -> None:
    catalog.commit(make_measurement("org/now"))
    row = outcome_table(make_measurement("org/old"), attempt=1, attempt_id="0" * 12)
    folder = committed(catalog, "outcomes")[0].parent
    pq.write_table(row.drop_columns(["verified", "sink_mass"]), folder / "old.parquet")
    future = row.set_column(0, "model_id", pa.array(["org/future"]))
    future = future.append_column("entropy", pa.array([1.5]))
    pq.write_table(future.select(list(reversed(future.schema.names))), folder / "future.parquet")
    rows = run_query(catalog, "SELECT model_id, sink_mass FROM outcomes ORDER BY model_id").rows
    assert rows == (("org/future", 0.7), ("org/now", 0.7), ("org/old", None))
    assert len(catalog.done(SPEC.spec_id)) == 3


def test_every_file_has_page_checksums_and_says_its_schema_version(catalog: Catalog) -> None:
    catalog.commit(make_measurement(layers=3, heads=8))
    for table in ("outcomes", "heads", "sweep"):
        (path,) = committed(catalog, table)
        metadata = pq.ParquetFile(path).metadata
        assert metadata.metadata[b"zoo.schema_version"] == str(SCHEMA_VERSION).encode()
    (heads,) = committed(catalog, "heads")
    assert pq.ParquetFile(heads).metadata.row_group(0).column(0).compression == "ZSTD"
    assert pq.read_schema(heads).names == HEADS.names


def test_the_catalog_can_be_sent_to_another_process(catalog: Catalog) -> None:
    catalog.commit(make_failure())
    assert len(pickle.loads(pickle.dumps(catalog)).done(SPEC.spec_id)) == 1


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("name", ["file", "file/below", "", "nope://bucket/x", "nul\0byte"])
def test_a_path_that_cannot_hold_a_catalog_is_refused_in_one_line(
    tmp_path: Path, name: str, create: bool
) -> None:
    (tmp_path / "file").write_text("not a folder")
    uri = name if not name or "://" in name else str(tmp_path / name)
    with pytest.raises(CatalogError, match=r"^[^\n]+$"):
        open_catalog(uri, create=create)


def test_a_folder_that_cannot_be_written_is_refused_when_it_is_opened_for_writing() -> None:
    with pytest.raises(CatalogError, match="cannot be written"):
        open_catalog("/proc/zoo-catalog", create=True)


def test_a_missing_catalog_names_the_command_that_makes_one(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="zoo screen --catalog"):
        open_catalog(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_reading_needs_no_right_to_write(catalog: Catalog) -> None:
    catalog.commit(make_failure())
    before = sorted(Path(catalog.root).rglob("*"))
    reader = open_catalog(catalog.uri)
    reader.done(SPEC.spec_id)
    run_query(reader, "SELECT * FROM ranking")
    reader.verify()
    assert sorted(Path(catalog.root).rglob("*")) == before


def test_a_filesystem_without_put_if_absent_is_read_and_never_written(catalog: Catalog) -> None:
    catalog.commit(make_measurement())
    catalog.commit(make_failure("org/bad"))
    other = pafs.SubTreeFileSystem(catalog.root, pafs.LocalFileSystem())
    remote = Catalog(uri="remote://", filesystem=other, root=".")
    assert len(run_query(remote, "SELECT * FROM ranking").rows) == 1
    assert len(remote.done(SPEC.spec_id)) == 2
    assert remote.verify().problems == ()
    before = sorted(Path(catalog.root).rglob("*"))
    with pytest.raises(CatalogError, match="can only be read"):
        remote.commit(make_measurement("org/new"))
    assert sorted(Path(catalog.root).rglob("*")) == before


def test_a_file_that_exists_is_never_replaced(catalog: Catalog) -> None:
    path = f"{catalog.root}/outcomes/x"
    assert files.publish(catalog.filesystem, path, b"first", root=catalog.root)
    assert not files.publish(catalog.filesystem, path, b"second", root=catalog.root)
    assert Path(path).read_bytes() == b"first"
    assert list((Path(catalog.root) / files.STAGING).iterdir()) == []


def test_every_outcome_column_is_plain_sql(catalog: Catalog) -> None:
    catalog.commit(make_measurement())
    names = set(run_query(catalog, "SELECT * FROM outcomes").columns)
    assert names == {*OUTCOMES.names, "counts"}
    assert all(name.isidentifier() and name.islower() for name in names)
