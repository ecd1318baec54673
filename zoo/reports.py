"""What a screening run says while it runs and when it ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from zoo.records import Candidate, Failure, Outcome

if TYPE_CHECKING:
    from catalog.store import Recorded
    from zoo.board import BoardLook


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """How one model ended: the small record that travels from a task to the driver."""

    model_id: str
    revision: str
    status: Literal["measured", "failed"]
    wall_seconds: float = 0.0
    sink_strength: float | None = None
    """Nats; ``None`` for a failure."""
    stage: str = ""
    reason: str = ""
    message: str = ""
    transient: bool = False
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    """Wall seconds by stage."""
    bytes_fetched: int = 0
    """Bytes of weights."""
    gpus_needed: int = 0
    """How many GPUs a model that failed for their memory would need; 0 for all others."""

    @classmethod
    def of(cls, outcome: Outcome, *, wall_seconds: float) -> TaskReport:
        """The report of a measurement or a failure that took ``wall_seconds``."""
        model_id, revision = outcome.candidate.model_id, outcome.candidate.revision
        if isinstance(outcome, Failure):
            return cls(
                model_id=model_id,
                revision=revision,
                status="failed",
                wall_seconds=wall_seconds,
                stage=outcome.stage,
                reason=outcome.reason,
                message=outcome.message,
                transient=outcome.transient,
                stage_seconds=dict(outcome.wall_seconds),
                gpus_needed=outcome.gpus_needed,
            )
        return cls(
            model_id=model_id,
            revision=revision,
            status="measured",
            wall_seconds=wall_seconds,
            sink_strength=outcome.sink_strength,
            stage_seconds=dict(outcome.run.wall_seconds),
            bytes_fetched=outcome.run.bytes_fetched or 0,
        )

    @classmethod
    def of_recorded(cls, candidate: Candidate, recorded: Recorded) -> TaskReport:
        """The report of what the catalog holds of a model."""
        return cls(
            model_id=candidate.model_id,
            revision=candidate.revision,
            status="measured" if recorded.status == "measured" else "failed",
            sink_strength=recorded.sink_strength,
            stage=recorded.stage or "",
            reason=recorded.reason or "",
            message="recorded before" if recorded.status != "measured" else "",
            transient=recorded.transient,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenProgress:
    """One look at a running screen. Counts are models; ``running`` pairs a model id with its stage."""

    total: int
    measured: int
    failed: int
    running: tuple[tuple[str, str], ...]
    elapsed_seconds: float
    remaining_seconds: float | None
    """The estimate of what is left; ``None`` until a first model has ended, and once it has passed."""
    where: str
    """The hardware every task gets, in words."""
    ended: TaskReport | None = None
    """The model that ended since the last look, if one did."""
    notice: str = ""
    """What holds the run up, or happened to a model that is tried again; for a person to read."""
    seen: BoardLook | None = None
    """What the run's board said last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenSummary:
    """How a screen ended. Everything in ``measured`` and ``failed`` has its row in the catalog."""

    measured: tuple[TaskReport, ...] = ()
    failed: tuple[TaskReport, ...] = ()
    already_measured: tuple[Candidate, ...] = ()
    failed_before: tuple[TaskReport, ...] = ()
    """Models not tried again, since trying again would end the same way."""
    not_ended: tuple[Candidate, ...] = ()
    """Models stopped or never started because the run was interrupted or out of time."""
    interrupted: bool = False
    catalog_error: str = ""
    """Why the run was ended early: its catalog could not be written from a node or here."""
    out_of_time: bool = False
    """Whether models were not started because the run's time was up."""
    elapsed_seconds: float = 0.0
    where: str = ""
