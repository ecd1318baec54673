"""Sink Strength of one model from its probe statistics; pure functions.

Shape letters: R query regions, P prompts, H query heads, K candidate sink positions, S resamples,
Z slices.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import expit

from zoo.errors import ModelError
from zoo.prompts import draw_subsets
from zoo.records import (
    SLICES,
    SWEEP_SEEDS,
    SWEEP_SIZES,
    HeadRow,
    Interval,
    LayerStatistics,
    MeasurementSpec,
    Strength,
    SweepCell,
)

INTERVAL_LEVEL = 0.95
BOOTSTRAP_RESAMPLES = 2000
ALL, CONTENT = 0, 1


def head_log_odds(log_odds_PH: np.ndarray, *, weights_SP: np.ndarray | None = None) -> np.ndarray:
    """Logit (nats) of each head's mean mass over prompts: [H], or [S, H] under prompt weights [S, P].

    NaN prompts are left out; a head without any stays NaN. The mass and its complement are averaged
    apart in float64, so a mass near 1 keeps its digits.
    """
    used_PH = ~np.isnan(log_odds_PH)
    filled_PH = np.where(used_PH, log_odds_PH, 0.0).astype(np.float64)
    mass_PH, rest_PH = expit(filled_PH) * used_PH, expit(-filled_PH) * used_PH
    with np.errstate(divide="ignore", invalid="ignore"):
        if weights_SP is None:
            return np.log(mass_PH.sum(0)) - np.log(rest_PH.sum(0))
        return np.log(weights_SP @ mass_PH) - np.log(weights_SP @ rest_PH)


def candidate_masses(layer: LayerStatistics) -> np.ndarray:
    """Mean mass [H, K] (0..1) of each head at each candidate; NaN where no used query sees it."""
    log_odds_PHK = layer.log_odds_RPHK[ALL]
    return expit(head_log_odds(log_odds_PHK.reshape(len(log_odds_PHK), -1))).reshape(log_odds_PHK.shape[1:])


def sink_positions(window: Sequence[LayerStatistics]) -> list[tuple[int, float]]:
    """Candidate positions and their mean mass over heads and window layers, largest first.

    Ties go to the smaller position. A position that some window layer's used queries never see is no
    candidate; raises ``ModelError`` when position 0 is such a one, since its mass is then undefined.
    """
    mass_K = np.concatenate([candidate_masses(layer) for layer in window]).mean(0)
    if np.isnan(mass_K[0]):
        windows = sorted({layer.layer.sliding_window or 0 for layer in window})
        raise ModelError(
            f"a sliding window (of {windows[0]} tokens) hides position 0 from every used query, so its "
            "sink mass is undefined; the model is refused",
            stage="summarise",
            reason="sink_out_of_sight",
        )
    order = sorted((k for k in range(len(mass_K)) if not np.isnan(mass_K[k])), key=lambda k: (-mass_K[k], k))
    return [(k, float(mass_K[k])) for k in order]


def slice_statistics(layer: LayerStatistics, *, sink: int) -> np.ndarray:
    """Three statistics (nats) of each slice and head [3, Z, H] at the sink; NaN where a slice has no query.

    The logit of the mean mass, the mean log-odds, and that mean + ln(other visible keys), which is 0
    under uniform attention.
    """
    if layer.slice_sums_TZHK is None:
        return np.full((3, len(SLICES), layer.layer.heads), np.nan)
    mass_ZH, rest_ZH, log_odds_ZH, ln_keys_ZH, prompts_ZH = layer.slice_sums_TZHK[..., sink]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.stack(
            [
                np.log(mass_ZH) - np.log(rest_ZH),
                log_odds_ZH / prompts_ZH,
                (log_odds_ZH + ln_keys_ZH) / prompts_ZH,
            ]
        )


def median_strength(log_odds_PH: np.ndarray, *, weights_SP: np.ndarray | None = None) -> np.ndarray:
    """Median over heads of their log-odds (nats): a scalar array, or [S] under prompt weights."""
    return np.median(head_log_odds(log_odds_PH, weights_SP=weights_SP), axis=-1)


def subset_weights(subsets: Sequence[np.ndarray], *, prompts: int) -> np.ndarray:
    """Prompt weights [S, P] that average each subset."""
    weights_SP = np.zeros((len(subsets), prompts))
    for weights_P, subset in zip(weights_SP, subsets, strict=True):
        weights_P[subset] = 1 / len(subset)
    return weights_SP


def bootstrap_interval(log_odds_PH: np.ndarray, *, seed: int = 0) -> Interval:
    """Percentile bootstrap interval of S (nats) over prompts, heads held fixed.

    Source: Efron and Tibshirani (1993), chapter 13; 2,000 resamples.
    """
    prompts = len(log_odds_PH)
    counts_SP = np.random.default_rng(seed).multinomial(
        prompts, np.full(prompts, 1 / prompts), BOOTSTRAP_RESAMPLES
    )
    strengths_S = median_strength(log_odds_PH, weights_SP=counts_SP / prompts)
    tail = (1 - INTERVAL_LEVEL) / 2
    low, high = np.quantile(strengths_S, [tail, 1 - tail])
    method = f"percentile bootstrap over prompts, {BOOTSTRAP_RESAMPLES} resamples"
    return Interval(low=float(low), high=float(high), level=INTERVAL_LEVEL, method=method)


def sweep(log_odds_PH: np.ndarray, content_PH: np.ndarray) -> tuple[SweepCell, ...]:
    """S of every (size, seed) subset of the prompts; sizes above the number of prompts are left out."""
    subsets = draw_subsets(len(log_odds_PH), sizes=SWEEP_SIZES, seeds=SWEEP_SEEDS)
    weights_SP = subset_weights(list(subsets.values()), prompts=len(log_odds_PH))
    strengths = median_strength(log_odds_PH, weights_SP=weights_SP)
    contents = median_strength(content_PH, weights_SP=weights_SP)
    return tuple(
        SweepCell(size=size, seed=seed, sink_strength=float(s), sink_strength_content=_number(c))
        for (size, seed), s, c in zip(subsets, strengths, contents, strict=True)
    )


def summarise(layers: Sequence[LayerStatistics], *, spec: MeasurementSpec) -> Strength:
    """Sink Strength with its interval, sweep and heads.

    Raises ``ModelError`` (stage ``summarise``) when S is undefined or not finite.
    """
    window = layers[-spec.window_layers :]
    ranked = sink_positions(window)
    sink, sink_mass = ranked[0]
    runner_up, runner_up_mass = ranked[1] if len(ranked) > 1 else (None, None)
    log_odds_PH = np.concatenate([layer.log_odds_RPHK[ALL, :, :, sink] for layer in window], axis=1)
    content_PH = np.concatenate([layer.log_odds_RPHK[CONTENT, :, :, sink] for layer in window], axis=1)
    strength = float(median_strength(log_odds_PH))
    if not np.isfinite(strength):
        text = "Sink Strength is not finite: some heads give the sink all or none of their attention"
        raise ModelError(text, stage="summarise", reason="non_finite_strength")
    cells = sweep(log_odds_PH, content_PH)
    values = [cell.sink_strength for cell in cells]
    return Strength(
        sink_strength=strength,
        sink_strength_content=_number(median_strength(content_PH)),
        interval=bootstrap_interval(log_odds_PH),
        sink_position=sink,
        sink_mass=sink_mass,
        runner_up_position=runner_up,
        runner_up_mass=runner_up_mass,
        weak_head_share=float((head_log_odds(log_odds_PH) < 0).mean()),
        sweep_spread=max(values) - min(values),
        sign_stability=float(np.mean([(value > 0) == (strength > 0) for value in values])),
        sweep=cells,
        heads=tuple(
            row for layer in layers for row in _head_rows(layer, sink=sink, in_window=layer in window)
        ),
    )


def _head_rows(layer: LayerStatistics, *, sink: int, in_window: bool) -> list[HeadRow]:
    all_PH, content_PH = layer.log_odds_RPHK[:, :, :, sink]
    log_odds_H, content_H = head_log_odds(all_PH), head_log_odds(content_PH)
    masses_HK = candidate_masses(layer)
    slices_3HZ = slice_statistics(layer, sink=sink).swapaxes(1, 2)
    queries_per_kv = layer.layer.heads // layer.layer.kv_heads
    return [
        HeadRow(
            layer=layer.layer.layer,
            model_layer=layer.layer.model_layer,
            head=head,
            kv_head=head // queries_per_kv,
            in_window=in_window,
            sliding_window=layer.layer.sliding_window,
            log_odds=_number(log_odds_H[head]),
            log_odds_content=_number(content_H[head]),
            mass=_number(expit(log_odds_H[head])),
            candidate_masses=tuple(_number(mass) for mass in masses_HK[head]),
            prompt_log_odds=all_PH[:, head],
            prompt_log_odds_content=content_PH[:, head],
            slice_log_odds=tuple(map(_number, slices_3HZ[0, head])),
            slice_mean_log_odds=tuple(map(_number, slices_3HZ[1, head])),
            slice_lift=tuple(map(_number, slices_3HZ[2, head])),
        )
        for head in range(layer.layer.heads)
    ]


def _number(value: float | np.ndarray) -> float | None:
    """A float, or ``None`` where the statistic is undefined."""
    return float(value) if np.isfinite(value) else None
