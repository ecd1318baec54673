"""What a listing of models saw: one immutable file a scan in the ``models`` table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from catalog import files
from catalog.schemas import MODELS
from catalog.store import Catalog
from zoo.errors import CatalogError

_TIMES = ("created_at", "last_modified")


def record_scan(
    catalog: Catalog, rows: Iterable[Mapping[str, Any]], *, query: str, scanned_at: datetime | None = None
) -> str:
    """Keep the rows of a scan for good and return its name, the time in UTC.

    Raises CatalogError when the catalog cannot be written.
    """
    moment = (scanned_at or datetime.now(UTC)).astimezone(UTC)
    while True:
        name = moment.strftime("%Y%m%dT%H%M%S.%fZ")
        fixed = {"scanned_at": moment.replace(tzinfo=None), "query": query}
        table = pa.Table.from_pylist([_timed(row) | fixed for row in rows], schema=MODELS)
        path = f"{catalog.folder('models')}/scan={name}/part.parquet"
        try:
            if files.publish(catalog.filesystem, path, files.parquet_bytes(table), root=catalog.root):
                return name
        except OSError as error:
            raise CatalogError(
                f"the scan cannot be kept in {catalog.uri} ({error.strerror or error}); "
                "check its permissions and free space"
            ) from error
        moment += timedelta(microseconds=1)


def _timed(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with its ISO times as naive UTC; what is no time becomes NULL."""
    return {key: _time(value) if key in _TIMES else value for key, value in row.items()}


def _time(text: str | None) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment
