"""The rows that an outcome becomes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from catalog.schemas import HEADS, OUTCOMES, SWEEP
from zoo.records import SCHEMA_VERSION, Architecture, Failure, Measurement, Outcome


def outcome_table(outcome: Outcome, *, attempt: int, attempt_id: str) -> pa.Table:
    """The one row of ``outcomes``. Raises ValueError when a number of it is NaN or infinite."""
    row: dict[str, Any] = {
        **_key(outcome),
        "attempt": attempt,
        "attempt_id": attempt_id,
        "schema_version": SCHEMA_VERSION,
        "source": outcome.candidate.source,
        "format": outcome.candidate.format,
        "location": outcome.candidate.location,
        "weight_bytes": outcome.candidate.weight_bytes,
        **_spec_columns(outcome),
    }
    if outcome.architecture is not None:
        row |= _architecture_columns(outcome.architecture)
    row |= _failure_columns(outcome) if isinstance(outcome, Failure) else _measured_columns(outcome)
    return _table([row], OUTCOMES)


def head_table(measurement: Measurement, *, attempt_id: str) -> pa.Table:
    """One row a query head, in the record's order. Raises ValueError on a NaN or infinite log-odds."""
    heads = measurement.strength.heads
    fixed = {**_key(measurement), "attempt_id": attempt_id}
    lists = ("prompt_log_odds", "prompt_log_odds_content")
    scalars = pa.schema([field for field in HEADS if field.name not in lists])
    names = " ".join(name for name in scalars.names if name not in fixed)
    table = _table([fixed | _pick(head, names) for head in heads], scalars)
    for name in lists:
        table = table.append_column(name, _float_lists([getattr(head, name) for head in heads]))
    return table.select(HEADS.names)


def sweep_table(measurement: Measurement, *, attempt_id: str) -> pa.Table:
    """One row a (size, seed) cell. Raises ValueError on a NaN or infinite Sink Strength."""
    fixed = {**_key(measurement), "attempt_id": attempt_id}
    names = " ".join(name for name in SWEEP.names if name not in fixed)
    return _table([fixed | _pick(cell, names) for cell in measurement.strength.sweep], SWEEP)


def _key(outcome: Outcome) -> dict[str, str]:
    candidate = outcome.candidate
    return {
        "model_id": candidate.model_id,
        "revision": candidate.revision,
        "spec_id": outcome.spec.spec_id,
    }


def _pick(record: object, names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names.split()}


def _spec_columns(outcome: Outcome) -> dict[str, Any]:
    names = "prompts_digest prompt_count candidate_positions window_layers query_rule definition"
    return _pick(outcome.spec, names) | {"prompt_policy": outcome.spec.prompt_format}


def _architecture_columns(architecture: Architecture) -> dict[str, Any]:
    names = (
        "model_type architecture parameters model_layers qk_norm learned_sink softcap position_encoding"
        " qk_norm_position qk_norm_weighted attention_route text_tower"
    )
    layers = architecture.attention_layers
    return _pick(architecture, names) | {
        "attention_note": architecture.note,
        "attention_layers": len(layers),
        "sliding_layers": sum(layer.sliding_window is not None for layer in layers),
        "heads": sum(layer.heads for layer in layers),
        "heads_per_layer": _shared({layer.heads for layer in layers}),
        "kv_heads": _shared({layer.kv_heads for layer in layers}),
    }


def _shared(counts: set[int]) -> int | None:
    """The count that all layers have; None where they differ."""
    return counts.pop() if len(counts) == 1 else None


def _failure_columns(failure: Failure) -> dict[str, Any]:
    return {
        "status": "failed",
        **_pick(failure, "stage reason message transient"),
        **_time_columns(failure.wall_seconds, failure.started_at),
    }


def _measured_columns(measurement: Measurement) -> dict[str, Any]:
    strength, run = measurement.strength, measurement.run
    return {
        "status": "measured",
        "transient": False,
        **_pick(
            strength,
            "sink_strength sink_strength_content sink_position sink_mass runner_up_position"
            " runner_up_mass weak_head_share sweep_spread sign_stability",
        ),
        **{
            f"interval_{name}": value
            for name, value in _pick(strength.interval, "low high level method").items()
        },
        "sink_token": measurement.sink_token,
        "prompt_format": measurement.prompts.format,
        **_pick(measurement.prompts, "median_tokens shared_prefix_tokens"),
        **_pick(run, "dtype device load load_reason verified peak_memory_bytes bytes_fetched"),
        **_pick(run, "tokens_per_batch gpus accelerator"),
        "versions": dict(run.versions),
        **_time_columns(run.wall_seconds, run.started_at),
    }


def _time_columns(wall_seconds: Mapping[str, float], started_at: str) -> dict[str, Any]:
    total = wall_seconds.get("total", sum(wall_seconds.values()) if wall_seconds else None)
    return {
        "wall_seconds": total,
        "stage_seconds": {stage: s for stage, s in wall_seconds.items() if stage != "total"},
        "started_at": _utc(datetime.fromisoformat(started_at)) if started_at else None,
        "finished_at": _utc(datetime.now(UTC)),
    }


def _utc(moment: datetime) -> datetime:
    """The moment in UTC without a zone; one without a zone is UTC already."""
    return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment


def _table(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist(
        [{name: _checked(name, value) for name, value in row.items()} for row in rows], schema=schema
    )


def _checked(name: str, value: object) -> object:
    """The value as Parquet takes it: finite, and text as UTF-8 whatever bytes a path or token had."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return [(_checked(name, key), _checked(name, item)) for key, item in value.items()]
    if isinstance(value, float | np.floating) and not math.isfinite(value):
        raise ValueError(
            f"{name} is {value}, which no catalog row may hold; a number that does not exist is None"
        )
    return value


def _float_lists(arrays: Sequence[np.ndarray]) -> pa.Array:
    """The arrays as lists of float32, with NULL for NaN."""
    flat = np.concatenate([*arrays, np.empty(0, np.float32)]).astype(np.float32)
    offsets = np.cumsum([0, *map(len, arrays)], dtype=np.int32)
    return pa.ListArray.from_arrays(offsets, pa.array(flat, mask=np.isnan(flat)))
