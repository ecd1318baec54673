"""What a model's config and module say before any weight is read: layers, heads, QK-norm, verdict."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as _CAUSAL
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as _COMPOSITE

from zoo import attention, qknorm, quantization, support
from zoo.errors import ModelError, first_line
from zoo.probe import IMPLEMENTATION
from zoo.records import Architecture, AttentionLayer

attention_modules = attention.attention_modules
in_other_tower = attention.in_other_tower
layer_index = attention.layer_index

_LANGUAGE_MODELS = {**_CAUSAL, **_COMPOSITE}

_TEXT_ALONE = frozenset({"gemma3n"})
"""Composites that need libraries zoo does without; transformers loads their language model from the same
checkpoint, under its own class."""

MAX_CONFIG_BYTES = 4 << 20
MAX_LAYERS = 1000

_STRIPPED = re.compile(
    r"_?attn_implementation.*|_?experts_implementation.*|use_kernels|trust_remote_code|auto_map"
)


def read_config(path: Path) -> PreTrainedConfig:
    """The checked config of a checkpoint folder; what would choose code or kernels is stripped.

    Raises ``ModelError`` (stage ``plan``): ``bad_config``, ``remote_code_required``, ``not_causal_lm``,
    ``unknown_architecture``, ``adapter``, ``quantized``, and what ``check_support`` raises.
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
    if model_type not in _LANGUAGE_MODELS:
        raise _refused("not_causal_lm", f"model type {model_type!r} is no causal language model")
    support.check_type(model_type)
    raw = quantization.dequantising(raw)
    kept = {key: value for key, value in raw.items() if not _STRIPPED.fullmatch(key)}
    try:
        # JSON has no infinity: transformers writes it as an object, and only its file reader undoes that.
        config = AutoConfig.for_model(**PreTrainedConfig._decode_special_floats(kept))
    except (Exception, RecursionError) as error:
        raise _refused(
            "bad_config", f"config.json is not a valid {model_type} config ({first_line(error)})"
        ) from None
    config = measured_config(config)
    check_config(config)
    return config


def measured_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """The config of the model that is built: the given one, or its language model's where that is alone."""
    if config.model_type not in _TEXT_ALONE:
        return config
    text_config = config.get_text_config(decoder=True)
    text_config.architectures = [_CAUSAL[text_config.model_type]]
    return text_config


def check_config(config: PreTrainedConfig) -> None:
    """Raise ``ModelError`` for sizes no model has, other kinds of model, and what zoo cannot measure."""
    declared = config.architectures or []
    if declared and not any(_is_language_model(name, config.model_type) for name in declared):
        raise _refused("not_causal_lm", f"the checkpoint holds a {declared[0]}, not a causal language model")
    _check_sizes(config.get_text_config(decoder=True))
    support.check_support(config)


def _is_language_model(name: str, model_type: str) -> bool:
    expected = (_CAUSAL.get(model_type), _COMPOSITE.get(model_type))
    return name in expected or name.endswith(("ForCausalLM", "LMHeadModel", "Model"))


def _check_sizes(config: PreTrainedConfig) -> None:
    for name in ("num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size"):
        value = _size(config, name)
        if value is not None and value < 1:
            raise _refused("bad_config", f"config.json says {name} = {value}, which no model has")
    layers = _size(config, "num_hidden_layers")
    if layers is not None and layers > MAX_LAYERS:
        text = f"config.json says num_hidden_layers = {layers}; zoo refuses more than {MAX_LAYERS}"
        raise _refused("bad_config", text)


def _size(config: PreTrainedConfig, name: str) -> int | None:
    try:
        value = getattr(config, name)
    except Exception:  # a config refuses to name one size where each layer has its own
        return None
    return value if isinstance(value, int) else None


def model_class(config: PreTrainedConfig) -> Any:
    """The auto class that builds the model a checkpoint holds: the composite where its config names one."""
    composite = _COMPOSITE.get(config.model_type)
    causal = _CAUSAL.get(config.model_type)
    declared = config.architectures or []
    if composite is not None and composite != causal and (causal is None or composite in declared):
        return AutoModelForImageTextToText
    return AutoModelForCausalLM


