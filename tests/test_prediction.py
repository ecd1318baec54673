"""Laws of the prediction: its interval covers what it promises, and it says what makes it doubtful."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from panel_examples import model, point

from zoo.degradation import Calibration, calibrate
from zoo.prediction import FLAGS, flags, predict_loss, sentence

NOW = {"versions": {}, "fitted_at": ""}
FOUR = [
    point(model("a", 0.0, qk_norm="layerwise"), -18.0),
    point(model("b", 1.0), -10.0),
    point(model("c", 2.0), -8.0),
    point(model("d", 3.0, qk_norm="per_head"), 0.0),
]


@pytest.fixture(scope="module")
def fit() -> Calibration:
    return calibrate(FOUR, **NOW)


def test_the_interval_by_hand(fit: Calibration) -> None:
    found = predict_loss(fit, model("new", 2.5, sink_strength_error=0.25))
    assert found.points == pytest.approx(-17.4 + 5.6 * 2.5)
    half = fit.t_quantile * (3.6 * (1 + 1 / 4 + 1.0**2 / 5) + (5.6 * 0.25) ** 2) ** 0.5
    assert found.low == pytest.approx(-3.4 - half)
    assert found.high == pytest.approx(-3.4 + half)
    assert (found.pairs, len(found.llms), found.level) == (4, 4, 0.90)


def test_the_interval_grows_with_the_error_of_s_and_with_the_distance_from_the_panel(
    fit: Calibration,
) -> None:
    def width(s: float, error: float = 0.0) -> float:
        found = predict_loss(fit, model("new", s, sink_strength_error=error))
        assert found.high is not None
        assert found.low is not None
        return found.high - found.low

    assert width(1.5) < width(1.5, 0.1) < width(1.5, 0.5)
    assert width(1.5) < width(2.5) < width(5.0)
    assert width(1.5) > 2 * fit.t_quantile * fit.residual_variance**0.5


@pytest.mark.parametrize(("s", "edge"), [(5.0, 3.0), (-2.0, 0.0)])
def test_outside_the_panel_the_loss_may_also_level_off_at_its_edge(
    fit: Calibration, s: float, edge: float
) -> None:
    outside, at_edge = (predict_loss(fit, model("new", x)) for x in (s, edge))
    assert outside.points == pytest.approx(-17.4 + 5.6 * s)
    for found in (outside, at_edge):
        assert found.low is not None
        assert found.high is not None
    if s > edge:
        assert outside.low == at_edge.low
        assert outside.high > at_edge.high
    else:
        assert outside.high == at_edge.high
        assert outside.low < at_edge.low


def _coverage(vlms_of_llm: list[int], *, shared: float, s_error: float, runs: int = 1500) -> float:
    """How often a 90 % interval holds a new LLM's new VLM; ``shared`` is the LLM's part of the variance."""
    rng = np.random.default_rng(7)
    hits = 0
    for _ in range(runs):
        true_s = rng.normal(1.0, 1.0, size=len(vlms_of_llm) + 1)
        llm_effect = rng.normal(0, shared**0.5, size=len(true_s))
        seen_s = true_s + rng.normal(0, s_error, size=len(true_s)) if s_error else true_s
        losses = [
            [-9 + 4 * s + u + rng.normal(0, (1 - shared) ** 0.5) for _ in range(vlms)]
            for s, u, vlms in zip(true_s, llm_effect, [*vlms_of_llm, 1], strict=True)
        ]
        points = [
            point(model(f"m{i}", float(seen_s[i]), sink_strength_error=s_error), loss, vlm=j)
            for i, its in enumerate(losses[:-1])
            for j, loss in enumerate(its)
        ]
        found = predict_loss(
            calibrate(points, **NOW), model("new", float(seen_s[-1]), sink_strength_error=s_error)
        )
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= losses[-1][0] <= found.high
    return hits / runs


def test_ninety_percent_intervals_hold_ninety_percent_of_new_vlms() -> None:
    assert _coverage([1] * 6, shared=0.0, s_error=0.0) == pytest.approx(0.90, abs=0.025)


def test_intervals_stay_honest_where_vlms_share_an_llm() -> None:
    panel_of_the_paper = [2, 2, 1, 1]
    for shared in (0.0, 0.5, 1.0):
        assert _coverage(panel_of_the_paper, shared=shared, s_error=0.0) >= 0.88


def test_intervals_stay_honest_where_s_itself_is_uncertain() -> None:
    assert _coverage([1] * 6, shared=0.0, s_error=0.3) >= 0.88


def test_a_prediction_inside_the_panel_has_no_flag(fit: Calibration) -> None:
    assert predict_loss(fit, model("new", 1.5)).flags == ()


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"model_id": "made-up/b"}, "in_panel"),
        ({"sink_strength": -0.5}, "extrapolated"),
        ({"sink_strength": 3.5}, "extrapolated"),
        ({"parameters": 3_000_000_000}, "other_size"),
        ({"parameters": 14_000_000_000}, "other_size"),
        ({"qk_norm": "other"}, "other_qk_norm"),
        ({"learned_sink": True}, "learned_sink"),
        ({"hybrid": True}, "hybrid"),
        ({"qk_norm": "layerwise"}, "layerwise"),
    ],
)
def test_each_reason_for_doubt_is_flagged_and_said(
    fit: Calibration, changes: dict[str, object], flag: str
) -> None:
    doubtful = replace(model("new", 1.5), **changes)
    assert flags(fit, doubtful) == (flag,)
    assert f"Caution: {FLAGS[flag]}." in sentence(predict_loss(fit, doubtful))


def test_a_kind_the_predictor_has_not_seen_gets_no_number() -> None:
    more = [*FOUR, point(model("e", 0.5), -11.0)]
    found = predict_loss(calibrate(more, predictor="kind", **NOW), model("new", 1.0, qk_norm="other"))
    assert found.points is None
    assert found.low is None
    assert "No prediction for IFEval" in sentence(found)


def test_the_sentence_says_the_interval_the_pairs_and_the_protocol(fit: Calibration) -> None:
    assert sentence(predict_loss(fit, model("new", 1.5))) == (
        "A VLM built on it is expected to lose 9.0 points on IFEval (90% prediction interval: a loss of 2.8 "
        "to 15.2), judged by 4 pairs on 4 reference LLMs (made-up/a, made-up/b, made-up/c, made-up/d; "
        "protocol instruct; predictor linear)."
    )


def test_a_model_measured_under_another_spec_is_not_predicted(fit: Calibration) -> None:
    with pytest.raises(ValueError, match="spec"):
        predict_loss(fit, replace(model("new", 1.5), spec_id="f" * 12))
