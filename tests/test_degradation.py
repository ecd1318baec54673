"""Laws of the calibration: what it refuses, what its error means, and what it records."""

from __future__ import annotations

from dataclasses import replace
from statistics import NormalDist

import pytest
from panel_examples import SPEC, model, pair, point
from scipy.stats import t as student_t

from zoo.degradation import best_predictor, calibrate, compare, order_within_kind, residual_variance
from zoo.errors import PanelError
from zoo.pairs import LeftOut, PairPoint, pair_points, standard_error
from zoo.predictors import PREDICTORS, fit_linear
from zoo.records import Interval

A, B, C, D = (
    model("a", 0.0, qk_norm="layerwise"),
    model("b", 1.0),
    model("c", 2.0),
    model("d", 3.0, qk_norm="per_head"),
)
FOUR = [point(A, -18.0), point(B, -10.0), point(C, -8.0), point(D, 0.0)]
EXAMPLES = [p.example for p in FOUR]
NOW = {"versions": {"zoo": "test"}, "fitted_at": "2026-01-01T00:00:00+00:00"}


def test_a_fit_by_hand_has_its_residuals_variance_and_quantile() -> None:
    found = calibrate(FOUR, **NOW)
    # residuals from -17.4 + 5.6 S: -0.6, 1.8, -1.8, 0.6; RSS = 7.2 over 4 LLMs - 2 parameters
    assert [found.residual(p) for p in FOUR] == pytest.approx([-0.6, 1.8, -1.8, 0.6])
    assert found.residual_variance == pytest.approx(3.6)
    assert found.degrees_of_freedom == 2
    assert found.t_quantile == pytest.approx(student_t.ppf(0.95, 2))
    assert (found.task, found.protocol, found.spec_id) == ("ifeval", "instruct", SPEC)


@pytest.mark.parametrize(
    ("points", "says"),
    [
        ([], "0 pairs on 0 reference LLMs"),
        ([FOUR[0], FOUR[1]], "2 pairs on 2 reference LLMs"),
        ([FOUR[0], point(A, -17.0, vlm=2)], "2 pairs on 1 reference LLM "),
        (FOUR[:3], "3 pairs on 3 reference LLMs"),
        ([*FOUR[:3], point(A, -17.0, vlm=2), point(B, -9.0, vlm=2)], "5 pairs on 3 reference LLMs"),
    ],
)
def test_too_few_reference_llms_are_refused_saying_how_many_are_needed(
    points: list[PairPoint], says: str
) -> None:
    with pytest.raises(PanelError, match=says) as refusal:
        calibrate(points, **NOW)
    assert "it needs at least 4 reference LLMs" in str(refusal.value)
    assert "zoo panel add" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_the_refusal_names_the_pairs_that_could_not_be_measured() -> None:
    left = [LeftOut(pair=pair(model("gated", 1.0), -5.0), reason="the repository is gated")]
    with pytest.raises(PanelError, match=r"make these measurable: gated-vl1: the repository is gated"):
        calibrate(FOUR[:2], left_out=left, **NOW)


def test_more_parameters_need_more_reference_llms() -> None:
    with pytest.raises(PanelError, match="the linear_kind fit: it needs at least 6 reference LLMs"):
        calibrate(FOUR, predictor="linear_kind", **NOW)
    with pytest.raises(PanelError, match="the isotonic fit: it needs at least 6 reference LLMs"):
        calibrate(FOUR, predictor="isotonic", **NOW)
    assert calibrate(FOUR, predictor="constant", **NOW).degrees_of_freedom == 3


def test_protocols_tasks_and_specs_are_never_mixed() -> None:
    for stranger in (
        point(D, 0.0, protocol="paper"),
        point(D, 0.0, task="mmlu"),
        point(replace(D, spec_id="f" * 12), 0.0),
    ):
        with pytest.raises(ValueError, match="one task, protocol and spec"):
            calibrate([*FOUR[:3], stranger], **NOW)


