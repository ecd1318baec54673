"""Tiny random models of the architectures whose attention differs, and eager attention to compare with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

SHAPE = {
    "vocab_size": 512,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

TINY_CONFIGS: dict[str, dict[str, object]] = {
    "llama": {},
    "qwen3": {},
    "olmo2": {"num_key_value_heads": 4},
    "gemma2": {"sliding_window": 16, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0},
    "mistral": {"sliding_window": 12},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16},
    "gpt2": {"n_embd": 32, "n_head": 4, "n_layer": 3, "n_positions": 256},
}


def tiny_config(model_type: str, **overrides: object) -> PreTrainedConfig:
    """A config of three small layers; sharp weights so that the attention is far from uniform."""
    extra = dict(TINY_CONFIGS[model_type])
    shape = {"vocab_size": 512} if model_type == "gpt2" else dict(SHAPE)
    return CONFIG_MAPPING[model_type](**(shape | extra | {"initializer_range": 0.3} | overrides))


def tiny_model(model_type: str, *, seed: int = 0, **overrides: object) -> PreTrainedModel:
    """A random float32 model with stock eager attention."""
    torch.manual_seed(seed)
    config = tiny_config(model_type, **overrides)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for name, parameter in model.named_parameters():
        # Norm weights and learned sinks start constant, which would hide a mistake with them.
        if parameter.ndim == 1:
            noise = torch.randn_like(parameter)
            parameter.data += noise if "sinks" in name else 0.3 * noise
    return model


def random_prompts(count: int, *, shortest: int = 9, longest: int = 40, seed: int = 0) -> list[list[int]]:
    """Token ids of ``count`` prompts of differing length; the shortest length is always among them."""
    generator = np.random.default_rng(seed)
    lengths = [shortest, *generator.integers(shortest, longest + 1, count - 1)]
    return [generator.integers(3, 512, length).tolist() for length in lengths]


def eager_prompt_masses(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], *, candidates: int, first_query: int
) -> list[np.ndarray]:
    """Per layer, mean softmax weights [P, H, K] over the queries that see each candidate.

    One prompt at a time, from the definition alone: stock eager attention's own probabilities, and
    visibility read off their zeros.
    """
    per_layer: list[list[np.ndarray]] = []
    for token_ids in prompts:
        with torch.no_grad():
            maps = model(
                input_ids=torch.tensor([token_ids]), output_attentions=True, use_cache=False
            ).attentions
        per_layer.append([])
        for map_BHQJ in maps:
            weights = map_BHQJ[0, :, first_query:, :candidates].double().numpy()
            seen = weights > 0
            with np.errstate(invalid="ignore"):
                per_layer[-1].append(weights.sum(1) / seen.sum(1))
    return [np.stack(layers) for layers in zip(*per_layer, strict=True)]
