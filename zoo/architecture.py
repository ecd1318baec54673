"""What a model's config and module say before any weight is read: layers, heads, QK-norm, verdict."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from zoo.errors import ModelError, first_line
from zoo.probe import IMPLEMENTATION
from zoo.records import Architecture, AttentionLayer

MAX_CONFIG_BYTES = 4 << 20
MAX_LAYERS = 1000

_STRIPPED = re.compile(
    r"_?attn_implementation.*|_?experts_implementation.*|use_kernels|trust_remote_code|auto_map"
)
_ATTENTION_CLASS = re.compile(r"Attention")
_NOT_SOFTMAX_CLASS = re.compile(r"Linear|Delta|Lightning|Mamba|Mixer|Recurrent|Cross|Vision|Audio|Retention")
_QUERY_NORM = re.compile(r"^(q|query|qk)_?(a_)?(layer)?norm$")


def read_config(path: Path) -> PreTrainedConfig:
    """The checked config of a checkpoint folder; what would choose code or kernels is stripped.

    Raises ``ModelError`` (stage ``plan``): ``bad_config``, ``remote_code_required``, ``not_causal_lm``,
    ``unknown_architecture``, ``adapter``.
    """
    if (path / "adapter_config.json").is_file() and not (path / "config.json").is_file():
        raise _refused(
            "adapter", "the folder holds an adapter, not a model; screen the model it was made for"
        )
    return parse_config(read_json(path / "config.json"))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of bounded size; raises ``ModelError`` (``bad_config``) otherwise."""
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise _refused("bad_config", f"{path.name} is larger than {MAX_CONFIG_BYTES >> 20} MB")
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        text = f"there is no {path.name} in {path.parent}; name a folder that save_pretrained wrote"
        raise _refused("bad_config", text) from None
    except (OSError, ValueError, RecursionError) as error:
        text = f"{path.name} cannot be read as JSON ({type(error).__name__}); fetch the file again"
        raise _refused("bad_config", text) from None
    if not isinstance(loaded, dict):
        raise _refused("bad_config", f"{path.name} is not a JSON object; fetch the file again")
    return loaded


def parse_config(raw: Mapping[str, Any]) -> PreTrainedConfig:
    """The config object of a raw ``config.json``; raises as ``read_config`` does."""
    model_type, auto_map = raw.get("model_type"), raw.get("auto_map") or {}
    if any(name.startswith(("AutoModel", "AutoConfig")) for name in auto_map):
        raise _refused(
            "remote_code_required",
            "config.json asks for code from the repository (auto_map), which zoo never runs; if "
            f"transformers' own {model_type!r} is what you want, remove auto_map from a local copy of it",
        )
    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING_NAMES:
        text = f"transformers does not know the model type {model_type!r}; a newer transformers may"
        raise _refused("unknown_architecture", text)
    if model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise _refused("not_causal_lm", f"model type {model_type!r} is no causal language model")
    kept = {key: value for key, value in raw.items() if not _STRIPPED.fullmatch(key)}
    try:
        config = AutoConfig.for_model(**kept)
    except (Exception, RecursionError) as error:
        raise _refused(
            "bad_config", f"config.json is not a valid {model_type} config ({first_line(error)})"
        ) from None
    check_config(config)
    return config


def check_config(config: PreTrainedConfig) -> None:
    """Raise ``ModelError`` for sizes no model has and for classes that are no causal language model."""
    expected = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
    declared = config.architectures or []
    if declared and not any(
        name == expected or name.endswith(("ForCausalLM", "LMHeadModel", "Model")) for name in declared
    ):
        raise _refused("not_causal_lm", f"the checkpoint holds a {declared[0]}, not a causal language model")
    for name in ("num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size"):
        value = getattr(config, name, None)
        if isinstance(value, int) and value < 1:
            raise _refused("bad_config", f"config.json says {name} = {value}, which no model has")
    layers = getattr(config, "num_hidden_layers", None)
    if isinstance(layers, int) and layers > MAX_LAYERS:
        text = f"config.json says num_hidden_layers = {layers}; zoo refuses more than {MAX_LAYERS}"
        raise _refused("bad_config", text)


