"""Laws of the sink statistics. Shape letters as in zoo.sinks."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zoo import sinks


def random_logits(seed: int, *, queries: int = 12, keys: int = 12) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits_BHQJ = torch.randn(2, 3, queries, keys, generator=generator) * 3
    return logits_BHQJ.masked_fill(torch.ones(queries, keys, dtype=torch.bool).triu(1), -torch.inf)


@given(seed=st.integers(0, 1000), shift=st.floats(-50, 50))
@settings(max_examples=25, deadline=None)
def test_log_odds_ignore_a_constant_shift_of_the_row(seed: int, shift: float) -> None:
    logits = random_logits(seed)
    before = sinks.sink_log_odds(logits, candidates=8)
    after = sinks.sink_log_odds(logits + shift, candidates=8)
    torch.testing.assert_close(after, before, atol=1e-4, rtol=1e-4)


@given(seed=st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_sigmoid_of_the_log_odds_is_the_softmax_weight(seed: int) -> None:
    logits = random_logits(seed)
    mass = torch.sigmoid(sinks.sink_log_odds(logits, candidates=8))
    torch.testing.assert_close(mass, logits.softmax(-1)[..., :8], atol=1e-6, rtol=1e-5)


def test_more_keys_with_the_same_logits_lower_the_mass() -> None:
    log_odds = [
        sinks.sink_log_odds(torch.zeros(1, 1, 1, keys), candidates=8)[0, 0, 0, 0].item()
        for keys in (9, 20, 90)
    ]
    assert log_odds == pytest.approx([-math.log(8), -math.log(19), -math.log(89)], abs=1e-6)


def test_a_mass_that_rounds_to_one_keeps_its_log_odds() -> None:
    logits = torch.zeros(1, 1, 1, 9)
    logits[..., 0] = 40.0
    assert logits.softmax(-1)[..., 0].item() == 1.0
    assert sinks.sink_log_odds(logits, candidates=8)[0, 0, 0, 0].item() == pytest.approx(40 - math.log(8))


def test_a_learned_sink_takes_its_share() -> None:
    logits = random_logits(3)
    sink = torch.tensor([1.0, -2.0, 5.0]).reshape(1, -1, 1, 1)
    joined = torch.cat([logits, sink.expand(2, 3, 12, 1)], dim=-1).softmax(-1)
    mass = torch.sigmoid(sinks.sink_log_odds(logits, candidates=8, sink_logit=sink))
    torch.testing.assert_close(mass, joined[..., :8], atol=1e-6, rtol=1e-5)
    values = torch.randn(2, 3, 12, 4)
    output = sinks.attention_output(logits, values, sink_logit=sink)
    torch.testing.assert_close(output, (joined[..., :-1] @ values).transpose(1, 2), atol=1e-5, rtol=1e-5)


def test_grouped_queries_attend_to_their_own_key_head() -> None:
    query, key = torch.randn(2, 6, 5, 8), torch.randn(2, 3, 5, 8)
    repeated = key.repeat_interleave(2, dim=1)
    expected = torch.einsum("bhqd,bhjd->bhqj", query, repeated) * 0.25
    torch.testing.assert_close(sinks.attention_logits(query, key, scaling=0.25), expected)


def test_soft_capped_logits_stay_within_the_cap() -> None:
    query, key = 100 * torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
    capped = sinks.attention_logits(query, key, scaling=1.0, softcap=30.0)
    assert capped.abs().max() <= 30
    torch.testing.assert_close(capped, 30 * torch.tanh(query @ key.transpose(-1, -2) / 30))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_an_additive_mask_hides_what_a_boolean_one_hides(dtype: torch.dtype) -> None:
    visible = torch.ones(6, 6, dtype=torch.bool).tril()
    additive = torch.zeros(6, 6, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)
    logits = torch.randn(1, 2, 6, 6)
    assert torch.equal(
        sinks.apply_mask(logits.clone(), visible), sinks.apply_mask(logits.clone(), additive[None, None])
    )


def test_prompt_mass_is_the_mean_over_used_queries_that_see_the_candidate() -> None:
    logits = random_logits(5)
    logits[:, :, 10:, 0] = -torch.inf
    log_odds = sinks.sink_log_odds(logits, candidates=8)
    used = sinks.used_queries(torch.tensor([12, 11]), queries=12, first=8)
    mass = torch.sigmoid(sinks.prompt_log_odds(log_odds, used_RBQ=used.unsqueeze(0))[0])
    weights = logits.softmax(-1)
    torch.testing.assert_close(mass[0, :, 0], weights[0, :, 8:10, 0].mean(-1), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(mass[0, :, 3], weights[0, :, 8:12, 3].mean(-1), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(mass[1, :, 3], weights[1, :, 8:11, 3].mean(-1), atol=1e-6, rtol=1e-5)


def test_a_candidate_no_used_query_sees_has_no_mass() -> None:
    logits = random_logits(6)
    logits[:, :, 8:, 2] = -torch.inf
    used = sinks.used_queries(torch.tensor([12, 12]), queries=12, first=8).unsqueeze(0)
    statistics = sinks.prompt_log_odds(sinks.sink_log_odds(logits, candidates=8), used_RBQ=used)
    assert statistics[..., 2].isnan().all()
    assert not statistics[..., :2].isnan().any()


def test_a_query_that_sees_no_key_yields_zeros_and_no_nan() -> None:
    hidden = torch.full((1, 1, 2, 3), -torch.inf)
    assert sinks.attention_output(hidden, torch.randn(1, 1, 3, 4)).abs().sum() == 0
