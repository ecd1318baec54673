"""Every model type from a checkpoint on disk: streamed, it is the whole model to the bit, or not streamed."""

from __future__ import annotations

from pathlib import Path

import pytest
from causal_lm_configs import MODEL_TYPES, tiny_causal_model
from test_conformance import prompts
from test_streaming import assert_identical, statistics
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from zoo import support

QUICK = frozenset({"bloom", "deepseek_v3", "gemma3_text", "gptj", "mixtral", "qwen3_next"})
"""Types compared in every test run; the others are behind the ``slow`` marker."""


COMPOSITES = frozenset({"emu3", "gemma3n", "mllama"})
"""Types whose checkpoints are composites: test_text_towers has them."""

LOADED_WHOLE = frozenset({"openai-gpt", "zamba", "zamba2"})
"""Types whose layers share modules, which only a whole load serves."""


def cases() -> list[object]:
    measured = [t for t in MODEL_TYPES if t not in support.REFUSED and t not in COMPOSITES]
    return [t if t in QUICK else pytest.param(t, marks=pytest.mark.slow) for t in measured]


@pytest.mark.parametrize("model_type", cases())
def test_a_type_is_streamed_to_the_bit_or_loaded_whole(model_type: str, tmp_path: Path) -> None:
    model = tiny_causal_model(model_type)
    model.config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]]
    model.save_pretrained(tmp_path, max_shard_size="200KB")
    several = 2 * prompts()
    whole, _ = statistics(tmp_path, several, load="whole")
    streamed, backbone = statistics(tmp_path, several, load="auto")
    assert_identical(whole, streamed)
    assert (backbone.load == "whole") == (model_type in LOADED_WHOLE), backbone.load_reason
