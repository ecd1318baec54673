"""What the catalog holds about how sure one model's Sink Strength is, and its heads prompt by prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from catalog.query import QueryResult, run_query
from catalog.store import Catalog


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Robustness:
    """One measurement's sensitivity: tables by subset size, by choice and by slice.

    ``slices`` has no rows when the catalog's version did not keep them. ``others`` are the measured
    attempts of the same weights under another dtype, device or prompt format. The arrays hold the
    log-odds [P, H] (nats) of every prompt and head of the window.
    """

    outcome: dict[str, Any]
    sizes: QueryResult
    choices: QueryResult
    slices: QueryResult
    others: tuple[dict[str, Any], ...]
    log_odds_PH: np.ndarray
    content_PH: np.ndarray


def model_robustness(
    catalog: Catalog, outcome: dict[str, Any], *, attempts: list[dict[str, Any]]
) -> Robustness:
    """The sensitivity of one measured row of ``outcomes``, given all of the model's attempts."""
    sizes, choices, slices = (
        run_query(
            catalog,
            f"SELECT * EXCLUDE (model_id, revision, spec_id, attempt_id) FROM {view} "
            f"WHERE model_id = ? AND attempt_id = ? ORDER BY {order}",
            parameters=[outcome["model_id"], outcome["attempt_id"]],
        )
        for view, order in (("sweep_sizes", "size"), ("sensitivity", "place, choice"), ("slices", "place"))
    )
    return Robustness(
        outcome=outcome,
        sizes=sizes,
        choices=choices,
        slices=slices,
        others=_others(outcome, attempts),
        log_odds_PH=window_log_odds(catalog, outcome),
        content_PH=window_log_odds(catalog, outcome, region="content"),
    )


def window_log_odds(
    catalog: Catalog, outcome: dict[str, Any], *, region: Literal["all", "content"] = "all"
) -> np.ndarray:
    """The log-odds [P, H] (nats) of every prompt and head of the window; NaN where there is none."""
    column = "prompt_log_odds" if region == "all" else "prompt_log_odds_content"
    result = run_query(
        catalog,
        f"SELECT {column} FROM heads WHERE model_id = ? AND attempt_id = ? AND in_window "
        "ORDER BY layer, head",
        parameters=[outcome["model_id"], outcome["attempt_id"]],
    )
    return np.array([row[0] for row in result.rows], dtype=np.float64).T


def _others(outcome: dict[str, Any], attempts: list[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """The latest measured attempt of every other way to run the same weights on the same prompts."""
    same = (
        "revision",
        "prompts_digest",
        "prompt_count",
        "candidate_positions",
        "window_layers",
        "query_rule",
    )
    how = ("prompt_policy", "prompt_format", "dtype", "device")
    latest: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in attempts:
        if row["status"] == "measured" and all(row[name] == outcome[name] for name in same):
            latest.setdefault(tuple(row[name] for name in how), row)
    latest.pop(tuple(outcome[name] for name in how), None)
    return tuple(latest.values())


def head_matrix(catalog: Catalog, outcome: dict[str, Any]) -> np.ndarray:
    """The log-odds [L, H] (nats) of every head of every attention layer; NaN where there is none."""
    result = run_query(
        catalog,
        "SELECT layer, head, log_odds FROM heads WHERE model_id = ? AND attempt_id = ?",
        parameters=[outcome["model_id"], outcome["attempt_id"]],
    )
    layers, heads, log_odds = zip(*result.rows, strict=True)
    matrix_LH = np.full((max(layers) + 1, max(heads) + 1), np.nan)
    matrix_LH[layers, heads] = [np.nan if value is None else value for value in log_odds]
    return matrix_LH
