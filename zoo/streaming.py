"""Runs a model whose weights come and go stage by stage; nothing runs on a weight that is not there.

A stage is one decoder layer. Every module with weights checks, before it runs, that they are resident:
a decoder layer waits for its stage, an embedding for the rows of the tokens that occur, and whatever
else runs is read on the spot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from zoo.errors import ModelError, first_line
from zoo.loadplan import LoadPlan, put
from zoo.lockstep import run_in_step, wait_for
from zoo.prefetch import Prefetcher
from zoo.probe import attention_layers_seen
from zoo.quiet import quiet_transformers
from zoo.records import Architecture
from zoo.spans import Block, coalesce
from zoo.stages import Stages, find_stages
from zoo.weights import Weights


@dataclass(frozen=True, slots=True)
class _StageNeed:
    stage: int


@dataclass(frozen=True, slots=True)
class _RowsNeed:
    module_name: str


def poison(like: Tensor, *, device: str) -> nn.Parameter:
    """A NaN in that shape, without memory: what is computed from it shows, and is refused."""
    nan = torch.full((), torch.nan, dtype=like.dtype, device=device)
    return nn.Parameter(nan.expand(like.shape), requires_grad=False)


def _as_loaded_whole() -> torch.inference_mode:
    """Weights are made outside of inference mode: a matrix product may differ with one made inside."""
    return torch.inference_mode(False)


@dataclass(slots=True, eq=False, kw_only=True)
class StreamedModel:
    """A model on the meta device that is filled while it runs; ``run`` is called once.

    Bytes that cannot reach the statistics are never read: the LM head, rows of tokens that do not
    occur, layers after the last attention layer, and in that one what earlier layers of its kind ran
    only after their attention, and a plain value projection, which is NaN instead: if it did reach the
    logits, the probe would refuse them.
    """

    plan: LoadPlan
    weights: Weights
    architecture: Architecture
    device: str
    window_bytes: int
    _stages: Stages = field(init=False)
    _names: dict[nn.Module, str] = field(init=False)
    _rows: dict[str, Tensor] = field(default_factory=dict)
    _resident: set[str] = field(default_factory=set)
    _ran_before: set[str] = field(default_factory=set)
    _ran_after: set[str] = field(default_factory=set)
    _current: int | None = None
    _is_closed: bool = False
    _has_seen_a_layer: bool = False
    _taken: set[int] = field(default_factory=set)
    _prefetcher: Prefetcher = field(init=False)

    def __post_init__(self) -> None:
        model = self.plan.model
        stages = find_stages(self.plan, self.weights.spans, architecture=self.architecture)
        self._stages = stages
        self._names = {module: name for name, module in model.named_modules()}
        for name, buffer in list(model.named_buffers()):
            if name not in self.plan.empty:
                put(model, name, buffer.to(self.device))
        for module, name in self._names.items():
            if name in stages.row_lookups:
                module.padding_idx = None  # type: ignore[assignment]  # it counts rows that are not there
            if name in stages.row_lookups or not name.startswith(self.architecture.text_tower):
                self._rest(name)
            if name in stages.own or name in stages.layers:
                module.register_forward_pre_hook(self._before, with_kwargs=True)
        for stage in range(stages.last):
            self.weights.plan(self._stage_blocks(stage) or ())
        self._prefetcher = Prefetcher(
            self.weights,
            stages=stages.last + 1,
            blocks_of=self._stage_blocks,
            window_bytes=self.window_bytes,
            device=self.device,
        )

    def run(self, forwards: Iterable[Callable[[], None]]) -> None:
        """Run the forward passes in step, and close."""
        try:
            # Held here, since a pass that ends would switch it off for those that still run.
            with torch.inference_mode(), quiet_transformers():
                run_in_step(forwards, provider=self)
        except (NotImplementedError, RuntimeError) as error:
            if "meta" not in str(error):
                raise
            text = f"the model uses a weight in a way that streaming cannot serve ({first_line(error)})"
            raise ModelError(f"{text}; use --load whole", stage="probe", reason="cannot_stream") from None
        finally:
            self.close()

    def close(self) -> None:
        """Stop reading and give back all memory and files; may be called again."""
        if self._is_closed:
            return
        self._is_closed = True
        self.weights.cancel()
        self._prefetcher.close()
        self.weights.close()
        self.plan.empty_again(self.plan.empty)

    def prepare(self, need: _StageNeed | _RowsNeed, payloads: list[Any]) -> None:
        """Make a stage resident, or the rows of an embedding that the waiting passes look up."""
        with _as_loaded_whole():
            if isinstance(need, _RowsNeed):
                self._load_rows(need.module_name, payloads)
            else:
                self._load_stage(need.stage)

    def release(self, need: _StageNeed | _RowsNeed) -> None:
        """Free a stage or an embedding's rows."""
        if isinstance(need, _RowsNeed):
            self._rest(need.module_name)
            return
        self._current = None
        self._free(self._stages.modules(need.stage))
        if not self._has_seen_a_layer and need.stage in self._stages.attention_of:
            self._has_seen_a_layer = True
            self._prefetcher.look_again()

    def _rest(self, name: str) -> None:
        """Leave a module without its weights, but on the device that models read off it."""
        for weight in self._stages.own.get(name, ()):
            if isinstance(empty := self.plan.empty[weight], nn.Parameter):
                put(self.plan.model, weight, poison(empty, device=self.device))

    def _free(self, module_names: Iterable[str]) -> None:
        for name in module_names:
            self.plan.empty_again(self._stages.own.get(name, ()))
            self._resident.discard(name)

    def _before(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        """Runs before every module that owns weights, in the pass that is about to use them."""
        name = self._names[module]
        stage = self._stages.stage_of.get(name)
        if stage is not None:
            if stage != self._current:
                wait_for(_StageNeed(stage))
            self._note_order(name, stage)
        if name in self._stages.row_lookups and args:
            wait_for(_RowsNeed(name), args[0])
            return (torch.searchsorted(self._rows[name], args[0].contiguous()), *args[1:]), kwargs
        if name not in self._resident:
            with _as_loaded_whole():
                self._load_now(name)
        return None

    def _note_order(self, name: str, stage: int) -> None:
        attention = self._stages.attention_of.get(stage)
        if attention is not None:
            ran = self._ran_after if attention_layers_seen() > attention else self._ran_before
            ran.add(self._stages.relative(name))

    # Stages

    def _stage_blocks(self, stage: int) -> Sequence[Block] | None:
        """What to read for a stage; for the last one not before another layer has shown its order."""
        last = self._stages.last
        learns = self._stages.first_attention < last
        if stage == last and learns and not self._has_seen_a_layer:
            return None
        skipped = self._ran_after - self._ran_before if stage == last else set()
        names = [
            weight
            for name in self._stages.modules(stage)
            if self._stages.relative(name) not in skipped and name != self._stages.unused_value
            for weight in self._stages.own.get(name, ())
        ]
        blocks = self._blocks(names)
        if stage == last:
            self.weights.plan(blocks)
        return blocks

    def _blocks(self, weight_names: Iterable[str]) -> tuple[Block, ...]:
        groups = self.plan.groups_for(weight_names)
        spans = [self.weights.spans[source] for group in groups for source in group.sources]
        return coalesce(spans, gap_bytes=self.weights.gap_bytes)

    def _load_stage(self, stage: int) -> None:
        if stage in self._taken or stage > self._stages.last:
            tensors = self.weights.read(self._stage_blocks(stage) or ())
        else:
            self._taken.add(stage)
            tensors = self._prefetcher.take(stage)
        sources, own = set(tensors), self._stages.own
        filled = [
            name
            for name in self._stages.modules(stage)
            if name in own
            and all(sources.issuperset(group.sources) for group in self.plan.groups_for(own[name]))
        ]
        self.plan.fill(tensors, [w for name in filled for w in own[name]], device=self.device)
        self._resident.update(filled)
        self._current = stage

    def _load_now(self, name: str) -> None:
        """Read a module's own weights on the spot: it lies outside the layers, or ran unexpectedly."""
        own = self._stages.own.get(name, ())
        if name == self._stages.unused_value:
            for weight in own:
                put(self.plan.model, weight, poison(self.plan.empty[weight], device=self.device))
        elif own:
            self.plan.fill(self.weights.read(self._blocks(own)), own, device=self.device)
        self._resident.add(name)

    # Embedding rows

    def _load_rows(self, name: str, ids: Sequence[Tensor]) -> None:
        """Fill an embedding with the rows that occur in any waiting pass, in the order of their ids."""
        rows = torch.cat([each.reshape(-1) for each in ids]).unique().cpu()
        (weight,) = self._stages.own[name]
        loaded = self.plan.tied.get(weight, weight)
        empty = self.plan.empty[weight]
        if int(rows[0]) < 0 or int(rows[-1]) >= empty.shape[0]:
            text = f"token {int(rows[-1])} is outside the {empty.shape[0]} rows of {name}"
            raise ModelError(
                f"{text}; the tokenizer is another's", stage="render", reason="tokenizer_mismatch"
            )
        (group,) = self.plan.groups_for([weight])
        table = self.weights.read_rows(self.weights.spans[group.sources[0]], rows.tolist())
        short = torch.empty((len(rows), *empty.shape[1:]), dtype=empty.dtype, device="meta")
        put(self.plan.model, loaded, nn.Parameter(short, requires_grad=False))
        self.plan.fill({group.sources[0]: table}, [weight], device=self.device)
        if loaded != weight:
            self.plan.empty_again([loaded])
        self._rows[name] = rows.to(self.device)
