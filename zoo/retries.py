"""What becomes of a model whose task was lost: how it is tried again, or why it is given up; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from zoo.records import Candidate, RunOptions

Loss = Literal["worker_lost", "node_lost", "out_of_memory"]

TRIES: Mapping[str, int] = {"worker_lost": 3, "node_lost": 10}
"""How often a model is tried in all. A node that is preempted says less about the model than a crash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One try of one model: what it asks Ray for, how it runs, and how often it was lost before."""

    candidate: Candidate
    gpus: float
    cpus: int
    options: RunOptions
    losses: tuple[Loss, ...] = ()

    def after(self, loss: Loss) -> Try | None:
        """The next try; ``None`` when there is none.

        Memory that ran out halves the batch. A crash is tried twice more, a lost node nine times.
        """
        losses = (*self.losses, loss)
        if loss == "out_of_memory":
            halved = self.options.halved()
            return replace(self, losses=losses, options=halved) if halved else None
        return replace(self, losses=losses) if losses.count(loss) < TRIES[loss] else None

    def with_gpus(self, needed: int, *, most: float) -> Try | None:
        """The try with as many whole GPUs as a model loaded whole needs; ``None`` when no node has them."""
        return replace(self, gpus=needed) if self.gpus < needed <= most else None
