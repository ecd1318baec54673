"""The metrics of a run, through Ray's metrics API: what Prometheus finds beside Ray's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from zoo.board import RunCounts
from zoo.reports import ScreenProgress, TaskReport

STAGE_BOUNDARIES = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0)
"""Upper ends of the histogram's buckets, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric of zoo and the labels that tell its series apart."""

    kind: Literal["counter", "gauge", "histogram"]
    description: str
    labels: tuple[str, ...] = ()


METRICS = {
    "zoo_models_done": Metric(
        kind="counter", description="Models that ended, measured or failed.", labels=("status",)
    ),
    "zoo_models_failed": Metric(
        kind="counter", description="Models that failed, by reason and stage.", labels=("reason", "stage")
    ),
    "zoo_models_refused": Metric(
        kind="counter", description="Models refused before the run began, by reason.", labels=("reason",)
    ),
    "zoo_bytes_fetched": Metric(kind="counter", description="Bytes of weights fetched."),
    "zoo_stage_seconds": Metric(
        kind="histogram", description="Seconds that a model spent in a stage.", labels=("stage",)
    ),
    "zoo_models_running": Metric(kind="gauge", description="Models that run, by stage.", labels=("stage",)),
    "zoo_models_waiting": Metric(kind="gauge", description="Models that wait for their turn."),
    "zoo_hub_wait_seconds": Metric(
        kind="gauge", description="Seconds until the Hub's rate limit allows requests.", labels=("bucket",)
    ),
}
"""Every metric by its name in Ray's API."""

_SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}


def series_names(name: str) -> tuple[str, ...]:
    """The names under which Prometheus finds a metric: Ray puts ``ray_`` in front of all."""
    return tuple(f"ray_{name}{suffix}" for suffix in _SUFFIXES[METRICS[name].kind])


class RunMetrics:
    """Hears every look of a run's driver and keeps the metrics of this process up to date.

    Needs a connected Ray. Its agent gets them every ten seconds, and when the driver disconnects.
    """

    def __init__(self, *, refused: Mapping[str, int]) -> None:
        self._metrics = {name: _made(name) for name in METRICS}
        self._fetched_bytes = 0
        self._shown: dict[str, set[str]] = {}
        for reason, count in refused.items():
            self._metrics["zoo_models_refused"].inc(count, {"reason": reason})

    def hear(self, look: ScreenProgress, counts: RunCounts) -> None:
        """One look; an ended model is in one look alone."""
        if look.ended:
            self._count(look.ended)
        if (news := counts.fetched_bytes - self._fetched_bytes) > 0:
            self._metrics["zoo_bytes_fetched"].inc(news)
            self._fetched_bytes = counts.fetched_bytes
        seen = look.seen
        running = Counter(each.stage for each in seen.running.values()) if seen else Counter[str]()
        waiting = look.total - look.measured - look.failed - running.total()
        self._metrics["zoo_models_waiting"].set(max(0, waiting))
        self._show("zoo_models_running", "stage", running)
        waits = seen.hub_waits if seen else {}
        by_bucket = {bucket.rpartition(" ")[2]: wait for bucket, wait in waits.items()}
        self._show("zoo_hub_wait_seconds", "bucket", by_bucket)

    def end(self) -> None:
        """Nothing runs or waits any more."""
        self._metrics["zoo_models_waiting"].set(0)
        self._show("zoo_models_running", "stage", {})
        self._show("zoo_hub_wait_seconds", "bucket", {})

    def _count(self, report: TaskReport) -> None:
        self._metrics["zoo_models_done"].inc(1, {"status": report.status})
        if report.status == "failed":
            labels = {"reason": report.reason, "stage": report.stage}
            self._metrics["zoo_models_failed"].inc(1, labels)
        for stage, seconds in report.stage_seconds.items():
            self._metrics["zoo_stage_seconds"].observe(seconds, {"stage": stage})

    def _show(self, name: str, label: str, values: Mapping[str, float]) -> None:
        """Sets a gauge by label, and to 0 where a label that it once had is gone."""
        shown = self._shown.setdefault(name, set())
        shown |= set(values)
        for each in shown:
            self._metrics[name].set(values.get(each, 0), {label: each})


def _made(name: str) -> Any:
    """The metric in Ray's API, which must be imported after ``zoo.tasks`` has set Ray's environment."""
    from ray.util import metrics

    its = METRICS[name]
    if its.kind == "histogram":
        return metrics.Histogram(
            name, its.description, boundaries=list(STAGE_BOUNDARIES), tag_keys=its.labels
        )
    made = metrics.Counter if its.kind == "counter" else metrics.Gauge
    return made(name, its.description, tag_keys=its.labels)
