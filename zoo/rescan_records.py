"""What programs read of a night: one JSON object, or a row of CSV a model."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from zoo.nights import NightSummary, Place, why_moved

CSV_COLUMNS = (
    "change",
    "model_id",
    "revision",
    "old_rank",
    "new_rank",
    "old_sink_strength",
    "new_sink_strength",
    "reason",
    "message",
)


def night_record(summary: NightSummary) -> dict[str, Any]:
    """A night for programs; the keys are always all there."""
    night, changes, plan = summary.night, summary.changes, summary.night.plan
    return {
        "search": night.search.text,
        "profile": night.profile,
        "spec_id": night.spec_id,
        "catalog": summary.catalog_uri,
        "since": night.since,
        "watermark": {"before": night.watermark_before, "after": night.watermark_after},
        "looked_at": {
            "new_or_changed": night.work.fresh,
            "left_by_earlier_nights": night.work.backlog,
            "known_at_their_revision": night.work.settled,
        },
        "measured": [
            {"model_id": one.model_id, "revision": one.revision, "sink_strength": one.sink_strength}
            for one in summary.screened.measured
        ],
        "entered": [asdict(place) for place in changes.entered],
        "left": [asdict(place) for place in changes.left],
        "moved": [_moved(*pair) for pair in changes.moved],
        "refused": [asdict(refusal) for refusal in plan.refusals],
        "aliases": [
            {"model_id": alias.partition("@")[0], "revision": alias.partition("@")[2], "same_as": model_id}
            for alias, model_id in plan.aliases.items()
        ],
        "failed": [
            {
                "model_id": one.model_id,
                "revision": one.revision,
                "stage": one.stage,
                "reason": one.reason,
                "message": one.message,
                "transient": one.transient,
            }
            for one in summary.screened.failed
        ],
        "next_night": [
            {"model_id": model_id, "reason": reason, "fetch_bytes": night.too_large.get(model_id)}
            for model_id, reason in summary.next_night.items()
        ],
        "models_ranked": changes.models,
        "planned_bytes": plan.fetch_bytes,
        "elapsed_seconds": summary.elapsed_seconds,
        "exit_code": summary.exit_code,
    }


def _moved(was: Place, now: Place) -> dict[str, Any]:
    return {
        "model_id": now.model_id,
        "old_rank": was.rank,
        "new_rank": now.rank,
        "old_sink_strength": was.sink_strength,
        "new_sink_strength": now.sink_strength,
        "old_revision": was.revision,
        "new_revision": now.revision,
        "why": why_moved(was, now),
    }


def night_rows(summary: NightSummary) -> list[tuple[Any, ...]]:
    """Rows of ``CSV_COLUMNS``: what entered, left, moved, failed, was refused and comes back."""
    changes = summary.changes
    rows: list[tuple[Any, ...]] = []
    for one in changes.entered:
        rows.append(
            ("entered", one.model_id, one.revision, None, one.rank, None, one.sink_strength, None, None)
        )
    for one in changes.left:
        rows.append(("left", one.model_id, one.revision, one.rank, None, one.sink_strength, None, None, None))
    for was, now in changes.moved:
        ranks, strengths = (was.rank, now.rank), (was.sink_strength, now.sink_strength)
        rows.append(("moved", now.model_id, now.revision, *ranks, *strengths, why_moved(was, now), None))
    empty = (None,) * 4
    for report in summary.screened.failed:
        rows.append(("failed", report.model_id, report.revision, *empty, report.reason, report.message))
    for refusal in summary.night.plan.refusals:
        rows.append(("refused", refusal.model_id, refusal.revision, *empty, refusal.reason, refusal.message))
    for model_id, reason in summary.next_night.items():
        rows.append(("next_night", model_id, None, *empty, reason, None))
    return rows
