"""SQL over the catalog, in a connection from which nothing else can be reached.

The views in ``views/*.sql`` stand on lazily scanned Arrow datasets: a query reads the columns and files
it needs, pyarrow verifies their page checksums, and DuckDB itself needs no file access, so that it can be
turned off for good (Python's variables, extensions and spilling to disk too). Nothing is materialised.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import duckdb

from catalog import files
from catalog.panel_files import panel_table
from catalog.remote import RemoteDataset
from catalog.store import Catalog
from catalog.view_files import BASE_TABLES, VIEWS, tables_named, view_sql
from zoo.errors import CatalogError, QueryError

_LOCK = (
    "SET python_enable_replacements = false",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET allow_community_extensions = false",
    "SET temp_directory = ''",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)
_STOP_SECONDS = 5.0
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResult:
    """What a query returned; ``types`` are DuckDB's names, one a column."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def records(self) -> list[dict[str, Any]]:
        """The rows as dictionaries by column."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def connect(
    catalog: Catalog, *, model_id: str | None = None, memory_limit: str = "4GB", sql: str | None = None
) -> duckdb.DuckDBPyConnection:
    """A locked in-memory connection with the views over what the catalog holds at this moment.

    With ``model_id`` only that model's files stand under the views. What is not on this machine is fetched
    here, as far as ``sql`` needs it. Raises CatalogError when the catalog cannot be listed or fetched.
    """
    needed = BASE_TABLES.keys() if sql is None else tables_named(sql)
    connection = duckdb.connect(":memory:")
    connection.execute(f"SET memory_limit = '{memory_limit}'")
    connection.execute("SET enable_progress_bar = false")  # it would be drawn into the standard output
    for table, name in BASE_TABLES.items():
        try:
            paths = catalog.list_files(table, model_id=model_id)
            dataset = files.dataset(catalog.filesystem, paths, table)
            if isinstance(dataset, RemoteDataset) and table in needed:
                dataset.fetched()
        except OSError as error:
            raise CatalogError(f"the catalog {catalog.uri} cannot be read: {_one_line(error)}") from error
        connection.register(name, dataset)
    connection.register("panel_pairs", panel_table(catalog))
    for view in VIEWS:
        connection.execute(view_sql(view))
    for statement in _LOCK:
        connection.execute(statement)
    return connection


def run_query(
    catalog: Catalog,
    sql: str,
    *,
    parameters: Sequence[object] = (),
    timeout_seconds: float = 60.0,
    memory_limit: str = "4GB",
    max_values: int = 20_000_000,
    connection: duckdb.DuckDBPyConnection | None = None,
) -> QueryResult:
    """Run one SELECT over the views and return all its rows.

    ``connection`` is one that ``connect`` made, for several queries of one moment; else one is made.

    Raises QueryError when the SQL is anything but one SELECT, fails, takes longer than the timeout,
    needs more memory, or gives more values (a list counts its items) than allowed: a result is never
    cut short. Ctrl-C stops the query at once.
    """
    if connection is None:
        connection = connect(catalog, memory_limit=memory_limit, sql=sql)
    statement = _only_select(connection, sql)
    try:
        return _interruptible(
            lambda: _fetch(connection, statement, parameters, max_values), connection, timeout_seconds
        )
    except duckdb.Error as error:
        raise _query_error(error, catalog, memory_limit) from error
    except (ValueError, OverflowError) as error:  # a value that Python cannot hold: the year 290000
        raise QueryError(f"the query failed: {_one_line(error)}: cast the value to VARCHAR") from error


def _fetch(
    connection: duckdb.DuckDBPyConnection,
    statement: duckdb.Statement,
    parameters: Sequence[object],
    max_values: int,
) -> QueryResult:
    connection.execute(statement, parameters or None)
    columns = connection.description or []
    rows: list[tuple[Any, ...]] = []
    values = 0
    while chunk := connection.fetchmany(1024):
        rows += chunk
        values += sum(len(value) if isinstance(value, list | dict) else 1 for row in chunk for value in row)
        if values > max_values:
            raise QueryError(
                f"the query gives more than {max_values:,} values: narrow it with WHERE or LIMIT, or select "
                "fewer columns"
            )
    return QueryResult(
        columns=tuple(column[0] for column in columns),
        types=tuple(str(column[1]) for column in columns),
        rows=tuple(rows),
    )


def _only_select(connection: duckdb.DuckDBPyConnection, sql: str) -> duckdb.Statement:
    try:
        statements = connection.extract_statements(sql.encode().decode())  # no lone surrogates
    except (duckdb.Error, UnicodeError) as error:
        raise QueryError(f"the SQL cannot be understood: {_first_line(error)}") from error
    if len(statements) != 1:
        raise QueryError(f"one SELECT is run at a time, and this is {len(statements)} statements: give one")
    (statement,) = statements
    kind = str(statement.type).rpartition(".")[2]
    if statement.type != duckdb.StatementType.SELECT:
        raise QueryError(f"the catalog is only read, and this is a {kind} statement: write it as one SELECT")
    return statement


def _interruptible(
    run: Callable[[], _T], connection: duckdb.DuckDBPyConnection, timeout_seconds: float
) -> _T:
    """The result of ``run``, computed in a thread: DuckDB does not look for Ctrl-C within an operator."""
    results: list[_T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(run())
        except BaseException as error:
            errors.append(error)

    worker = threading.Thread(target=work, name="zoo-query", daemon=True)
    worker.start()
    try:
        worker.join(timeout_seconds)
        if worker.is_alive():
            raise QueryError(
                f"the query ran longer than {timeout_seconds:g} s and was stopped: narrow it, or allow it "
                "more time"
            )
    finally:
        _stop(worker, connection)
    if errors:
        raise errors[0]
    return results[0]


def _stop(worker: threading.Thread, connection: duckdb.DuckDBPyConnection) -> None:
    """Interrupt until the thread has ended: an interrupt before the query began is lost."""
    for _ in range(int(_STOP_SECONDS / 0.05)):
        if not worker.is_alive():
            return
        connection.interrupt()
        worker.join(0.05)


def _query_error(error: duckdb.Error, catalog: Catalog, memory_limit: str) -> Exception:
    text = _first_line(error)
    if isinstance(error, duckdb.CatalogException) and text.startswith("Table with name"):
        table = text.split("Table with name ")[1].split(" does not exist")[0]
        return QueryError(f"there is no table {table}; the views are {', '.join(VIEWS)}")
    if isinstance(error, duckdb.PermissionException):
        return QueryError("the query reaches outside the catalog, which it may not: use the views alone")
    if isinstance(error, duckdb.OutOfMemoryException):
        return QueryError(
            f"the query needs more than {memory_limit} of memory: narrow it with WHERE or LIMIT"
        )
    if any(f"registered as '{name}' failed" in text for name in BASE_TABLES.values()):
        return CatalogError(
            f"the catalog {catalog.uri} cannot be read ({text}): zoo verify --catalog {catalog.uri} names "
            "the bad files"
        )
    return QueryError(f"the query failed: {text}")


def _first_line(error: BaseException) -> str:
    """DuckDB's text without its kind and without the drawing of the place."""
    message = str(error).partition("\n\nLINE ")[0]
    return " ".join(message.partition("Error: ")[2].split()) or _one_line(error)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
