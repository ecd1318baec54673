"""The sink rate of Gu et al., a standard measurement with published numbers to check zoo against.

Source: arXiv:2410.10781, section 3.2 and table 1. The importance of the first token to a head is the mean,
over all 64 queries of a sequence, of the attention it gets; the sink rate is the share of (sequence, layer,
head) in which that exceeds 0.3. Shape letters: P sequences, H query heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from pathlib import Path

import numpy as np
from scipy.special import expit

from zoo.backbone import open_backbone
from zoo.fallback import with_fallback
from zoo.fetch import beside_weights
from zoo.probe import Probe, make_batches
from zoo.prompts import render
from zoo.records import Candidate, LayerStatistics, RunOptions
from zoo.tokenizer import load_tokenizer

TOKENS = 64
THRESHOLD = 0.3

PUBLISHED: Mapping[str, float] = {
    "openai-community/gpt2-xl": 0.7700,
    "mistralai/Mistral-7B-v0.1": 0.9749,
    "meta-llama/Llama-2-7b-hf": 0.9247,
    "meta-llama/Llama-2-13b-hf": 0.9169,
    "meta-llama/Meta-Llama-3-8B": 0.9902,
    "ai21labs/Jamba-v0.1": 0.8848,
}
"""Sink rates (0..1) of arXiv:2410.10781, table 1, on 100 natural sequences of the authors' own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkRate:
    """The sink rate (0..1) of one model, and what it was taken over."""

    rate: float
    sequences: int
    layers: int
    heads: int


def published_rate(model_id: str) -> float | None:
    """The published sink rate (0..1) of a model, known by the name behind the slash; ``None`` without one."""
    by_name = {known.rpartition("/")[2].lower(): rate for known, rate in PUBLISHED.items()}
    return by_name.get(model_id.rpartition("/")[2].lower())


def load_texts() -> tuple[str, ...]:
    """The natural texts shipped for this: the beginnings of texts written for this project, one a line."""
    lines = (files("zoo") / "natural_text.txt").read_text(encoding="utf-8").splitlines()
    return tuple(line for line in lines if line and not line.startswith("#"))


def rate_of(layers: Sequence[LayerStatistics]) -> float:
    """The sink rate (0..1) from the first region's log-odds at key 0, taken over all 64 queries.

    A query whose sliding window hides key 0 gives it nothing; the probe leaves such queries out of its
    means, so they are counted in here.
    """
    above = []
    for layer in layers:
        window = layer.layer.sliding_window
        seeing = 1.0 if window is None else min(window, TOKENS) / TOKENS
        importance_PH = expit(layer.log_odds_RPHK[0, :, :, 0].astype(np.float64)) * seeing
        above.append((importance_PH > THRESHOLD).ravel())
    return float(np.concatenate(above).mean())


def measure_sink_rate(candidate: Candidate, *, options: RunOptions) -> SinkRate:
    """Run the texts through a model and count; raises ``ModelError`` where the model cannot be measured.

    It is tried again as ``zoo.fallback`` says.
    """
    return with_fallback(partial(_measure, candidate), options)[0]


def _measure(candidate: Candidate, options: RunOptions) -> SinkRate:
    with (
        beside_weights(candidate) as local,
        closing(open_backbone(candidate, options=options, folder=Path(local.location))) as backbone,
    ):
        prompts = render(load_tokenizer(local), load_texts(), format="plain", minimum_tokens=TOKENS)
        prompts = replace(prompts, token_ids=tuple(ids[:TOKENS] for ids in prompts.token_ids))
        layers = backbone.architecture.attention_layers
        probe = Probe(
            model=backbone.model,
            layers=layers,
            prompt_count=len(prompts.token_ids),
            candidates=1,
            first_query=0,
            content_query=0,
        )
        batches = make_batches(prompts, tokens_per_batch=options.tokens_per_batch, device=backbone.device)
        backbone.run([partial(probe.forward, batch) for batch in batches])
    return SinkRate(
        rate=rate_of(probe.statistics()),
        sequences=len(prompts.token_ids),
        layers=len(layers),
        heads=sum(layer.heads for layer in layers),
    )
