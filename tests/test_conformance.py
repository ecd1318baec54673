"""Every causal language model type of transformers: measured as its own eager attention says, or refused.

The truth is the model's stock eager attention in float32, one prompt at a time: the maps it returns, as
they are. Two types return maps without the share their learned sink takes (their attention output is
scaled by it instead); there the share is computed from the model's own logsumexp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from causal_lm_configs import LARGEST_TEXT_TOKEN, MODEL_TYPES, tiny_causal_config, tiny_causal_model
from scipy.special import expit
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from zoo import architecture, support
from zoo.errors import ModelError
from zoo.probe import Probe, make_batches
from zoo.records import Architecture, LayerStatistics, RenderedPrompts

CANDIDATES = 8
LENGTHS = (9, 36, 25)

QUICK = frozenset(
    {
        "bloom",
        "deepseek_v3",
        "diffllama",
        "falcon",
        "gemma3_text",
        "glm4",
        "gpt_oss",
        "gptj",
        "granite_swa",
        "llama",
        "llama4_text",
        "minimax",
        "mistral",
        "mixtral",
        "mpt",
        "olmo2",
        "phi3",
        "qwen3",
        "qwen3_next",
        "zamba",
    }
)
"""Types compared in every test run; the others are behind the ``slow`` marker."""

SINK_OUTSIDE_THE_MAP = frozenset({"granite_swa", "granitemoe_swa"})

LOOKS_UP_KEYS = frozenset({"qwen4_exp", "qwen4_exp_text"})
"""Types whose tiny model hides distant keys that its indexer did not choose."""

REFUSAL_REASONS = frozenset(
    {
        "attention_not_observable",
        "encoder_decoder",
        "missing_library",
        "needs_image",
        "no_attention",
        "not_causal",
        "not_causal_lm",
    }
)


def prompts() -> list[list[int]]:
    generator = np.random.default_rng(0)
    return [generator.integers(3, LARGEST_TEXT_TOKEN + 1, length).tolist() for length in LENGTHS]


class _LogSumExps(TorchFunctionMode):
    """Collects what torch.logsumexp returns: one tensor [B, H, Q] for each layer."""

    def __init__(self) -> None:
        super().__init__()
        self.collected: list[torch.Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.logsumexp:
            self.collected.append(result)
        return result


def eager_maps(model: PreTrainedModel, token_ids: Sequence[int]) -> list[np.ndarray]:
    """The softmax weights [H, Q, J] of each attention layer, as stock eager attention returns them."""
    # Llama 4's composite fails after its language model has run, when it looks for images.
    run = model.get_decoder() if type(model).__name__ == "Llama4ForConditionalGeneration" else model
    with torch.no_grad(), _LogSumExps() as sums:
        output = run(input_ids=torch.tensor([token_ids]), output_attentions=True, use_cache=False)
    # MiniMax's lightning layers put their state [head size, head size] where others put a map.
    maps = [m for m in output.attentions if m.ndim == 4 and m.shape[2] == len(token_ids)]
    if model.config.model_type in SINK_OUTSIDE_THE_MAP:
        sinks = [p for name, p in model.named_parameters() if name.endswith("sinks")]
        shares = [(s - sink.view(1, -1, 1)).sigmoid() for s, sink in zip(sums.collected, sinks, strict=True)]
        maps = [m * share.unsqueeze(-1) for m, share in zip(maps, shares, strict=True)]
    return [m[0].double().detach().numpy() for m in maps]


def expected_masses(maps_HQJ: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Per layer, mean weights [H, K] over the queries from K on that see the candidate (weight above 0)."""
    masses = []
    for map_HQJ in maps_HQJ:
        weights_HQK = map_HQJ[:, CANDIDATES:, :CANDIDATES]
        with np.errstate(invalid="ignore"):
            masses.append(weights_HQK.sum(1) / (weights_HQK > 0).sum(1))
    return masses


def measure(
    model: PreTrainedModel, described: Architecture, *, tokens_per_batch: int
) -> tuple[LayerStatistics, ...]:
    token_ids = prompts()
    rendered = RenderedPrompts(
        format="plain",
        token_ids=tuple(map(tuple, token_ids)),
        shared_prefix_tokens=0,
        prefix_tokens_text=(),
    )
    model.set_attn_implementation(architecture.attention_implementation(model))
    probe = Probe(
        model=model,
        layers=described.attention_layers,
        prompt_count=len(token_ids),
        candidates=CANDIDATES,
        first_query=CANDIDATES,
        content_query=CANDIDATES,
    )
    for batch in make_batches(rendered, tokens_per_batch=tokens_per_batch, device="cpu"):
        probe.forward(batch)
    return probe.statistics()


