"""The stages of a model that is streamed: one a decoder layer, in the order in which they run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import nn

from zoo.loadplan import CannotStreamError, LoadPlan
from zoo.records import Architecture
from zoo.spans import TensorSpan

_PLAIN_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm", "sinks"}
_ROW_LOOKUP = re.compile(r"ScaledWordEmbedding$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """Which module lies in which stage; a module outside of all decoder layers has none.

    ``own`` names the parameters and persistent buffers that a module holds itself, ``attention_of`` the
    (last) attention layer of a stage, ``row_lookups`` the embeddings of which single rows will do, and
    ``unused_value`` the value projection of the last attention layer, where no logit depends on it.
    """

    layers: tuple[str, ...]
    stage_of: Mapping[str, int]
    attention_of: Mapping[int, int]
    own: Mapping[str, tuple[str, ...]]
    row_lookups: frozenset[str]
    unused_value: str | None

    @property
    def first_attention(self) -> int:
        """The first stage with attention."""
        return min(self.attention_of)

    @property
    def last(self) -> int:
        """The stage of the last attention layer: no later one runs."""
        return max(self.attention_of)

    def modules(self, stage: int) -> list[str]:
        """The names of a stage's modules."""
        return [name for name, its in self.stage_of.items() if its == stage]

    def relative(self, name: str) -> str:
        """A module's name within its layer."""
        return name[len(self.layers[self.stage_of[name]]) + 1 :]


def find_stages(plan: LoadPlan, spans: Mapping[str, TensorSpan], *, architecture: Architecture) -> Stages:
    """The stages of a planned model; raises ``CannotStreamError`` when layers share weights."""
    names = [name for name, _ in plan.model.named_modules()]
    attention = architecture.attention_layers
    layers = decoder_layers(names, attention_names=[layer.module_name for layer in attention])
    stage_of = {
        name: stage
        for stage, layer in enumerate(layers)
        for name in names
        if name == layer or name.startswith(f"{layer}.")
    }
    tied = [name for pair in plan.tied.items() for name in pair]
    if _shares_modules(plan.model, layers) or any(name.rpartition(".")[0] in stage_of for name in tied):
        raise CannotStreamError("its layers share weights")
    own = _own_weights(plan, names)
    return Stages(
        layers=layers,
        stage_of=stage_of,
        attention_of={stage_of[layer.module_name]: layer.layer for layer in attention},
        own=own,
        row_lookups=frozenset(
            name for name in own if name not in stage_of and _is_row_lookup(plan, spans, name, own[name])
        ),
        unused_value=_unused_value(plan.model, own, attention[-1].module_name),
    )


def decoder_layers(names: Iterable[str], *, attention_names: Iterable[str]) -> tuple[str, ...]:
    """The names of all members of the module lists that the attention modules lie in, in depth order."""
    lists = {re.split(r"\.\d+(?:\.|$)", name, maxsplit=1)[0] for name in attention_names}
    return tuple(name for name in names if name.rpartition(".")[0] in lists)


def _shares_modules(model: nn.Module, layers: Iterable[str]) -> bool:
    """Whether a module within a layer is also found under another name."""
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(f"{name}.")
    prefixes = tuple(f"{layer}." for layer in layers)
    return any(len(all_) > 1 and any(n.startswith(prefixes) for n in all_) for all_ in names.values())


def _own_weights(plan: LoadPlan, module_names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    own: dict[str, list[str]] = {}
    for weight in plan.empty:
        own.setdefault(weight.rpartition(".")[0], []).append(weight)
    return {name: tuple(own[name]) for name in module_names if name in own}


def _is_row_lookup(plan: LoadPlan, spans: Mapping[str, TensorSpan], name: str, own: tuple[str, ...]) -> bool:
    """Whether the module does nothing with its first argument but look up rows of its one weight."""
    module = plan.model.get_submodule(name)
    if not isinstance(module, nn.Embedding) or module.max_norm is not None or len(own) != 1:
        return False
    is_plain = type(module).forward is nn.Embedding.forward or _ROW_LOOKUP.search(type(module).__name__)
    stored = [spans[source].shape for group in plan.groups_for(own) for source in group.sources]
    return bool(is_plain) and stored == [tuple(plan.empty[own[0]].shape)]


def _unused_value(model: nn.Module, own: Mapping[str, tuple[str, ...]], attention: str) -> str | None:
    """The value projection, if attention has no weights but those whose part in it is known."""
    parts = {
        weight[len(attention) + 1 :].split(".")[0]
        for name, weights in own.items()
        if name == attention or name.startswith(f"{attention}.")
        for weight in weights
    }
    is_plain = "v_proj" in parts and parts <= _PLAIN_ATTENTION
    name = f"{attention}.v_proj"
    return name if is_plain and type(model.get_submodule(name)) is nn.Linear else None
