"""Outcomes with realistic shapes and made-up numbers, for tests that need no model."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from zoo.records import (
    SLICES,
    SWEEP_SEEDS,
    SWEEP_SIZES,
    Architecture,
    AttentionLayer,
    Candidate,
    Failure,
    HeadRow,
    Interval,
    Measurement,
    MeasurementSpec,
    RenderedPrompts,
    RunFacts,
    Strength,
    SweepCell,
)

SPEC = MeasurementSpec(prompts_digest="0" * 64, prompt_count=24)


def make_candidate(model_id: str = "org/model", *, revision: str | None = None) -> Candidate:
    """A candidate whose revision follows from its name unless it is given."""
    return Candidate(
        model_id=model_id,
        revision=revision or hashlib.sha1(model_id.encode()).hexdigest(),
        location=f"/models/{model_id}",
        format="folder",
        source="folder",
        weight_bytes=270_000_000,
    )


def make_architecture(*, layers: int = 4, heads: int = 6) -> Architecture:
    """Grouped-query attention with every second layer sliding."""
    attention_layers = tuple(
        AttentionLayer(
            layer=layer,
            model_layer=2 * layer,
            module_name=f"model.layers.{2 * layer}.self_attn",
            heads=heads,
            kv_heads=max(1, heads // 3),
            sliding_window=512 if layer % 2 else None,
        )
        for layer in range(layers)
    )
    return Architecture(
        model_type="llama",
        architecture="LlamaForCausalLM",
        parameters=134_515_008,
        model_layers=2 * layers,
        attention_layers=attention_layers,
        qk_norm="none",
    )


def make_measurement(
    model_id: str = "org/model",
    *,
    seed: int = 0,
    layers: int = 4,
    heads: int = 6,
    spec: MeasurementSpec = SPEC,
    revision: str | None = None,
    started_at: str = "2026-03-01T12:00:00+00:00",
    sink_strength: float | None = None,
) -> Measurement:
    """A measurement whose S, sweep and heads agree with its random per-prompt log-odds."""
    architecture = make_architecture(layers=layers, heads=heads)
    rows = _head_rows(architecture, spec, np.random.default_rng(seed))
    return Measurement(
        candidate=make_candidate(model_id, revision=revision),
        spec=spec,
        architecture=architecture,
        prompts=RenderedPrompts(
            format="chat",
            token_ids=tuple(tuple(range(30 + prompt)) for prompt in range(spec.prompt_count)),
            shared_prefix_tokens=3,
            prefix_tokens_text=("<s>", *(f"t{k}" for k in range(1, spec.candidate_positions))),
        ),
        strength=_strength(rows, spec, sink_strength),
        run=RunFacts(
            dtype="float32",
            device="cpu",
            load="whole",
            load_reason="asked for",
            verified="sha256",
            wall_seconds={"load": 1.5, "probe": 2.25},
            tokens_per_batch=512,
            gpus=0,
            accelerator=None,
            peak_memory_bytes=900_000_000,
            bytes_fetched=None,
            versions={"torch": "2.13.0", "transformers": "5.24.0"},
            started_at=started_at,
        ),
    )


def make_failure(
    model_id: str = "org/model",
    *,
    transient: bool = False,
    spec: MeasurementSpec = SPEC,
    revision: str | None = None,
) -> Failure:
    """A model whose weights could not be had, for good or for now."""
    return Failure(
        candidate=make_candidate(model_id, revision=revision),
        spec=spec,
        stage="fetch" if transient else "load",
        reason="timeout" if transient else "truncated_weights",
        message="the weights did not arrive" if transient else "model.safetensors is truncated",
        transient=transient,
        started_at="2026-03-01T12:00:00+00:00",
        wall_seconds={"fetch": 0.5},
    )


def shifted(made: Measurement, nats: float) -> Measurement:
    """The measurement with every log-odds, and so every S, moved by ``nats``."""

    def moved(values: tuple[float | None, ...]) -> tuple[float | None, ...]:
        return tuple(None if value is None else value + nats for value in values)

    heads = tuple(
        replace(
            head,
            **{name: getattr(head, name) + nats for name in ("log_odds", "log_odds_content")},
            **{
                name: getattr(head, name) + np.float32(nats)
                for name in ("prompt_log_odds", "prompt_log_odds_content")
            },
            **{
                name: moved(getattr(head, name))
                for name in ("slice_log_odds", "slice_mean_log_odds", "slice_lift")
            },
        )
        for head in made.strength.heads
    )
    names = ("sink_strength", "sink_strength_content")
    cells = tuple(
        replace(cell, **{name: getattr(cell, name) + nats for name in names}) for cell in made.strength.sweep
    )
    strengths = {name: getattr(made.strength, name) + nats for name in names}
    ends = {name: getattr(made.strength.interval, name) + nats for name in ("low", "high")}
    interval = replace(made.strength.interval, **ends)
    return replace(
        made, strength=replace(made.strength, **strengths, interval=interval, heads=heads, sweep=cells)
    )


def _head_rows(
    architecture: Architecture, spec: MeasurementSpec, random: np.random.Generator
) -> tuple[HeadRow, ...]:
    first_in_window = len(architecture.attention_layers) - spec.window_layers
    rows = []
    for layer in architecture.attention_layers:
        for head in range(layer.heads):
            prompt_log_odds = random.normal(0.5, 1.0, spec.prompt_count).astype(np.float32)
            content = prompt_log_odds - np.float32(0.25)
            content[0] = np.nan
            mass = float(np.mean(_sigmoid(prompt_log_odds)))
            rows.append(
                HeadRow(
                    layer=layer.layer,
                    model_layer=layer.model_layer,
                    head=head,
                    kv_head=head * layer.kv_heads // layer.heads,
                    in_window=layer.layer >= first_in_window,
                    sliding_window=layer.sliding_window,
                    log_odds=_logit(prompt_log_odds),
                    log_odds_content=_logit(content),
                    mass=mass,
                    candidate_masses=(mass, *(0.01,) * (spec.candidate_positions - 2), None),
                    prompt_log_odds=prompt_log_odds,
                    prompt_log_odds_content=content,
                    slice_log_odds=_slices(prompt_log_odds),
                    slice_mean_log_odds=_slices(prompt_log_odds - np.float32(0.1)),
                    slice_lift=_slices(prompt_log_odds + np.float32(3.5)),
                )
            )
    return tuple(rows)


def _slices(prompt_log_odds: np.ndarray) -> tuple[float | None, ...]:
    """A value a slice, falling as queries see more keys; no prompt reaches query 64."""
    whole = _logit(prompt_log_odds)
    offsets = {"content": -0.25, "8-16": 0.4, "16-32": 0.1, "32-64": -0.3, "short": 0.1, "long": -0.1}
    return tuple(None if name == "64+" else whole + offsets.get(name, 0.0) for name in SLICES)


def _strength(rows: tuple[HeadRow, ...], spec: MeasurementSpec, sink_strength: float | None) -> Strength:
    window_HP = np.stack([row.prompt_log_odds for row in rows if row.in_window])
    whole = _median_strength(window_HP) if sink_strength is None else sink_strength
    cells = []
    for size in SWEEP_SIZES:
        for seed in SWEEP_SEEDS:
            drawn = np.random.default_rng(seed).permutation(spec.prompt_count)[:size]
            value = _median_strength(window_HP[:, drawn])
            cells.append(
                SweepCell(size=size, seed=seed, sink_strength=value, sink_strength_content=value - 0.25)
            )
    strengths = [cell.sink_strength for cell in cells]
    return Strength(
        sink_strength=whole,
        sink_strength_content=whole - 0.25,
        interval=Interval(low=whole - 0.1, high=whole + 0.1, level=0.95, method="bootstrap"),
        sink_position=0,
        sink_mass=0.7,
        runner_up_position=1,
        runner_up_mass=0.05,
        weak_head_share=0.25,
        sweep_spread=max(strengths) - min(strengths),
        sign_stability=float(np.mean(np.sign(strengths) == np.sign(whole))),
        sweep=tuple(cells),
        heads=rows,
    )


def _median_strength(log_odds_HP: np.ndarray) -> float:
    return float(np.median([_logit(row) for row in log_odds_HP]))


def _sigmoid(log_odds: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-log_odds.astype(np.float64)))


def _logit(log_odds: np.ndarray) -> float:
    mass = np.nanmean(_sigmoid(log_odds))
    return float(np.log(mass) - np.log1p(-mass))


def without_slices(measurement: Measurement) -> Measurement:
    """The measurement as schema version 1 kept it."""
    heads = tuple(
        replace(head, slice_log_odds=None, slice_mean_log_odds=None, slice_lift=None)
        for head in measurement.strength.heads
    )
    return replace(measurement, strength=replace(measurement.strength, heads=heads))
