"""Finds a model's softmax self-attention modules and reads their heads and windows, without weights."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, Literal

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from zoo.records import AttentionLayer

Route = Literal["interface", "softmax"]
"""How attention logits are read: handed over by transformers' attention interface, or taken where the
module's own eager code calls softmax."""

_ELSEWHERE = re.compile(
    r"Vision(?!Text)|Audio(?!Text)|Siglip|Clip|CLIP|Cross|Residual|Encoder(?!Layer)|Indexer|Resampler"
)
"""Attention classes that do not attend from text tokens to text tokens."""

_CROSS_NAME = re.compile(r"(^|\.)(encoder_attn|cross_attn\w*|crossattention)(\.|$)")
_TOWER_NAME = re.compile(r"(^|\.)(vision\w*|visual|audio\w*|embed_tokens_extend|image_\w+)\.")


ROTARY = re.compile(r"apply_\w*(rotary|rope)\w*")
"""The functions that rotate queries and keys."""


def route(module: nn.Module) -> Route | None:
    """How the module's attention logits can be read; ``None`` for no attention.

    Read from the names that its class's code uses.
    """
    module_class = type(module)
    if not module_class.__module__.startswith("transformers."):
        return None
    used = {name for code in _codes(module_class) for name in code.co_names}
    if "ALL_ATTENTION_FUNCTIONS" in used:
        return "interface"
    if "softmax" in used and "Attention" in module_class.__name__:
        return "softmax"
    return None


def _codes(module_class: type) -> list[Any]:
    functions = [inspect.unwrap(f) for f in vars(module_class).values() if inspect.isfunction(f)]
    return [function.__code__ for function in functions if function.__name__ not in ("__init__", "__repr__")]


def attention_modules(model: PreTrainedModel) -> list[tuple[str, nn.Module]]:
    """The text model's softmax self-attention modules by name, in the order in which they run.

    A module that runs several times, as in a looped model, is listed once for each run; one that several
    layers share is listed under each layer's name.
    """
    tower = text_tower(model)
    found = [
        (name, module)
        for name, module in model.named_modules(remove_duplicate=False)
        if name.startswith(tower) and _is_text_attention(name, module)
    ]
    repeat = _RUN_ORDER.get(model.config.get_text_config(decoder=True).model_type)
    return repeat(found, model.config.get_text_config(decoder=True)) if repeat else found


def text_tower(model: PreTrainedModel) -> str:
    """The name, with a trailing dot, of the part that holds the text decoder; empty for the whole model."""
    if model.config.get_text_config(decoder=True) is model.config:
        return ""
    decoder = model.get_decoder()
    name = next((name for name, module in model.named_modules() if module is decoder), "")
    return f"{name}." if name else ""


def _is_text_attention(name: str, module: nn.Module) -> bool:
    return (
        layer_index(name) is not None
        and not _ELSEWHERE.search(type(module).__name__)
        and not _CROSS_NAME.search(name)
        and not in_other_tower(name)
        and route(module) is not None
    )


_WINDOWED = re.compile(r"sliding|local")
"""How configs name the layers that see a window of the prompt."""


_WINDOW_UNUSED = frozenset({"moshi", "nemotron_h", "unlimited_ocr_text"})
"""Model types whose config names a window that their masks do not use on a prompt."""


def in_other_tower(name: str) -> bool:
    """Whether a module or tensor belongs to an image or audio tower rather than to the language model."""
    return _TOWER_NAME.search(name) is not None


def layer_index(module_name: str) -> int | None:
    """The number of the layer a module name lies in: the first number among its parts."""
    return next((int(part) for part in module_name.split(".") if part.isdigit()), None)


_Modules = list[tuple[str, nn.Module]]


def _dory(found: _Modules, config: PreTrainedConfig) -> _Modules:
    start, end = config.n_input_layers, config.n_input_layers + config.n_recurrent_layers
    return found[:start] + found[start:end] * config.n_recurrent_loops + found[end:]


def _hrm_text(found: _Modules, config: PreTrainedConfig) -> _Modules:
    low = [pair for pair in found if "L_module." in pair[0]]
    high = [pair for pair in found if "H_module." in pair[0]]
    return (low * config.L_cycles + high) * config.H_cycles


def _inkling2_loop(found: _Modules, config: PreTrainedConfig) -> _Modules:
    start, end = config.loop_layer_index_start, config.loop_layer_index_end
    return found[:start] + found[start:end] * config.loop_num_passes + found[end:]


_RUN_ORDER: dict[str, Callable[[_Modules, PreTrainedConfig], _Modules]] = {
    "dory": _dory,
    "hrm_text": _hrm_text,
    "inkling2_loop_text": _inkling2_loop,
}
"""Model types whose layers run several times in one forward pass."""


def attention_layer(index: int, name: str, module: nn.Module, config: PreTrainedConfig) -> AttentionLayer:
    """What is recorded of one attention module; ``config`` is the text model's."""
    model_layer = layer_index(name)
    assert model_layer is not None
    own = _own_config(config, model_layer)
    heads = _count(module, "num_heads", "num_attention_heads", "n_heads", "n_head") or own.num_attention_heads
    groups = _count(module, "num_key_value_groups", "num_kv_groups")
    kv_heads = _count(module, "num_kv_heads", "num_key_value_heads", "kv_heads")
    kv_heads = heads // groups if groups else kv_heads or getattr(own, "num_key_value_heads", None)
    return AttentionLayer(
        layer=index,
        model_layer=model_layer,
        module_name=name,
        heads=heads,
        kv_heads=kv_heads or heads,
        sliding_window=_sliding_window(module, model_layer, config),
    )


def _own_config(config: PreTrainedConfig, model_layer: int) -> PreTrainedConfig:
    """The layer's own sizes where a config gives each layer its own, else the model's."""
    try:
        return config.per_layer_config[model_layer]
    except (AttributeError, IndexError, KeyError):
        return config


def position_encoding(module: nn.Module, config: PreTrainedConfig) -> str | None:
    """``alibi`` or ``rotary`` where the module's code or config says so, else ``None``."""
    alibi = getattr(getattr(config, "attn_config", None), "alibi", getattr(config, "alibi", False))
    if alibi or config.model_type == "bloom":
        return "alibi"
    names = {name for code in _codes(type(module)) for name in code.co_names}
    return "rotary" if any(ROTARY.fullmatch(name) for name in names) else None


def _count(module: nn.Module, *names: str) -> int | None:
    values = (getattr(module, name, None) for name in names)
    return next((value for value in values if isinstance(value, int) and value > 0), None)


def _sliding_window(module: nn.Module, model_layer: int, config: PreTrainedConfig) -> int | None:
    kinds = getattr(config, "layer_types", None) or getattr(config, "attention_layers", None) or ()
    if any(_WINDOWED.search(kind) for kind in kinds) and not _WINDOWED.search(kinds[model_layer]):
        return None
    if getattr(config, "use_sliding_window", True) is False or config.model_type in _WINDOW_UNUSED:
        return None
    named = getattr(config, "sliding_window", None) or getattr(config, "window_size", None)
    window = getattr(module, "sliding_window", named)
    return window if isinstance(window, int) and window > 0 else None
