"""Seven ways to predict a degradation from what is measured on the LLM, and their leave-one-out errors.

Every fit is a list of cells, straight pieces that hold for one QK-norm kind and one range of x, so
that one formula (also in SQL) predicts with all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from scipy.optimize import isotonic_regression

Quantity = Literal["sink_strength", "weak_head_share"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One pair as a predictor sees it: S in nats, the weak-head share in 0..1, the points it lost or won."""

    llm: str
    qk_norm: str
    sink_strength: float
    weak_head_share: float
    delta_points: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A straight piece: ``intercept + slope * x`` points for one kind (None: any) and low <= x < high.

    ``pairs`` and ``x_mean`` are those the piece was fitted to.
    """

    qk_norm: str | None = None
    x_low: float = -math.inf
    x_high: float = math.inf
    intercept: float
    slope: float = 0.0
    pairs: int
    x_mean: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A fitted predictor: its cells, how many parameters they took and x's spread within cells.

    ``x_squares`` is the sum of squared deviations of x from its cell's mean, None without a slope.
    """

    predictor: str
    quantity: Quantity | None
    parameters: int
    cells: tuple[Cell, ...]
    x_squares: float | None = None

    def cell(self, *, qk_norm: str, x: float) -> Cell | None:
        """The piece that holds for this kind and x, or None for a kind it was not fitted to."""
        for cell in self.cells:
            if cell.qk_norm in (None, qk_norm) and cell.x_low <= x < cell.x_high:
                return cell
        return None


class NotIdentified(ValueError):
    """The examples do not determine this predictor."""


def _arrays(examples: Sequence[Example], quantity: Quantity) -> tuple[np.ndarray, np.ndarray]:
    return (
        np.array([getattr(example, quantity) for example in examples], float),
        np.array([example.delta_points for example in examples], float),
    )


def fit_constant(examples: Sequence[Example]) -> Fitted:
    """The mean degradation, whatever the LLM."""
    x, y = _arrays(examples, "sink_strength")
    cell = Cell(intercept=float(y.mean()), pairs=len(y), x_mean=float(x.mean()))
    return Fitted(predictor="constant", quantity=None, parameters=1, cells=(cell,))


def fit_kind(examples: Sequence[Example]) -> Fitted:
    """The mean degradation of each QK-norm kind."""
    cells = []
    for kind in sorted({example.qk_norm for example in examples}):
        x, y = _arrays([example for example in examples if example.qk_norm == kind], "sink_strength")
        cells.append(Cell(qk_norm=kind, intercept=float(y.mean()), pairs=len(y), x_mean=float(x.mean())))
    if len(cells) < 2:
        raise NotIdentified("every pair has the same QK-norm kind")
    return Fitted(predictor="kind", quantity=None, parameters=len(cells), cells=tuple(cells))


def fit_linear(examples: Sequence[Example], *, quantity: Quantity = "sink_strength") -> Fitted:
    """Ordinary least squares of the degradation on S (or on the share of weak heads)."""
    x, y = _arrays(examples, quantity)
    squares = float(((x - x.mean()) ** 2).sum())
    if not squares > 0:
        raise NotIdentified("every pair has the same x")
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / squares)
    name = "linear" if quantity == "sink_strength" else "weak_heads"
    return _line(name, quantity, x, slope, float(y.mean() - slope * x.mean()), squares)


def fit_theil_sen(examples: Sequence[Example]) -> Fitted:
    """The median of all pairwise slopes, through the median of what it leaves (Theil 1950, Sen 1968)."""
    x, y = _arrays(examples, "sink_strength")
    i, j = np.triu_indices(len(x), 1)
    apart = x[i] != x[j]
    if not apart.any():
        raise NotIdentified("every pair has the same x")
    slope = float(np.median((y[j] - y[i])[apart] / (x[j] - x[i])[apart]))
    squares = float(((x - x.mean()) ** 2).sum())
    return _line("theil_sen", "sink_strength", x, slope, float(np.median(y - slope * x)), squares)


def _line(
    name: str, quantity: Quantity, x: np.ndarray, slope: float, intercept: float, squares: float
) -> Fitted:
    cell = Cell(intercept=intercept, slope=slope, pairs=len(x), x_mean=float(x.mean()))
    return Fitted(predictor=name, quantity=quantity, parameters=2, cells=(cell,), x_squares=squares)


