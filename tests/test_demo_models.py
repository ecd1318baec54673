"""The two real models of the demo against stock eager attention, loaded and recomputed independently."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import expit
from test_measure import SPEC, eager_strength
from transformers import AutoModelForCausalLM

from zoo.measure import measure
from zoo.records import Candidate, Measurement
from zoo.sources import find_candidates

DEMO = {
    "demo/SmolLM2-135M-Instruct-Q4_1": ("chat", "none", 30, 9, 3),
    "demo/gemma-3-270m-Q4_K_M": ("plain", "per_head", 18, 4, 1),
}


@pytest.fixture(scope="module")
def demo_candidates() -> dict[str, Candidate]:
    return {candidate.model_id: candidate for candidate in find_candidates("demo").candidates}


@pytest.mark.parametrize("model_id", DEMO)
def test_a_real_model_measures_as_stock_eager_attention(
    model_id: str, demo_candidates: dict[str, Candidate]
) -> None:
    prompt_format, qk_norm, layers, heads, kv_heads = DEMO[model_id]
    candidate = demo_candidates[model_id]
    result = measure(candidate, spec=SPEC)
    assert isinstance(result, Measurement), result
    assert result.prompts.format == prompt_format
    assert result.architecture.qk_norm == qk_norm
    assert len(result.architecture.attention_layers) == layers
    assert {(layer.heads, layer.kv_heads) for layer in result.architecture.attention_layers} == {
        (heads, kv_heads)
    }
    path = Path(candidate.location)
    eager = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, attn_implementation="eager", dtype=torch.float32
    )
    expected, masses = eager_strength(eager, result)
    assert result.sink_strength == pytest.approx(expected, abs=1e-4)
    assert result.strength.sink_position == 0
    for row in result.strength.heads:
        np.testing.assert_allclose(expit(row.prompt_log_odds), masses[row.layer][:, row.head], atol=1e-5)
