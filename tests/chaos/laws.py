"""What must hold of a catalog after a chaos run, held against the run's own witness."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from catalog.query import run_query
from catalog.store import Catalog
from zoo.records import Candidate

COLUMNS = "model_id, revision, attempt, attempt_id, status, reason, transient, counts, sink_strength, heads"


def attempts(catalog: Catalog) -> list[dict[str, Any]]:
    """Every committed attempt, as DuckDB reads it."""
    query = f"select {COLUMNS} from outcomes order by model_id, revision, attempt"
    return run_query(catalog, query).records()


def broken_laws(
    catalog: Catalog,
    *,
    models: Sequence[Candidate],
    commits: Sequence[Mapping[str, Any]],
    seen: Iterable[str],
    expected: Mapping[str, float],
) -> list[str]:
    """One sentence for every law that does not hold; ``expected`` has the S of some models by id."""
    rows = attempts(catalog)
    return [
        *_every_model_is_settled_once(rows, models),
        *_nothing_acknowledged_is_lost(rows, commits),
        *_only_transient_failures_are_tried_again(rows),
        *_nothing_seen_is_lost(rows, seen),
        *_details_are_whole(catalog, rows),
        *_strengths_are_right(rows, expected),
        *(f"damaged: {each.path}: {each.problem}" for each in catalog.verify().problems),
    ]


def _every_model_is_settled_once(
    rows: Sequence[Mapping[str, Any]], models: Sequence[Candidate]
) -> Iterable[str]:
    counting = Counter((row["model_id"], row["revision"]) for row in rows if row["counts"])
    keys = {(each.model_id, each.revision) for each in models}
    for key in keys | counting.keys():
        if counting[key] != 1 or key not in keys:
            yield f"{key[0]} has {counting[key]} outcomes that count"
    for row in rows:
        if row["status"] == "failed" and not row["reason"]:
            yield f"{row['model_id']} failed without a reason"


def _nothing_acknowledged_is_lost(
    rows: Sequence[Mapping[str, Any]], commits: Sequence[Mapping[str, Any]]
) -> Iterable[str]:
    held = {row["attempt_id"]: row for row in rows}
    for commit in commits:
        row = held.get(commit["attempt_id"])
        names = ("model_id", "revision", "attempt")
        if row is None or any(row[name] != commit[name] for name in names):
            yield f"the acknowledged attempt {commit['attempt_id']} of {commit['model_id']} is lost"
    written = Counter(commit["attempt_id"] for commit in commits if commit["written"])
    yield from (f"attempt {each} was acknowledged twice" for each, count in written.items() if count > 1)


def _only_transient_failures_are_tried_again(rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    by_model = defaultdict(list)
    for row in rows:
        by_model[row["model_id"], row["revision"]].append(row)
    for (model_id, _), history in by_model.items():
        if [row["attempt"] for row in history] != list(range(1, len(history) + 1)):
            yield f"the attempts of {model_id} have a gap"
        if not all(row["transient"] for row in history[:-1]):
            yield f"{model_id} was measured again after it was settled"


def _nothing_seen_is_lost(rows: Sequence[Mapping[str, Any]], seen: Iterable[str]) -> Iterable[str]:
    lost = set(seen) - {row["attempt_id"] for row in rows}
    yield from (f"attempt {each} was read during the run and is gone" for each in sorted(lost))


def _details_are_whole(catalog: Catalog, rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    heads = run_query(catalog, "select count(*) from heads").rows[0][0]
    cells = run_query(catalog, "select count(distinct model_id) from sweep").rows[0][0]
    measured = [row for row in rows if row["status"] == "measured"]
    if heads != sum(row["heads"] for row in measured):
        yield f"heads has {heads} rows, and the measured models have {sum(row['heads'] for row in measured)}"
    if cells != len(measured):
        yield f"sweep has cells of {cells} models, and {len(measured)} are measured"


def _strengths_are_right(rows: Sequence[Mapping[str, Any]], expected: Mapping[str, float]) -> Iterable[str]:
    for row in rows:
        wanted = expected.get(row["model_id"])
        if row["status"] == "measured" and wanted is not None and abs(row["sink_strength"] - wanted) > 1e-6:
            yield f"{row['model_id']} has S {row['sink_strength']}, and {wanted} without faults"
