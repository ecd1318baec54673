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
from transformers.masking_utils import eager_mask

from zoo import attention, softmax_route
from zoo import sinks as sink_math
from zoo.batches import Batch, make_batches
from zoo.errors import ModelError
from zoo.records import BANDS, REGIONS, SLICES, AttentionLayer, LayerStatistics

__all__ = ["IMPLEMENTATION", "Batch", "Probe", "make_batches"]

IMPLEMENTATION = "zoo_probe"
"""The name under which the probe is registered as an attention implementation."""


class _LastLayerSeen(BaseException):
    """Unwinds a forward pass once no attention layer is left; a BaseException passes models' handlers."""


@dataclass(slots=True, eq=False)
class _Capture:
    """One batch on its way through the model."""

    batch: Batch
    used_RBQ: Tensor
    slices_ZRB: Tensor
    layers_seen: int = 0
    calls: int = 0


_running: ContextVar[tuple[Probe, _Capture] | None] = ContextVar("zoo_running_capture", default=None)


def attention_layers_seen() -> int:
    """How many attention layers the running forward pass has been through; 0 outside of one."""
    running = _running.get()
    return 0 if running is None else running[1].layers_seen


@dataclass(slots=True, eq=False, kw_only=True)
class Probe:
    """Collects ``LayerStatistics`` of ``layers`` while batches run through ``model``.

    Queries before ``first_query`` are not used; ``content_query`` is the first one past the prefix that
    all prompts share; ``thirds_P`` is each prompt's third by length. Raises ``ModelError`` (stage
    ``probe``) for what would make a number wrong: a layer that did not fire or is not causal, or logits
    that are not finite.
    """

    model: PreTrainedModel
    layers: tuple[AttentionLayer, ...]
    prompt_count: int
    candidates: int
    first_query: int
    content_query: int
    thirds_P: Sequence[int] = ()
    _modules: list[nn.Module] = field(init=False)
    _statistics: tuple[LayerStatistics, ...] = field(init=False)
    _has_run: bool = False

    def __post_init__(self) -> None:
        self._modules = [self.model.get_submodule(layer.module_name) for layer in self.layers]
        # Before the first layer runs: memory that is kept amid a layer's passing memory would pin it.
        self._statistics = tuple(map(self._no_statistics, self.layers))
        for module in {id(module): module for module in self._modules}.values():
            if attention.route(module) == "softmax":
                softmax_route.watch(module, _observe_softmax)

    def forward(self, batch: Batch) -> None:
        """Run one batch up to its last attention layer."""
        queries = batch.token_ids_BQ.shape[1]
        starts = (self.first_query, max(self.first_query, self.content_query))
        bands = ((max(self.first_query, first), end) for first, end in BANDS)
        used = [
            sink_math.used_queries(batch.lengths_B, queries=queries, first=first, end=end)
            for first, end in (*((start, None) for start in starts), *bands)
        ]
        capture = _Capture(batch, torch.stack(used), self._slices(batch))
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
        self._has_run = True

    def statistics(self) -> tuple[LayerStatistics, ...]:
        """What was collected, in depth order; call it after every batch has run."""
        assert self._has_run, "no batch was run"
        return self._statistics

    def _no_statistics(self, layer: AttentionLayer) -> LayerStatistics:
        per_head = (layer.heads, self.candidates)
        return LayerStatistics(
            layer=layer,
            log_odds_RPHK=np.full((len(REGIONS), self.prompt_count, *per_head), np.nan, np.float32),
            slice_sums_TZHK=np.zeros((sink_math.SLICE_SUMS, len(SLICES), *per_head)),
        )

    def observe(self, module: nn.Module, capture: _Capture, logits_BHQJ: Tensor, sink: Tensor | None) -> None:
        """Keep one layer's statistics of one batch; unwinds the forward pass after the last layer."""
        layer = self._next_layer(module, capture)
        if layer is None:
            return
        log_odds_BHQK = sink_math.sink_log_odds(logits_BHQJ, candidates=self.candidates, sink_logit=sink)
        if log_odds_BHQK.shape[1] != layer.heads:
            seen = f"has {log_odds_BHQK.shape[1]} heads where its config declares {layer.heads}"
            raise _unmeasurable(layer.module_name, seen, "head_count")
        if not _is_causal(logits_BHQJ, extra_keys=hasattr(module, "compressor")):
            raise _unmeasurable(layer.module_name, "lets a token attend to later ones", "not_causal")
        if log_odds_BHQK.isnan().any():
            raise _unmeasurable(layer.module_name, "has attention logits that are NaN", "non_finite_logits")
        self._add_slices(layer, capture, logits_BHQJ, log_odds_BHQK)
        used_RBQ = capture.used_RBQ[: len(REGIONS)].to(log_odds_BHQK.device)
        log_odds_RBHK = sink_math.prompt_log_odds(log_odds_BHQK, used_RBQ=used_RBQ).float().cpu().numpy()
        self._statistics[layer.layer].log_odds_RPHK[:, capture.batch.prompts_B] = log_odds_RBHK
        if capture.layers_seen == len(self.layers):
            raise _LastLayerSeen

    def _slices(self, batch: Batch) -> Tensor:
        """[Z, R, B], 1 where a slice takes a prompt's queries of a region or band."""
        parts = len(REGIONS) + len(BANDS)
        slices_ZRB = torch.zeros(len(SLICES), parts, len(batch.prompts_B), device=batch.lengths_B.device)
        for part in range(parts):
            slices_ZRB[part, part] = 1
        for place, prompt in enumerate(batch.prompts_B if self.thirds_P else ()):
            slices_ZRB[parts + self.thirds_P[prompt], 0, place] = 1
        return slices_ZRB

    def _add_slices(
        self, layer: AttentionLayer, capture: _Capture, logits_BHQJ: Tensor, log_odds_BHQK: Tensor
    ) -> None:
        other_keys_BQ = (logits_BHQJ[:, 0] > -torch.inf).sum(-1) - 1
        sums_TZHK = sink_math.slice_sums(
            log_odds_BHQK,
            used_RBQ=capture.used_RBQ.to(log_odds_BHQK.device),  # a model may be spread over GPUs
            other_keys_BQ=other_keys_BQ,
            slices_ZRB=capture.slices_ZRB.to(log_odds_BHQK.device),
        )
        so_far = self._statistics[layer.layer].slice_sums_TZHK
        assert so_far is not None
        so_far += sums_TZHK.cpu().numpy()

    def _next_layer(self, module: nn.Module, capture: _Capture) -> AttentionLayer | None:
        """The layer that now runs; ``None`` for attention that is not to be measured."""
        if not any(module is measured for measured in self._modules):
            return None
        seen = capture.layers_seen
        if _calls_twice(module) and seen and module is self._modules[seen - 1] and capture.calls == 1:
            capture.calls = 2
            return None
        if seen >= len(self.layers) or module is not self._modules[seen]:
            expected = self.layers[seen].module_name if seen < len(self.layers) else "no further layer"
            ran = next(layer for layer, m in zip(self.layers, self._modules, strict=True) if m is module)
            raise _unmeasurable(ran.module_name, f"ran where {expected} was expected", "probe_order")
        capture.layers_seen, capture.calls = seen + 1, 1
        return self.layers[seen]


