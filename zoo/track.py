"""Sink Strength over the checkpoints of one training run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from catalog.query import run_query
from zoo.sources import Found, find_candidates

if TYPE_CHECKING:
    from catalog.store import Catalog
    from zoo.records import Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One checkpoint of a run; S, its interval and its change since the first in nats, None if it failed.

    ``fell`` tells whether S lies more than was allowed below the first checkpoint's.
    """

    name: str
    revision: str
    step: int | None
    sink_strength: float | None
    low: float | None
    high: float | None
    change: float | None
    fell: bool
    message: str | None


def find_checkpoints(run_dir: str) -> Found:
    """The checkpoints of a training run: the models in its folder and, as ``final``, one at its top.

    Raises SourceError when there is none.
    """
    found = find_candidates(run_dir)
    top = Path(run_dir).expanduser().resolve()
    if not (top / "config.json").is_file():
        return found
    inside = [find_candidates(str(config.parent)) for config in sorted(top.glob("*/config.json"))]
    final = [replace(its, model_id=f"{its.model_id.partition('/')[2]}/final") for its in found.candidates]
    return Found(
        candidates=(*(its for each in inside for its in each.candidates), *final),
        refusals=tuple(its for each in inside for its in each.refusals),
    )


def training_step(name: str) -> int | None:
    """The step in a checkpoint's name, such as 500 of ``checkpoint-500`` or ``global_step500-merged``.

    A version such as ``v1.0`` is none.
    """
    number = re.search(r"(?:checkpoint|ckpt|step|iter|epoch)\D{0,3}(\d+)|(?<![\d.vV])(\d+)$", name)
    return int(number[1] or number[2]) if number else None


def checkpoint_name(model_id: str) -> str:
    """What a checkpoint is called within its run: its folder, or its branch or tag on the Hub."""
    return (model_id.partition("@")[2] if "@" in model_id else model_id.partition("/")[2]) or model_id


def in_training_order(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """The checkpoints by step; those without a number (``final``) come last, by name."""

    def key(candidate: Candidate) -> tuple[bool, int, str]:
        name = checkpoint_name(candidate.model_id)
        step = training_step(name)
        return step is None, step or 0, name

    return tuple(sorted(candidates, key=key))


def tracked(
    catalog: Catalog,
    candidates: Sequence[Candidate],
    *,
    spec_id: str,
    max_fall: float | None = None,
    baseline: float | None = None,
) -> tuple[Checkpoint, ...]:
    """The candidates in training order with what the catalog measured of exactly these revisions.

    S falls against ``baseline`` (the backbone's S), or else against the first measured checkpoint.
    """
    found = {
        (model_id, revision): (s, low, high, message)
        for model_id, revision, s, low, high, message in run_query(
            catalog,
            "SELECT model_id, revision, sink_strength, interval_low, interval_high, message "
            "FROM outcomes WHERE counts AND spec_id = ?",
            parameters=[spec_id],
        ).rows
    }
    checkpoints = []
    for candidate in in_training_order(candidates):
        s, low, high, message = found.get(
            (candidate.model_id, candidate.revision), (None, None, None, "not measured yet")
        )
        if baseline is None:
            baseline = s
        change = None if s is None or baseline is None else s - baseline
        name = checkpoint_name(candidate.model_id)
        checkpoints.append(
            Checkpoint(
                name=name,
                revision=candidate.revision,
                step=training_step(name),
                sink_strength=s,
                low=low,
                high=high,
                change=change,
                fell=change is not None and max_fall is not None and change < -max_fall,
                message=message,
            )
        )
    return tuple(checkpoints)
