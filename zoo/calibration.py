"""Calibrations between the catalog and the panel: what is measured in, fits and predictions out."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy
import scipy

from catalog.calibrations import write_calibration
from catalog.panel_files import own_panel_files
from catalog.query import run_query
from zoo import __version__
from zoo.degradation import (
    Calibration,
    Comparison,
    calibrate,
    compare,
    order_within_kind,
)
from zoo.errors import PanelError
from zoo.pairs import LeftOut, Measured, pair_points, standard_error
from zoo.panel import PanelPair, load_panel, task_order
from zoo.prediction import DEFAULT_LEVEL, DEFAULT_PREDICTOR
from zoo.records import Interval

if TYPE_CHECKING:
    from catalog.store import Catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """One task's fit as it was written, or why there is none; ``left_out`` pairs are named either way."""

    task: str
    protocol: str
    calibration: Calibration | None
    comparisons: tuple[Comparison, ...]
    left_out: tuple[LeftOut, ...]
    refusal: str | None = None


def panel_of(catalog: Catalog, *, protocol: str, tasks: Sequence[str] = ()) -> tuple[PanelPair, ...]:
    """The shipped and own pairs of one protocol, of the given tasks or of all.

    Raises PanelError when there are none, naming the protocols and tasks there are.
    """
    everything = load_panel(own_panel_files(catalog))
    of_protocol = [pair for pair in everything if pair.protocol == protocol]
    known = {pair.task for pair in of_protocol}
    if not known or not known >= set(tasks):
        missing = ", ".join(sorted(set(tasks) - known)) or "any task"
        have = ", ".join(sorted({f"{pair.task} ({pair.protocol})" for pair in everything}))
        raise PanelError(f"the panel has no pair on {missing} under the protocol {protocol}; it has {have}")
    return tuple(pair for pair in of_protocol if not tasks or pair.task in tasks)


def unmeasured_llms(pairs: Sequence[PanelPair], llms: Mapping[str, Measured]) -> tuple[str, ...]:
    """The reference LLMs of these pairs that the catalog lacks, in the panel's order."""
    return tuple(dict.fromkeys(p.reference_llm for p in pairs if p.reference_llm not in llms))


def measured_models(catalog: Catalog, spec_id: str) -> dict[str, Measured]:
    """The current measurement of every model under a spec, by model id."""
    rows = run_query(
        catalog,
        "SELECT m.* FROM measurements AS m SEMI JOIN ranking AS r "
        "ON r.model_id = m.model_id AND r.revision = m.revision AND r.spec_id = m.spec_id "
        "WHERE m.spec_id = ?",
        parameters=[spec_id],
    ).records()
    return {row["model_id"]: _measured(row) for row in rows}


def _measured(row: Mapping[str, Any]) -> Measured:
    interval = Interval(
        low=row["interval_low"], high=row["interval_high"], level=row["interval_level"], method=""
    )
    return Measured(
        **{field.name: row[field.name] for field in fields(Measured) if field.name in row},
        sink_strength_error=standard_error(interval),
        hybrid=row["attention_layers"] < row["model_layers"],
    )


def failure_reasons(catalog: Catalog, spec_id: str) -> dict[str, str]:
    """Why models could not be measured under a spec, by model id."""
    rows = run_query(
        catalog,
        "SELECT model_id, stage, reason, message FROM outcomes "
        "WHERE counts AND status = 'failed' AND spec_id = ? ORDER BY started_at",
        parameters=[spec_id],
    ).rows
    return {name: f"{message} ({stage}: {reason})" for name, stage, reason, message in rows}


def fit_panel(
    catalog: Catalog,
    *,
    spec_id: str,
    protocol: str,
    tasks: Sequence[str] = (),
    predictor: str = DEFAULT_PREDICTOR,
    level: float = DEFAULT_LEVEL,
    reasons: Mapping[str, str] | None = None,
) -> tuple[Fit, ...]:
    """Fit each task of one protocol to what the catalog holds under a spec, and write every fit.

    A task with too few reference LLMs has its refusal instead. ``reasons`` add to those the catalog
    knows why an LLM is not measured. Raises PanelError when the panel has no such pairs, and
    CatalogError when the catalog cannot be read or written.
    """
    pairs = panel_of(catalog, protocol=protocol, tasks=tasks)
    llms = measured_models(catalog, spec_id)
    why = failure_reasons(catalog, spec_id) | dict(reasons or {})
    now = datetime.now(UTC).isoformat()
    versions = _versions()
    fits = []
    for task in sorted({pair.task for pair in pairs}, key=task_order):
        points, left_out = pair_points([p for p in pairs if p.task == task], llms, why)
        fit = Fit(task=task, protocol=protocol, calibration=None, comparisons=(), left_out=left_out)
        try:
            calibration = calibrate(
                points, left_out=left_out, predictor=predictor, level=level, versions=versions, fitted_at=now
            )
        except PanelError as refusal:
            fits.append(replace(fit, refusal=str(refusal)))
            continue
        comparisons = compare(calibration.examples)
        write_calibration(catalog, calibration_row(calibration, comparisons))
        fits.append(replace(fit, calibration=calibration, comparisons=comparisons))
    return tuple(fits)


def _versions() -> dict[str, str]:
    libraries = {"numpy": numpy.__version__, "scipy": scipy.__version__, "python": platform.python_version()}
    return {"zoo": __version__} | libraries


def calibration_row(calibration: Calibration, comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """The row of ``calibrations`` for a fit."""
    fitted, models = calibration.fitted, [point.llm for point in calibration.points]
    xs = [getattr(model, fitted.quantity or "sink_strength") for model in models]
    sizes = [model.parameters for model in models]
    return {
        "fitted_at": datetime.fromisoformat(calibration.fitted_at).astimezone(UTC).replace(tzinfo=None),
        "task": calibration.task,
        "protocol": calibration.protocol,
        "spec_id": calibration.spec_id,
        "predictor": fitted.predictor,
        "quantity": fitted.quantity,
        "fit_parameters": fitted.parameters,
        "cells": [_bounded(asdict(cell)) for cell in fitted.cells],
        "x_squares": fitted.x_squares,
        "residual_variance": calibration.residual_variance,
        "degrees_of_freedom": calibration.degrees_of_freedom,
        "level": calibration.level,
        "t_quantile": calibration.t_quantile,
        "pairs": len(calibration.points),
        "llms": list(calibration.llms),
        "x_low": min(xs),
        "x_high": max(xs),
        "smallest_parameters": min(sizes),
        "largest_parameters": max(sizes),
        "qk_norms": sorted({model.qk_norm for model in models}),
        "points": [
            _columns(point.pair) | asdict(point.llm) | {"residual_points": calibration.residual(point)}
            for point in calibration.points
        ],
        "left_out": [_columns(its.pair) | {"reason": its.reason} for its in calibration.left_out],
        "comparisons": [asdict(comparison) for comparison in comparisons],
        "within_kind": asdict(order_within_kind(calibration.examples)),
        "versions": list(calibration.versions.items()),
    }


def _columns(pair: PanelPair) -> dict[str, Any]:
    return {name: value for name, value in asdict(pair).items() if name != "qk_norm"}


def _bounded(cell: dict[str, Any]) -> dict[str, Any]:
    """An open end is NULL in the catalog, never infinite."""
    open_ends = {end: None for end in ("x_low", "x_high") if abs(cell[end]) == float("inf")}
    return cell | open_ends