def _unmeasurable(name: str, seen: str, reason: str) -> ModelError:
    text = f"attention module {name} {seen}; its Sink Strength would be wrong, so the model is refused"
    return ModelError(text, stage="probe", reason=reason)


def _is_causal(logits_BHQJ: Tensor, *, extra_keys: bool) -> bool:
    """Whether no query sees a later token; ``extra_keys`` allows keys past the tokens, as their summaries."""
    queries, keys = logits_BHQJ.shape[-2:]
    if keys < queries or (keys > queries and not extra_keys):
        return False
    future_QJ = torch.ones(queries, queries, dtype=torch.bool, device=logits_BHQJ.device).triu(1)
    visible_BQJ = logits_BHQJ[:, 0, :, :queries] > -torch.inf
    return not bool((visible_BQJ & future_QJ).any())


def _calls_twice(module: nn.Module) -> bool:
    """Differential attention asks for the same softmax twice, once for each half of the values."""
    return hasattr(module, "lambda_init")


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    sinks: Tensor | None = None,
    position_bias: Tensor | None = None,
    indices: Tensor | None = None,
    block_indices: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The probe as an attention implementation: query [B, H, Q, D] in, output [B, Q, H, D] out.

    ``indices`` [B, Q, chosen] are the keys, ``block_indices`` the blocks of keys, that an indexer leaves
    visible to each query; stock eager attention has them in its mask already.
    """
    _check_arguments(module, kwargs)
    if block_indices is not None:
        sizes = (key.shape[2], query.dtype, query.device)
        indexer: Any = module.indexer
        attention_mask = indexer.build_block_mask(block_indices, attention_mask, *sizes, None)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    logits_BHQJ = sink_math.attention_logits(query, key, scaling=scale, softcap=softcap)
    for mask in (position_bias, attention_mask):
        if mask is not None:
            logits_BHQJ = sink_math.apply_mask(logits_BHQJ, mask)
    if indices is not None:
        chosen_BQJ = torch.zeros_like(logits_BHQJ[:, 0], dtype=torch.bool).scatter_(-1, indices.long(), True)
        logits_BHQJ.masked_fill_(~chosen_BQJ.unsqueeze(1), -torch.inf)
    sink_logit = sinks if s_aux is None else s_aux.reshape(1, -1, 1, 1)
    running = _running.get()
    if running is not None:
        probe, capture = running
        probe.observe(module, capture, logits_BHQJ, sink_logit)
    return sink_math.attention_output(logits_BHQJ, value, sink_logit=sink_logit), None


def _check_arguments(module: nn.Module, arguments: dict[str, Any]) -> None:
    """Refuse a tensor the probe does not know: a bias or mask in it would be missing from the logits."""
    for name, value in arguments.items():
        if isinstance(value, Tensor) and name != "position_ids":
            seen = f"hands its attention a tensor {name!r} that zoo does not know"
            raise _unmeasurable(type(module).__name__, seen, "unknown_attention_argument")


def _observe_softmax(module: nn.Module, logits: Tensor) -> None:
    """Logits [B, H, Q, J] or [B * H, Q, J] that a module's own code is about to give to softmax."""
    running = _running.get()
    if running is not None:
        probe, capture = running
        batch = len(capture.batch.lengths_B)
        logits_BHQJ = logits.detach().float().reshape(batch, -1, *logits.shape[-2:])
        hidden = logits_BHQJ < softmax_route.HIDDEN_BELOW
        probe.observe(module, capture, logits_BHQJ.masked_fill(hidden, -torch.inf), None)


AttentionInterface.register(IMPLEMENTATION, _attention)
# The mask of eager attention: additive, and never left out for a plain causal one.
AttentionMaskInterface.register(IMPLEMENTATION, eager_mask)
