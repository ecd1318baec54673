"""What is refused is refused at plan, from the config alone, with the reason that is true of it."""

from __future__ import annotations

from typing import Any

import pytest
from causal_lm_configs import tiny_causal_config

from zoo import architecture, support
from zoo.errors import ModelError
from zoo.probe import Probe, make_batches
from zoo.records import RenderedPrompts


def refusal(raw: dict[str, Any]) -> tuple[str, str]:
    with pytest.raises(ModelError) as caught:
        architecture.parse_config(raw)
    return caught.value.stage, caught.value.reason


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ({"model_type": "mamba"}, "no_attention"),
        ({"model_type": "rwkv"}, "no_attention"),
        ({"model_type": "bert"}, "not_causal"),
        ({"model_type": "xlm"}, "not_causal"),
        ({"model_type": "xlnet"}, "not_causal"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "not_causal"),
        ({"model_type": "llama", "is_causal": False}, "not_causal"),
        ({"model_type": "bart"}, "encoder_decoder"),
        (
            {"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"]},
            "not_causal_lm",
        ),
        ({"model_type": "llama", "architectures": ["LlamaForSequenceClassification"]}, "not_causal_lm"),
        ({"model_type": "t5"}, "not_causal_lm"),
        ({"model_type": "big_bird", "is_decoder": True}, "attention_not_observable"),
        ({"model_type": "idefics"}, "needs_image"),
        ({"model_type": "llava", "text_config": {"model_type": "mamba"}}, "no_attention"),
        ({"model_type": "brand_new"}, "unknown_architecture"),
        ({"model_type": "llama", "auto_map": {"AutoModelForCausalLM": "x.Y"}}, "remote_code_required"),
    ],
)
def test_each_reason_is_known_from_the_config(raw: dict[str, Any], reason: str) -> None:
    assert refusal(raw) == ("plan", reason)


def test_a_decoder_of_an_encoder_family_is_no_encoder() -> None:
    for model_type, name in (("bert", "BertLMHeadModel"), ("bart", "BartForCausalLM")):
        config = tiny_causal_config(model_type)
        config.architectures = [name]
        assert architecture.parse_config(config.to_dict()).model_type == model_type


def test_a_type_that_was_never_compared_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "MEASURED", support.MEASURED - {"qwen3"})
    assert refusal({"model_type": "qwen3"}) == ("plan", "unknown_architecture")
    assert refusal({"model_type": "internvl", "text_config": {"model_type": "qwen3"}}) == (
        "plan",
        "unknown_architecture",
    )


def test_a_tensor_the_probe_does_not_know_is_refused_rather_than_left_out() -> None:
    model = architecture.model_class(config := tiny_causal_config("llama")).from_config(config).eval()
    model.set_attn_implementation(architecture.attention_implementation(model))
    token_ids = tuple(range(3, 20))
    rendered = RenderedPrompts(
        format="plain", token_ids=(token_ids,), shared_prefix_tokens=0, prefix_tokens_text=()
    )
    (batch,) = make_batches(rendered, tokens_per_batch=100, device="cpu")
    probe = Probe(
        model=model,
        layers=architecture.describe(model).attention_layers,
        prompt_count=1,
        candidates=8,
        first_query=8,
        content_query=8,
    )
    first = model.model.layers[0].self_attn
    forward = first.forward
    first.forward = lambda *args, **kwargs: forward(*args, **kwargs, new_bias=batch.lengths_B)
    with pytest.raises(ModelError, match="a tensor 'new_bias' that zoo does not know"):
        probe.forward(batch)
