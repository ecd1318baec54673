"""Fitted predictors in the catalog: one immutable file a fit."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from catalog import files
from catalog.schemas import SCHEMAS
from catalog.store import Catalog
from zoo.errors import CatalogError
from zoo.records import SCHEMA_VERSION


def write_calibration(catalog: Catalog, row: Mapping[str, Any]) -> str:
    """Record a fit, given by the columns of ``calibrations``; returns its new id.

    Raises CatalogError when the catalog cannot be written.
    """
    calibration_id = secrets.token_hex(6)
    table = pa.Table.from_pylist(
        [{**row, "calibration_id": calibration_id, "schema_version": SCHEMA_VERSION}],
        schema=SCHEMAS["calibrations"],
    )
    folder = catalog.folder("calibrations", row["spec_id"])
    publish(
        catalog,
        f"{folder}/{row['task']}--{row['protocol']}--{calibration_id}.parquet",
        files.parquet_bytes(table),
    )
    return calibration_id


def publish(catalog: Catalog, path: str, content: bytes) -> None:
    """Make a file of the catalog, unless it exists. Raises CatalogError when it cannot be written."""
    try:
        files.publish(catalog.filesystem, path, content, root=catalog.root)
    except OSError as error:
        raise CatalogError(
            f"the catalog {catalog.uri} cannot be written ({error.strerror or error}): name a folder you may "
            "write to with --catalog"
        ) from error
