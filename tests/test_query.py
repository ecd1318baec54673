from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from catalog.query import connect, run_query
from catalog.store import Catalog
from catalog.view_files import VIEWS, list_views
from tests.factories import make_measurement
from zoo.errors import CatalogError, QueryError

ROOT = Path(__file__).parents[1]
ENDLESS = "WITH RECURSIVE r AS (SELECT 1 AS a UNION ALL SELECT 1 FROM r) SELECT count(*) FROM r"


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_works_on_an_empty_catalog(empty: Catalog, view: str) -> None:
    rows = run_query(empty, f"SELECT * FROM {view}").records()
    # The shipped panel is there before anything is measured.
    assert [row for row in rows if view != "panel" or row["sink_strength"] is not None] == []


def test_every_sql_file_is_a_view_with_a_description() -> None:
    assert {path.stem for path in (ROOT / "catalog" / "views").glob("*.sql")} == set(VIEWS)
    for view, description in list_views():
        assert len(description) > 20, view
        assert description.endswith("."), view
        assert not description.startswith("--"), view


def test_the_ranking_has_the_best_backbone_first(catalog: Catalog) -> None:
    rows = run_query(catalog, "SELECT rank, model_id, sink_strength FROM ranking").rows
    assert rows == ((1, "org/m1", 1.5), (2, "org/m0", 0.5), (3, "org/m2", -0.5))


def test_a_model_is_ranked_once_by_the_revision_measured_last(catalog: Catalog) -> None:
    later, revision = "2026-04-01T00:00:00+02:00", "b" * 40
    catalog.commit(make_measurement("org/m0", revision=revision, sink_strength=3.0, started_at=later))
    rows = run_query(catalog, "SELECT revision FROM ranking WHERE model_id = 'org/m0'").rows
    assert rows == ((revision,),)
    assert len(run_query(catalog, "SELECT * FROM measurements WHERE model_id = 'org/m0'").rows) == 2
    assert run_query(catalog, "SELECT max(started_at)::VARCHAR FROM ranking").rows == (
        ("2026-03-31 22:00:00",),
    )


NOT_ONE_SELECT = [
    "",
    "-- nothing",
    "SELECT 1; SELECT 2",
    "COPY (SELECT 1) TO '{target}'",
    "COPY outcomes TO '{target}' (FORMAT parquet)",
    "EXPORT DATABASE '{target}'",
    "ATTACH '{target}'",
    "INSTALL httpfs",
    "LOAD icu",
    "PRAGMA database_list",
    "SET threads = 1",
    "RESET lock_configuration",
    "CREATE TABLE t (a INT)",
    "CREATE MACRO f(x) AS x",
    "DROP VIEW ranking",
    "INSERT INTO outcomes SELECT * FROM outcomes",
    "DELETE FROM outcomes",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO '{target}'",
    "EXPLAIN ANALYZE SELECT 1",
    "CALL pragma_version()",
    "PREPARE p AS SELECT 1",
    "BEGIN",
    "CHECKPOINT",
    "selec 1",
]

ESCAPES = [
    "SELECT * FROM read_csv('{secret}')",
    "SELECT * FROM read_text('{secret}')",
    "SELECT * FROM read_blob('{secret}')",
    "SELECT * FROM sniff_csv('{secret}')",
    "SELECT * FROM parquet_metadata('{secret}')",
    "SELECT * FROM glob('{folder}/*')",
    "SELECT * FROM '{secret}'",
    "SELECT * FROM '{folder}/*.parquet'",
    "SELECT getenv('HOME')",
    "SELECT * FROM query('COPY (SELECT 1) TO ''{target}''')",
    "SELECT * FROM query_table('{secret}')",
    "WITH a AS (COPY (SELECT 1) TO '{target}') SELECT 1",
    "WITH a AS (INSERT INTO outcome_files VALUES (1)) SELECT 1",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM enable_logging(storage = 'file', storage_path = '{folder}')",
    "SELECT * FROM arrow_scan(1, 2, 3)",
    "SELECT * FROM arrow_scan(1::POINTER, 2::POINTER, 3::POINTER)",
    "SELECT * FROM python_secret",
    "SELECT * FROM global_python_secret",
    "SELECT set_config('threads', '1', false)",
]

global_python_secret = pa.table({"password": ["hunter2"]})


