"""How sure a Sink Strength and an order of models are: resampled prompts; pure functions.

Shape letters: P prompts, H query heads of the window, S resamples, N subset sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zoo.records import Interval
from zoo.strength import INTERVAL_LEVEL, median_strength

SUBSET_DRAWS = 400
ORDER_RESAMPLES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeSpread:
    """How S (nats) spreads over random subsets of one size.

    ``within`` is the distance from the whole set's S that 95 % of the subsets keep to.
    """

    size: int
    std: float
    within: float
    same_sign_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Whether one model's S is above another's, over resampled prompts.

    ``share_above`` is the share of resamples in which it is; ``interval`` is of the difference in nats.
    """

    difference: float
    share_above: float
    interval: Interval

    @property
    def certain(self) -> bool:
        """Whether the interval of the difference leaves out 0."""
        return self.interval.low > 0 or self.interval.high < 0


def size_spreads(log_odds_PH: np.ndarray, *, sizes: Sequence[int], seed: int = 0) -> tuple[SizeSpread, ...]:
    """The spread of S over ``SUBSET_DRAWS`` subsets of each size, drawn without replacement.

    Sizes that are not below the number of prompts are left out: their subsets are the whole set.
    """
    prompts = len(log_odds_PH)
    order_SP = np.random.default_rng(seed).random((SUBSET_DRAWS, prompts)).argsort(1).argsort(1)
    whole = float(median_strength(log_odds_PH))
    spreads = []
    for size in sorted(each for each in sizes if each < prompts):
        strengths_S = median_strength(log_odds_PH, weights_SP=(order_SP < size) / size)
        strengths_S = strengths_S[np.isfinite(strengths_S)]
        spreads.append(
            SizeSpread(
                size=size,
                std=float(strengths_S.std(ddof=1)),
                within=float(np.quantile(np.abs(strengths_S - whole), INTERVAL_LEVEL)),
                same_sign_share=float(((strengths_S > 0) == (whole > 0)).mean()),
            )
        )
    return tuple(spreads)


def shrink_exponent(spreads: Sequence[SizeSpread], *, prompts: int) -> float | None:
    """The e in ``std ~ size ** e`` by least squares on logarithms; -0.5 is 1/sqrt(size).

    The spread is first freed of what drawing from a finite set without replacement takes from it:
    sqrt(1 - size / prompts) (Cochran 1977, section 2.6). ``None`` with fewer than three sizes, or no spread.
    """
    if len(spreads) < 3 or any(each.std == 0 for each in spreads):
        return None
    sizes = np.array([each.size for each in spreads])
    stds = np.array([each.std for each in spreads]) / np.sqrt(1 - sizes / prompts)
    return float(np.polyfit(np.log(sizes), np.log(stds), 1)[0])


def stable_size(spreads: Sequence[SizeSpread], *, tolerance: float) -> int | None:
    """The smallest size from which on 95 % of subsets stay within ``tolerance`` nats of S, or ``None``."""
    stable = None
    for each in sorted(spreads, key=lambda each: each.size, reverse=True):
        if each.within > tolerance:
            break
        stable = each.size
    return stable


def order(one_PH: np.ndarray, other_PH: np.ndarray, *, seed: int = 0) -> Order:
    """Whether the first model's S is above the second's: a paired percentile bootstrap.

    Both models are resampled on the same prompts, so what a prompt does to both drops out. Raises
    ValueError when they were not measured on the same number of prompts.
    """
    prompts = len(one_PH)
    if prompts != len(other_PH):
        raise ValueError("the models were not measured on the same prompts")
    counts_SP = np.random.default_rng(seed).multinomial(
        prompts, np.full(prompts, 1 / prompts), ORDER_RESAMPLES
    )
    one_S, other_S = (median_strength(each, weights_SP=counts_SP / prompts) for each in (one_PH, other_PH))
    tail = (1 - INTERVAL_LEVEL) / 2
    low, high = np.quantile(one_S - other_S, [tail, 1 - tail])
    method = f"paired percentile bootstrap over prompts, {ORDER_RESAMPLES} resamples"
    return Order(
        difference=float(median_strength(one_PH) - median_strength(other_PH)),
        share_above=float((one_S > other_S).mean()),
        interval=Interval(low=float(low), high=float(high), level=INTERVAL_LEVEL, method=method),
    )
