"""The schema of a calibration: one row a fit, with all it takes to audit it or to predict in SQL."""

from __future__ import annotations

import pyarrow as pa

_CELL = pa.struct(
    [
        ("qk_norm", pa.string()),  # NULL: any kind
        ("x_low", pa.float64()),  # NULL: no bound
        ("x_high", pa.float64()),
        ("intercept", pa.float64()),
        ("slope", pa.float64()),
        ("pairs", pa.int32()),
        ("x_mean", pa.float64()),
    ]
)
_PAIR = [
    ("pair_id", pa.string()),
    ("reference_llm", pa.string()),
    ("vlm", pa.string()),
    ("delta_points", pa.float64()),
    ("stderr_points", pa.float64()),
    ("source", pa.string()),
    ("origin", pa.string()),
]
_POINT = pa.struct(
    [
        *_PAIR,
        ("revision", pa.string()),
        ("sink_strength", pa.float64()),
        ("sink_strength_error", pa.float64()),
        ("weak_head_share", pa.float64()),
        ("qk_norm", pa.string()),
        ("parameters", pa.int64()),
        ("residual_points", pa.float64()),
    ]
)
_LEAVE_OUT = pa.struct(
    [
        ("mean_absolute_error", pa.float64()),
        ("pairs", pa.int32()),
        ("folds", pa.int32()),
        ("fallbacks", pa.int32()),
    ]
)
_AGREEMENT = pa.struct(
    [
        ("statistic", pa.string()),
        ("value", pa.float64()),
        ("p_value", pa.float64()),
        ("test", pa.string()),
        ("pairs", pa.int32()),
        ("arrangements", pa.int64()),
    ]
)
_COMPARISON = pa.struct(
    [
        ("predictor", pa.string()),
        ("parameters", pa.int32()),
        ("residual_deviation", pa.float64()),
        ("by_pair", _LEAVE_OUT),
        ("by_llm", _LEAVE_OUT),
        ("agreements", pa.list_(_AGREEMENT)),
        ("reason", pa.string()),
    ]
)
_WITHIN_KIND = pa.struct(
    [
        ("comparisons", pa.int32()),
        ("concordant", pa.int32()),
        ("discordant", pa.int32()),
        ("tied", pa.int32()),
        ("all_comparisons", pa.int32()),
    ]
)

CALIBRATIONS = pa.schema(
    [
        ("calibration_id", pa.string()),
        ("schema_version", pa.int32()),
        ("fitted_at", pa.timestamp("us")),
        ("task", pa.string()),
        ("protocol", pa.string()),
        ("spec_id", pa.string()),
        ("predictor", pa.string()),
        ("quantity", pa.string()),  # what x is; NULL where the predictor has none
        ("fit_parameters", pa.int32()),
        ("cells", pa.list_(_CELL)),
        ("x_squares", pa.float64()),
        ("residual_variance", pa.float64()),
        ("degrees_of_freedom", pa.int32()),
        ("level", pa.float64()),
        ("t_quantile", pa.float64()),
        ("pairs", pa.int32()),
        ("llms", pa.list_(pa.string())),
        ("x_low", pa.float64()),
        ("x_high", pa.float64()),
        ("smallest_parameters", pa.int64()),
        ("largest_parameters", pa.int64()),
        ("qk_norms", pa.list_(pa.string())),
        ("points", pa.list_(_POINT)),
        ("left_out", pa.list_(pa.struct([*_PAIR, ("reason", pa.string())]))),
        ("comparisons", pa.list_(_COMPARISON)),
        ("within_kind", _WITHIN_KIND),
        ("versions", pa.map_(pa.string(), pa.string())),
    ]
)
