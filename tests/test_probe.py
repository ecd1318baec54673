"""The probe against stock eager attention, recomputed independently (see tiny_models)."""

import numpy as np
import pytest
import torch
from scipy.special import expit
from tiny_models import TINY_CONFIGS, eager_prompt_masses, random_prompts, tiny_model
from transformers import PreTrainedModel

from zoo import architecture
from zoo.errors import ModelError
from zoo.probe import IMPLEMENTATION, Probe, make_batches
from zoo.records import BANDS, SLICES, LayerStatistics, RenderedPrompts
from zoo.strength import slice_statistics


def as_rendered(prompts: list[list[int]], *, shared_prefix_tokens: int = 0) -> RenderedPrompts:
    return RenderedPrompts(
        format="plain",
        token_ids=tuple(map(tuple, prompts)),
        shared_prefix_tokens=shared_prefix_tokens,
        prefix_tokens_text=(),
    )


def probe_statistics(
    model: PreTrainedModel, rendered: RenderedPrompts, *, tokens_per_batch: int = 10_000
) -> tuple[LayerStatistics, ...]:
    model.set_attn_implementation(IMPLEMENTATION)
    probe = Probe(
        model=model,
        layers=architecture.describe(model).attention_layers,
        prompt_count=len(rendered.token_ids),
        candidates=8,
        first_query=8,
        content_query=rendered.shared_prefix_tokens,
        thirds_P=rendered.length_thirds,
    )
    for batch in make_batches(rendered, tokens_per_batch=tokens_per_batch, device="cpu"):
        probe.forward(batch)
    return probe.statistics()


@pytest.mark.parametrize("tokens_per_batch", [1, 150, 10_000])
@pytest.mark.parametrize("model_type", TINY_CONFIGS)
def test_head_masses_equal_stock_eager_attention(model_type: str, tokens_per_batch: int) -> None:
    model, prompts = tiny_model(model_type), random_prompts(12)
    expected = eager_prompt_masses(model, prompts, candidates=8, first_query=8)
    measured = probe_statistics(model, as_rendered(prompts), tokens_per_batch=tokens_per_batch)
    assert len(measured) == len(expected) == 3
    for layer, masses_PHK in zip(measured, expected, strict=True):
        np.testing.assert_allclose(expit(layer.log_odds_RPHK[0]), masses_PHK, atol=1e-5)


def test_the_comparison_covers_windows_shorter_than_the_prompts() -> None:
    prompts = random_prompts(12)
    mistral = architecture.describe(tiny_model("mistral")).attention_layers
    gemma2 = architecture.describe(tiny_model("gemma2")).attention_layers
    assert max(map(len, prompts)) > 16
    assert [layer.sliding_window for layer in mistral] == [12, 12, 12]
    assert [layer.sliding_window for layer in gemma2] == [16, None, 16]


def test_the_content_region_starts_after_the_shared_prefix() -> None:
    model, prompts = tiny_model("llama"), random_prompts(6, shortest=20)
    expected = eager_prompt_masses(model, prompts, candidates=8, first_query=15)
    measured = probe_statistics(model, as_rendered(prompts, shared_prefix_tokens=15))
    for layer, masses_PHK in zip(measured, expected, strict=True):
        np.testing.assert_allclose(expit(layer.log_odds_RPHK[1]), masses_PHK, atol=1e-5)


def eager_slices(model: PreTrainedModel, prompts: list[list[int]], *, shared: int) -> np.ndarray:
    """The three statistics [L, 3, Z, H] at key 0, one prompt and query at a time from eager's weights."""
    thirds = as_rendered(prompts).length_thirds
    by_slice: dict[tuple[int, int], list[np.ndarray]] = {}
    for third, ids in zip(thirds, prompts, strict=True):
        with torch.no_grad():
            maps = model(torch.tensor([ids]), output_attentions=True, use_cache=False).attentions
        weights_LHQJ = torch.stack(maps)[:, 0].double().numpy()
        ranges = [
            (8, None),
            (max(8, shared), None),
            *BANDS,
            *((8, None) if third == t else (0, 0) for t in range(3)),
        ]
        for z, (first, end) in enumerate(ranges):
            for layer, weights_HQJ in enumerate(weights_LHQJ):
                rows = [
                    (row[:, 0], np.log(row[:, 0] / (1 - row[:, 0])), np.log((row[0] > 0).sum() - 1))
                    for row in weights_HQJ.swapaxes(0, 1)[first:end]
                    if row[0, 0] > 0
                ]
                if rows:
                    means = [np.mean(term, axis=0) for term in zip(*rows, strict=True)]
                    by_slice.setdefault((layer, z), []).append(
                        np.stack([means[0], means[1], means[1] + means[2]])
                    )
    result = np.full((len(weights_LHQJ), 3, len(SLICES), 4), np.nan)
    for (layer, z), prompts_P3H in by_slice.items():
        mass, mean, lift = np.mean(prompts_P3H, axis=0)
        result[layer, :, z] = np.log(mass / (1 - mass)), mean, lift
    return result


