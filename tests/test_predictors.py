"""Laws of the predictors, with answers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import theilslopes

from zoo.predictors import (
    PREDICTORS,
    Example,
    NotIdentified,
    fit_constant,
    fit_isotonic,
    fit_kind,
    fit_linear,
    fit_linear_kind,
    fit_theil_sen,
    fit_weak_heads,
    leave_out,
    predict,
)


def examples(*rows: tuple[str, str, float, float]) -> list[Example]:
    """Pairs given as (reference LLM, QK-norm kind, S, points); the weak-head share is (5 - S) / 10."""
    return [
        Example(llm=llm, qk_norm=kind, sink_strength=s, weak_head_share=(5 - s) / 10, delta_points=points)
        for llm, kind, s, points in rows
    ]


FOUR = examples(
    ("a", "layerwise", 0.0, -18.0),
    ("b", "none", 1.0, -10.0),
    ("c", "none", 2.0, -8.0),
    ("d", "per_head", 3.0, 0.0),
)


def test_least_squares_by_hand() -> None:
    fitted = fit_linear(FOUR)
    # slope = (-1.5*-9 + -.5*-1 + .5*1 + 1.5*9) / 5 = 28/5
    assert fitted.cells[0].slope == pytest.approx(5.6)
    assert fitted.cells[0].intercept == pytest.approx(-9 - 5.6 * 1.5)
    assert fitted.x_squares == pytest.approx(5.0)
    assert predict(fitted, FOUR[1]) == pytest.approx(-17.4 + 5.6)


def test_theil_sen_by_hand_shrugs_off_one_wild_pair() -> None:
    rows = examples(*[(str(i), "none", float(i), 2.0 * i - 10) for i in range(5)])
    wild = [*rows[:4], replace(rows[4], delta_points=-90.0)]
    assert fit_theil_sen(rows).cells[0].slope == pytest.approx(2.0)
    assert fit_theil_sen(wild).cells[0].slope == pytest.approx(2.0)
    assert fit_linear(wild).cells[0].slope < 0


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(-20, 0)), min_size=3, max_size=8, unique_by=lambda p: p[0]
    )
)
def test_theil_sens_slope_is_scipys(points: list[tuple[int, int]]) -> None:
    rows = examples(*[(str(i), "none", float(x), float(y)) for i, (x, y) in enumerate(points)])
    slope = theilslopes([e.delta_points for e in rows], [e.sink_strength for e in rows])[0]
    assert fit_theil_sen(rows).cells[0].slope == pytest.approx(slope)


def test_isotonic_pools_the_pair_that_breaks_the_order() -> None:
    rows = examples(
        ("a", "none", 0.0, -9.0), ("b", "none", 1.0, -3.0), ("c", "none", 2.0, -5.0), ("d", "none", 3.0, -1.0)
    )
    cells = fit_isotonic(rows).cells
    assert [cell.intercept for cell in cells] == [-9.0, -4.0, -1.0]
    assert [cell.x_low for cell in cells] == [-math.inf, 0.5, 2.5]
    assert [cell.x_high for cell in cells] == [0.5, 2.5, math.inf]
    assert [cell.pairs for cell in cells] == [1, 2, 1]


def test_isotonic_takes_the_mean_of_two_vlms_of_one_llm() -> None:
    rows = examples(("a", "none", 0.0, -9.0), ("a", "none", 0.0, -7.0), ("b", "none", 1.0, -3.0))
    assert [cell.intercept for cell in fit_isotonic(rows).cells] == [-8.0, -3.0]


def test_the_kind_predicts_its_mean_and_nothing_for_a_kind_it_has_not_seen() -> None:
    fitted = fit_kind(FOUR)
    assert {cell.qk_norm: cell.intercept for cell in fitted.cells} == {
        "layerwise": -18,
        "none": -9,
        "per_head": 0,
    }
    assert predict(fitted, replace(FOUR[0], qk_norm="other")) is None


def test_s_with_kind_takes_its_slope_from_within_the_kinds() -> None:
    rows = examples(
        ("a", "none", 0.0, -10.0),
        ("b", "none", 1.0, -8.0),
        ("c", "per_head", 5.0, -3.0),
        ("d", "per_head", 6.0, -1.0),
    )
    fitted = fit_linear_kind(rows)
    assert [cell.slope for cell in fitted.cells] == pytest.approx([2.0, 2.0])
    assert [cell.intercept for cell in fitted.cells] == pytest.approx([-10.0, -13.0])
    assert fitted.parameters == 3


def test_s_with_kind_is_not_identified_when_s_is_the_kind() -> None:
    with pytest.raises(NotIdentified, match="does not vary within"):
        fit_linear_kind(
            examples(("a", "none", 0.0, -10.0), ("b", "none", 0.0, -8.0), ("c", "per_head", 1.0, -3.0))
        )


def test_the_share_of_weak_heads_predicts_as_a_line_of_its_own() -> None:
    by_s, by_share = fit_linear(FOUR), fit_weak_heads(FOUR)
    assert by_share.cells[0].slope == pytest.approx(-10 * by_s.cells[0].slope)
    assert predict(by_share, FOUR[2]) == pytest.approx(predict(by_s, FOUR[2]))


@given(st.lists(st.floats(-40, 5), min_size=2, max_size=12))
def test_the_constants_leave_one_out_error_is_n_over_n_minus_1_times_the_mean_deviation(
    y: list[float],
) -> None:
    rows = examples(*[(str(i), "none", float(i), value) for i, value in enumerate(y)])
    deviation = float(np.mean(np.abs(np.array(y) - np.mean(y))))
    found = leave_out("constant", rows, by="pair")
    assert found.mean_absolute_error == pytest.approx(len(y) / (len(y) - 1) * deviation, abs=1e-9)
    assert (found.pairs, found.folds, found.fallbacks) == (len(y), len(y), 0)


def test_leaving_out_a_pair_equals_the_residual_over_one_minus_leverage() -> None:
    x, y = np.arange(4.0), np.array([e.delta_points for e in FOUR])
    residuals = y - (-17.4 + 5.6 * x)
    leverages = 1 / 4 + (x - 1.5) ** 2 / 5
    expected = np.mean(np.abs(residuals / (1 - leverages)))
    assert leave_out("linear", FOUR, by="pair").mean_absolute_error == pytest.approx(expected)


def test_leaving_out_an_llm_leaves_out_both_its_vlms() -> None:
    rows = examples(
        ("a", "none", 0.0, -10.0),
        ("a", "none", 0.0, -12.0),
        ("b", "none", 1.0, -6.0),
        ("c", "none", 2.0, -2.0),
    )
    found = leave_out("constant", rows, by="llm")
    # a: the rest's mean is -4 -> 6, 8; b: -8 -> 2; c: -28/3 -> 22/3
    assert found.mean_absolute_error == pytest.approx((6 + 8 + 2 + 22 / 3) / 4)
    assert (found.pairs, found.folds) == (4, 3)


def test_a_kind_with_one_llm_falls_back_to_the_mean_and_is_counted() -> None:
    found = leave_out("kind", FOUR, by="llm")
    assert found.fallbacks == 2
    assert found.mean_absolute_error == pytest.approx((12 + 2 + 2 + 12) / 4)


def test_a_perfect_line_is_predicted_without_error_by_both_lines() -> None:
    rows = examples(*[(str(i), "none", float(i), 3.0 * i - 20) for i in range(5)])
    for name in ("linear", "theil_sen"):
        assert leave_out(name, rows, by="llm").mean_absolute_error == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("name", PREDICTORS)
def test_predictions_shift_with_the_points(name: str) -> None:
    rows = [*FOUR, replace(FOUR[0], llm="e", sink_strength=0.5, weak_head_share=0.45)]
    shifted = [replace(row, delta_points=row.delta_points - 7) for row in rows]
    before, after = PREDICTORS[name](rows), PREDICTORS[name](shifted)
    assert before.predictor == name
    for row in rows:
        assert (predict(after, row) or 0) == pytest.approx((predict(before, row) or 0) - 7)


def test_the_constant_counts_one_parameter() -> None:
    assert fit_constant(FOUR).parameters == 1
