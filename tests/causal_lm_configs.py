"""Tiny configurations of every causal language model transformers maps, from their own classes."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

MODEL_TYPES = tuple(sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))

LARGEST_TEXT_TOKEN = 511
"""Prompts use smaller token ids; image, audio and other special tokens of a config lie above."""

# A field of these names is given this value wherever a config class declares it.
_FIELDS: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "emb_dim", "embedding_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "depth", "n_layer", "n_layers", "num_layers", "decoder_layers"), 4),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("num_decoder_layers", "num_decoder_attention_heads", "num_encoder_attention_heads"), 4),
    **dict.fromkeys(("encoder_layers", "num_encoder_layers"), 1),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim", "dff"), 48),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "n_inner", "d_inner"), 16),
    **dict.fromkeys(("shared_intermediate_size", "expert_ffn_hidden_size", "intermediate_size_mlp"), 16),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), 256),
    **dict.fromkeys(("initializer_range", "init_std"), 0.3),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("n_group", "topk_group", "n_groups", "mamba_n_groups", "mamba_ngroups"), 1),
    **dict.fromkeys(("mamba_d_state", "ssm_state_size", "state_size", "mamba_expand", "expand"), 2),
    **dict.fromkeys(("n_mamba_heads", "mamba_n_heads", "mamba_num_heads"), 4),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads", "linear_num_heads"), 4),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "linear_head_dim"), 8),
    "mamba_head_dim": 16,
    "vocab_size": 640,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
    **dict.fromkeys(("sliding_window", "sliding_window_size", "attention_window_size"), 12),
    **dict.fromkeys(("swa_num_attention_heads", "swa_num_key_value_heads"), 4),
    "swa_head_dim": 8,
    "d_rel": 4,
    "rel_extent": 32,
    "unpadded_vocab_size": 640,
    "rotary_dim": 4,
    "index_head_dim": 8,
    "index_n_heads": 2,
    "num_mtp_layers": 0,
    "num_nextn_predict_layers": 0,
}

_HYBRID = ["linear_attention", "full_attention"] * 2
_FOUR_KV_HEADS = {"num_key_value_heads": 4}
_SHARED_KEYS: dict[str, Any] = {
    "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "hidden_size_per_layer_input": 4,
    "vocab_size_per_layer_input": 640,
    "global_head_dim": 16,
}

OVERRIDES: dict[str, dict[str, Any]] = {
    "bailing_hybrid": {"layer_types": _HYBRID, "short_conv_kernel_size": 2},
    "bamba": {"attn_layer_indices": [1, 3]},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    },
    "cpmant": {"dim_head": 8, "prompt_length": 4, "prompt_types": 4},
    "big_bird": {"attention_type": "original_full"},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0}},
    "deepseek_v4": {"head_dim": 16, "layer_types": ["sliding_attention"] * 4},
    "dory": {"n_input_layers": 1, "n_output_layers": 1, "n_recurrent_layers": 2},
    "dots1": {"n_shared_experts": 1},
    "dots3_note_text": {  # its sliding layers have other head counts
        **_FOUR_KV_HEADS,
        **{f"swa_{name}": 16 for name in ("q_lora_rank", "kv_lora_rank", "head_dim", "v_head_dim")},
        "swa_qk_nope_head_dim": 8,
        "head_dim": 16,
        "swa_num_attention_heads": 8,
        "swa_num_key_value_heads": 8,
    },
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_d_head": 16},
    "gemma3_text": {"query_pre_attn_scalar": 8},
    "gemma3n_text": _SHARED_KEYS,
    "gemma4_text": _SHARED_KEYS,
    "gemma4_unified_text": _SHARED_KEYS,
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": 12},
    "granite": {"attention_multiplier": 0.3},
    "granitemoe": {"attention_multiplier": 0.3},
    "granitemoeshared": {"attention_multiplier": 0.3},
    "granite_swa": {"attention_multiplier": 0.3},
    "granitemoe_swa": {"attention_multiplier": 0.3},
    "granitemoehybrid": {"attention_multiplier": 0.3, "layer_types": _HYBRID},
    "hrm_text": {"embedding_scale": 1.0, "num_hidden_layers": 1},
    "inkling2_loop_text": {
        "loop_layer_index_start": 1,
        "loop_layer_index_end": 3,
        "loop_num_passes": 2,
        "n_layers_per_attn_res_block": 1,
    },
    "inkling2_text": {"n_layers_per_attn_res_block": 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "kimi_linear": {"layer_types": _HYBRID},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "mamba2": {"num_heads": 8},
    "minicpm3": {"scale_emb": 1},
    "modernbert-decoder": {"local_attention": 24},
    "nemotron": {"initializer_range": 0.15},
    "nemotron_h": {"layers_block_type": ["mamba", "attention", "moe", "attention"]},
    "qwen4_exp_text": {
        "layer_types": ["linear_attention", "indexed_attention"] * 2,
        "output_gate_type": "sigmoid",
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 8,
        "indexer_compress_ratio": 2,
    },
    "qwen3_next": {"initializer_range": 0.2},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "reformer": {"attn_layers": ["local", "lsh"], "num_buckets": 4, "axial_pos_embds": False},
    "rembert": {"initializer_range": 0.1},
    "xlm": {"causal": True, "init_std": 0.3, "embed_init_std": 0.3},
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "num_key_value_heads": 4,
        "attention_head_dim": 16,
    },
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "num_key_value_heads": 4,
        "attention_head_dim": 16,
        "adapter_rank": 4,
        "initializer_range": 0.2,
        "chunk_size": 16,
    },
    "zaya": {"num_experts_per_tok": 1},
}
"""What one type needs beside the shared sizes; a dictionary under a sub-config's name goes there."""

_MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}}

OVERRIDES |= {
    "emu3": {"vocabulary_map": {"<image>": 600}},
    "chameleon": {"vocabulary_map": {"<image>": 600}},
    "cosmos3_edge_text": _MROPE,
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"] * 2},
    "dots3_note_vision_encoder": {
        "adapter_in_dim": 32,
        "pyramid_num_routed": [-1] * 4,
        "adapter_out_dim": 32,
    },
    "dots3_note_audio_encoder": {"adapter_input_size": 32, "adapter_out_dim": 32},
    "ernie4_5_vl_moe_text": {
        "moe_intermediate_size": [16, 16],
        "num_attention_heads": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [3, 3, 2]},
    },
    "glm4v_text": _MROPE,
    "glm4v_moe_text": {**_MROPE, "head_dim": 16},
    "glm_ocr_text": {"rope_parameters": _MROPE["rope_parameters"] | {"partial_rotary_factor": 1.0}},
    "glmga": {"text_config": {"rope_parameters": _MROPE["rope_parameters"] | {"partial_rotary_factor": 1.0}}},
    "glm5_next_text": {"qk_rope_head_dim": 0},
    "granite4_vision": {
        "spatial_target_layers": [],
        "deepstack_layer_map": [],
        "downsample_rate": "2/4",
        "vision_config": {"hidden_size": 64},
    },
    "granite_docling": {"text_config": {"attention_multiplier": 1.0}},
    "granite_docling_vision": {"out_hidden_size": 32},
    "hunyuan_vl_text": _MROPE,
    "hy_v4_vl_text": _MROPE,
    "inkling2_vision": {"text_hidden_size": 32},
    "inkling2_loop_vision": {"text_hidden_size": 32},
    "molmo2": {"adapter_config": {"vision_feature_layer": [-1, -2]}},
    "muse_spark_text": {"initializer_range": 0.15},
    "muse_spark_audio": {"out_hidden_size": 32},
    "paddleocr_vl_text": _MROPE,
    "qwen2_5_omni_text": _MROPE,
    "qwen2_5_omni_thinker": {"vision_start_token_id": 601},
    "qwen2_5_vl_text": _MROPE,
    "qwen2_vl_text": _MROPE,
    "qwen2_vl_vision": {"embed_dim": 32},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": 601},
    "unlimited_ocr_text": {"num_key_value_heads": 4},
}
"""The same for text and vision towers of multimodal models."""


def tiny_causal_config(model_type: str, **overrides: Any) -> PreTrainedConfig:
    """The type's own config class with every size made small; ``overrides`` win."""
    return _config(CONFIG_MAPPING[model_type], OVERRIDES.get(model_type, {}) | overrides)


def _config(config_class: type[PreTrainedConfig], overrides: dict[str, Any]) -> PreTrainedConfig:
    declared = {field.name for field in dataclasses.fields(config_class)}
    values = {name: value for name, value in _FIELDS.items() if name in declared}
    if "kv_lora_rank" in declared:
        values["num_key_value_heads"] = values["num_attention_heads"]
    if "is_decoder" in declared:
        values["is_decoder"] = True
    special = [
        name for name in declared if name.endswith(("token_id", "token_index")) and name not in _FIELDS
    ]
    values |= {name: LARGEST_TEXT_TOKEN + 1 + i for i, name in enumerate(sorted(special))}
    sub_configs = _sub_config_classes(config_class)
    for name, sub_class in sub_configs.items():
        wanted = OVERRIDES.get(sub_class.model_type, {}) | overrides.get(name, {})
        values[name] = (_config(sub_class, wanted).to_dict() if sub_class.model_type else {}) | wanted
    values |= {name: value for name, value in overrides.items() if name not in sub_configs}
    return config_class(**copy.deepcopy(values))  # a config completes what it is given in place


def _sub_config_classes(config_class: type[PreTrainedConfig]) -> dict[str, type[PreTrainedConfig]]:
    specs = getattr(config_class, "sub_configs_defaults", None) or config_class.sub_configs or {}
    found = {}
    for name, spec in specs.items():
        sub_class = getattr(spec, "config_class", spec)
        found[name] = CONFIG_MAPPING[spec.model_type] if sub_class.__name__ == "AutoConfig" else sub_class
    return found


def tiny_causal_model(model_type: str, *, seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """A random float32 model with stock eager attention that is far from uniform."""
    torch.manual_seed(seed)
    config = tiny_causal_config(model_type, **overrides)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    sharpen(model)
    return model


def sharpen(model: PreTrainedModel) -> None:
    """Give vectors noise and matrices size, so that no norm weight, bias or sink stays without effect."""
    for name, parameter in model.named_parameters():
        if not parameter.is_floating_point():
            continue
        if parameter.ndim == 1:
            parameter.data += torch.randn_like(parameter) * (1.0 if "sinks" in name else 0.3)
        elif parameter.ndim == 2 and 0 < parameter.data.std() < 0.05:  # the class ignores initializer_range
            parameter.data *= 0.3 / parameter.data.std()
