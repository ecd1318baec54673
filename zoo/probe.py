"""Captures the attention logits of a running model and keeps their sink statistics.

The probe is an attention implementation of transformers: it receives each layer's own query and key
after rotary position encoding and QK-norm, and returns the attention output, so the model runs on.

Shape letters: B prompts of a batch, H query heads, Q query positions, J key positions, D head size,
K candidate sink positions, R query regions, P prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from zoo import sinks
from zoo.errors import ModelError
from zoo.records import AttentionLayer, LayerStatistics, RenderedPrompts

IMPLEMENTATION = "zoo_probe"
"""The name under which the probe is registered as an attention implementation."""


class _LastLayerSeen(BaseException):
    """Unwinds a forward pass once no attention layer is left; a BaseException passes models' handlers."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Right-padded prompts: which ones, their token ids [B, Q] and lengths [B]."""

    prompts_B: np.ndarray
    token_ids_BQ: Tensor
    lengths_B: Tensor


@dataclass(slots=True, eq=False)
class _Capture:
    """One batch on its way through the model."""

    batch: Batch
    used_RBQ: Tensor
    layers_seen: int = 0


_running: ContextVar[tuple[Probe, _Capture] | None] = ContextVar("zoo_running_capture", default=None)


def make_batches(prompts: RenderedPrompts, *, tokens_per_batch: int, device: str) -> list[Batch]:
    """Group prompts of similar length into right-padded batches of at most ``tokens_per_batch`` tokens.

    A prompt longer than that is a batch of its own.
    """
    lengths_P = np.array([len(ids) for ids in prompts.token_ids])
    groups: list[list[int]] = []
    for prompt in np.argsort(lengths_P, kind="stable"):
        longest = int(lengths_P[prompt])
        if groups and longest * (len(groups[-1]) + 1) <= tokens_per_batch:
            groups[-1].append(int(prompt))
        else:
            groups.append([int(prompt)])
    return [_pad([prompts.token_ids[p] for p in group], group, device=device) for group in groups]


def _pad(token_ids: Sequence[Sequence[int]], prompts: list[int], *, device: str) -> Batch:
    rows = [torch.tensor(ids) for ids in token_ids]
    return Batch(
        prompts_B=np.array(prompts),
        token_ids_BQ=nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device),
        lengths_B=torch.tensor([len(row) for row in rows], device=device),
    )


