"""The two real models: streamed from safetensors they measure what they measure whole."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from test_streaming import assert_identical, statistics, stored_bytes
from transformers import AutoConfig, AutoModelForCausalLM

from zoo.prompts import load_prompts, render


def as_safetensors(gguf: Path, folder: Path) -> Path:
    """The model of a GGUF file as bfloat16 safetensors: one that is loaded from GGUF does not save itself."""
    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    config = AutoConfig.from_pretrained(**where)
    state = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).state_dict()
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict(state)
    model.save_pretrained(folder, max_shard_size="100MB")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", ["smollm2", "gemma"])
def test_a_real_model_measures_the_same_streamed_and_whole(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = as_safetensors(request.getfixturevalue(f"{name}_path"), tmp_path)
    rendered = render(request.getfixturevalue(f"{name}_tokenizer"), load_prompts(12).texts)
    prompts = [list(ids) for ids in rendered.token_ids]
    for dtype in ("float32", "bfloat16"):
        whole, _ = statistics(folder, prompts, dtype=dtype, load="whole")
        streamed, backbone = statistics(folder, prompts, dtype=dtype, load="stream")
        assert_identical(whole, streamed)
        assert backbone.bytes_fetched() < 0.95 * stored_bytes(folder)
