"""How long a model, and each of its stages, may take before its task is ended."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from zoo.board import RunningModel

STAGE_SECONDS: Mapping[str, float] = {"start": 600.0, "render": 900.0, "summarise": 900.0, "commit": 1800.0}
"""The default limits of stages that move few bytes; the others are bounded by the model's deadline alone."""

STAGES = ("start", "fetch", "load", "render", "probe", "summarise", "commit")

BASE_SECONDS = 1800.0
SLOWEST_BYTES_PER_SECOND = 20e6


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits:
    """Limits in seconds. Without ``model_seconds`` a model gets half an hour, and the time to fetch its
    bytes at 20 MB/s; ``stage_seconds`` overrides the default limits of stages."""

    model_seconds: float | None = None
    stage_seconds: Mapping[str, float] = field(default_factory=dict)

    def deadline_seconds(self, weight_bytes: int | None) -> float:
        """How long a model of so many bytes may take in all."""
        return self.model_seconds or BASE_SECONDS + (weight_bytes or 0) / SLOWEST_BYTES_PER_SECOND

    def exceeded(self, running: RunningModel, *, weight_bytes: int | None) -> str | None:
        """Which limit the model is past, as a sentence with the remedy; ``None`` while it is in time."""
        limits = {**STAGE_SECONDS, **self.stage_seconds}
        stage_limit = limits.get(running.stage)
        if stage_limit is not None and running.stage_seconds > stage_limit:
            return (
                f"it was in stage {running.stage} for more than {duration_text(stage_limit)}; "
                f"allow more with --stage-timeout {running.stage}=DURATION"
            )
        deadline = self.deadline_seconds(weight_bytes)
        if running.model_seconds > deadline:
            return f"it took more than {duration_text(deadline)}; allow more with --deadline DURATION"
        return None


def parse_duration(text: str) -> float:
    """Seconds of ``90s``, ``30m``, ``1.5h`` or ``1h30m``; raises ``ValueError``."""
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*([hms])", text)
    seconds = sum(float(number) * {"h": 3600, "m": 60, "s": 1}[unit] for number, unit in parts)
    if "".join(f"{number}{unit}" for number, unit in parts) != text.replace(" ", "") or not seconds:
        raise ValueError(f"'{text}' is no duration; write it like 90s, 30m, 1.5h or 1h30m")
    return seconds


def parse_stage_limit(text: str) -> tuple[str, float]:
    """The stage and the seconds of ``probe=30m`` and the like; raises ``ValueError``."""
    stage, equals, duration = text.partition("=")
    if not equals or stage not in STAGES:
        raise ValueError(f"'{text}' is no stage limit; write it like probe=30m, of {', '.join(STAGES)}")
    return stage, parse_duration(duration)


def duration_text(seconds: float) -> str:
    """The duration as it would be written on the command line, to the second."""
    hours, rest = divmod(round(seconds), 3600)
    minutes, rest = divmod(rest, 60)
    return "".join(f"{n}{unit}" for n, unit in ((hours, "h"), (minutes, "m"), (rest, "s")) if n) or "0s"