def assert_measured_exactly(
    model: PreTrainedModel, described: Architecture, *, looks_up_keys: bool = False
) -> None:
    maps_PL = [eager_maps(model, token_ids) for token_ids in prompts()]
    expected_PL = [expected_masses(maps) for maps in maps_PL]
    # An indexer's equal scores make its choice of keys depend on the padding, in eager attention as well.
    measured = measure(model, described, tokens_per_batch=1 if looks_up_keys else 10_000)
    assert [len(layers) for layers in expected_PL] == [len(measured)] * len(LENGTHS)
    for layer, statistics in enumerate(measured):
        for prompt, layers in enumerate(expected_PL):
            mass_HK = expit(statistics.log_odds_RPHK[0, prompt])
            np.testing.assert_allclose(mass_HK, layers[layer], atol=1e-5)
    longest = maps_PL[LENGTHS.index(max(LENGTHS))]
    for statistics, map_HQJ in zip(measured, longest, strict=True):
        assert_window_is_what_the_map_shows(statistics, map_HQJ, looks_up_keys=looks_up_keys)
    assert max(np.nanstd(masses) for masses in expected_PL[-1]) > 0.01, "attention is too uniform to tell"


def assert_window_is_what_the_map_shows(
    statistics: LayerStatistics, map_HQJ: np.ndarray, *, looks_up_keys: bool
) -> None:
    tokens = map_HQJ.shape[1]
    query_Q, key_J = np.arange(tokens)[:, None], np.arange(tokens)
    farthest = (query_Q - key_J)[(map_HQJ[:, :, :tokens] > 0).any(0)].max()
    window = statistics.layer.sliding_window
    assert farthest == min(window or tokens, tokens) - 1 or (window is None and looks_up_keys)


def raw_config(model_type: str) -> dict[str, Any]:
    """What a checkpoint of the type has in its config.json."""
    config = tiny_causal_config(model_type)
    config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]]
    return config.to_dict()


def cases() -> list[Any]:
    return [t if t in QUICK else pytest.param(t, marks=pytest.mark.slow) for t in MODEL_TYPES]


@pytest.mark.parametrize("model_type", cases())
def test_each_type_is_measured_as_eager_attention_says_or_refused(model_type: str) -> None:
    if model_type in support.REFUSED:
        with pytest.raises(ModelError) as refusal:
            architecture.parse_config({"model_type": model_type})
        assert (refusal.value.stage, refusal.value.reason) == ("plan", support.REFUSED[model_type][0])
        assert refusal.value.reason in REFUSAL_REASONS
        return
    if model_type == "gemma3n":
        pytest.skip("measured on its language model, in test_text_towers")
    config = architecture.parse_config(raw_config(model_type))
    described = architecture.describe(architecture.build_on_meta(config))
    looks_up_keys = model_type in LOOKS_UP_KEYS
    assert_measured_exactly(tiny_causal_model(model_type), described, looks_up_keys=looks_up_keys)


VARIANTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("cohere", {"use_qk_norm": True}),
    ("deepseek_v2", {"q_lora_rank": None}),
    ("deepseek_v32", {"index_topk": 10}),
    ("deepseek_v4", {"layer_types": ["compressed_sparse_attention", "heavily_compressed_attention"] * 2}),
    ("falcon", {"alibi": True, "multi_query": False}),
    ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    ("glm4_moe", {"use_qk_norm": True}),
    ("glm_moe_dsa", {"index_topk": 10}),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True}),
    ("gpt_bigcode", {"multi_query": False}),
    ("llama4_text", {"attention_chunk_size": 16}),
    (
        "minimax_m3_vl_text",
        {"layer_types": ["minimax_m3_sparse"] * 4, "index_block_size": 4, "index_topk_blocks": 2},
    ),
    ("olmo", {"clip_qkv": 2.0}),
    ("opt", {"do_layer_norm_before": False, "word_embed_proj_dim": 16}),
    ("phi", {"qk_layernorm": True}),
    ("qwen2", {"use_sliding_window": True, "max_window_layers": 2}),
    ("qwen3", {"use_sliding_window": True, "max_window_layers": 2}),
    ("stablelm", {"qk_layernorm": True, "use_parallel_residual": True}),
)
"""Switches of a type's config that change its attention."""


@pytest.mark.slow
@pytest.mark.parametrize(("model_type", "switches"), VARIANTS)
def test_switches_of_a_config_are_measured_as_eager_attention_says(
    model_type: str, switches: dict[str, Any]
) -> None:
    model = tiny_causal_model(model_type, **switches)
    looks_up_keys = any(word in name for name in switches for word in ("index", "chunk"))
    assert_measured_exactly(model, architecture.describe(model), looks_up_keys=looks_up_keys)


def test_every_type_has_a_verdict_and_none_has_two() -> None:
    assert not support.MEASURED & support.REFUSED.keys()
    assert set(MODEL_TYPES) <= support.MEASURED | support.REFUSED.keys()
