"""Laws of how sure a Sink Strength is."""

import numpy as np
import pytest

from zoo.sensitivity import SizeSpread, order, shrink_exponent, size_spreads, stable_size
from zoo.strength import median_strength

SIZES = (10, 15, 20, 30, 50, 100)


def masses(*, prompts: int = 256, heads: int = 40, mean: float = 0.5, seed: int = 0) -> np.ndarray:
    """Log-odds [P, H] in which prompts move all heads together."""
    random = np.random.default_rng(seed)
    heads_H = random.normal(mean, 1, heads)
    return heads_H + random.normal(0, 0.6, (prompts, 1)) + random.normal(0, 0.3, (prompts, heads))


def test_the_spread_of_independent_prompts_falls_with_the_square_root_of_their_number() -> None:
    spreads = size_spreads(masses(prompts=2000), sizes=SIZES)
    assert [each.size for each in spreads] == list(SIZES)
    exponent = shrink_exponent(spreads, prompts=2000)
    assert exponent == pytest.approx(-0.5, abs=0.06)


def test_a_subset_of_all_prompts_is_no_subset() -> None:
    assert [each.size for each in size_spreads(masses(prompts=20), sizes=(10, 20, 30))] == [10]


def test_prompts_that_are_all_alike_leave_no_spread_and_no_exponent() -> None:
    alike = np.tile(np.linspace(-1, 2, 9), (64, 1))
    spreads = size_spreads(alike, sizes=SIZES[:4])
    assert max(each.within for each in spreads) < 1e-12
    assert (
        shrink_exponent([SizeSpread(size=5, std=0.0, within=0.0, same_sign_share=1.0)] * 3, prompts=64)
        is None
    )


def test_the_sign_is_kept_less_often_the_nearer_s_is_to_0() -> None:
    shares = [size_spreads(masses(mean=mean), sizes=(10,))[0].same_sign_share for mean in (0.1, 0.3, 3.0)]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_a_size_is_stable_only_if_all_larger_ones_are() -> None:
    spreads = [
        SizeSpread(size=size, std=within / 2, within=within, same_sign_share=1.0)
        for size, within in ((10, 0.04), (20, 0.2), (30, 0.09), (50, 0.05))
    ]
    assert stable_size(spreads, tolerance=0.1) == 30
    assert stable_size(spreads, tolerance=0.3) == 10
    assert stable_size(spreads, tolerance=0.01) is None


def test_pairing_sees_an_order_that_the_two_intervals_alone_would_not() -> None:
    one = masses(prompts=64, seed=3)
    result = order(one + 0.02, one)
    assert result.certain
    assert result.share_above == 1.0
    assert result.difference == pytest.approx(0.02, abs=0.005)
    spread = size_spreads(one, sizes=(32,))[0]
    assert spread.std > 0.02


def test_exchanging_the_models_exchanges_the_answer() -> None:
    one, other = masses(seed=1), masses(seed=2)
    there, back = order(one, other), order(other, one)
    assert there.difference == -back.difference
    assert there.share_above == pytest.approx(1 - back.share_above)
    assert there.interval.low == pytest.approx(-back.interval.high)


def test_a_model_is_not_certainly_above_itself() -> None:
    one = masses()
    assert not order(one, one).certain


def test_the_interval_of_a_difference_covers_it_as_often_as_it_says() -> None:
    offsets_2H = np.random.default_rng(0).normal([[0.5], [0.6]], 1, (2, 20))
    random = np.random.default_rng(1)

    def pair(prompts: int) -> tuple[np.ndarray, np.ndarray]:
        shared = random.normal(0, 0.6, (prompts, 1))
        one, other = (offsets_H + shared + random.normal(0, 0.5, (prompts, 1)) for offsets_H in offsets_2H)
        return one, other

    one, other = map(median_strength, pair(100_000))
    intervals = [order(*pair(80), seed=trial).interval for trial in range(120)]
    covered = np.mean([interval.low <= one - other <= interval.high for interval in intervals])
    assert 0.89 <= covered <= 0.99
