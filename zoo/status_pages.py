"""What people read of a run while it goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from zoo.board import BoardLook, RunningModel
from zoo.status import CatalogLook, ClusterLook
from zoo.tables import ABSENT, format_json, format_table, printable, seconds_text

_HEADERS = ("model", "stage", "in stage", "since start", "fetched MB", "of MB", "MB/s")


def status_text(cluster: ClusterLook | None, catalogs: Sequence[CatalogLook], notes: Sequence[str]) -> str:
    """Runs with their models, then the cluster, the catalogs, and what could not be told."""
    parts = [_run_text(run) for run in cluster.runs] if cluster else []
    if cluster:
        parts.append(_cluster_text(cluster))
    parts += [_catalog_text(catalog) for catalog in catalogs]
    parts += ["\n".join(map(printable, notes))] if notes else []
    return "\n\n".join(parts)


def status_json(cluster: ClusterLook | None, catalogs: Sequence[CatalogLook], notes: Sequence[str]) -> str:
    """The same with every digit; rates are models an hour and bytes a second since the run began."""
    record: dict[str, Any] = {"runs": [], "cluster": None}
    if cluster:
        record["runs"] = [_run_record(run) for run in cluster.runs]
        facts = asdict(cluster)
        record["cluster"] = {key: facts[key] for key in facts if key != "runs"}
    record["catalogs"] = [asdict(each) for each in catalogs]
    record["notes"] = list(notes)
    return format_json(record)


def by_reason(counts: Mapping[str, int]) -> str:
    """Counts with their reasons, the largest first, such as ``41 gated, 3 adapter``."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count:,} {reason}" for reason, count in ordered)


def _rates(run: BoardLook) -> tuple[float, float]:
    """Models an hour and bytes a second since the run began; 0 until it is known."""
    counts = run.counts
    seconds = counts.elapsed_seconds
    return (counts.done / seconds * 3600, counts.fetched_bytes / seconds) if seconds else (0.0, 0.0)


def _rate(model: RunningModel) -> float:
    """Bytes a second since the model began."""
    return model.fetched_bytes / max(model.model_seconds, 1e-3)


def _run_text(run: BoardLook) -> str:
    facts, counts = run.facts, run.counts
    left = counts.remaining_seconds
    estimate = f", about {seconds_text(left)} left" if left else ""
    per_hour, per_second = _rates(run)
    lines = [
        f"Run {facts.run_id}: {counts.done:,} of {facts.models:,} models done in "
        f"{seconds_text(counts.elapsed_seconds)}{estimate}",
        f"  {counts.measured:,} measured, {_failed(counts.failed)}"
        + (f"; refused before it began: {by_reason(facts.refused)}" if facts.refused else ""),
        f"  {per_hour:,.0f} models an hour, {counts.fetched_bytes / 1e9:,.2f} GB of weights, "
        f"{per_second / 1e6:,.0f} MB/s; {facts.where}",
        f"  rows go to {facts.catalog_uri}, spec {facts.spec_id}",
    ]
    lines += [f"  {_hub_text(bucket, seconds)}" for bucket, seconds in sorted(run.hub_waits.items())]
    if run.running:
        models = sorted(run.running.values(), key=lambda model: (-model.model_seconds, model.model_id))
        numeric = (False, False, True, True, True, True, True)
        rows = [_model_cells(model) for model in models]
        lines += ["", format_table(_HEADERS, rows, numeric=numeric)]
    else:
        lines.append("  no model runs at this moment")
    return "\n".join([*map(printable, lines[:-1]), lines[-1]])


def _failed(failed: Mapping[str, int]) -> str:
    count = sum(failed.values())
    return f"{count:,} failed" + (f" ({by_reason(failed)})" if failed else "")


def _hub_text(bucket: str, seconds: float) -> str:
    endpoint, _, kind = bucket.rpartition(" ")
    return f"the rate limit of {endpoint} ({kind}) is used up; it opens in {seconds_text(seconds)}"


def _model_cells(model: RunningModel) -> tuple[str, ...]:
    is_known = model.planned_bytes > 0
    return (
        model.model_id,
        model.stage,
        seconds_text(model.stage_seconds),
        seconds_text(model.model_seconds),
        f"{model.fetched_bytes / 1e6:,.0f}" if is_known else ABSENT,
        f"{model.planned_bytes / 1e6:,.0f}" if is_known else ABSENT,
        f"{_rate(model) / 1e6:,.0f}" if is_known else ABSENT,
    )


def _cluster_text(cluster: ClusterLook) -> str:
    used = [f"{cluster.gpus_used:g} of {cluster.gpus:g} GPUs"] if cluster.gpus else []
    used.append(f"{cluster.cpus_used:g} of {cluster.cpus:g} CPUs")
    tasks = cluster.tasks
    waiting = f"; tasks: {tasks['running']:,} running, {tasks['waiting']:,} waiting" if tasks else ""
    lines = [] if cluster.runs else ["No run of zoo is on this cluster."]
    nodes = f"{cluster.nodes} node{'s' * (cluster.nodes != 1)}"
    lines.append(f"Cluster {cluster.address}: {nodes}, {' and '.join(used)} in use{waiting}")
    return "\n".join(lines)


def _catalog_text(catalog: CatalogLook) -> str:
    if catalog.spec_id is None:
        lines = [f"Catalog {catalog.uri}: nothing was measured yet"]
    else:
        counts = f"{catalog.measured:,} measured, {_failed(catalog.failed)}"
        lines = [f"Catalog {catalog.uri}, spec {catalog.spec_id}: {counts}"]
    if catalog.refused:
        lines.append(f"  refused when last looked at: {by_reason(catalog.refused)}")
    if last := catalog.last:
        strength = last.sink_strength
        how = f"failed in {last.stage} ({last.reason})" if strength is None else f"S {strength:.2f}"
        lines.append(f"  last ended: {last.model_id}, {how}, {_moment(last.finished_at)}")
    return "\n".join(map(printable, lines))


def _moment(at: datetime | None) -> str:
    if at is None:
        return "at an unknown time"
    ago = (datetime.now(UTC).replace(tzinfo=None) - at).total_seconds()
    return f"{at:%Y-%m-%d %H:%M} UTC, {seconds_text(max(0.0, ago))} ago"


def _run_record(run: BoardLook) -> dict[str, Any]:
    per_hour, per_second = _rates(run)
    running = [
        asdict(model) | {"stem": stem, "bytes_per_second": _rate(model)}
        for stem, model in run.running.items()
    ]
    return {
        **asdict(run.facts),
        **asdict(run.counts),
        "done": run.counts.done,
        "models_per_hour": per_hour,
        "bytes_per_second": per_second,
        "running": running,
        "hub_wait_seconds": dict(run.hub_waits),
    }
