"""How far a running model is, and how long the models that are left will take; pure."""

from __future__ import annotations

from collections.abc import Iterable

from zoo.board import RunningModel
from zoo.records import Candidate

STARTING_BYTES = 10**9
"""What starting a worker costs a model, in bytes that could be fetched meanwhile."""


def remaining_seconds(
    *,
    done: Iterable[Candidate],
    left: Iterable[Candidate],
    ended_after_seconds: float,
    since_then_seconds: float,
) -> float | None:
    """What is left at the pace so far, a model costing a constant and its bytes.

    ``done`` took ``ended_after_seconds`` until the last of them, ``since_then_seconds`` ago. ``None``
    while nothing is known: before a first model has ended, and once the estimate has passed.
    """
    work_done, work_left = sum(map(_work, done)), sum(map(_work, left))
    if not work_left:
        return 0.0
    if not work_done:
        return None
    seconds = ended_after_seconds * work_left / work_done - since_then_seconds
    return seconds if seconds > 0 else None


def stage_text(running: RunningModel) -> str:
    """A model's stage, with how far its weights are and their rate once they stream."""
    if not running.planned_bytes:
        return running.stage
    fetched, planned = running.fetched_bytes / 1e6, running.planned_bytes / 1e6
    rate = fetched / max(running.model_seconds, 1e-3)
    return f"{running.stage} {fetched:,.0f} of {planned:,.0f} MB, {rate:,.0f} MB/s"


def _work(candidate: Candidate) -> int:
    return STARTING_BYTES + (candidate.weight_bytes or 0)
