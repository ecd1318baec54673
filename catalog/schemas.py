"""The catalog's tables: their Arrow schemas.

Numbers that do not exist are NULL, never NaN or 0. Times are UTC without a zone, so that no reader
shifts them. A reader asks for these columns by name: a file of an older version lacks some (they
read as NULL) and one of a newer version has more (they are left aside).
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from catalog.calibration_schema import CALIBRATIONS

_TIME = pa.timestamp("us")
_FLOATS = pa.list_(pa.field("element", pa.float32()))
_KEY = [("model_id", pa.string()), ("revision", pa.string()), ("spec_id", pa.string())]

OUTCOMES = pa.schema(
    [
        *_KEY,
        ("attempt", pa.int32()),
        ("attempt_id", pa.string()),
        ("schema_version", pa.int32()),
        ("status", pa.string()),
        ("stage", pa.string()),
        ("reason", pa.string()),
        ("message", pa.string()),
        ("transient", pa.bool_()),
        ("source", pa.string()),
        ("format", pa.string()),
        ("location", pa.string()),
        ("weight_bytes", pa.int64()),
        # architecture
        ("model_type", pa.string()),
        ("architecture", pa.string()),
        ("parameters", pa.int64()),
        ("model_layers", pa.int32()),
        ("attention_layers", pa.int32()),
        ("sliding_layers", pa.int32()),
        ("heads", pa.int32()),
        ("heads_per_layer", pa.int32()),
        ("kv_heads", pa.int32()),
        ("qk_norm", pa.string()),
        ("learned_sink", pa.bool_()),
        ("softcap", pa.float64()),
        ("position_encoding", pa.string()),
        ("qk_norm_position", pa.string()),
        ("qk_norm_weighted", pa.bool_()),
        ("attention_route", pa.string()),
        ("text_tower", pa.string()),
        ("attention_note", pa.string()),
        # result
        ("sink_strength", pa.float64()),
        ("sink_strength_content", pa.float64()),
        ("interval_low", pa.float64()),
        ("interval_high", pa.float64()),
        ("interval_level", pa.float64()),
        ("interval_method", pa.string()),
        ("sink_position", pa.int32()),
        ("sink_token", pa.string()),
        ("sink_mass", pa.float64()),
        ("runner_up_position", pa.int32()),
        ("runner_up_mass", pa.float64()),
        ("weak_head_share", pa.float64()),
        ("sweep_spread", pa.float64()),
        ("sign_stability", pa.float64()),
        # prompts and spec
        ("prompt_format", pa.string()),
        ("median_tokens", pa.float64()),
        ("shared_prefix_tokens", pa.int32()),
        ("prompts_digest", pa.string()),
        ("prompt_count", pa.int32()),
        ("prompt_policy", pa.string()),
        ("candidate_positions", pa.int32()),
        ("window_layers", pa.int32()),
        ("query_rule", pa.string()),
        ("definition", pa.int32()),
        # run
        ("dtype", pa.string()),
        ("device", pa.string()),
        ("load", pa.string()),
        ("load_reason", pa.string()),
        ("verified", pa.string()),
        ("wall_seconds", pa.float64()),
        ("stage_seconds", pa.map_(pa.string(), pa.float64())),
        ("tokens_per_batch", pa.int32()),
        ("gpus", pa.int32()),
        ("accelerator", pa.string()),
        ("peak_memory_bytes", pa.int64()),
        ("bytes_fetched", pa.int64()),
        ("versions", pa.map_(pa.string(), pa.string())),
        ("started_at", _TIME),
        ("finished_at", _TIME),
    ]
)

HEADS = pa.schema(
    [
        *_KEY,
        ("attempt_id", pa.string()),
        ("layer", pa.int32()),
        ("model_layer", pa.int32()),
        ("head", pa.int32()),
        ("kv_head", pa.int32()),
        ("in_window", pa.bool_()),
        ("sliding_window", pa.int32()),
        ("log_odds", pa.float64()),
        ("log_odds_content", pa.float64()),
        ("candidate_masses", pa.list_(pa.field("element", pa.float64()))),
        ("prompt_log_odds", _FLOATS),
        ("prompt_log_odds_content", _FLOATS),
        ("slice_log_odds", _FLOATS),
        ("slice_mean_log_odds", _FLOATS),
        ("slice_lift", _FLOATS),
    ]
)

SWEEP = pa.schema(
    [
        *_KEY,
        ("attempt_id", pa.string()),
        ("size", pa.int32()),
        ("seed", pa.int32()),
        ("sink_strength", pa.float64()),
        ("sink_strength_content", pa.float64()),
    ]
)

MODELS = pa.schema(
    [
        ("model_id", pa.string()),
        ("revision", pa.string()),
        ("source", pa.string()),
        ("scanned_at", _TIME),
        ("verdict", pa.string()),
        ("reason", pa.string()),
        ("transient", pa.bool_()),
        ("message", pa.string()),
        ("alias_of", pa.string()),
        ("query", pa.string()),
        # what the listing said
        ("created_at", _TIME),
        ("last_modified", _TIME),
        ("downloads", pa.int64()),
        ("likes", pa.int64()),
        ("gated", pa.string()),
        ("pipeline_tag", pa.string()),
        ("library", pa.string()),
        ("license", pa.string()),
        ("base_model", pa.string()),
        ("base_model_relation", pa.string()),
        ("listed_parameters", pa.int64()),
        # what the tensors' shapes said
        ("parameters", pa.int64()),
    ]
)

SCANS = pa.schema(
    [
        ("scanned_at", _TIME),
        ("kind", pa.string()),
        ("query", pa.string()),
        ("search", pa.string()),
        ("profile", pa.string()),
        ("spec_ids", pa.list_(pa.field("element", pa.string()))),
        ("watermark", _TIME),
    ]
)

SCHEMAS: Mapping[str, pa.Schema] = {
    "outcomes": OUTCOMES,
    "heads": HEADS,
    "sweep": SWEEP,
    "models": MODELS,
    "scans": SCANS,
    "calibrations": CALIBRATIONS,
}
"""The schema of each table, by the name of its folder."""
