"""What people read of a calibration: the fit, its errors beside other predictors', what it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from zoo.degradation import best_predictor, order_within_kind
from zoo.degradation_pages import points_text
from zoo.panel import TASK_NAMES
from zoo.prediction import PREDICTOR_TEXTS
from zoo.tables import ABSENT, format_table

if TYPE_CHECKING:
    from zoo.calibration import Fit
    from zoo.degradation import Calibration, Comparison
    from zoo.predictors import LeaveOut


def fit_text(fit: Fit, *, catalog_uri: str) -> str:
    """A task's fit: line, error, predictors compared, what rests on what, who was left out."""
    title = f"{TASK_NAMES.get(fit.task, fit.task)} (protocol {fit.protocol})"
    if fit.calibration is None:
        return f"{title}: not fitted. {fit.refusal}"
    n = f"n = {_n(fit.calibration)}"
    lines = [
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
    return "\n".join(lines)


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
    """The rank agreement of S, which its three fits share, and of the weak-head share; a line a test."""
    lines = []
    for comparison in comparisons:
        what = {"linear": "S", "weak_heads": "The share of weak heads"}.get(comparison.predictor)
        tests = {
            its.test: [a for a in comparison.agreements if a.test == its.test]
            for its in comparison.agreements
        }
        for test, agreements in tests.items() if what else ():
            values = ", ".join(
                f"{a.statistic} {_number(a.value)} (p = {_number(a.p_value)})" for a in agreements
            )
            lines.append(f"{what} orders the losses with {values}; n = {agreements[0].pairs} pairs, {test}.")
    return lines


def _winner_line(calibration: Calibration, comparisons: Sequence[Comparison]) -> str:
    best = best_predictor(comparisons)
    return (
        f"Smallest error with an LLM left out: {PREDICTOR_TEXTS[best.predictor]}. {_n(calibration)} are "
        f"too few to choose by it; used as asked: {PREDICTOR_TEXTS[calibration.fitted.predictor]}."
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
            points_text(point.pair.delta_points, point.pair.stderr_points),
            f"{calibration.residual(point):+.1f}",
        )
        for point in calibration.points
    ]
    return format_table(headers, rows, numeric=[False, False, False, True, True, True])


def _number(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.3g}"