def build_on_meta(config: PreTrainedConfig) -> PreTrainedModel:
    """The model of a config with the attention it is measured with, without weights.

    Raises ``ModelError`` (stage ``plan``): ``bad_config``, ``missing_library``.
    """
    try:
        with torch.device("meta"):
            model = model_class(config).from_config(config, attn_implementation="eager")
    except ImportError as error:
        text = f"a {config.model_type} model needs a library that is not installed ({first_line(error)})"
        raise _refused("missing_library", text) from None
    except Exception as error:
        text = f"a {config.model_type} model cannot be built from this config ({first_line(error)})"
        raise _refused("bad_config", text) from None
    model.set_attn_implementation(attention_implementation(model))
    return model


def attention_implementation(model: PreTrainedModel) -> str:
    """The attention implementation to run a model with: the probe where it can be handed in, else eager."""
    routes = {attention.route(module) for _, module in attention.attention_modules(model)}
    return "eager" if routes == {"softmax"} else IMPLEMENTATION


def attention_choice(config: PreTrainedConfig, implementation: str) -> dict[str, str]:
    """What to ask transformers for: a vision tower, which never runs, may know no attention but its own."""
    parts = {part: "eager" if "vision" in part else implementation for part in config.sub_configs}
    return {"": implementation, **parts}


def describe(model: PreTrainedModel) -> Architecture:
    """Architecture of a built module; only names and shapes are read, so the meta device will do.

    Raises ``ModelError`` (stage ``plan``): ``no_attention`` when nothing is softmax self-attention,
    ``attention_not_observable`` when its layers would have to be read in two different ways.
    """
    config = model.config.get_text_config(decoder=True)
    modules = attention.attention_modules(model)
    if not modules:
        text = f"a {config.model_type} model has no softmax self-attention, so it has no sink to measure"
        raise _refused("no_attention", text)
    routes = {attention.route(module) for _, module in modules}
    if len(routes) > 1:
        text = f"the attention layers of a {config.model_type} model differ in how they can be observed"
        raise _refused("attention_not_observable", text)
    layers = tuple(
        attention.attention_layer(i, name, module, config) for i, (name, module) in enumerate(modules)
    )
    tower = attention.text_tower(model) if hasattr(model.config, "vision_config") else ""
    norm = _qk_norm(modules, layers, config)
    return Architecture(
        model_type=model.config.model_type,
        architecture=type(model).__name__,
        parameters=sum(p.numel() for name, p in model.named_parameters() if name.startswith(tower)),
        model_layers=_model_layers(config, layers),
        attention_layers=layers,
        qk_norm=norm.kind,
        qk_norm_modules=norm.modules,
        qk_norm_position=norm.position,
        qk_norm_weighted=norm.weighted,
        learned_sink=any("sink" in name for _, m in modules for name in (*m._parameters, *m._modules)),
        softcap=getattr(config, "attn_logit_softcapping", None),
        position_encoding=attention.position_encoding(modules[0][1], config),
        attention_route=routes.pop() or "interface",
        text_tower=tower.removesuffix("."),
        note=support.NOTES.get(config.model_type) or support.NOTES.get(model.config.model_type),
    )


def describe_raw(raw: Mapping[str, Any]) -> Architecture:
    """Architecture of a raw ``config.json``, built on the meta device; raises as its three steps do."""
    return describe(build_on_meta(parse_config(raw)))


def _qk_norm(
    modules: list[tuple[str, nn.Module]], layers: tuple[AttentionLayer, ...], config: PreTrainedConfig
) -> qknorm.QKNorm:
    found = []
    for (_, module), layer in zip(modules, layers, strict=True):
        head_dim = getattr(module, "head_dim", None) or config.hidden_size // layer.heads
        found.append(qknorm.qk_norm(module, heads=layer.heads, head_dim=head_dim))
    with_norm = [norm for norm in found if norm.kind != "none"]
    kinds = {norm.kind for norm in with_norm}
    if len(kinds) > 1:
        return qknorm.QKNorm(kind="other", modules=with_norm[0].modules)
    return with_norm[0] if with_norm else found[0]


def _model_layers(config: PreTrainedConfig, layers: tuple[AttentionLayer, ...]) -> int:
    """All layers of the decoder; an encoder-decoder's config counts its encoder's under the usual name."""
    return max(_size(config, "num_hidden_layers") or 0, 1 + max(layer.model_layer for layer in layers))


def _refused(reason: str, text: str) -> ModelError:
    return ModelError(text, stage="plan", reason=reason)
