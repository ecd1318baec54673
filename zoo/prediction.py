"""Predict one model's loss from a calibration: points, an honest interval, what makes it doubtful."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zoo.panel import TASK_NAMES

if TYPE_CHECKING:
    from zoo.degradation import Calibration
    from zoo.pairs import Measured
    from zoo.predictors import Cell

PREDICTOR_TEXTS = {
    "linear": "S, least squares",
    "constant": "mean of the pairs",
    "kind": "QK-norm kind alone",
    "theil_sen": "S, Theil-Sen",
    "isotonic": "S, isotonic",
    "linear_kind": "S and QK-norm kind",
    "weak_heads": "share of weak heads",
}
"""Every predictor and what it goes by; the first is the default."""

DEFAULT_PREDICTOR = "linear"
DEFAULT_LEVEL = 0.90

SIZE_FACTOR = 1.5
"""A model is of another size class when it is smaller or larger than the panel's by more than this."""

FLAGS = {
    "in_panel": "it is a reference LLM of the panel, so this is partly its own result",
    "extrapolated": "its Sink Strength is outside the panel's range",
    "other_size": "it is of another size class than the panel's LLMs",
    "other_qk_norm": "no LLM of the panel has its kind of QK-norm",
    "learned_sink": "it has learned sinks, which the paper did not study",
    "hybrid": "some of its layers are no softmax attention, which the paper did not study",
    "layerwise": "its QK-norm is layerwise: S alone understates the loss of such models",
}
"""What qualifies a prediction, in the order it is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Predicted change on a task in points, negative = lost, with a prediction interval for one new VLM.

    The points are None when the predictor has never seen the model's QK-norm kind.
    """

    model_id: str
    task: str
    protocol: str
    predictor: str
    points: float | None
    low: float | None
    high: float | None
    level: float
    flags: tuple[str, ...]
    pairs: int
    llms: tuple[str, ...]


def predict_loss(calibration: Calibration, model: Measured) -> Prediction:
    """What a VLM built on ``model`` is expected to lose.

    The interval is Student's: residual variance, the fit's own uncertainty at this x, and the
    standard error of the model's S. Outside the panel's range nothing shows that the line goes on, so
    there it also covers a loss that levels off at the panel's edge. Raises ValueError when model and
    fit differ in spec.
    """
    if model.spec_id != calibration.spec_id:
        raise ValueError(f"{model.model_id} has spec {model.spec_id}, the fit {calibration.spec_id}")
    fitted = calibration.fitted
    x = getattr(model, fitted.quantity or "sink_strength")
    cell = fitted.cell(qk_norm=model.qk_norm, x=x)
    points = low = high = None
    if cell is not None:
        x_error = model.sink_strength_error if fitted.quantity == "sink_strength" else 0.0
        spans = [_span_at(calibration, cell, at, x_error) for at in (x, _held(x, panel_xs(calibration)))]
        points = cell.intercept + cell.slope * x
        low, high = min(span[0] for span in spans), max(span[1] for span in spans)
    return Prediction(
        model_id=model.model_id,
        task=calibration.task,
        protocol=calibration.protocol,
        predictor=fitted.predictor,
        points=points,
        low=low,
        high=high,
        level=calibration.level,
        flags=flags(calibration, model),
        pairs=len(calibration.points),
        llms=calibration.llms,
    )


def _span_at(calibration: Calibration, cell: Cell, x: float, x_error: float) -> tuple[float, float]:
    leverage = 1 / cell.pairs
    if calibration.fitted.x_squares is not None:
        leverage += (x - cell.x_mean) ** 2 / calibration.fitted.x_squares
    variance = calibration.residual_variance * (1 + leverage) + (cell.slope * x_error) ** 2
    half = calibration.t_quantile * variance**0.5
    return cell.intercept + cell.slope * x - half, cell.intercept + cell.slope * x + half


def _held(x: float, xs: Sequence[float]) -> float:
    """``x`` moved to the nearest end of the panel's range."""
    return min(max(x, min(xs)), max(xs))


def panel_xs(calibration: Calibration) -> list[float]:
    """What the fit's predictor reads, S or the weak-head share, for each of its pairs."""
    quantity = calibration.fitted.quantity or "sink_strength"
    return [getattr(point.llm, quantity) for point in calibration.points]


def flags(calibration: Calibration, model: Measured) -> tuple[str, ...]:
    """The reasons to doubt a prediction, keys of `FLAGS` in its order."""
    seen = [point.llm for point in calibration.points]
    xs, x = panel_xs(calibration), getattr(model, calibration.fitted.quantity or "sink_strength")
    sizes = [llm.parameters for llm in seen]
    holds = {
        "in_panel": model.model_id in calibration.llms,
        "extrapolated": x != _held(x, xs),
        "other_size": not min(sizes) / SIZE_FACTOR <= model.parameters <= max(sizes) * SIZE_FACTOR,
        "other_qk_norm": model.qk_norm not in {llm.qk_norm for llm in seen},
        "learned_sink": model.learned_sink,
        "hybrid": model.hybrid,
        "layerwise": model.qk_norm == "layerwise",
    }
    return tuple(flag for flag in FLAGS if holds[flag])


def sentence(prediction: Prediction) -> str:
    """The prediction for a reader, with its interval, what it rests on and its caveats."""
    task = TASK_NAMES.get(prediction.task, prediction.task)
    rests_on = (
        f"{prediction.pairs} pairs on {len(prediction.llms)} reference LLMs "
        f"({', '.join(prediction.llms)}; protocol {prediction.protocol}; predictor {prediction.predictor})"
    )
    if prediction.points is None or prediction.low is None or prediction.high is None:
        said = f"No prediction for {task}: the predictor has not seen this kind of QK-norm in {rests_on}."
    else:
        said = (
            f"A VLM built on it is expected to {_change(prediction.points)} on {task} "
            f"({prediction.level:.0%} prediction interval: {_span(prediction.low, prediction.high)}), "
            f"judged by {rests_on}."
        )
    return said + _caveats(prediction.flags)


def _caveats(found: Sequence[str]) -> str:
    return f" Caution: {'; '.join(FLAGS[flag] for flag in found)}." if found else ""


def _change(points: float) -> str:
    return f"{'lose' if points <= 0 else 'gain'} {abs(points):.1f} points"


def _span(low: float, high: float) -> str:
    if high <= 0:
        return f"a loss of {-high:.1f} to {-low:.1f}"
    if low >= 0:
        return f"a gain of {low:.1f} to {high:.1f}"
    return f"a loss of {-low:.1f} to a gain of {high:.1f}"