def test_a_second_vlm_of_one_llm_adds_a_pair_but_no_degree_of_freedom() -> None:
    doubled = [p for it in FOUR for p in (it, point(it.llm, it.pair.delta_points, vlm=2))]
    once, twice = calibrate(FOUR, **NOW), calibrate(doubled, **NOW)
    assert twice.degrees_of_freedom == once.degrees_of_freedom
    assert twice.residual_variance == pytest.approx(2 * once.residual_variance)
    assert len(twice.points) == 8
    assert twice.llms == once.llms


def test_the_residual_variance_is_never_below_the_known_measurement_errors() -> None:
    exact = [
        point(model(str(s), float(s), sink_strength_error=0.5), 2.0 * s - 9, stderr_points=3.0)
        for s in range(5)
    ]
    found = calibrate(exact, **NOW)
    assert residual_variance(
        fit_linear([p.example for p in exact]), [p.example for p in exact]
    ) == pytest.approx(0)
    assert found.residual_variance == pytest.approx(3.0**2 + (2.0 * 0.5) ** 2)


def test_every_predictor_is_compared_and_those_without_an_answer_say_why() -> None:
    compared = {its.predictor: its for its in compare(EXAMPLES)}
    assert list(compared) == list(PREDICTORS)
    assert next(iter(compared)) == "linear"
    assert compared["isotonic"].reason == "as many parameters as reference LLMs: it fits anything"
    assert compared["linear_kind"].reason is not None
    for its in compared.values():
        assert its.by_pair is not None
        assert its.by_llm is not None
        assert its.by_pair.pairs == 4
        assert its.by_llm.folds == 4


def test_a_predictor_that_is_not_identified_is_listed_with_its_reason() -> None:
    one_kind = [point(replace(p.llm, qk_norm="none"), p.pair.delta_points) for p in FOUR]
    compared = {its.predictor: its for its in compare([p.example for p in one_kind])}
    assert compared["kind"].reason == "every pair has the same QK-norm kind"
    assert compared["kind"].by_llm is None


def test_s_and_weak_heads_have_rank_agreement_and_what_is_ordered_by_the_outcome_has_none() -> None:
    compared = {its.predictor: its for its in compare(EXAMPLES)}
    assert {name for name, its in compared.items() if its.agreements} == {
        "linear", "theil_sen", "isotonic", "weak_heads"
    }  # fmt: skip
    for name in ("linear", "weak_heads"):
        assert [a.value for a in compared[name].agreements] == pytest.approx([1, 1, 1, 1])


def test_the_smallest_leave_one_llm_out_error_wins_but_does_not_choose() -> None:
    comparisons = compare(EXAMPLES)
    errors = {its.predictor: its.by_llm.mean_absolute_error for its in comparisons if its.by_llm}
    assert errors[best_predictor(comparisons).predictor] == min(errors.values())
    assert calibrate(FOUR, **NOW).fitted.predictor == "linear"


def test_what_the_kind_leaves_to_s_is_counted() -> None:
    within = order_within_kind(EXAMPLES)
    assert (within.comparisons, within.concordant, within.all_comparisons) == (1, 1, 6)


def test_a_pair_whose_llm_is_not_measured_is_left_out_by_name_and_reason() -> None:
    points, left_out = pair_points(
        [pair(A, -18.0), pair(B, -10.0)], {A.model_id: A}, {B.model_id: "its tokenizer is missing"}
    )
    assert [p.pair.pair_id for p in points] == ["a-vl1"]
    assert [(its.pair.pair_id, its.reason) for its in left_out] == [("b-vl1", "its tokenizer is missing")]


def test_a_pair_whose_panel_row_contradicts_the_model_is_left_out() -> None:
    _, left_out = pair_points([pair(A, -18.0, qk_norm="none")], {A.model_id: A})
    assert left_out[0].reason == "the panel says QK-norm none, the model has layerwise"


def test_an_intervals_standard_error_is_its_half_width_over_the_normal_quantile() -> None:
    z = NormalDist().inv_cdf(0.975)
    assert standard_error(
        Interval(low=1 - 0.2 * z, high=1 + 0.2 * z, level=0.95, method="x")
    ) == pytest.approx(0.2)
