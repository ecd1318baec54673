"""What people ask the catalog most: the ranking, and everything about one model."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

from catalog.query import QueryResult, connect, run_query
from catalog.store import Catalog
from zoo.errors import CatalogError

_MARKS = """list_filter(
    [
        CASE WHEN len(d.sign_changes) > 0 THEN 'sign' END,
        CASE WHEN len(d.overtakes_in) + len(d.overtaken_in) > 0 THEN 'order' END,
        CASE WHEN NOT coalesce(d.complete, false) THEN 'partial' END
    ],
    lambda mark: mark IS NOT NULL
)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The ranking of one spec, best backbone first, and the specs that were left out."""

    spec_id: str
    other_spec_ids: tuple[str, ...]
    table: QueryResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDetails:
    """One model: its row of ``outcomes``, and tables by layer, sweep cell, choice and attempt.

    Without a measurement only ``attempts`` has rows; ``weak_heads`` has one at most. ``attempts``
    holds every attempt of every revision and spec, the latest first.
    """

    outcome: dict[str, Any]
    layers: QueryResult
    sweep: QueryResult
    weak_heads: QueryResult
    layer_sinks: QueryResult
    sensitivity: QueryResult
    attempts: QueryResult


_DETAILS = {
    "layers": "layer",
    "sweep": "size, seed",
    "weak_heads": "heads",
    "layer_sinks": "layer",
    "sensitivity": "place, choice",
}
"""The views of which ``ModelDetails`` holds a model's rows, and their order."""


def rank_rows(catalog: Catalog, spec_id: str | None = None) -> Ranking:
    """The view ``ranking`` for one spec: the given one, or that of the most recent measurement.

    Its last column, ``doubt``, lists why a place is not sure: ``sign``, ``order``, or ``partial`` where
    an older measurement lacks what it takes to tell (see the view ``doubts``).

    Raises CatalogError when nothing was measured, or nothing under the given spec.
    """
    with connect(catalog, sql="FROM specs JOIN ranking JOIN doubts") as connection:
        known = [
            spec for (spec,) in run_query(catalog, "SELECT spec_id FROM specs", connection=connection).rows
        ]
        if not known:
            raise _nothing_measured(catalog)
        chosen = spec_id or known[0]
        if chosen not in known:
            raise CatalogError(
                f"nothing was measured under spec {chosen}; the catalog has {', '.join(known)}"
            )
        marked = run_query(
            catalog,
            f"SELECT r.*, {_MARKS} AS doubt FROM ranking AS r "
            "LEFT JOIN doubts AS d USING (spec_id, model_id, revision) "
            "WHERE r.spec_id = ? ORDER BY r.rank, r.model_id",
            parameters=[chosen],
            connection=connection,
        )
    return Ranking(
        spec_id=chosen, other_spec_ids=tuple(spec for spec in known if spec != chosen), table=marked
    )


def ranked_places(catalog: Catalog, spec_id: str) -> QueryResult:
    """The view ``ranking`` for a spec, without what makes its places doubtful; it may be empty."""
    sql = "SELECT * FROM ranking WHERE spec_id = ? ORDER BY rank, model_id"
    return run_query(catalog, sql, parameters=[spec_id])


def model_details(
    catalog: Catalog, model_id: str, *, revision: str | None = None, spec_id: str | None = None
) -> ModelDetails:
    """Everything about one model, of the given revision (its first digits are enough) and spec.

    Without them the measurement that started last is shown, or where there is none the last failure.
    Raises CatalogError when the catalog has no such model, with near names, or no such revision or spec.
    """
    with connect(catalog, model_id=model_id) as connection:
        attempts = run_query(
            catalog,
            "SELECT * FROM outcomes WHERE model_id = ? "
            "ORDER BY started_at DESC NULLS LAST, finished_at DESC, attempt DESC",
            parameters=[model_id],
            connection=connection,
        )
        if not attempts.rows:
            raise _unknown_model(catalog, model_id)
        outcome = _shown(attempts, revision=revision, spec_id=spec_id)
        tables = {
            view: run_query(
                catalog,
                f"SELECT * EXCLUDE (model_id, revision, spec_id, attempt_id) FROM {view} "
                f"WHERE attempt_id = ? ORDER BY {order}",
                parameters=[outcome["attempt_id"]],
                connection=connection,
            )
            for view, order in _DETAILS.items()
        }
    return ModelDetails(outcome=outcome, **tables, attempts=attempts)


def _shown(attempts: QueryResult, *, revision: str | None, spec_id: str | None) -> dict[str, Any]:
    """The first measured attempt that counts, or else the first that counts; the latest come first."""
    rows = [
        row
        for row in attempts.records()
        if row["counts"] and row["revision"].startswith(revision or "") and spec_id in (None, row["spec_id"])
    ]
    if not rows:
        known = sorted({f"{row['revision'][:12]} (spec {row['spec_id']})" for row in attempts.records()})
        raise CatalogError(
            f"{attempts.records()[0]['model_id']} has no such revision and spec in the catalog, "
            f"only {', '.join(known)}"
        )
    return next((row for row in rows if row["status"] == "measured"), rows[0])


def _nothing_measured(catalog: Catalog) -> CatalogError:
    counted = "SELECT count(*) FROM outcomes WHERE counts"
    ((failed,),) = run_query(catalog, counted).rows
    if failed:
        return CatalogError(
            f"no model in the catalog {catalog.uri} was measured, {failed} failed: see zoo sql "
            "\"select model_id, stage, message from outcomes where status = 'failed'\""
        )
    return CatalogError(
        f"the catalog {catalog.uri} is empty: measure models with zoo screen --catalog {catalog.uri}"
    )


def _unknown_model(catalog: Catalog, model_id: str) -> CatalogError:
    rows = run_query(catalog, "SELECT DISTINCT model_id FROM outcomes").rows
    names = {name.lower(): name for (name,) in rows} | {
        name.rpartition("/")[2].lower(): name for (name,) in rows
    }
    near = difflib.get_close_matches(model_id.lower(), names, n=3, cutoff=0.5)
    suggestions = list(dict.fromkeys(names[name] for name in near))
    remedy = f"did you mean {' or '.join(suggestions)}?" if suggestions else "zoo rank lists what it holds"
    return CatalogError(f"the catalog {catalog.uri} has no model {model_id}: {remedy}")
