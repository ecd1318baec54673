"""Laws of Sink Strength. Shape letters as in zoo.strength."""

import numpy as np
import pytest
from scipy.special import expit, logit

from zoo import strength
from zoo.errors import ModelError
from zoo.records import AttentionLayer, LayerStatistics, MeasurementSpec

SPEC = MeasurementSpec(prompts_digest="0" * 64)


def layer_statistics(log_odds_PHK: np.ndarray, *, layer: int = 0, kv_heads: int = 1) -> LayerStatistics:
    described = AttentionLayer(
        layer=layer,
        model_layer=layer,
        module_name=f"layers.{layer}",
        heads=log_odds_PHK.shape[1],
        kv_heads=kv_heads,
    )
    log_odds_RPHK = np.stack([log_odds_PHK, log_odds_PHK - 1]).astype(np.float32)
    return LayerStatistics(layer=described, log_odds_RPHK=log_odds_RPHK)


def random_layers(count: int, *, prompts: int = 60, heads: int = 4, seed: int = 0) -> list[LayerStatistics]:
    generator = np.random.default_rng(seed)
    layers = []
    for layer in range(count):
        log_odds_PHK = generator.normal(-3, 1, (prompts, heads, 8))
        log_odds_PHK[:, :, 0] += 4 + generator.normal(0, 1, heads)
        layers.append(layer_statistics(log_odds_PHK, layer=layer, kv_heads=2))
    return layers


def test_head_log_odds_are_the_logit_of_the_mean_mass() -> None:
    log_odds_PH = np.random.default_rng(0).normal(0, 2, (30, 5))
    np.testing.assert_allclose(strength.head_log_odds(log_odds_PH), logit(expit(log_odds_PH).mean(0)))


def test_masses_within_rounding_of_one_and_zero_keep_their_log_odds() -> None:
    np.testing.assert_allclose(strength.head_log_odds(np.full((4, 1), 60.0)), 60.0)
    np.testing.assert_allclose(strength.head_log_odds(np.full((4, 1), -60.0)), -60.0)


def test_a_prompt_that_never_sees_the_sink_does_not_count() -> None:
    seen = np.random.default_rng(0).normal(0, 1, (5, 3))
    with_blind = np.vstack([seen, np.full((2, 3), np.nan)])
    np.testing.assert_allclose(strength.head_log_odds(with_blind), strength.head_log_odds(seen))


def test_sink_strength_is_the_median_over_the_heads_of_the_last_ten_layers() -> None:
    layers = random_layers(13)
    summary = strength.summarise(layers, spec=SPEC)
    expected = [
        logit(expit(layer.log_odds_RPHK[0, :, h, 0].astype(float)).mean())
        for layer in layers[3:]
        for h in range(4)
    ]
    assert summary.sink_strength == pytest.approx(np.median(expected), abs=1e-9)
    assert summary.weak_head_share == np.mean(np.array(expected) < 0)
    assert [row.in_window for row in summary.heads] == [False] * 12 + [True] * 40
    assert [row.kv_head for row in summary.heads[:4]] == [0, 0, 1, 1]


def test_fewer_than_ten_layers_are_all_in_the_window() -> None:
    summary = strength.summarise(random_layers(3), spec=SPEC)
    assert all(row.in_window for row in summary.heads)


def test_the_sink_is_detected_and_not_assumed_to_be_the_first_token() -> None:
    layers = random_layers(10)
    for layer in layers:
        layer.log_odds_RPHK[:, :, :, [0, 3]] = layer.log_odds_RPHK[:, :, :, [3, 0]]
    original, moved = strength.summarise(random_layers(10), spec=SPEC), strength.summarise(layers, spec=SPEC)
    assert (original.sink_position, moved.sink_position) == (0, 3)
    assert moved.sink_strength == original.sink_strength
    assert moved.sink_mass > moved.runner_up_mass


def test_a_tie_goes_to_the_smallest_position() -> None:
    layers = [layer_statistics(np.zeros((20, 2, 8)))]
    assert strength.summarise(layers, spec=SPEC).sink_position == 0


def test_a_position_that_one_window_layer_cannot_see_is_no_candidate() -> None:
    layers = random_layers(10)
    for layer in layers:
        layer.log_odds_RPHK[:, :, :, 5] = 9.0
    layers[-1].log_odds_RPHK[:, :, :, 5] = np.nan
    assert strength.summarise(layers, spec=SPEC).sink_position == 0


def test_a_window_that_hides_the_first_position_is_refused() -> None:
    layers = random_layers(10)
    layers[-1].log_odds_RPHK[:, :, :, 0] = np.nan
    with pytest.raises(ModelError, match="hides position 0") as refused:
        strength.summarise(layers, spec=SPEC)
    assert (refused.value.stage, refused.value.reason) == ("summarise", "sink_out_of_sight")


def test_a_sweep_cell_equals_a_measurement_of_its_subset_alone() -> None:
    layers = random_layers(10, prompts=256)
    summary = strength.summarise(layers, spec=SPEC)
    subsets = strength.draw_subsets(256, sizes=[30], seeds=[1])
    subset = subsets[30, 1]
    alone = [
        LayerStatistics(layer=layer.layer, log_odds_RPHK=layer.log_odds_RPHK[:, subset]) for layer in layers
    ]
    (cell,) = [cell for cell in summary.sweep if (cell.size, cell.seed) == (30, 1)]
    assert len(summary.sweep) == 18
    assert cell.sink_strength == pytest.approx(strength.summarise(alone, spec=SPEC).sink_strength, abs=1e-9)


def test_spread_and_sign_stability_summarise_the_sweep() -> None:
    summary = strength.summarise(random_layers(10, prompts=256), spec=SPEC)
    values = np.array([cell.sink_strength for cell in summary.sweep])
    assert summary.sweep_spread == np.ptp(values)
    assert summary.sign_stability == ((values > 0) == (summary.sink_strength > 0)).mean()


def test_the_interval_covers_the_true_strength_as_often_as_it_says() -> None:
    """Heads share each prompt's effect; over simulated prompt samples the interval holds the truth."""
    generator = np.random.default_rng(1)
    offsets_H = generator.normal(0, 1, 40)

    def sample(prompts: int) -> np.ndarray:
        return offsets_H + generator.normal(0, 0.5, (prompts, 1)) + generator.normal(0, 0.5, (prompts, 40))

    truth = float(strength.median_strength(sample(100_000)))
    covered = 0
    for trial in range(200):
        interval = strength.bootstrap_interval(sample(100), seed=trial)
        covered += interval.low <= truth <= interval.high
    assert 0.90 <= covered / 200 <= 0.99


def test_the_interval_is_the_same_every_time() -> None:
    log_odds_PH = np.random.default_rng(0).normal(0, 1, (40, 6))
    assert strength.bootstrap_interval(log_odds_PH) == strength.bootstrap_interval(log_odds_PH)


def test_the_content_region_has_a_strength_of_its_own() -> None:
    summary = strength.summarise(random_layers(10), spec=SPEC)
    swapped = random_layers(10)
    for layer in swapped:
        layer.log_odds_RPHK[:] = layer.log_odds_RPHK[::-1].copy()
    assert summary.sink_strength_content == strength.summarise(swapped, spec=SPEC).sink_strength
    assert summary.sink_strength_content < summary.sink_strength
    blind = random_layers(10)
    for layer in blind:
        layer.log_odds_RPHK[1] = np.nan
    assert strength.summarise(blind, spec=SPEC).sink_strength_content is None
