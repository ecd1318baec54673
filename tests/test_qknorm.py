"""The QK-norm kind is read from the module, so the config's switches decide it."""

from __future__ import annotations

from typing import Any

import pytest
from causal_lm_configs import tiny_causal_config

from zoo.architecture import build_on_meta, describe


@pytest.mark.parametrize(
    ("model_type", "switches", "kind", "position", "weighted"),
    [
        ("llama", {}, "none", None, None),
        ("qwen3", {}, "per_head", "before_rotary", True),
        ("hunyuan_v1_dense", {}, "per_head", "after_rotary", True),
        ("llama4_text", {}, "per_head", "after_rotary", False),
        ("llama4_text", {"use_qk_norm": False}, "none", None, None),
        ("nanochat", {}, "per_head", "after_rotary", False),
        ("olmo2", {}, "layerwise", "before_rotary", True),
        ("minimax_m2", {}, "layerwise", "before_rotary", True),
        ("cohere", {"use_qk_norm": True}, "per_head", "before_rotary", True),
        ("cohere", {"use_qk_norm": False}, "none", None, None),
        ("stablelm", {"qk_layernorm": True}, "per_head", "before_rotary", True),
        ("phi", {"qk_layernorm": True}, "per_head", "before_rotary", True),
        ("deepseek_v3", {}, "other", "before_rotary", True),
        ("deepseek_v2", {"q_lora_rank": None}, "other", "before_rotary", True),
        ("gemma3n_text", {}, "per_head", "before_rotary", True),
        ("qwen3_next", {}, "per_head", "before_rotary", True),
    ],
)
def test_kind_place_and_weight_follow_the_built_module(
    model_type: str, switches: dict[str, Any], kind: str, position: str | None, weighted: bool | None
) -> None:
    described = describe(build_on_meta(tiny_causal_config(model_type, **switches)))
    seen = (described.qk_norm, described.qk_norm_position, described.qk_norm_weighted)
    assert seen == (kind, position, weighted)
    assert bool(described.qk_norm_modules) == (kind != "none")


def test_heads_of_one_width_are_no_layerwise_norm() -> None:
    """With one head both widths agree, and a norm over the only head is per head."""
    described = describe(
        build_on_meta(tiny_causal_config("qwen3", num_attention_heads=1, num_key_value_heads=1))
    )
    assert described.qk_norm == "per_head"