def fit_isotonic(examples: Sequence[Example]) -> Fitted:
    """The steps that rise with S and fit best (pool adjacent violators); breaks halfway between pairs."""
    x, y = _arrays(examples, "sink_strength")
    levels, place = np.unique(x, return_inverse=True)
    counts = np.bincount(place)
    means = np.bincount(place, weights=y) / counts
    blocks = isotonic_regression(means, weights=counts.astype(float)).blocks
    cells = []
    for start, stop in pairwise(blocks):
        inside = slice(start, stop)
        weights = counts[inside]
        cells.append(
            Cell(
                x_low=-math.inf if start == 0 else float(levels[start - 1] + levels[start]) / 2,
                x_high=math.inf if stop == len(levels) else float(levels[stop - 1] + levels[stop]) / 2,
                intercept=float(np.average(means[inside], weights=weights)),
                pairs=int(weights.sum()),
                x_mean=float(np.average(levels[inside], weights=weights)),
            )
        )
    return Fitted(predictor="isotonic", quantity="sink_strength", parameters=len(cells), cells=tuple(cells))


def fit_linear_kind(examples: Sequence[Example]) -> Fitted:
    """One slope on S for all, one intercept for each QK-norm kind."""
    kinds = sorted({example.qk_norm for example in examples})
    groups = [_arrays([e for e in examples if e.qk_norm == kind], "sink_strength") for kind in kinds]
    squares = float(sum(((x - x.mean()) ** 2).sum() for x, _ in groups))
    if len(kinds) < 2:
        raise NotIdentified("every pair has the same QK-norm kind")
    if not squares > 0:
        raise NotIdentified("S does not vary within any QK-norm kind")
    slope = float(sum(((x - x.mean()) * (y - y.mean())).sum() for x, y in groups) / squares)
    cells = tuple(
        Cell(
            qk_norm=kind,
            intercept=float(y.mean() - slope * x.mean()),
            slope=slope,
            pairs=len(x),
            x_mean=float(x.mean()),
        )
        for kind, (x, y) in zip(kinds, groups, strict=True)
    )
    return Fitted(
        predictor="linear_kind",
        quantity="sink_strength",
        parameters=1 + len(kinds),
        cells=cells,
        x_squares=squares,
    )


def fit_weak_heads(examples: Sequence[Example]) -> Fitted:
    """Ordinary least squares of the degradation on the share of heads below 0 nats."""
    return fit_linear(examples, quantity="weak_head_share")


PREDICTORS: dict[str, Callable[[Sequence[Example]], Fitted]] = {
    "linear": fit_linear,
    "constant": fit_constant,
    "kind": fit_kind,
    "theil_sen": fit_theil_sen,
    "isotonic": fit_isotonic,
    "linear_kind": fit_linear_kind,
    "weak_heads": fit_weak_heads,
}
"""Every predictor by name; the first is the default."""


def predict(fitted: Fitted, example: Example) -> float | None:
    """Predicted points, negative = lost; None for a QK-norm kind the fit has not seen."""
    x = getattr(example, fitted.quantity or "sink_strength")
    cell = fitted.cell(qk_norm=example.qk_norm, x=x)
    return None if cell is None else cell.intercept + cell.slope * x


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveOut:
    """The mean absolute error (points) at predicting what was left out, and what it rests on.

    ``fallbacks`` counts the pairs for which the rest did not determine the predictor, so that the
    mean of the rest was predicted instead.
    """

    mean_absolute_error: float
    pairs: int
    folds: int
    fallbacks: int


def leave_out(name: str, examples: Sequence[Example], *, by: Literal["pair", "llm"]) -> LeaveOut:
    """The leave-one-pair-out or leave-one-reference-LLM-out error of a predictor.

    Leaving out a pair keeps the other VLM of its LLM, and with it the answer to S; leaving out the
    LLM does not. Raises ValueError when nothing would be left to fit.
    """
    folds = [example.llm if by == "llm" else str(i) for i, example in enumerate(examples)]
    if len(set(folds)) < 2:
        raise ValueError("leaving one out needs two or more")
    errors, fallbacks = [], 0
    for fold in dict.fromkeys(folds):
        rest = [example for example, its in zip(examples, folds, strict=True) if its != fold]
        try:
            fitted = PREDICTORS[name](rest)
        except NotIdentified:
            fitted = None
        for example in (example for example, its in zip(examples, folds, strict=True) if its == fold):
            predicted = None if fitted is None else predict(fitted, example)
            if predicted is None:
                predicted = fit_constant(rest).cells[0].intercept
                fallbacks += 1
            errors.append(abs(predicted - example.delta_points))
    return LeaveOut(
        mean_absolute_error=float(np.mean(errors)),
        pairs=len(errors),
        folds=len(set(folds)),
        fallbacks=fallbacks,
    )
