"""What a listing of models saw: immutable files in the ``models`` and ``scans`` tables.

How far a search has seen the Hub (decided here, once). Every scan of a search writes its verdicts to
``models/scan=<time>/`` and then one row to ``scans/scan=<time>/``, whose existence is the commit: a scan
that dies in between has seen nothing. The row holds

- ``search``, what was searched for as canonical JSON (``zoo.searches``), and the ``spec_ids`` it was for;
- ``watermark``: everything of the search that was created or changed before it has a verdict here.

The watermark of a search and spec is the latest of its scans'. A failed listing has no row, so it moves
nothing. Times are the Hub's own: see ``seen_until``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pyarrow as pa

from catalog import files
from catalog.schemas import SCHEMAS
from catalog.store import Catalog
from zoo.errors import CatalogError

_TIMES = ("created_at", "last_modified")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanFacts:
    """What a scan of the Hub searched for, and how far it saw; nothing where its models were named."""

    kind: Literal["screen", "rescan"] = "screen"
    search: str | None = None
    spec_ids: tuple[str, ...] = ()
    watermark: datetime | None = None
    profile: str | None = None


def record_scan(
    catalog: Catalog,
    rows: Iterable[Mapping[str, Any]],
    *,
    query: str,
    scanned_at: datetime | None = None,
    facts: ScanFacts | None = None,
) -> str:
    """Keep the rows of a scan for good and return its name, the time in UTC.

    With the ``facts`` of a search it moves that search's watermark. Raises CatalogError when the catalog
    cannot be written.
    """
    moment = (scanned_at or datetime.now(UTC)).astimezone(UTC)
    seen = [_timed(row) | {"query": query} for row in rows]
    while not _publish(catalog, "models", moment, seen):
        moment += timedelta(microseconds=1)
    row = asdict(facts or ScanFacts()) | {"query": query}
    _publish(catalog, "scans", moment, [row | {"watermark": _naive(row["watermark"])}])
    return _name(moment)


def seen_until(
    newest: datetime, *, started: datetime, elapsed_seconds: float, before: datetime | None = None
) -> datetime:
    """How far a complete listing saw: the moment up to which nothing was created or changed unseen.

    ``newest`` is the latest time that the listing showed and ``elapsed_seconds`` how long it took, so that
    it began, by the Hub's clock, no earlier than ``newest - elapsed_seconds``: what changed while pages
    were turned lies after the watermark. This machine's clock (``started``) only guards against a
    repository dated in the future; a watermark never moves back behind ``before``.
    """
    seen = min(newest - timedelta(seconds=elapsed_seconds), started)
    return max(before or seen, seen)


def keep_report(catalog: Catalog, text: str, *, moment: datetime | None = None) -> str:
    """Keep a page about a scan in the catalog's ``reports/`` and return its path in the catalog.

    Raises CatalogError when the catalog cannot be written.
    """
    path = f"reports/{_name((moment or datetime.now(UTC)).astimezone(UTC))}.md"
    try:
        files.publish(catalog.filesystem, f"{catalog.root}/{path}", text.encode(), root=catalog.root)
    except OSError as error:
        raise _unkept("report", catalog, error) from error
    return path


def _publish(catalog: Catalog, table: str, moment: datetime, rows: list[dict[str, Any]]) -> bool:
    """Whether the rows are now the table's file of this moment; False when there is one already."""
    stamped = [row | {"scanned_at": _naive(moment)} for row in rows]
    content = files.parquet_bytes(pa.Table.from_pylist(stamped, schema=SCHEMAS[table]))
    path = f"{catalog.folder(table)}/scan={_name(moment)}/part.parquet"
    try:
        return files.publish(catalog.filesystem, path, content, root=catalog.root)
    except OSError as error:
        raise _unkept("scan", catalog, error) from error


def _unkept(what: str, catalog: Catalog, error: OSError) -> CatalogError:
    return CatalogError(
        f"the {what} cannot be kept in {catalog.uri} ({error.strerror or error}); "
        "check its permissions and free space"
    )


def _name(moment: datetime) -> str:
    return moment.strftime("%Y%m%dT%H%M%S.%fZ")


def _timed(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with its ISO times as naive UTC; what is no time becomes NULL."""
    return {key: _time(value) if key in _TIMES else value for key, value in row.items()}


def _time(text: str | None) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return _naive(moment) if moment.tzinfo else moment


def _naive(moment: datetime | None) -> datetime | None:
    return moment.astimezone(UTC).replace(tzinfo=None) if moment else None
