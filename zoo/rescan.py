"""What a night measures: what the Hub created or changed since the watermark, and what nights before left.

A model is settled by an outcome of its revision that is no failure of the moment, or by a refusal of that
revision that is none. Whatever else a scan of the search saw is the backlog, and comes back every night
until it is settled: what a budget cut off, what could not be looked at, what failed for the moment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from time import monotonic

from catalog.scans import ScanFacts, record_scan, seen_until
from catalog.store import Catalog, Recorded
from catalog.watermarks import History, Scan, Verdict
from zoo.budget import Budget
from zoo.changes import list_changed
from zoo.errors import SourceError
from zoo.filters import sizes_in
from zoo.hub import Hub
from zoo.plan import Report, make_plan, scan_rows
from zoo.preflight import Describe, Target
from zoo.records import Listing, Plan
from zoo.searches import Search, search_of_choice, search_of_key

OVERLAP = timedelta(days=1)
"""How far before the watermark a listing begins: the Hub may show a change late."""

Done = Mapping[tuple[str, str], Recorded]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The repositories that a night looks at, most promising first, and how they come to be."""

    targets: tuple[Target, ...]
    fresh: int
    """How many of them no earlier scan has seen at their revision."""
    backlog: int
    """How many of them were left by earlier scans."""
    settled: int
    """How many listed repositories were settled at their revision already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """What a rescan found and means to do."""

    search: Search
    profile: str | None
    spec_id: str
    since: datetime
    """Where the listing began: the watermark less the overlap, or what was asked for."""
    watermark_before: datetime | None
    watermark_after: datetime
    work: Work
    plan: Plan
    too_large: Mapping[str, int]
    """Bytes by the id of each model that the whole budget of a night cannot hold."""


def last_search(known: Sequence[Scan]) -> Search:
    """The search of the latest screen. Raises SourceError when the catalog has none."""
    for scan in reversed(known):
        if scan.kind == "screen" and (key := _key_of(scan)) is not None:
            return search_of_key(key)
    raise SourceError(
        "no search of the Hub is in the catalog yet, so there is nothing to rescan: run one with zoo screen "
        '--filter "7B" first, or name a profile with --profile and where to begin with --since'
    )


def watermark(known: Iterable[Scan], search: Search, *, spec_id: str) -> datetime | None:
    """Until when a search and spec has seen the Hub, ``None`` for one that never ran."""
    marks = [
        scan.watermark
        for scan in known
        if scan.watermark is not None
        and (scan.spec_ids is None or spec_id in scan.spec_ids)
        and _key_of(scan) == search.key
    ]
    return max(marks, default=None)


def look(
    hub: Hub,
    *,
    catalog: Catalog,
    history: History,
    search: Search,
    spec_id: str,
    describe: Describe,
    budget: Budget,
    since: datetime | None = None,
    overlap: timedelta = OVERLAP,
    profile: str | None = None,
    report: Report = lambda line: None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Night:
    """What the Hub has to be measured now; ``keep`` it before anything is measured.

    ``since`` makes the listing begin earlier than the watermark and the overlap ask for, never later.
    Raises SourceError when the listing failed, the Hub cannot be asked, or nothing says where to begin.
    """
    before = watermark(history.scans, search, spec_id=spec_id)
    begin = _begin(before, since=since, overlap=overlap, search=search)
    started, clock = now(), monotonic()
    changes = list_changed(hub, search.query, since=begin, report=report)
    elapsed, earliest = monotonic() - clock, before or begin
    after = seen_until(changes.newest or earliest, started=started, elapsed_seconds=elapsed, before=earliest)
    done = catalog.done(spec_id)
    work = choose(changes.listings, history.verdicts.get(search.key, {}), done)
    plan = make_plan(
        hub, work.targets, describe=describe, params=search.query.params, budget=budget, report=report
    )
    return Night(
        search=search,
        profile=profile,
        spec_id=spec_id,
        since=begin,
        watermark_before=before,
        watermark_after=after,
        work=work,
        plan=plan,
        too_large={model.candidate.model_id: model.fetch_bytes for model in budget.too_large},
    )


def keep(night: Night, *, catalog: Catalog) -> None:
    """Keeps the verdicts of a night and its watermark. Raises CatalogError."""
    facts = ScanFacts(
        kind="rescan",
        search=night.search.key,
        spec_ids=(night.spec_id,),
        watermark=night.watermark_after,
        profile=night.profile,
    )
    record_scan(catalog, scan_rows(night.plan), query=night.search.text, facts=facts)


def choose(changed: Iterable[Listing], seen: Mapping[str, Verdict], done: Done) -> Work:
    """The repositories to look at, of those that changed and of those that were seen before."""
    listed = {one.model_id: one for one in changed}
    unsettled = [one for one in listed.values() if not _is_settled_at(one, seen.get(one.model_id), done)]
    again = {
        one.model_id
        for one in unsettled
        if one.model_id in seen and seen[one.model_id].listing.revision == one.revision
    }
    left = [
        # Its revision is asked for again: what a night left may have changed where no listing shows it.
        replace(verdict.listing, revision=None)
        for model_id, verdict in seen.items()
        if model_id not in listed and not _is_settled(verdict, done)
    ]
    attempts = {model_id: recorded.attempt for (model_id, _), recorded in done.items() if recorded.transient}
    ordered = sorted(
        [*unsettled, *left], key=lambda one: promise(one, attempts=attempts.get(one.model_id, 0))
    )
    return Work(
        targets=tuple(Target(model_id=one.model_id, listing=one) for one in ordered),
        fresh=len(unsettled) - len(again),
        backlog=len(left) + len(again),
        settled=len(listed) - len(unsettled),
    )


def promise(listing: Listing, *, attempts: int = 0) -> tuple[int, int, float, int, str]:
    """The order of a night: what failed least often, then the most downloaded by orders of magnitude.

    Among those the smaller model comes first, as the Hub's count or the name tells; then downloads decide.
    """
    downloads = listing.downloads or 0
    named = [size.parameters for size in sizes_in(listing.model_id.rpartition("/")[2])]
    parameters = listing.parameters or min(named, default=math.inf)
    return attempts, -len(str(downloads)), parameters, -downloads, listing.model_id


def _begin(
    before: datetime | None, *, since: datetime | None, overlap: timedelta, search: Search
) -> datetime:
    if before is None and since is None:
        raise SourceError(
            f"nothing says since when to look for {search.text}: give --since 2026-01-31, or run "
            "zoo screen with the same filters and prompts once"
        )
    moments = [since, before - overlap if before else None]
    return min(moment for moment in moments if moment is not None)


def _key_of(scan: Scan) -> str | None:
    """What a scan searched for; ``None`` where its models were named."""
    if scan.spec_ids is not None:
        return scan.search
    search = search_of_choice(scan.query or "")
    return search.key if search else None


def _is_settled_at(listing: Listing, verdict: Verdict | None, done: Done) -> bool:
    """Whether nothing is left to do for a repository at the revision that it is listed with."""
    if listing.revision is None:
        return False
    recorded = done.get((listing.model_id, listing.revision))
    if recorded is not None:
        return not recorded.transient
    return verdict is not None and verdict.listing.revision == listing.revision and _is_settled(verdict, done)


def _is_settled(verdict: Verdict, done: Done) -> bool:
    if verdict.verdict == "refused":
        return not verdict.transient
    model_id, revision = verdict.measured_as
    recorded = done.get((model_id, revision)) if revision else None
    return recorded is not None and not recorded.transient