@pytest.mark.parametrize("model_type", ["llama", "mistral"])
def test_every_slice_equals_what_its_queries_give_in_eager_attention(model_type: str) -> None:
    model, prompts = tiny_model(model_type), random_prompts(9, longest=80)
    expected = eager_slices(model, prompts, shared=12)
    measured = probe_statistics(model, as_rendered(prompts, shared_prefix_tokens=12), tokens_per_batch=200)
    for layer, expected_3ZH in zip(measured, expected, strict=True):
        np.testing.assert_allclose(slice_statistics(layer, sink=0), expected_3ZH, atol=2e-4)
    assert np.isnan(expected).any() == (model_type == "mistral"), (
        "a window of 12 hides key 0 from late queries"
    )


def test_lift_is_zero_under_uniform_attention_whatever_the_band_and_length() -> None:
    model = tiny_model("gpt2")
    model.transformer.wpe.weight.data.zero_()
    measured = probe_statistics(model, as_rendered([[7] * length for length in (20, 45, 90)]))
    for layer in measured:
        np.testing.assert_allclose(slice_statistics(layer, sink=0)[2], 0, atol=1e-5)


def test_without_positions_a_repeated_token_has_mass_one_over_t() -> None:
    """With all keys alike, a query at position q sees q + 1 equal logits (arXiv:2410.10781, section 3)."""
    model = tiny_model("gpt2")
    model.transformer.wpe.weight.data.zero_()
    measured = probe_statistics(model, as_rendered([[7] * 30]))
    expected = np.mean([1 / (q + 1) for q in range(8, 30)])
    for layer in measured:
        np.testing.assert_allclose(expit(layer.log_odds_RPHK[0]), expected, rtol=1e-5)


def constant_sink_model(*, lead: float) -> PreTrainedModel:
    """One GPT-2 layer whose every query gives token 1 a logit ``lead`` nats above any other token."""
    model = tiny_model("gpt2", n_layer=1)
    model.transformer.wpe.weight.data.zero_()
    embedding = torch.zeros(512, 32)
    embedding[:, 1], embedding[1] = 1.0, torch.eye(32)[0]
    model.transformer.wte.weight.data = embedding
    block = model.transformer.h[0]
    block.ln_1.weight.data.fill_(1.0)
    block.ln_1.bias.data.zero_()
    one_hot = (31 / 32) / (31**0.5 / 32)  # a one-hot row after layer norm, at its one ...
    step = one_hot + (1 / 32) / (31**0.5 / 32)  # ... and how far above the rest of its entries
    weight, bias = torch.zeros(32, 96), torch.zeros(96)
    for head in range(4):
        bias[8 * head] = 8**0.5
        weight[0, 32 + 8 * head] = lead / step
    block.attn.c_attn.weight.data, block.attn.c_attn.bias.data = weight, bias
    return model


def test_bfloat16_log_odds_stay_right_where_eager_rounds_the_mass_to_one() -> None:
    prompts = [[1] + [7] * (length - 1) for length in (9, 12, 30)]
    model = constant_sink_model(lead=12.0).to(torch.bfloat16)
    eager_PHK = eager_prompt_masses(model, prompts, candidates=8, first_query=8)[0]
    assert (eager_PHK[:, :, 0] == 1.0).all(), "the model was made so that eager's masses round to 1"
    (layer,) = probe_statistics(model, as_rendered(prompts))
    for prompt, length in enumerate(map(len, prompts)):
        others = np.arange(8, length)
        mass = np.mean(1 / (1 + others * np.exp(-12.0)))
        expected = np.log(mass) - np.log(np.mean(others / (others + np.exp(12.0))))
        np.testing.assert_allclose(layer.log_odds_RPHK[0, prompt, :, 0], expected, atol=0.05)


def test_nan_weights_are_refused_and_not_taken_for_hidden_keys() -> None:
    model = tiny_model("llama")
    model.model.layers[1].self_attn.k_proj.weight.data[0, 0] = torch.nan
    with pytest.raises(ModelError, match=r"layers\.1\.self_attn has attention logits that are NaN"):
        probe_statistics(model, as_rendered(random_prompts(2)))


def test_attention_to_later_tokens_is_refused() -> None:
    model = tiny_model("llama")
    model.config.is_causal = False
    with pytest.raises(ModelError, match="attend to later ones"):
        probe_statistics(model, as_rendered(random_prompts(2)))


def test_a_layer_that_does_not_fire_is_a_failure() -> None:
    model = tiny_model("llama")
    model.set_attn_implementation(IMPLEMENTATION)
    skipped = model.model.layers[1]
    skipped.forward = lambda hidden_states, **kwargs: hidden_states
    with pytest.raises(ModelError, match=r"ran where model\.layers\.1\.self_attn was expected"):
        probe_statistics(model, as_rendered(random_prompts(2)))


def test_batches_hold_every_prompt_once_and_keep_to_the_token_limit() -> None:
    prompts = random_prompts(50, longest=60)
    batches = make_batches(as_rendered(prompts), tokens_per_batch=256, device="cpu")
    assert sorted(p for batch in batches for p in batch.prompts_B) == list(range(50))
    assert all(batch.token_ids_BQ.numel() <= 256 for batch in batches)
    for batch in batches:
        for prompt, ids, length in zip(batch.prompts_B, batch.token_ids_BQ, batch.lengths_B, strict=True):
            assert ids[:length].tolist() == prompts[prompt]