@pytest.mark.parametrize("template", NOT_ONE_SELECT + ESCAPES)
def test_user_sql_reads_the_views_and_reaches_nothing_else(
    catalog: Catalog, tmp_path: Path, template: str
) -> None:
    python_secret = pa.table({"password": ["hunter2"]})
    (tmp_path / "secret.csv").write_text("password\nhunter2\n")
    before = sorted(tmp_path.rglob("*"))
    sql = template.format(secret=tmp_path / "secret.csv", target=tmp_path / "stolen", folder=tmp_path)
    with pytest.raises(QueryError, match=r"^[^\n]+$") as refusal:
        run_query(catalog, sql)
    assert "hunter2" not in str(refusal.value)
    assert sorted(tmp_path.rglob("*")) == before
    assert python_secret.num_rows == 1


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1;",
        "FROM ranking",
        "DESCRIBE ranking",
        "SHOW TABLES",
        "SUMMARIZE ranking",
        "VALUES (1)",
        "WITH a AS (SELECT * FROM sweep) SELECT size, avg(sink_strength) FROM a GROUP BY size",
        "SELECT unnest(prompt_log_odds) FROM heads",
        "-- a comment\nSELECT model_id FROM outcomes WHERE status = 'failed'",
    ],
)
def test_what_only_reads_is_allowed(catalog: Catalog, sql: str) -> None:
    result = run_query(catalog, sql)
    assert result.rows
    assert len(result.columns) == len(result.types) == len(result.rows[0])


def test_the_connection_stays_locked(catalog: Catalog) -> None:
    with connect(catalog) as connection:
        for statement in (
            "SET enable_external_access = true",
            "SET lock_configuration = false",
            "SET python_enable_replacements = true",
            "COPY (SELECT 1) TO '/dev/null'",
        ):
            with pytest.raises(duckdb.Error):
                connection.execute(statement)


def test_an_unknown_table_is_answered_with_the_views(catalog: Catalog) -> None:
    with pytest.raises(QueryError, match=r"no table nope; the views are outcomes, .*ranking"):
        run_query(catalog, "SELECT * FROM nope")


def test_an_unknown_column_is_named(catalog: Catalog) -> None:
    with pytest.raises(QueryError, match=r'"sink_strenth".*"sink_strength"'):
        run_query(catalog, "SELECT sink_strenth FROM ranking")


@pytest.mark.parametrize(
    "sql", [ENDLESS, "SELECT sum(a.range * b.range) FROM range(9999999) a, range(9999999) b"]
)
def test_a_query_without_end_is_stopped_in_time(catalog: Catalog, sql: str) -> None:
    started = time.monotonic()
    with pytest.raises(QueryError, match=r"longer than 0\.3 s"):
        run_query(catalog, sql, timeout_seconds=0.3)
    assert time.monotonic() - started < 5


def test_a_query_that_needs_too_much_memory_is_refused_and_spills_nothing(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(QueryError, match="more than 64MB of memory"):
        run_query(
            catalog,
            "SELECT range, repeat('x', 500) || range s FROM range(999999) ORDER BY s",
            memory_limit="64MB",
        )
    assert sorted(tmp_path.rglob("*")) == before


def test_a_result_of_too_many_values_is_refused_not_cut(catalog: Catalog) -> None:
    assert len(run_query(catalog, "SELECT * FROM range(10)", max_values=10).rows) == 10
    for sql in ("SELECT * FROM range(11)", "SELECT range(11)", "SELECT 1, 2 FROM range(6)"):
        with pytest.raises(QueryError, match="more than 10 values"):
            run_query(catalog, sql, max_values=10)


@pytest.mark.parametrize(
    "sql",
    ["SELECT '\udce9'", "SELECT " + "(" * 5000 + "1" + ")" * 5000, "SELECT INTERVAL '9999999 years'"],
)
def test_sql_that_no_library_can_take_is_refused_in_one_line(catalog: Catalog, sql: str) -> None:
    with pytest.raises(QueryError, match=r"^[^\n]+$"):
        run_query(catalog, sql)


INTERRUPTED = """
import sys, time
from catalog.query import run_query
from catalog.store import open_catalog
catalog = open_catalog(sys.argv[1])
print("ready", flush=True)
try:
    run_query(catalog, sys.argv[2], timeout_seconds=60)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_stops_a_running_query(catalog: Catalog) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, catalog.uri, ENDLESS],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(1)
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30)[0] == "interrupted\n"
    assert time.monotonic() - started < 10
    assert process.returncode == 0


def test_a_query_reads_only_the_columns_it_names(empty: Catalog) -> None:
    empty.commit(make_measurement(layers=2, heads=2))
    (path,) = (Path(path) for path in empty.list_files("heads"))
    lists = pq.ParquetFile(path).metadata.row_group(0).column(13)
    assert lists.path_in_schema.startswith("prompt_log_odds")
    content = bytearray(path.read_bytes())
    content[lists.data_page_offset + lists.total_compressed_size // 2] ^= 1
    path.write_bytes(content)
    assert run_query(empty, "SELECT count(log_odds) FROM heads").rows == ((4,),)
    with pytest.raises(CatalogError, match="cannot be read"):
        run_query(empty, "SELECT prompt_log_odds FROM heads")


def test_queries_work_off_the_main_thread(catalog: Catalog) -> None:
    rows: list[object] = []
    thread = threading.Thread(
        target=lambda: rows.append(run_query(catalog, "SELECT count(*) FROM ranking").rows)
    )
    thread.start()
    thread.join()
    assert rows == [((3,),)]