def build_on_meta(config: PreTrainedConfig) -> PreTrainedModel:
    """The causal language model of a config with the probe as its attention, without weights."""
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, attn_implementation=IMPLEMENTATION)
    except Exception as error:
        text = f"a {config.model_type} model cannot be built from this config ({first_line(error)})"
        raise _refused("bad_config", text) from None
    return model


def describe(model: PreTrainedModel) -> Architecture:
    """Architecture of a built module; raises ``ModelError`` (``no_attention``) when nothing is softmax.

    Only names and shapes are read, so a model on the meta device will do.
    """
    config = model.config
    modules = attention_modules(model)
    if not modules:
        text = f"a {config.model_type} model has no softmax self-attention, so it has no sink to measure"
        raise _refused("no_attention", text)
    layers = tuple(_attention_layer(i, name, module, config) for i, (name, module) in enumerate(modules))
    first = modules[0][1]
    return Architecture(
        model_type=config.model_type,
        architecture=type(model).__name__,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        model_layers=config.num_hidden_layers,
        attention_layers=layers,
        qk_norm=qk_norm_kind(first, config),
        learned_sink=any("sink" in name for name, _ in first.named_parameters(recurse=False)),
        softcap=getattr(config, "attn_logit_softcapping", None),
    )


def describe_raw(raw: Mapping[str, Any]) -> Architecture:
    """Architecture of a raw ``config.json``, built on the meta device; raises as its three steps do."""
    return describe(build_on_meta(parse_config(raw)))


def attention_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The softmax self-attention modules by name, in depth order: innermost ``*Attention*`` classes."""
    found = [
        (name, module)
        for name, module in model.named_modules()
        if _ATTENTION_CLASS.search(type(module).__name__)
        and not _NOT_SOFTMAX_CLASS.search(type(module).__name__)
        and layer_index(name) is not None
    ]
    return [(name, m) for name, m in found if not any(o.startswith(f"{name}.") for o, _ in found)]


def layer_index(module_name: str) -> int | None:
    """The number of the layer a module name lies in: the first number among its parts."""
    return next((int(part) for part in module_name.split(".") if part.isdigit()), None)


def _attention_layer(index: int, name: str, module: nn.Module, config: PreTrainedConfig) -> AttentionLayer:
    heads = _count(module, "num_heads", "num_attention_heads") or config.num_attention_heads
    groups = _count(module, "num_key_value_groups")
    kv_heads = heads // groups if groups else getattr(config, "num_key_value_heads", None) or heads
    model_layer = layer_index(name)
    assert model_layer is not None
    return AttentionLayer(
        layer=index,
        model_layer=model_layer,
        module_name=name,
        heads=heads,
        kv_heads=kv_heads,
        sliding_window=_sliding_window(module, model_layer, config),
    )


def _count(module: nn.Module, *names: str) -> int | None:
    values = (getattr(module, name, None) for name in names)
    return next((value for value in values if isinstance(value, int) and value > 0), None)


def _sliding_window(module: nn.Module, model_layer: int, config: PreTrainedConfig) -> int | None:
    window = getattr(module, "sliding_window", getattr(config, "sliding_window", None))
    kinds = getattr(config, "layer_types", None)
    if kinds and kinds[model_layer] != "sliding_attention":
        return None
    if getattr(config, "use_sliding_window", True) is False:
        return None
    return window if isinstance(window, int) and window > 0 else None


def qk_norm_kind(
    attention: nn.Module, config: PreTrainedConfig
) -> Literal["none", "per_head", "layerwise", "other"]:
    """How queries are normalised: over each head, over the whole layer, otherwise, or not at all.

    Read from the width of the query norm's weight against the head size (the paper's distinction,
    arXiv:2609.00746).
    """
    norms = [child for name, child in attention.named_children() if _QUERY_NORM.match(name)]
    if not norms:
        return "none"
    weight = getattr(norms[0], "weight", None)
    head_dim = getattr(attention, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if weight is None or weight.ndim != 1:
        return "other"
    if weight.shape[0] == head_dim:
        return "per_head"
    return "layerwise" if weight.shape[0] == config.num_attention_heads * head_dim else "other"


def _refused(reason: str, text: str) -> ModelError:
    return ModelError(text, stage="plan", reason=reason)
