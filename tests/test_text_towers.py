"""Multimodal models are measured on their language model alone, as its own eager attention says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from causal_lm_configs import sharpen, tiny_causal_config, tiny_causal_model
from safetensors.torch import save_file
from test_conformance import REFUSAL_REASONS, assert_measured_exactly
from test_quantization import assert_measures_as
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as COMPOSITES

from zoo import architecture, support
from zoo.errors import ModelError

QUICK = frozenset({"gemma3", "llava", "llama4", "mllama", "paligemma", "qwen2_5_vl", "qwen3_vl", "smolvlm"})

TEXT_ALONE = frozenset({"gemma3n"})
"""Types whose composite cannot be built without timm; their language model is measured by itself."""

UNCHECKED = frozenset({"apertus1p5", "nemotron_h_omni"})
"""Types without a tiny configuration here; zoo refuses them as unknown."""


def composite_config(model_type: str) -> PreTrainedConfig:
    config = tiny_causal_config(model_type)
    config.architectures = [COMPOSITES[model_type]]
    return config


def tiny_composite(model_type: str) -> PreTrainedModel:
    torch.manual_seed(0)
    config = composite_config(model_type)
    model = architecture.model_class(config).from_config(config, attn_implementation="eager").eval()
    sharpen(model)
    return model


def cases() -> list[Any]:
    return [t if t in QUICK else pytest.param(t, marks=pytest.mark.slow) for t in sorted(COMPOSITES)]


@pytest.mark.parametrize("model_type", cases())
def test_each_multimodal_type_is_measured_on_its_text_or_refused(model_type: str) -> None:
    if model_type in support.REFUSED:
        with pytest.raises(ModelError) as refusal:
            architecture.parse_config({"model_type": model_type})
        assert refusal.value.reason in REFUSAL_REASONS
        return
    if model_type in UNCHECKED:
        with pytest.raises(ModelError, match="was not checked against"):
            architecture.parse_config({"model_type": model_type})
        return
    if model_type in TEXT_ALONE:
        pytest.skip("see test_gemma_3n_is_loaded_from_the_checkpoint_of_its_composite")
    config = architecture.parse_config(composite_config(model_type).to_dict())
    meta = architecture.build_on_meta(config)
    described = architecture.describe(meta)
    model = tiny_composite(model_type)
    assert type(model).__name__ == COMPOSITES[model_type] == described.architecture
    looks_up_keys = model_type in ("qwen4_exp",)
    assert_measured_exactly(model, described, looks_up_keys=looks_up_keys)


def test_only_the_language_model_is_counted() -> None:
    model = tiny_composite("llava")
    described = architecture.describe(model)
    tower = model.get_submodule(described.text_tower)
    assert described.text_tower == "model.language_model"
    assert described.parameters == sum(p.numel() for p in tower.parameters())
    assert all(layer.module_name.startswith("model.language_model.") for layer in described.attention_layers)


@pytest.mark.parametrize("model_type", ["gemma3", "llava", "qwen2_5_vl"])
def test_a_multimodal_checkpoint_is_loaded_and_measured_on_its_text(tmp_path: Path, model_type: str) -> None:
    model = tiny_composite(model_type)
    model.config.architectures = [COMPOSITES[model_type]]
    model.save_pretrained(tmp_path)
    assert_measures_as(tmp_path, model)


def test_gemma_3n_is_loaded_from_the_checkpoint_of_its_composite(tmp_path: Path) -> None:
    """The composite itself needs timm; its checkpoint names the language model's tensors with a prefix."""
    model = tiny_causal_model("gemma3n_text")
    raw = {"model_type": "gemma3n", "architectures": ["Gemma3nForConditionalGeneration"]}
    (tmp_path / "config.json").write_text(json.dumps(raw | {"text_config": model.config.to_dict()}))
    text = {
        name.replace("model.", "model.language_model.", 1): tensor.contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"
    }
    towers = {"model.vision_tower.timm_model.blocks.0.0.conv.weight": torch.ones(2, 2)}
    save_file(text | towers, tmp_path / "model.safetensors")
    assert_measures_as(tmp_path, model)
