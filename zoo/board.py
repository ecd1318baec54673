"""What a run knows while it goes on: one small actor that its tasks, its driver and ``zoo status`` share."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from uuid import uuid4

BOARD_NAMESPACE = "zoo"
"""The Ray namespace of all boards; a board's name is the id of its run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenRun:
    """What a run is: where its rows go, under which spec, and how many models it began with."""

    run_id: str
    catalog_uri: str
    spec_id: str
    models: int
    where: str
    started_at: str
    """UTC, ISO 8601."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """By reason, the models that were refused before the run began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningModel:
    """One model that runs now, by the board's own clock. ``planned_bytes`` is 0 until weights stream."""

    model_id: str
    stage: str
    model_seconds: float
    stage_seconds: float
    fetched_bytes: int = 0
    planned_bytes: int = 0

    def later(self, seconds: float) -> RunningModel:
        """The same so many seconds later."""
        model_seconds, stage_seconds = self.model_seconds + seconds, self.stage_seconds + seconds
        return replace(self, model_seconds=model_seconds, stage_seconds=stage_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCounts:
    """How far a run is, as its driver counts: models that ended, weights that were fetched."""

    measured: int = 0
    failed: Mapping[str, int] = field(default_factory=dict)
    """By reason."""
    fetched_bytes: int = 0
    elapsed_seconds: float = 0.0
    remaining_seconds: float | None = None
    """The driver's estimate; ``None`` until a first model has ended."""

    @property
    def done(self) -> int:
        """Models that ended, however they did."""
        return self.measured + sum(self.failed.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardLook:
    """One look at a run: its models by the candidate's stem, the seconds until the Hub's buckets open, and
    what its driver told last."""

    facts: ScreenRun
    born: str = ""
    """Another after the board was lost with its node, and with it all that it knew."""
    running: Mapping[str, RunningModel]
    hub_waits: Mapping[str, float]
    counts: RunCounts = field(default_factory=RunCounts)


@dataclass(slots=True)
class _Entry:
    model_id: str
    stage: str
    started: float
    entered: float
    fetched_bytes: int = 0
    planned_bytes: int = 0


class Board:
    """Every method is short, so that hundreds of tasks can share one board."""

    def __init__(self, facts: ScreenRun) -> None:
        self._facts, self._born = facts, uuid4().hex
        self._entries: dict[str, _Entry] = {}
        self._hub_open_at: dict[str, float] = {}
        self._counts = RunCounts()

    def tell(self, counts: RunCounts) -> None:
        """The driver says how far the run is."""
        self._counts = counts

    def start(self, stem: str, model_id: str) -> None:
        """A task begins with a model; whatever an earlier try left is forgotten."""
        now = time.monotonic()
        self._entries[stem] = _Entry(model_id, "start", now, now)

    def enter(self, stem: str, stage: str, fetched_bytes: int = 0, planned_bytes: int = 0) -> None:
        """A model enters a stage, or has fetched so much in the one it is in."""
        if (entry := self._entries.get(stem)) is None:
            return  # its driver has settled it
        if stage != entry.stage:
            entry.stage, entry.entered = stage, time.monotonic()
        if planned_bytes:
            entry.fetched_bytes, entry.planned_bytes = fetched_bytes, planned_bytes

    def leave(self, stem: str) -> None:
        """A model has ended, however it did."""
        self._entries.pop(stem, None)

    def close_hub(self, bucket: str, seconds: float) -> None:
        """One process met the Hub's rate limit: nobody asks this bucket for so long."""
        self._hub_open_at[bucket] = max(time.monotonic() + seconds, self._hub_open_at.get(bucket, 0.0))

    def hub_waits(self) -> dict[str, float]:
        """Seconds until each closed bucket of the Hub opens."""
        now = time.monotonic()
        return {bucket: at - now for bucket, at in self._hub_open_at.items() if at > now}

    def look(self) -> BoardLook:
        """The run as it is now."""
        now = time.monotonic()
        running = {
            stem: RunningModel(
                model_id=entry.model_id,
                stage=entry.stage,
                model_seconds=now - entry.started,
                stage_seconds=now - entry.entered,
                fetched_bytes=entry.fetched_bytes,
                planned_bytes=entry.planned_bytes,
            )
            for stem, entry in self._entries.items()
        }
        return BoardLook(
            facts=self._facts,
            born=self._born,
            running=running,
            hub_waits=self.hub_waits(),
            counts=self._counts,
        )
