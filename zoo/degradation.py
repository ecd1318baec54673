"""From Sink Strength to points lost: fit the panel, say how far the fit can be trusted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student_t

from zoo.agreement import RankAgreement, WithinKind, rank_agreement, within_kind
from zoo.errors import PanelError
from zoo.pairs import LeftOut, PairPoint
from zoo.prediction import DEFAULT_LEVEL, DEFAULT_PREDICTOR
from zoo.predictors import PREDICTORS, Example, Fitted, LeaveOut, NotIdentified, leave_out, predict

SPARE_LLMS = 2
"""Reference LLMs a fit needs beyond its parameters: leaving one out must still leave an error to see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One predictor on one panel: its leave-one-out errors and rank agreement, or why it has none."""

    predictor: str
    parameters: int | None
    residual_deviation: float | None
    by_pair: LeaveOut | None
    by_llm: LeaveOut | None
    agreements: tuple[RankAgreement, ...]
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A predictor fitted to the pairs of one task under one protocol, with all it takes to audit it.

    ``residual_variance`` (points squared) is over ``degrees_of_freedom``, which counts reference LLMs;
    ``t_quantile`` is Student's for a two-sided interval of ``level``.
    """

    task: str
    protocol: str
    spec_id: str
    fitted: Fitted
    residual_variance: float
    degrees_of_freedom: int
    level: float
    t_quantile: float
    points: tuple[PairPoint, ...]
    left_out: tuple[LeftOut, ...]
    versions: Mapping[str, str]
    fitted_at: str
    """UTC, ISO 8601."""

    @property
    def llms(self) -> tuple[str, ...]:
        """The reference LLMs the fit rests on."""
        return tuple(dict.fromkeys(point.llm.model_id for point in self.points))

    @property
    def examples(self) -> tuple[Example, ...]:
        """The pairs as predictors see them, for `compare` and `order_within_kind`."""
        return tuple(point.example for point in self.points)

    def residual(self, point: PairPoint) -> float:
        """Measured minus fitted points of one of the fit's own pairs."""
        fitted_points = predict(self.fitted, point.example)
        assert fitted_points is not None
        return point.pair.delta_points - fitted_points


def calibrate(
    points: Sequence[PairPoint],
    *,
    left_out: Sequence[LeftOut] = (),
    predictor: str = DEFAULT_PREDICTOR,
    level: float = DEFAULT_LEVEL,
    versions: Mapping[str, str],
    fitted_at: str,
) -> Calibration:
    """Fit one task's pairs, all of one protocol and one spec.

    Raises PanelError when there are too few reference LLMs to know the fit's error, naming how many
    are needed and which pairs were left out; ValueError for mixed tasks, protocols or specs.
    """
    about = {(point.pair.task, point.pair.protocol, point.llm.spec_id) for point in points}
    if len(about) > 1:
        raise ValueError(f"one calibration is of one task, protocol and spec, not of {sorted(about)}")
    examples = [point.example for point in points]
    fitted = _fit_or_refuse(predictor, points, left_out)
    freedom = len({example.llm for example in examples}) - fitted.parameters
    ((task, protocol, spec_id),) = about
    return Calibration(
        task=task,
        protocol=protocol,
        spec_id=spec_id,
        fitted=fitted,
        residual_variance=max(residual_variance(fitted, examples), _known_variance(fitted, points)),
        degrees_of_freedom=freedom,
        level=level,
        t_quantile=float(student_t.ppf((1 + level) / 2, freedom)),
        points=tuple(points),
        left_out=tuple(left_out),
        versions=dict(versions),
        fitted_at=fitted_at,
    )


