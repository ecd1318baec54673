"""What earlier scans of a search have settled: how far it saw the Hub, and each model's last verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from catalog.query import connect, run_query
from catalog.store import Catalog
from zoo.records import Listing

_SCANS = "SELECT scanned_at, kind, query, search, profile, spec_ids, watermark FROM scans ORDER BY scanned_at"

# What --limit cut off was not asked for, so it is no verdict. An alias stands and falls with the model
# that was measured in its place.
_VERDICTS = """
SELECT
    s.search, m.model_id, m.revision, m.verdict, m.transient,
    m.alias_of, stands_in.revision AS alias_revision,
    strftime(m.created_at, '%Y-%m-%dT%H:%M:%S.%fZ') AS created_at,
    strftime(m.last_modified, '%Y-%m-%dT%H:%M:%S.%fZ') AS last_modified,
    m.downloads, m.likes, m.gated, m.pipeline_tag, m.library, m.license, m.base_model,
    m.base_model_relation, m.listed_parameters
FROM models AS m
JOIN scans AS s ON s.scanned_at = m.scanned_at
LEFT JOIN models AS stands_in
    ON stands_in.scanned_at = m.scanned_at
    AND stands_in.model_id = m.alias_of
    AND stands_in.verdict = 'candidate'
WHERE list_contains(s.spec_ids, ?) AND NOT (s.kind = 'screen' AND m.verdict = 'left_out')
QUALIFY row_number() OVER (PARTITION BY s.search, m.model_id ORDER BY m.scanned_at DESC) = 1
ORDER BY s.search, m.model_id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """One scan. ``search`` and ``spec_ids`` are ``None`` where nobody wrote them down."""

    scanned_at: datetime
    kind: str
    query: str | None
    search: str | None
    profile: str | None
    spec_ids: tuple[str, ...] | None
    watermark: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The last verdict on a model. ``measured_as`` is the (model_id, revision) whose outcome is its own."""

    verdict: str
    transient: bool
    """Whether the moment was to blame for a refusal."""
    measured_as: tuple[str, str | None]
    listing: Listing


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All scans in their order, and the last verdicts of one spec by search and model id."""

    scans: tuple[Scan, ...]
    verdicts: Mapping[str, Mapping[str, Verdict]]


def read_history(catalog: Catalog, *, spec_id: str) -> History:
    """What the catalog knows of earlier scans. Raises CatalogError when it cannot be read."""
    with connect(catalog) as connection:
        scans = run_query(catalog, _SCANS, connection=connection).records()
        rows = run_query(catalog, _VERDICTS, parameters=[spec_id], connection=connection).records()
    verdicts: dict[str, dict[str, Verdict]] = {}
    for row in rows:
        search = row.pop("search")
        verdicts.setdefault(search, {})[row["model_id"]] = _verdict(row)
    return History(scans=tuple(map(_scan, scans)), verdicts=verdicts)


def _scan(row: dict[str, Any]) -> Scan:
    specs, watermark = row["spec_ids"], row["watermark"]
    return Scan(
        scanned_at=row["scanned_at"].replace(tzinfo=UTC),
        kind=row["kind"],
        query=row["query"],
        search=row["search"],
        profile=row["profile"],
        spec_ids=None if specs is None else tuple(specs),
        watermark=watermark.replace(tzinfo=UTC) if watermark else None,
    )


def _verdict(row: dict[str, Any]) -> Verdict:
    said = {key: row.pop(key) for key in ("verdict", "transient", "alias_of", "alias_revision")}
    listing = Listing(parameters=row.pop("listed_parameters"), **row)
    own = (listing.model_id, listing.revision)
    return Verdict(
        verdict=said["verdict"],
        transient=bool(said["transient"]),
        measured_as=(said["alias_of"], said["alias_revision"]) if said["alias_of"] else own,
        listing=listing,
    )
