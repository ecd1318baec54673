"""What people read of panel, calibration, pair and training run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from zoo.degradation import best_predictor, order_within_kind
from zoo.panel import TASK_NAMES
from zoo.tables import ABSENT, format_table
from zoo.track import bars

if TYPE_CHECKING:
    from zoo.calibration import Fit
    from zoo.degradation import Calibration, Comparison
    from zoo.pair import SinkChange
    from zoo.predictors import LeaveOut
    from zoo.track import Checkpoint

PREDICTOR_TEXTS = {
    "constant": "mean of the pairs",
    "kind": "QK-norm kind alone",
    "linear": "S, least squares",
    "theil_sen": "S, Theil-Sen",
    "isotonic": "S, isotonic",
    "linear_kind": "S and QK-norm kind",
    "weak_heads": "share of weak heads",
}
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
            _points(row["delta_points"], row["stderr_points"]),
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


def fit_text(fit: Fit, *, catalog_uri: str) -> str:
    """A task's fit: line, error, predictors compared, what rests on what, who was left out."""
    title = f"{TASK_NAMES.get(fit.task, fit.task)} (protocol {fit.protocol})"
    if fit.calibration is None:
        return f"{title}: not fitted. {fit.refusal}"
    n = f"n = {_n(fit.calibration)}"
    return "\n".join(
        [
            f"{title}: {_formula(fit.calibration)}, {n}",
            f"A new VLM's points scatter by {fit.calibration.residual_variance**0.5:.1f} around the fit "
            f"({fit.calibration.degrees_of_freedom} degrees of freedom, counted in reference LLMs).",
            "",
            _comparison_table(fit.comparisons),
            *_rank_lines(fit.comparisons),
            _winner_line(fit.calibration, fit.comparisons),
            _kind_line(fit.calibration),
            "",
            _points_table(fit.calibration),
            *[f"Left out {its.pair.pair_id}: {its.reason}" for its in fit.left_out],
            f"Kept in {catalog_uri}; zoo rank --task {fit.task} shows what it predicts.",
        ]
    )


def _n(calibration: Calibration) -> str:
    return f"{len(calibration.points)} pairs on {len(calibration.llms)} reference LLMs"


def _formula(calibration: Calibration) -> str:
    fitted = calibration.fitted
    if fitted.predictor in ("linear", "theil_sen", "weak_heads"):
        (cell,) = fitted.cells
        what = "weak-head share" if fitted.predictor == "weak_heads" else "S"
        return (
            f"points = {cell.intercept:.2f} {'-' if cell.slope < 0 else '+'} {abs(cell.slope):.2f} x {what}"
        )
    return f"predicted by the {PREDICTOR_TEXTS[fitted.predictor]}"


def _comparison_table(comparisons: Sequence[Comparison]) -> str:
    headers = ("predictor", "parameters", "residual", "pair left out", "LLM left out", "note")
    rows = [
        (
            PREDICTOR_TEXTS[its.predictor],
            ABSENT if its.parameters is None else str(its.parameters),
            ABSENT if its.residual_deviation is None else f"{its.residual_deviation:.2f}",
            _error(its.by_pair),
            _error(its.by_llm),
            its.reason or _fallbacks(its.by_llm),
        )
        for its in comparisons
    ]
    pairs = next((its.by_pair.pairs for its in comparisons if its.by_pair), 0)
    title = f"Mean absolute error in points at predicting what was left out, n = {pairs}:"
    return title + "\n" + format_table(headers, rows, numeric=[False, True, True, True, True, False])


def _error(left_out: LeaveOut | None) -> str:
    return ABSENT if left_out is None else f"{left_out.mean_absolute_error:.2f}"


def _fallbacks(left_out: LeaveOut | None) -> str:
    if left_out is None or not left_out.fallbacks:
        return ""
    return f"{left_out.fallbacks} of {left_out.pairs} by the mean of the rest"


def _rank_lines(comparisons: Sequence[Comparison]) -> list[str]:
    """The rank agreement of S and of the weak-head share; the three fits of S share theirs."""
    return [
        f"{label} orders the losses with {its.statistic} = {_number(its.value)}, "
        f"p = {_number(its.p_value)} ({its.test}; n = {its.pairs} pairs)"
        for comparison in comparisons
        for label in [{"linear": "S", "weak_heads": "The share of weak heads"}.get(comparison.predictor)]
        if label
        for its in comparison.agreements
    ]


def _winner_line(calibration: Calibration, comparisons: Sequence[Comparison]) -> str:
    best = best_predictor(comparisons)
    return (
        f"Smallest error with an LLM left out: {PREDICTOR_TEXTS[best.predictor]}. {_n(calibration)} are "
        f"too few to choose by it; {PREDICTOR_TEXTS[calibration.fitted.predictor]} is used, as was asked."
    )


def _kind_line(calibration: Calibration) -> str:
    its = order_within_kind(calibration.examples)
    return (
        f"Of {its.all_comparisons} comparisons of two pairs, {its.comparisons} are within one QK-norm kind: "
        f"S orders {its.concordant} of them as the losses are, {its.discordant} against, {its.tied} are tied."
    )


def _points_table(calibration: Calibration) -> str:
    headers = ("pair", "reference LLM", "revision", "S (nats)", "points", "residual")
    rows = [
        (
            point.pair.pair_id,
            point.llm.model_id,
            point.llm.revision[:12],
            f"{point.llm.sink_strength:.2f}",
            _points(point.pair.delta_points, point.pair.stderr_points),
            f"{calibration.residual(point):+.1f}",
        )
        for point in calibration.points
    ]
    return format_table(headers, rows, numeric=[False, False, False, True, True, True])


def change_text(change: SinkChange, *, panel: tuple[float, float, int] | None) -> str:
    """What became of the sink: both S, the heads that lost it, the heads that changed most."""
    window = change.window
    lost = sum(head.lost for head in window)
    had = sum(head.before is not None and head.before > 0 for head in window)
    lines = [
        f"S {_s(change.llm)} in {change.llm['model_id']}",
        f"S {_s(change.vlm)} in {change.vlm['model_id']}",
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


def _s(row: Mapping[str, Any]) -> str:
    return f"{row['sink_strength']:.2f} nats ({row['low']:.2f} to {row['high']:.2f})"


def _points(delta: float, error: float | None) -> str:
    return f"{delta:+.1f}" + ("" if error is None else f" ± {error:.1f}")


def _nats(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.2f}"


def _number(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.3g}"
