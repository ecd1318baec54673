"""How well one quantity orders another: rank correlations with permutation p-values, for few points.

Shape letters: A arrangements, N pairs, U units that are permuted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, permutations

import numpy as np

ENUMERATED_UNITS = 9
"""Up to this many units every arrangement is tried (9! = 362,880)."""

RANDOM_ARRANGEMENTS = 20_000
CELLS_AT_ONCE = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAgreement:
    """A rank correlation and what it is worth.

    ``value`` is in -1..1, or None where either side is constant. ``p_value`` is two-sided: the share
    of ``arrangements`` with a correlation at least as far from 0; it cannot be below
    1 / ``arrangements``. ``test`` names the test in words.
    """

    statistic: str
    value: float | None
    p_value: float | None
    test: str
    pairs: int
    arrangements: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WithinKind:
    """The comparisons of two pairs that a QK-norm kind cannot decide, and what S makes of them.

    ``comparisons`` counts couples of pairs of one kind out of ``all_comparisons``; ``tied`` ones share
    S or degradation, and the rest are ``concordant`` or ``discordant``.
    """

    comparisons: int
    concordant: int
    discordant: int
    tied: int
    all_comparisons: int


def rank_agreement(
    x: Sequence[float], y: Sequence[float], *, llms: Sequence[str]
) -> tuple[RankAgreement, ...]:
    """Spearman's rho and Kendall's tau-b of ``x`` and ``y``, each under two permutation tests.

    One test permutes ``x`` over pairs. The other permutes it over reference LLMs, whose pairs keep one
    common value: pairs of one LLM are no independent evidence, so this p-value is the one to trust.
    """
    x_N, y_N = np.asarray(x, float), np.asarray(y, float)
    if not len(x_N) == len(y_N) == len(llms) or len(x_N) < 2:
        raise ValueError("rank_agreement needs two or more pairs, and as many x, y and llms")
    codes_N = np.unique(np.asarray(llms), return_inverse=True)[1]
    first_U = np.unique(codes_N, return_index=True)[1]
    if not np.array_equal(x_N, x_N[first_U][codes_N]):
        raise ValueError("the pairs of one reference LLM must share x")
    observed = _correlations(x_N[None, :], y_N)[:, 0]
    found = []
    for unit, values_U, spread_N in (
        ("pairs", x_N, np.arange(len(x_N))),
        ("reference LLMs", x_N[first_U], codes_N),
    ):
        p_values, arrangements, how = _permutation_p_values(values_U, spread_N, y_N, observed)
        for name, value, p_value in zip(
            ("Spearman's rho", "Kendall's tau-b"), observed, p_values, strict=True
        ):
            defined = math.isfinite(value)
            found.append(
                RankAgreement(
                    statistic=name,
                    value=float(value) if defined else None,
                    p_value=p_value if defined else None,
                    test=f"{how} permutation test over {len(values_U)} {unit}, two-sided",
                    pairs=len(x_N),
                    arrangements=arrangements,
                )
            )
    return tuple(found)


def _permutation_p_values(
    values_U: np.ndarray, spread_N: np.ndarray, y_N: np.ndarray, observed: np.ndarray
) -> tuple[list[float], int, str]:
    units = len(values_U)
    exact = units <= ENUMERATED_UNITS
    orders: Iterator[tuple[int, ...]]
    if exact:
        orders = permutations(range(units))
        arrangements = math.factorial(units)
    else:
        rng = np.random.default_rng(0)
        orders = (tuple(rng.permutation(units)) for _ in range(RANDOM_ARRANGEMENTS))
        arrangements = RANDOM_ARRANGEMENTS + 1
    as_extreme = np.zeros(2, int) if exact else np.ones(2, int)
    while chunk := list(islice(orders, 1 + CELLS_AT_ONCE // len(y_N) ** 2)):
        values_AN = values_U[np.asarray(chunk)][:, spread_N]
        correlations = _correlations(values_AN, y_N)
        as_extreme += (np.abs(correlations) >= np.abs(observed)[:, None] - 1e-9).sum(axis=1)
    return [float(count / arrangements) for count in as_extreme], arrangements, "exact" if exact else "random"


def _correlations(x_AN: np.ndarray, y_N: np.ndarray) -> np.ndarray:
    """Spearman's rho and Kendall's tau-b, shape (2, A); NaN where a side is constant."""
    above_ANN = np.sign(x_AN[:, :, None] - x_AN[:, None, :])
    y_above_NN = np.sign(y_N[:, None] - y_N[None, :])
    x_ranks_AN, y_ranks_N = above_ANN.sum(axis=2), y_above_NN.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        rho_A = (x_ranks_AN @ y_ranks_N) / np.sqrt((x_ranks_AN**2).sum(axis=1) * (y_ranks_N**2).sum())
        tau_A = (above_ANN * y_above_NN).sum(axis=(1, 2)) / np.sqrt(
            np.abs(above_ANN).sum(axis=(1, 2)) * np.abs(y_above_NN).sum()
        )
    return np.stack([rho_A, tau_A])


def within_kind(x: Sequence[float], y: Sequence[float], *, kinds: Sequence[str]) -> WithinKind:
    """How much of the ordering remains once the QK-norm kind is known; counts of couples of pairs."""
    couples = [(x[i] - x[j]) * (y[i] - y[j]) for i in range(len(x)) for j in range(i) if kinds[i] == kinds[j]]
    return WithinKind(
        comparisons=len(couples),
        concordant=sum(product > 0 for product in couples),
        discordant=sum(product < 0 for product in couples),
        tied=sum(product == 0 for product in couples),
        all_comparisons=len(x) * (len(x) - 1) // 2,
    )
