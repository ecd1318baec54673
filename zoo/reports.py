"""What a screening run says while it runs and when it ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from zoo.records import Candidate, Failure, Outcome


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
            )
        return cls(
            model_id=model_id,
            revision=revision,
            status="measured",
            wall_seconds=wall_seconds,
            sink_strength=outcome.sink_strength,
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
    """The estimate of what is left; ``None`` until a first model has ended."""
    where: str
    """The hardware every task gets, in words."""
    ended: TaskReport | None = None
    """The model that ended since the last look, if one did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenSummary:
    """How a screen ended. Everything in ``measured`` and ``failed`` has its row in the catalog."""

    measured: tuple[TaskReport, ...] = ()
    failed: tuple[TaskReport, ...] = ()
    already_measured: tuple[Candidate, ...] = ()
    failed_before: tuple[TaskReport, ...] = ()
    """Models not tried again, since trying again would end the same way."""
    not_ended: tuple[Candidate, ...] = ()
    """Models stopped or never started because the run was interrupted."""
    interrupted: bool = False
    elapsed_seconds: float = 0.0
    where: str = ""