@dataclass(slots=True, eq=False, kw_only=True)
class Probe:
    """Collects ``LayerStatistics`` of ``layers`` while batches run through ``model``.

    Queries before ``first_query`` are not used; ``content_query`` is the first one past the prefix that
    all prompts share. Raises ``ModelError`` (stage ``probe``) for what would make a number wrong: a
    layer that did not fire or is not causal, or logits that are not finite.
    """

    model: PreTrainedModel
    layers: tuple[AttentionLayer, ...]
    prompt_count: int
    candidates: int
    first_query: int
    content_query: int
    _names: dict[int, str] = field(init=False)
    _log_odds: list[np.ndarray | None] = field(init=False)

    def __post_init__(self) -> None:
        self._names = {id(module): name for name, module in self.model.named_modules()}
        self._log_odds = [None] * len(self.layers)

    def forward(self, batch: Batch) -> None:
        """Run one batch up to its last attention layer."""
        queries = batch.token_ids_BQ.shape[1]
        regions = [self.first_query, max(self.first_query, self.content_query)]
        used = [sinks.used_queries(batch.lengths_B, queries=queries, first=first) for first in regions]
        capture = _Capture(batch, torch.stack(used))
        visible_BQ = torch.arange(queries, device=batch.lengths_B.device) < batch.lengths_B.unsqueeze(-1)
        token = _running.set((self, capture))
        try:
            with torch.inference_mode():
                self.model(input_ids=batch.token_ids_BQ, attention_mask=visible_BQ.long(), use_cache=False)
        except _LastLayerSeen:
            pass
        finally:
            _running.reset(token)
        if capture.layers_seen != len(self.layers):
            raise ModelError(
                f"only {capture.layers_seen} of {len(self.layers)} attention layers ran through the probe, "
                f"so the measurement would be of a part of the model; this {self.model.config.model_type} "
                "model is not supported",
                stage="probe",
                reason="probe_incomplete",
            )

    def statistics(self) -> tuple[LayerStatistics, ...]:
        """What was collected, in depth order; call it after every batch has run."""
        collected = [array for array in self._log_odds if array is not None]
        assert len(collected) == len(self.layers), "no batch was run"
        pairs = zip(self.layers, collected, strict=True)
        return tuple(LayerStatistics(layer=layer, log_odds_RPHK=array) for layer, array in pairs)

    def observe(self, module: nn.Module, capture: _Capture, logits_BHQJ: Tensor, sink: Tensor | None) -> None:
        """Keep one layer's statistics of one batch; unwinds the forward pass after the last layer."""
        layer = self._next_layer(module, capture)
        log_odds_BHQK = sinks.sink_log_odds(logits_BHQJ, candidates=self.candidates, sink_logit=sink)
        if log_odds_BHQK.shape[1] != layer.heads:
            seen = f"has {log_odds_BHQK.shape[1]} heads where its config declares {layer.heads}"
            raise _unmeasurable(layer.module_name, seen, "head_count")
        if not _is_causal(logits_BHQJ):
            raise _unmeasurable(layer.module_name, "lets a token attend to later ones", "not_causal")
        if log_odds_BHQK.isnan().any():
            raise _unmeasurable(layer.module_name, "has attention logits that are NaN", "non_finite_logits")
        log_odds_RBHK = sinks.prompt_log_odds(log_odds_BHQK, used_RBQ=capture.used_RBQ).float().cpu().numpy()
        kept = self._log_odds[layer.layer]
        if kept is None:
            regions, _, heads, candidates = log_odds_RBHK.shape
            kept = np.full((regions, self.prompt_count, heads, candidates), np.nan, np.float32)
            self._log_odds[layer.layer] = kept
        kept[:, capture.batch.prompts_B] = log_odds_RBHK
        if capture.layers_seen == len(self.layers):
            raise _LastLayerSeen

    def _next_layer(self, module: nn.Module, capture: _Capture) -> AttentionLayer:
        name = self._names.get(id(module), type(module).__name__)
        expected = self.layers[capture.layers_seen]
        if name != expected.module_name:
            seen = f"ran where {expected.module_name} was expected"
            raise _unmeasurable(name, seen, "probe_order")
        capture.layers_seen += 1
        return expected


def _unmeasurable(name: str, seen: str, reason: str) -> ModelError:
    text = f"attention module {name} {seen}; its Sink Strength would be wrong, so the model is refused"
    return ModelError(text, stage="probe", reason=reason)


def _is_causal(logits_BHQJ: Tensor) -> bool:
    queries, keys = logits_BHQJ.shape[-2:]
    future_QJ = torch.ones(queries, keys, dtype=torch.bool, device=logits_BHQJ.device).triu(1)
    visible_BQJ = logits_BHQJ[:, 0] > -torch.inf
    return queries == keys and not bool((visible_BQJ & future_QJ).any())


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The probe as an attention implementation: query [B, H, Q, D] in, output [B, Q, H, D] out."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    logits_BHQJ = sinks.attention_logits(query, key, scaling=scale, softcap=softcap)
    for mask in (position_bias, attention_mask):
        if mask is not None:
            logits_BHQJ = sinks.apply_mask(logits_BHQJ, mask)
    sink_logit = None if s_aux is None else s_aux.reshape(1, -1, 1, 1)
    running = _running.get()
    if running is not None:
        probe, capture = running
        probe.observe(module, capture, logits_BHQJ, sink_logit)
    return sinks.attention_output(logits_BHQJ, value, sink_logit=sink_logit), None


def _mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """Boolean mask [B, 1, Q, J], True where a key is visible; never left out for a plain causal one."""
    skips = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return sdpa_mask(*args, **(kwargs | skips))


AttentionInterface.register(IMPLEMENTATION, _attention)
AttentionMaskInterface.register(IMPLEMENTATION, _mask)
