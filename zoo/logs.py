"""The log of a run: records of the logger ``zoo`` with run, model, revision and stage, written by Ray."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from zoo.errors import ZooError
from zoo.records import Candidate
from zoo.reports import TaskReport

LOG_VARIABLE = "ZOO_LOG"
"""The environment variable that turns a run's log on."""

ENCODINGS = {"json": "JSON", "text": "TEXT", "none": None, "": None}

LOG = logging.getLogger("zoo")
LOG.addHandler(logging.NullHandler())  # else Python itself prints warnings where logs are off
logging.getLogger("httpx2").setLevel(logging.WARNING)  # a line a request, with addresses of signed downloads


def log_encoding() -> str | None:
    """How Ray is to write the log, ``JSON`` or ``TEXT``; ``None`` for no log, as by default.

    Raises ZooError when ``ZOO_LOG`` is something else.
    """
    asked = os.environ.get(LOG_VARIABLE, "")
    if asked.lower() not in ENCODINGS:
        raise ZooError(f"{LOG_VARIABLE}={asked} is not known; give json, text or none")
    return ENCODINGS[asked.lower()]


@contextmanager
def kept_loggers() -> Iterator[None]:
    """Ray configures loggers for good when it connects; after the block they are as they were."""
    loggers = [logging.getLogger(), logging.getLogger("ray")]
    before = [(each.level, each.handlers[:], each.propagate) for each in loggers]
    try:
        yield
    finally:
        for each, (level, handlers, propagate) in zip(loggers, before, strict=True):
            each.setLevel(level)
            each.handlers[:], each.propagate = handlers, propagate


@dataclass(frozen=True, slots=True)
class RunLog:
    """The log of one run; every record carries ``run``, ``model``, ``revision`` and ``stage``."""

    run_id: str

    def say(
        self,
        message: str,
        *,
        model: Candidate | TaskReport | None = None,
        stage: str = "",
        level: int = logging.INFO,
        **facts: Any,
    ) -> None:
        """One record; ``facts`` become fields of it."""
        extra = {
            "run": self.run_id,
            "model": model.model_id if model else "",
            "revision": model.revision if model else "",
            "stage": stage,
        }
        LOG.log(level, "%s", message, extra=extra | facts)

    def warn(self, message: str, *, model: Candidate, stage: str = "") -> None:
        """Something that a person may want to look at: a model that is tried again, or ended."""
        self.say(message, model=model, stage=stage, level=logging.WARNING)

    def ended(self, report: TaskReport) -> None:
        """How one model ended: a warning where it failed."""
        facts: dict[str, Any] = {
            "seconds": round(report.wall_seconds, 3),
            "bytes_fetched": report.bytes_fetched,
            "stage_seconds": dict(report.stage_seconds),
        }
        if report.status == "failed":
            message = f"failed ({report.reason}): {report.message}"
            facts |= {"reason": report.reason}
            self.say(message, model=report, stage=report.stage, level=logging.WARNING, **facts)
        else:
            self.say("measured", model=report, stage="commit", sink_strength=report.sink_strength, **facts)
