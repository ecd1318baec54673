"""Predicted losses as the catalog has them: of one model, and in the ranking."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from catalog.query import QueryResult, run_query
from zoo.errors import PanelError
from zoo.panel import TASKS, task_order
from zoo.prediction import Prediction

if TYPE_CHECKING:
    from catalog.store import Catalog

_LOSS = """
        p.task,
        p.protocol,
        p.predicted_points,
        p.predicted_low,
        p.predicted_high,
        p.predicted_level,
        p.flags,
        p.pairs AS predicted_from_pairs,
        p.calibration_id
"""

_RANKING = f"""
    SELECT
        r.*,
        {_LOSS}
    FROM ranking AS r
    LEFT JOIN predictions AS p
        ON p.model_id = r.model_id AND p.revision = r.revision AND p.spec_id = r.spec_id
        AND p.task = ? AND p.latest
    WHERE r.spec_id = ? AND (? IS NULL OR p.predicted_points >= -?)
    ORDER BY p.predicted_points DESC NULLS LAST, r.rank, r.model_id
"""


def predictions(catalog: Catalog, *, model_id: str, revision: str, spec_id: str) -> tuple[Prediction, ...]:
    """The latest prediction of each task for one measurement, the paper's tasks first.

    None before `zoo calibrate`. Raises CatalogError when the catalog cannot be read.
    """
    rows = run_query(
        catalog,
        "SELECT * FROM predictions WHERE model_id = ? AND revision = ? AND spec_id = ? AND latest",
        parameters=[model_id, revision, spec_id],
    ).records()
    return tuple(_prediction(row) for row in sorted(rows, key=lambda row: task_order(row["task"])))


def ranked_losses(catalog: Catalog, spec_id: str, *, task: str, max_loss: float | None = None) -> QueryResult:
    """The ranking of a spec by predicted loss on a task, the smallest loss first.

    Without a calibration the predictions are NULL and the order is that of S. ``max_loss`` keeps
    models predicted to lose at most that many points. Raises PanelError when that asks for a
    calibration that is not there.
    """
    if max_loss is not None and task not in (known := calibrated_tasks(catalog, spec_id)):
        raise PanelError(
            f"no calibration predicts {task} under spec {spec_id} (it has {', '.join(known) or 'none'}); "
            f"make one with zoo calibrate --task {task}, or rank without --max-loss"
        )
    return run_query(catalog, _RANKING, parameters=[task, spec_id, max_loss, max_loss])


def with_losses(catalog: Catalog, ranking: QueryResult, spec_id: str, *, task: str = TASKS[0]) -> QueryResult:
    """The rows of a ranking in their order, with the columns of the loss predicted on a task.

    They are NULL for a model that no calibration predicts.
    """
    found = run_query(
        catalog,
        f"SELECT model_id, revision, {_LOSS} FROM predictions AS p WHERE spec_id = ? AND task = ? AND latest",
        parameters=[spec_id, task],
    )
    losses = {row[:2]: row[2:] for row in found.rows}
    key = [ranking.columns.index(name) for name in ("model_id", "revision")]
    unknown = (None,) * len(found.columns[2:])
    rows = (row + losses.get((row[key[0]], row[key[1]]), unknown) for row in ranking.rows)
    return QueryResult(
        columns=ranking.columns + found.columns[2:], types=ranking.types + found.types[2:], rows=tuple(rows)
    )


def calibrated_tasks(catalog: Catalog, spec_id: str) -> tuple[str, ...]:
    """The tasks that a calibration of this spec predicts, the paper's first."""
    sql = "SELECT DISTINCT task FROM calibrations WHERE counts AND spec_id = ?"
    found = [task for (task,) in run_query(catalog, sql, parameters=[spec_id]).rows]
    return tuple(sorted(found, key=task_order))


def _prediction(row: Mapping[str, Any]) -> Prediction:
    return Prediction(
        model_id=row["model_id"],
        task=row["task"],
        protocol=row["protocol"],
        predictor=row["predictor"],
        points=row["predicted_points"],
        low=row["predicted_low"],
        high=row["predicted_high"],
        level=row["predicted_level"],
        flags=tuple(row["flags"]),
        pairs=row["pairs"],
        llms=tuple(row["llms"]),
    )