def _fit_or_refuse(predictor: str, points: Sequence[PairPoint], left_out: Sequence[LeftOut]) -> Fitted:
    examples = [point.example for point in points]
    llms = len({example.llm for example in examples})
    fitted, why = None, ""
    try:
        fitted = PREDICTORS[predictor](examples) if examples else None
    except NotIdentified as error:
        why = f" ({error})"
    needed = SPARE_LLMS + (2 if fitted is None else fitted.parameters)
    if fitted is not None and llms >= needed:
        return fitted
    missing = "; ".join(f"{its.pair.pair_id}: {its.reason}" for its in left_out)
    raise PanelError(
        f"{_count(len(points), 'pair')} on {_count(llms, 'reference LLM')} cannot carry the {predictor} "
        f"fit{why}: it needs at least {needed} reference LLMs, so that its error can be seen; add pairs "
        "with zoo panel add" + (f" or make these measurable: {missing}" if missing else "")
    )


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def residual_variance(fitted: Fitted, examples: Sequence[Example]) -> float:
    """The residual sum of squares over (reference LLMs - parameters), in points squared.

    Counting LLMs, not pairs, keeps prediction intervals honest whether the VLMs of one LLM differ
    independently (then it is too large) or move together (then the fit's part is exact).
    """
    residuals = [example.delta_points - (predict(fitted, example) or 0.0) for example in examples]
    freedom = len({example.llm for example in examples}) - fitted.parameters
    return float(np.square(residuals).sum() / freedom)


def _known_variance(fitted: Fitted, points: Sequence[PairPoint]) -> float:
    """The part of the residual variance that measurement errors alone make: no interval goes below it."""
    stated = [p.pair.stderr_points**2 for p in points if p.pair.stderr_points is not None]
    steepest = max(abs(cell.slope) for cell in fitted.cells) if fitted.quantity == "sink_strength" else 0.0
    of_s = np.mean([(steepest * p.llm.sink_strength_error) ** 2 for p in points])
    return float(of_s + (np.mean(stated) if stated else 0.0))


def compare(examples: Sequence[Example]) -> tuple[Comparison, ...]:
    """Every predictor on the same pairs, the default first.

    Rank agreement is of what orders the models before any fit: S, or the weak-head share reversed. A
    constant orders nothing, and the orders by kind and by S with kind are made from the very
    degradations they would be compared with: these have leave-one-out errors only.
    """
    of_s = _agreement(examples, [example.sink_strength for example in examples])
    of_weak = _agreement(examples, [-example.weak_head_share for example in examples])
    agreements = {"linear": of_s, "theil_sen": of_s, "isotonic": of_s, "weak_heads": of_weak}
    return tuple(_compared(name, examples, agreements.get(name, ())) for name in PREDICTORS)


def _agreement(examples: Sequence[Example], x: Sequence[float]) -> tuple[RankAgreement, ...]:
    return rank_agreement(x, [its.delta_points for its in examples], llms=[its.llm for its in examples])


def _compared(name: str, examples: Sequence[Example], agreements: tuple[RankAgreement, ...]) -> Comparison:
    llms = {example.llm for example in examples}
    fitted, reason = None, None
    try:
        fitted = PREDICTORS[name](examples)
        if len(llms) <= fitted.parameters:
            reason = "as many parameters as reference LLMs: it fits anything"
    except NotIdentified as error:
        reason = str(error)
    return Comparison(
        predictor=name,
        parameters=fitted.parameters if fitted else None,
        residual_deviation=residual_variance(fitted, examples) ** 0.5 if fitted and not reason else None,
        by_pair=leave_out(name, examples, by="pair") if fitted else None,
        by_llm=leave_out(name, examples, by="llm") if fitted and len(llms) > 1 else None,
        agreements=agreements,
        reason=reason,
    )


def order_within_kind(examples: Sequence[Example]) -> WithinKind:
    """What S still orders among models of one QK-norm kind."""
    return within_kind(
        [example.sink_strength for example in examples],
        [example.delta_points for example in examples],
        kinds=[example.qk_norm for example in examples],
    )


def best_predictor(comparisons: Sequence[Comparison]) -> Comparison:
    """The predictor with the smallest leave-one-LLM-out error; a panel is too small to choose by it."""
    return min(
        (its for its in comparisons if its.by_llm is not None),
        key=lambda its: its.by_llm.mean_absolute_error if its.by_llm else float("inf"),
    )
