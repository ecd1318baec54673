"""What people read of the catalog: the ranking, and one model on a page."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from zoo.degradation_pages import loss_columns
from zoo.tables import (
    ABSENT,
    Format,
    count_text,
    format_rows,
    format_table,
    printable,
    seconds_text,
    sparkline,
)

if TYPE_CHECKING:
    from catalog.lookup import ModelDetails
    from catalog.query import QueryResult

PAGE_WIDTH = 100
VARYING = "(varies)"
"""Stands for the token at a position past the prefix that all prompts share."""
_LAYERS_PER_LINE = 10


def ranking_text(table: QueryResult, *, format: Format) -> str:
    """The ranking: every column in JSON and CSV, those that decide in a table."""
    if format != "table":
        return format_rows(table.columns, table.rows, format=format)
    headers = (
        "rank",
        "model",
        "S (nats)",
        "95 % interval",
        "same sign",
        "sink",
        "QK-norm",
        "params",
        "prompts",
        "doubt",
    )
    rows = [
        (
            str(row["rank"]),
            row["model_id"],
            _nats(row["sink_strength"]),
            f"{_nats(row['low'])} to {_nats(row['high'])}",
            _percent(row["sign_stability"]),
            f"{row['sink_position']} {row['sink_token'] or VARYING}",
            row["qk_norm"],
            count_text(row["parameters"]),
            row["prompt_format"],
            ", ".join(row["doubt"]) or ABSENT,
        )
        for row in table.records()
    ]
    numeric = [header in ("rank", "S (nats)", "same sign", "params") for header in headers]
    more, losses = loss_columns(table)
    cells = [(*row, *loss) for row, loss in zip(rows, losses, strict=True)]
    return format_table(
        (*headers, *more), cells, numeric=[*numeric, *(its.endswith("points") for its in more)]
    )


def details_text(details: ModelDetails, *, blocks: bool = False) -> str:
    """One model on a page of at most 100 columns; with ``blocks`` its layers also as a sparkline."""
    row = details.outcome
    title = f"{row['model_id']}  revision {row['revision'][:12]}  spec {row['spec_id']}"
    facts = _measured_facts(row, details) if row["status"] == "measured" else _failed_facts(row)
    parts = [printable(title), *(_fact(name, text) for name, text in facts if text)]
    if details.layers.rows:
        parts += ["", _layer_lines(details.layers, blocks=blocks)]
    if len(details.attempts.rows) > 1 or row["status"] != "measured":
        parts += ["", "Attempts", _attempt_lines(details.attempts)]
    return "\n".join(parts)


def _measured_facts(row: dict[str, Any], details: ModelDetails) -> list[tuple[str, str]]:
    return [
        ("Sink Strength", _strength_text(row)),
        ("content only", _content_text(row["sink_strength_content"])),
        ("robustness", _robustness_text(row, details.sweep)),
        ("sink", _sink_text(row)),
        ("other choices", _choices_text(details.sensitivity)),
        ("weak heads", _weak_heads_text(details.weak_heads)),
        ("sink by layer", _layer_sinks_text(details.layer_sinks, row["sink_position"])),
        ("QK-norm", row["qk_norm"] + ", learned sink" * row["learned_sink"]),
        ("layers", _layers_text(row)),
        ("model", f"{row['model_type']}, {row['architecture']}, {count_text(row['parameters'])} parameters"),
        (
            "prompts",
            f"{row['prompt_count']} as {row['prompt_format']}, {row['median_tokens']:g} tokens (median), "
            f"{row['shared_prefix_tokens']} shared",
        ),
        (
            "run",
            f"{row['dtype']} on {row['device']}, loaded {row['load']}, "
            f"{seconds_text(row['wall_seconds'] or 0)}",
        ),
        ("source", f"{row['source']}: {row['location']}"),
    ]


def _strength_text(row: dict[str, Any]) -> str:
    interval = f"{_nats(row['interval_low'])} to {_nats(row['interval_high'])}"
    return (
        f"{_nats(row['sink_strength'])} nats, "
        f"{row['interval_level']:.0%} interval {interval} ({row['interval_method']})"
    )


def _content_text(strength: float | None) -> str:
    return "" if strength is None else f"{_nats(strength)} nats, over queries past the prompts' shared prefix"


def _robustness_text(row: dict[str, Any], sweep: QueryResult) -> str:
    cells = [cell["sink_strength"] for cell in sweep.records()]
    same = sum((cell > 0) == (row["sink_strength"] > 0) for cell in cells)
    spread = f"{row['sweep_spread']:.2f} nats"
    return f"{same} of {len(cells)} prompt subsets keep the sign; they spread over {spread}"


def _choices_text(choices: QueryResult) -> str:
    plausible = [row for row in choices.records() if row["plausible"] and row["same_scale"]]
    if not plausible:
        return ""
    strengths = [row["sink_strength"] for row in plausible]
    changed = sum(row["changes_sign"] for row in plausible)
    sign = f"{changed} change its sign" if changed else "none changes its sign"
    return (
        f"{_nats(min(strengths))} to {_nats(max(strengths))} nats over {len(plausible)} plausible ones, "
        f"{sign} (--sensitivity lists them)"
    )


def _weak_heads_text(weak_heads: QueryResult) -> str:
    (row,) = weak_heads.records()
    quantiles = ", ".join(_nats(row[name]) for name in ("q10", "q25", "q50", "q75", "q90"))
    groups = (
        f"; all heads of {row['weak_kv_heads']} of {row['kv_heads']} KV heads" if row["weak_kv_heads"] else ""
    )
    return (
        f"{_percent(row['share_below_0'])} of {row['heads']} heads are below 0{groups}; "
        f"10, 25, 50, 75, 90 % lie below {quantiles}"
    )


def _layer_sinks_text(layer_sinks: QueryResult, position: int) -> str:
    elsewhere: dict[int, list[str]] = {}
    for row in layer_sinks.records():
        if not row["agrees"]:
            elsewhere.setdefault(row["sink_position"], []).append(str(row["layer"]))
    if not elsewhere:
        return f"position {position} in every layer"
    places = "; ".join(
        f"{at} in layer{'s' * (len(layers) > 1)} {', '.join(layers)}"
        for at, layers in sorted(elsewhere.items())
    )
    return f"position {position}, but position {places}"


def _sink_text(row: dict[str, Any]) -> str:
    sink = (
        f"position {row['sink_position']}, token {row['sink_token'] or VARYING}, mass {row['sink_mass']:.2f}"
    )
    if row["runner_up_mass"] is None:
        return sink
    return f"{sink}; next is position {row['runner_up_position']}, mass {row['runner_up_mass']:.2f}"


def _layers_text(row: dict[str, Any]) -> str:
    sliding = f", {row['sliding_layers']} of them with a sliding window" if row["sliding_layers"] else ""
    a_layer = f" ({row['heads_per_layer']} a layer)" if row["heads_per_layer"] else ""
    return (
        f"{row['attention_layers']} attention layers of {row['model_layers']}{sliding}; "
        f"{row['heads']} heads{a_layer}"
    )


def _failed_facts(row: dict[str, Any]) -> list[tuple[str, str]]:
    retried = "the next screen tries it again" if row["transient"] else "zoo screen --force tries it again"
    return [
        ("not measured", f"failed in {row['stage']} ({row['reason']}); {retried}"),
        ("message", row["message"]),
        ("source", f"{row['source']}: {row['location']}"),
    ]


def _fact(name: str, text: str) -> str:
    return textwrap.fill(
        printable(text),
        PAGE_WIDTH,
        initial_indent=f"{name:<15}",
        subsequent_indent=" " * 15,
        break_on_hyphens=False,
    )


def _layer_lines(layers: QueryResult, *, blocks: bool) -> str:
    """The median log-odds of every layer, ten a line, those in the window with a star."""
    cells = [f"{_nats(row['log_odds'])}{'*' if row['in_window'] else ' '}" for row in layers.records()]
    lines = [
        f"{start:>5} " + "".join(f"{cell:>9}" for cell in cells[start : start + _LAYERS_PER_LINE])
        for start in range(0, len(cells), _LAYERS_PER_LINE)
    ]
    if blocks:
        spark = sparkline([row["log_odds"] for row in layers.records()])
        lines += textwrap.wrap(spark, 90, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return "\n".join(["Median log-odds of each layer's heads (nats); * = counts for Sink Strength", *lines])


def _attempt_lines(attempts: QueryResult) -> str:
    rows = [
        [
            row["started_at"].isoformat(sep=" ", timespec="minutes") if row["started_at"] else ABSENT,
            row["revision"][:12],
            row["spec_id"],
            str(row["attempt"]),
            row["status"] if row["status"] == "measured" else f"failed in {row['stage']} ({row['reason']})",
            _nats(row["sink_strength"]),
        ]
        for row in attempts.records()
    ]
    headers = ("started (UTC)", "revision", "spec", "attempt", "ended", "S (nats)")
    return format_table(headers, rows, numeric=[False, False, False, True, False, True])


def _nats(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.2f}"


def _percent(share: float | None) -> str:
    return ABSENT if share is None else f"{share:.0%}"
