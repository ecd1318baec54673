"""Laws of the rank statistics, against hand counts and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau, spearmanr

from zoo.agreement import RankAgreement, rank_agreement, within_kind


def agreement(
    x: list[float], y: list[float], llms: list[str] | None = None
) -> dict[tuple[str, str], RankAgreement]:
    names = llms or [f"llm{value}" for value in range(len(x))]
    found = rank_agreement(x, y, llms=names)
    return {(a.statistic.split("'")[0], "llms" if "LLMs" in a.test else "pairs"): a for a in found}


def test_six_pairs_on_four_llms_cap_spearman_at_0_971() -> None:
    best = agreement([1, 1, 2, 2, 3, 4], [1, 2, 3, 4, 5, 6], ["a", "a", "b", "b", "c", "d"])
    assert best["Spearman", "pairs"].value == pytest.approx(math.sqrt(16.5 / 17.5))
    assert round(best["Spearman", "pairs"].value or 0, 3) == 0.971
    others = [
        agreement([1, 1, 2, 2, 3, 4], list(order), ["a", "a", "b", "b", "c", "d"])["Spearman", "pairs"].value
        or 0
        for order in np.random.default_rng(0).permuted(np.tile(range(6), (50, 1)), axis=1)
    ]
    assert max(others) <= math.sqrt(16.5 / 17.5) + 1e-12


def test_the_p_value_of_a_perfect_order_is_two_in_n_factorial() -> None:
    perfect = agreement([1, 2, 3, 4], [10, 20, 30, 40])
    for key in (("Spearman", "pairs"), ("Kendall", "pairs"), ("Spearman", "llms"), ("Kendall", "llms")):
        assert perfect[key].value == pytest.approx(1)
        assert perfect[key].p_value == pytest.approx(2 / 24)


def test_pairs_that_share_an_llm_are_not_counted_twice_by_the_test_over_llms() -> None:
    found = agreement([1, 1, 2, 2, 3, 4], [1, 2, 3, 4, 5, 6], ["a", "a", "b", "b", "c", "d"])
    over_pairs, over_llms = found["Spearman", "pairs"], found["Spearman", "llms"]
    assert over_pairs.p_value == pytest.approx(2 * 4 / 720)
    assert over_llms.arrangements == 24
    assert over_llms.p_value == pytest.approx(2 / 24)


def test_kendall_by_hand() -> None:
    found = agreement([1, 2, 3], [1, 3, 2])["Kendall", "pairs"]
    assert found.value == pytest.approx(1 / 3)
    assert found.p_value == pytest.approx(1)


def test_a_constant_orders_nothing_and_has_no_p_value() -> None:
    found = agreement([1, 1, 1], [1, 2, 3])["Spearman", "pairs"]
    assert found.value is None
    assert found.p_value is None


def test_every_p_value_names_its_test_and_its_units() -> None:
    exact = agreement([1, 2, 3], [1, 3, 2])
    assert exact["Kendall", "llms"].test == "exact permutation test over 3 reference LLMs, two-sided"
    many = agreement(list(range(12)), list(range(12)))["Spearman", "pairs"]
    assert many.test == "random permutation test over 12 pairs, two-sided"
    assert many.p_value == pytest.approx(1 / 20_001)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=3, max_size=6))
def test_the_statistics_are_scipys(points: list[tuple[int, int]]) -> None:
    x, y = [float(a) for a, _ in points], [float(b) for _, b in points]
    found = agreement(x, y)
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert found["Spearman", "pairs"].value is None
    else:
        assert found["Spearman", "pairs"].value == pytest.approx(spearmanr(x, y).statistic, abs=1e-12)
        assert found["Kendall", "pairs"].value == pytest.approx(kendalltau(x, y).statistic, abs=1e-12)


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(5)))
def test_a_monotone_change_of_scale_changes_nothing(order: list[int]) -> None:
    x = [0.1, 0.5, 0.7, 2.0, 3.0]
    assert agreement(x, [float(v) for v in order]) == agreement(
        [math.exp(v) for v in x], [v * 3.0 - 7 for v in order]
    )


def test_under_the_null_the_test_over_llms_rejects_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    llms = ["a", "a", "b", "b", "c", "d"]
    by_llm = dict(zip("abcd", (1.0, 2.0, 3.0, 4.0), strict=True))
    rejected = {"llms": 0, "pairs": 0}
    for _ in range(400):
        llm_effect = dict(zip("abcd", rng.normal(size=4), strict=True))
        y = [llm_effect[llm] + 0.1 * rng.normal() for llm in llms]
        found = agreement([by_llm[llm] for llm in llms], y, llms)
        for unit in rejected:
            rejected[unit] += (found["Spearman", unit].p_value or 0) <= 0.1
    assert rejected["llms"] / 400 <= 0.13
    assert rejected["pairs"] > rejected["llms"], (
        "pairs of one LLM counted as independent overstate the evidence"
    )


def test_values_that_differ_within_one_llm_are_a_programming_error() -> None:
    with pytest.raises(ValueError, match="must share x"):
        rank_agreement([1, 2], [1, 2], llms=["a", "a"])


def test_what_the_kind_cannot_order_is_counted_by_hand() -> None:
    found = within_kind([1, 1, 2, 3, 9], [1, 2, 4, 3, 9], kinds=["none", "none", "none", "none", "per_head"])
    assert (found.comparisons, found.all_comparisons) == (6, 10)
    assert (found.concordant, found.discordant, found.tied) == (4, 1, 1)
