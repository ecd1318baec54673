"""Right-padded batches of the calibration prompts; shape letters: B prompts of a batch, Q positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from zoo.records import RenderedPrompts


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Right-padded prompts: which ones, their token ids [B, Q] and lengths [B]."""

    prompts_B: np.ndarray
    token_ids_BQ: Tensor
    lengths_B: Tensor


def make_batches(prompts: RenderedPrompts, *, tokens_per_batch: int, device: str) -> list[Batch]:
    """Group prompts of similar length into right-padded batches of at most ``tokens_per_batch`` tokens.

    A prompt longer than that is a batch of its own.
    """
    lengths_P = np.array([len(ids) for ids in prompts.token_ids])
    groups: list[list[int]] = []
    for prompt in np.argsort(lengths_P, kind="stable"):
        longest = int(lengths_P[prompt])
        if groups and longest * (len(groups[-1]) + 1) <= tokens_per_batch:
            groups[-1].append(int(prompt))
        else:
            groups.append([int(prompt)])
    return [_pad([prompts.token_ids[p] for p in group], group, device=device) for group in groups]


def _pad(token_ids: Sequence[Sequence[int]], prompts: list[int], *, device: str) -> Batch:
    rows = [torch.tensor(ids) for ids in token_ids]
    return Batch(
        prompts_B=np.array(prompts),
        token_ids_BQ=nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device),
        lengths_B=torch.tensor([len(row) for row in rows], device=device),
    )
