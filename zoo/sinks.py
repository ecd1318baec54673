"""Attention logits to sink statistics: pure functions on tensors, in float32 and nats.

Shape letters: B prompts of a batch, H query heads, G KV heads, Q query positions, J key positions,
D head size, K candidate sink positions, R query regions, Z slices, T sums of a slice.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def attention_logits(
    query_BHQD: Tensor, key_BGJD: Tensor, *, scaling: float, softcap: float | None = None
) -> Tensor:
    """Float32 logits [B, H, Q, J] of post-rotary queries and keys, before any mask.

    Soft-capping is ``c * tanh(a / c)`` (arXiv:2408.00118, section 2).
    """
    batch, heads, queries, _ = query_BHQD.shape
    kv_heads, keys = key_BGJD.shape[1:3]
    grouped = query_BHQD.float().reshape(batch, kv_heads, heads // kv_heads * queries, -1)
    logits = torch.matmul(grouped, key_BGJD.float().transpose(-1, -2)).mul_(scaling)
    if softcap is not None:
        logits.div_(softcap).tanh_().mul_(softcap)
    return logits.reshape(batch, heads, queries, keys)


def apply_mask(logits_BHQJ: Tensor, mask: Tensor) -> Tensor:
    """The logits with hidden keys at ``-inf``; changes ``logits_BHQJ`` in place.

    ``mask`` broadcasts to [B, H, Q, J]: boolean (True = visible), or additive, where a value below half
    of its dtype's minimum hides the key.
    """
    if mask.dtype == torch.bool:
        return logits_BHQJ.masked_fill_(~mask, -torch.inf)
    hidden = mask < torch.finfo(mask.dtype).min / 2
    return logits_BHQJ.add_(mask.float()).masked_fill_(hidden, -torch.inf)


def sink_log_odds(logits_BHQJ: Tensor, *, candidates: int, sink_logit: Tensor | None = None) -> Tensor:
    """Log-odds [B, H, Q, K] of each candidate key against all other visible keys of its row.

    ``log_odds_k = a_k - logsumexp_{j != k} a_j``; its sigmoid is the softmax weight of k. A learned sink
    logit (broadcast to [B, H, Q, 1]) is one more key. ``-inf`` where the query cannot see the
    candidate, ``inf`` where it sees nothing else. The candidate is left out of the sum rather than
    subtracted from it, so a weight that rounds to 1 keeps its log-odds.
    """
    head_BHQK = logits_BHQJ[..., :candidates]
    rest_BHQ = logits_BHQJ[..., candidates:].logsumexp(-1)
    if sink_logit is not None:
        rest_BHQ = torch.logaddexp(rest_BHQ, sink_logit.float().squeeze(-1))
    columns = []
    for k in range(head_BHQK.shape[-1]):
        others = torch.cat([head_BHQK[..., :k], head_BHQK[..., k + 1 :], rest_BHQ.unsqueeze(-1)], dim=-1)
        columns.append(head_BHQK[..., k] - others.logsumexp(-1))
    log_odds_BHQK = torch.stack(columns, dim=-1)
    return log_odds_BHQK.masked_fill(head_BHQK == -torch.inf, -torch.inf)


def used_queries(lengths_B: Tensor, *, queries: int, first: int, end: int | None = None) -> Tensor:
    """Boolean [B, Q]: positions from ``first`` up to each prompt's length, and before ``end``."""
    position_Q = torch.arange(queries, device=lengths_B.device)
    before_end_Q = position_Q < (queries if end is None else end)
    return (position_Q >= first) & before_end_Q & (position_Q < lengths_B.unsqueeze(-1))


def prompt_log_odds(log_odds_BHQK: Tensor, *, used_RBQ: Tensor) -> Tensor:
    """Logit [R, B, H, K] (nats) of the mean mass over each region's used queries that see the candidate.

    Both the mean mass and the mean of what it leaves are formed in log space, so neither 0 nor 1 is
    rounded to. NaN where a region has no query that sees the candidate.
    """
    visible_BHQK = log_odds_BHQK > -torch.inf
    sink, rest = logsigmoid(log_odds_BHQK), logsigmoid(-log_odds_BHQK)
    regions = []
    for used_BQ in used_RBQ:
        left_out = ~(used_BQ[:, None, :, None] & visible_BHQK)
        log_mass = sink.masked_fill(left_out, -torch.inf).logsumexp(-2)
        log_rest = rest.masked_fill(left_out, -torch.inf).logsumexp(-2)
        regions.append((log_mass - log_rest).masked_fill(left_out.all(-2), torch.nan))
    return torch.stack(regions)


SLICE_SUMS = 5
"""How many sums ``slice_sums`` yields for a slice."""


def slice_sums(
    log_odds_BHQK: Tensor, *, used_RBQ: Tensor, other_keys_BQ: Tensor, slices_ZRB: Tensor
) -> Tensor:
    """Five float64 sums over the batch's prompts [5, Z, H, K] of what each prompt's used queries average to.

    The mass of the candidate, what it leaves, its log-odds (nats), ln of the other visible keys, and 1
    for every prompt that has a used query which sees the candidate. ``slices_ZRB`` is 1 where a slice
    takes a prompt's queries of a region. A sum is infinite where a candidate is all that a query sees.
    """
    regions, batch, queries = used_RBQ.shape
    left_out = (log_odds_BHQK == -torch.inf) | ~used_RBQ.any(0)[:, None, :, None]
    ln_keys_BHQK = other_keys_BQ.float().log()[:, None, :, None].expand_as(log_odds_BHQK)
    mass, rest = log_odds_BHQK.sigmoid(), (-log_odds_BHQK).sigmoid()
    terms = (mass, rest, log_odds_BHQK, ln_keys_BHQK, torch.ones_like(mass))
    terms_TBHQK = torch.stack([term.masked_fill(left_out, 0) for term in terms])
    used_BRQ = used_RBQ.transpose(0, 1).float()
    flat_BQX = terms_TBHQK.permute(1, 3, 0, 2, 4).reshape(batch, queries, -1)
    shape = (batch, regions, len(terms), *log_odds_BHQK.shape[1::2])
    totals_BRTHK = torch.matmul(used_BRQ, flat_BQX).reshape(shape)
    seen_BRHK = totals_BRTHK[:, :, -1]
    means_BRTHK = totals_BRTHK / seen_BRHK.clamp_min(1).unsqueeze(2)  # the last becomes 1 or 0
    return torch.einsum("zrb,brthk->tzhk", slices_ZRB.double(), means_BRTHK.double())


def attention_output(logits_BHQJ: Tensor, value_BGJD: Tensor, *, sink_logit: Tensor | None = None) -> Tensor:
    """Weighted values [B, Q, H, D], the weights rounded to the values' dtype as eager attention does."""
    batch, heads, queries, keys = logits_BHQJ.shape
    kv_heads = value_BGJD.shape[1]
    if sink_logit is not None:
        sinks_BHQ1 = sink_logit.float().expand(batch, heads, queries, 1)
        logits_BHQJ = torch.cat([logits_BHQJ, sinks_BHQ1], dim=-1)
    weights_BHQJ = logits_BHQJ.softmax(-1)[..., :keys]
    # A padded query may see no key at all; its weights are 0, so that no NaN reaches a real query.
    weights = weights_BHQJ.nan_to_num(0.0).to(value_BGJD.dtype)
    grouped = weights.reshape(batch, kv_heads, heads // kv_heads * queries, keys)
    output = torch.matmul(grouped, value_BGJD).reshape(batch, heads, queries, -1)
    return output.transpose(1, 2).contiguous()
