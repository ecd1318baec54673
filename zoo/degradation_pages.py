"""What people read of the panel, of predicted losses, of a pair and of a training run."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from zoo.panel import TASK_NAMES, TASKS
from zoo.prediction import sentence
from zoo.tables import ABSENT, Format, count_text, format_rows, format_table, printable

if TYPE_CHECKING:
    from catalog.query import QueryResult
    from zoo.pair import SinkChange
    from zoo.prediction import Prediction
    from zoo.track import Checkpoint

PAGE_WIDTH = 100
EIGHTHS = "▏▎▍▌▋▊▉█"
WEAKEST_SHOWN = 8


def panel_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """The pairs as a table, task by task; files that cannot be used below it."""
    headers = ("task", "protocol", "reference LLM", "VLM", "points", "S (nats)", "QK-norm", "from")
    cells = [
        (
            row["task"],
            row["protocol"],
            row["reference_llm"],
            row["vlm"],
            points_text(row["delta_points"], row["stderr_points"]),
            _nats(row["sink_strength"]),
            row["qk_norm"],
            row["origin"] + (", replaces shipped" if row["replaces"] else ""),
        )
        for row in rows
        if not row["problem"]
    ]
    problems = [f"Not used: {row['problem']}" for row in rows if row["problem"]]
    numeric = [header in ("points", "S (nats)") for header in headers]
    return "\n".join([format_table(headers, cells, numeric=numeric), *problems])


def losses_text(table: QueryResult, *, format: Format) -> str:
    """The ranking by predicted loss: every column in JSON and CSV, those that decide in a table."""
    if format != "table":
        return format_rows(table.columns, table.rows, format=format)
    levels = {row["predicted_level"] for row in table.records()} - {None}
    interval = f"{min(levels):.0%} interval" if levels else "interval"
    headers = ("model", "points", interval, "S (nats)", "S rank", "QK-norm", "params", "pairs", "caution")
    rows = [
        (
            row["model_id"],
            _signed(row["predicted_points"]),
            _interval(row["predicted_low"], row["predicted_high"]),
            _nats(row["sink_strength"]),
            str(row["rank"]),
            row["qk_norm"],
            count_text(row["parameters"]),
            ABSENT if row["predicted_from_pairs"] is None else str(row["predicted_from_pairs"]),
            ", ".join(row["flags"] or ()),
        )
        for row in table.records()
    ]
    words = ("model", interval, "QK-norm", "caution")
    return format_table(headers, rows, numeric=[header not in words for header in headers])


def loss_columns(table: QueryResult) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """What a ranking's table shows of the predicted loss: headers and one cell a header for every row.

    Nothing where no model has a prediction, or the table has no such columns.
    """
    rows = table.records()
    predicted = [row for row in rows if row.get("predicted_points") is not None]
    if not predicted:
        return (), [() for _ in rows]
    task, level, n = (predicted[0][name] for name in ("task", "predicted_level", "predicted_from_pairs"))
    headers = (f"{TASK_NAMES.get(task, task)} points", f"{level:.0%} interval (n = {n} pairs)")
    cells: list[tuple[str, ...]] = [
        (
            _signed(row["predicted_points"]) + "*" * bool(row["flags"]),
            _interval(row["predicted_low"], row["predicted_high"]),
        )
        for row in rows
    ]
    return headers, cells


def losses_hint(task: str | None, predicted: Sequence[str]) -> str:
    """What to do to see predicted losses, or how to read those that are shown."""
    if task in predicted:
        return (
            f"Points on {TASK_NAMES.get(task or '', task)} as a fit to few pairs predicts them, negative = "
            "lost; zoo show MODEL says what each rests on."
        )
    if task is not None or not predicted:
        which = f" --task {task}" if task else ""
        return f"No predicted losses yet, so this is the order of S; zoo calibrate{which} fits them."
    others = f"Predicted losses: zoo rank --task {' or '.join(predicted)}."
    name = TASK_NAMES[TASKS[0]]
    if TASKS[0] not in predicted:
        return f"{others} zoo calibrate --task {TASKS[0]} fits those on {name}."
    return (
        f"Points on {name} as a fit to few pairs predicts them, negative = lost; * has cautions, see "
        f"zoo show MODEL. {others}"
    )


def predictions_text(predictions: Sequence[Prediction]) -> str:
    """Each prediction as one sentence with its interval and caveats, or how to get one."""
    if not predictions:
        return "No predicted loss yet: zoo calibrate fits one."
    return "\n".join(
        textwrap.fill(printable(sentence(its)), PAGE_WIDTH, break_on_hyphens=False) for its in predictions
    )


def change_text(change: SinkChange, *, panel: tuple[float, float, int] | None) -> str:
    """What became of the sink: both S, the heads that lost it, the heads that changed most."""
    window = change.window
    lost = sum(head.lost for head in window)
    had = sum(head.before is not None and head.before > 0 for head in window)
    is_one = change.llm["model_id"] == change.vlm["model_id"]
    lines = [
        *(
            f"S {_s(row)} in {row['model_id']}" + f"@{row['revision'][:12]}" * is_one
            for row in (change.llm, change.vlm)
        ),
        f"Change {change.change:+.2f} nats" + ("; the intervals overlap" if change.overlap else ""),
        f"{lost} of the {had} heads that had the sink lost it (n = {len(window)} heads that count; "
        f"{sum(head.lost for head in change.heads)} lost it in all layers)",
    ]
    if change.llm["sink_position"] != change.vlm["sink_position"]:
        lines.append(
            f"The sink moved from position {change.llm['sink_position']} to {change.vlm['sink_position']}"
        )
    if panel is None:
        lines.append("No reference LLM of the panel is measured yet; zoo calibrate does that.")
    else:
        low, high, llms = panel
        lines.append(f"The panel's {llms} measured reference LLMs have S from {low:.2f} to {high:.2f} nats.")
    fallen = sorted((h for h in change.heads if h.change is not None), key=lambda h: h.change or 0.0)
    rows = [
        (
            str(h.layer),
            str(h.head),
            _nats(h.before),
            _nats(h.after),
            _nats(h.change),
            "lost" if h.lost else "",
        )
        for h in fallen[:WEAKEST_SHOWN]
    ]
    headers = ("layer", "head", "before", "after", "change", "")
    table = format_table(headers, rows, numeric=[True, True, True, True, True, False])
    return "\n".join([*lines, "", "The heads that fell most (log-odds in nats):", table])


def track_text(checkpoints: Sequence[Checkpoint]) -> str:
    """A run's checkpoints in training order, S beside its change and as bars."""
    headers = ("checkpoint", "S (nats)", "interval", "change", "", "")
    rows = [
        (
            its.name,
            _nats(its.sink_strength),
            ABSENT if its.low is None or its.high is None else f"{its.low:.2f} to {its.high:.2f}",
            ABSENT if its.change is None else f"{its.change:+.2f}",
            bar,
            "fell" if its.fell else (its.message or ""),
        )
        for its, bar in zip(checkpoints, bars([its.sink_strength for its in checkpoints]), strict=True)
    ]
    return format_table(headers, rows, numeric=[False, True, False, True, False, False])


def bars(values: Sequence[float | None], *, width: int = 24) -> tuple[str, ...]:
    """One horizontal bar a value, from the lowest (empty) to the highest (full); empty for None."""
    present = [value for value in values if value is not None]
    low, spread = min(present, default=0.0), (max(present, default=0.0) - min(present, default=0.0)) or 1.0
    return tuple("" if value is None else _bar((value - low) / spread * width) for value in values)


def _bar(length: float) -> str:
    eighths = round(length * 8)
    return "█" * (eighths // 8) + (EIGHTHS[eighths % 8 - 1] if eighths % 8 else "")


def _signed(points: float | None) -> str:
    return ABSENT if points is None else f"{points:+.1f}"


def _interval(low: float | None, high: float | None) -> str:
    return ABSENT if low is None or high is None else f"{low:+.1f} to {high:+.1f}"


def _s(row: Mapping[str, Any]) -> str:
    return f"{row['sink_strength']:.2f} nats ({row['low']:.2f} to {row['high']:.2f})"


def points_text(delta: float, error: float | None) -> str:
    return f"{delta:+.1f}" + ("" if error is None else f" ± {error:.1f}")


def _nats(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.2f}"
