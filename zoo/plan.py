"""A search of the Hub as a plan: who is measured, who stands for whom, who is refused, what it takes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from zoo.budget import Budget
from zoo.errors import ModelError, SourceError
from zoo.filters import ParameterRange
from zoo.hub import Hub
from zoo.listing import HubQuery, list_models
from zoo.preflight import Describe, Target, examine
from zoo.records import Architecture, Listing, Plan, PlannedModel, Refusal

WORKERS = 8
"""Repositories asked about at once; more only meets the rate limit sooner."""

Report = Callable[[str], None]


def search(
    hub: Hub,
    query: HubQuery,
    *,
    describe: Describe,
    limit: int | None = None,
    report: Report = lambda line: None,
) -> Plan:
    """The plan for everything a query finds, at most ``limit`` models of it, best sorted first.

    Raises:
        SourceError: the listing failed or nothing matched.
    """
    listings = list_models(hub, query, report=report)
    targets = [Target(model_id=one.model_id, listing=one) for one in listings]
    return make_plan(hub, targets, describe=describe, params=query.params, limit=limit, report=report)


def make_plan(
    hub: Hub,
    targets: Sequence[Target],
    *,
    describe: Describe,
    params: ParameterRange | None = None,
    limit: int | None = None,
    budget: Budget | None = None,
    report: Report = lambda line: None,
) -> Plan:
    """The plan for these repositories in their order; repositories past the limit are left out unasked.

    So are, with a ``budget``, those that do not fit in it and those behind a whole batch of such.

    Raises:
        SourceError: the Hub cannot be asked at all.
    """
    look = _look(hub, describe=describe, params=params)
    budget = budget or Budget()
    planned: dict[str, PlannedModel] = {}
    aliases: dict[str, str] = {}
    refusals: list[Refusal] = []
    asked = 0
    with _asking(hub) as pool:
        while asked < len(targets) and (limit is None or len(planned) < limit) and not budget.is_used_up:
            budget.begin_batch()
            batch = targets[asked : asked + 2 * WORKERS]
            for verdict in pool.map(look, batch):
                if limit is not None and len(planned) >= limit:
                    break
                asked += 1
                if isinstance(verdict, Refusal) or verdict.identity in planned or budget.takes(verdict):
                    _file(verdict, planned, aliases, refusals)
            report(f"looking at repositories: {asked} of {len(targets)} seen, {len(planned)} to be measured")
    models = tuple(_with_aliases(model, aliases) for model in planned.values())
    return Plan(
        models=models,
        refusals=tuple(refusals),
        listed=tuple(target.listing for target in targets if target.listing is not None),
        aliases=aliases,
        left_out=(*budget.left_out, *(target.model_id for target in targets[asked:])),
        has_token=hub.has_token,
    )


def verdicts(
    hub: Hub, targets: Sequence[Target], *, describe: Describe, params: ParameterRange | None = None
) -> tuple[PlannedModel | Refusal, ...]:
    """The verdict on each of these repositories or revisions in their order, none merged with another.

    Raises:
        SourceError: the Hub cannot be asked at all.
    """
    with _asking(hub) as pool:
        return tuple(pool.map(_look(hub, describe=describe, params=params), targets))


def _look(
    hub: Hub, *, describe: Describe, params: ParameterRange | None
) -> Callable[[Target], PlannedModel | Refusal]:
    """``examine`` for threads: where the Hub cannot be asked at all, the others' waits end too."""
    describe = serialised(describe)

    def look(target: Target) -> PlannedModel | Refusal:
        try:
            return examine(hub, target, describe=describe, params=params)
        except SourceError as error:
            hub.stop(str(error))
            raise

    return look


@contextmanager
def _asking(hub: Hub) -> Iterator[ThreadPoolExecutor]:
    """Threads that ask the Hub; Ctrl-C ends their waits."""
    with ThreadPoolExecutor(WORKERS) as pool:
        try:
            yield pool
        except BaseException:
            hub.stop()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def serialised(describe: Describe) -> Describe:
    """One description at a time (it is arithmetic, threads would not help), and none twice.

    Whatever an odd config makes it raise becomes ``bad_config``.
    """
    lock, known = threading.Lock(), dict[str, Architecture]()

    def described(config: Mapping[str, Any]) -> Architecture:
        key = repr(sorted(config.items()))
        with lock:
            if key not in known:
                try:
                    known[key] = describe(config)
                except ModelError:
                    raise
                except (Exception, RecursionError) as error:
                    text = f"its config.json makes no model ({type(error).__name__})"
                    raise ModelError(text, stage="plan", reason="bad_config") from None
            return known[key]

    return described


def _file(
    verdict: PlannedModel | Refusal,
    planned: dict[str, PlannedModel],
    aliases: dict[str, str],
    refusals: list[Refusal],
) -> None:
    if isinstance(verdict, Refusal):
        refusals.append(verdict)
        return
    candidate = verdict.candidate
    measured = planned.setdefault(verdict.identity, verdict).candidate
    if (candidate.model_id, candidate.revision) != (measured.model_id, measured.revision):
        aliases[f"{candidate.model_id}@{candidate.revision}"] = measured.model_id


def _with_aliases(model: PlannedModel, aliases: Mapping[str, str]) -> PlannedModel:
    own = tuple(alias for alias, model_id in aliases.items() if model_id == model.candidate.model_id)
    return replace(model, candidate=replace(model.candidate, aliases=own)) if own else model


def parse_targets(ids: Iterable[str], *, ids_from: Path | None = None) -> list[Target]:
    """The repositories a person named, ``org/name`` or ``org/name@revision``, each once.

    A file has one id a line; empty lines and what follows ``#`` do not count.

    Raises:
        SourceError: the file cannot be read or names nothing.
    """
    named = list(ids)
    if ids_from is not None:
        try:
            lines = ids_from.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            raise SourceError(f"{ids_from} cannot be read as a text file of model ids") from None
        named += [line.partition("#")[0].strip() for line in lines]
    parts = [one.strip().partition("@") for one in named if one.strip()]
    targets = dict.fromkeys((model_id, revision or None) for model_id, _, revision in parts)
    if not targets and ids_from is not None:
        raise SourceError(f"{ids_from} names no model; write one organisation/name a line")
    return [Target(model_id=model_id, revision=revision) for model_id, revision in targets]


def refusals_by_reason(plan: Plan) -> list[tuple[str, list[Refusal]]]:
    """The refusals grouped by reason, most frequent first."""
    counts = Counter(refusal.reason for refusal in plan.refusals)
    order = sorted(counts, key=lambda reason: (-counts[reason], reason))
    return [(reason, [one for one in plan.refusals if one.reason == reason]) for reason in order]


def scan_rows(plan: Plan, *, source: str = "hub") -> list[dict[str, Any]]:
    """The rows of the ``models`` table: one for every repository seen, with its verdict.

    ``verdict`` is ``candidate``, ``alias`` (of the model that is measured in its place), ``refused``
    (with ``reason``) or ``left_out`` (past the limit, not looked at).
    """
    listed = {one.model_id: one for one in plan.listed}
    rows = [
        _row(model.listing, source=source, revision=model.candidate.revision, verdict="candidate")
        | {"parameters": model.parameters}
        for model in plan.models
    ]
    for alias, model_id in plan.aliases.items():
        alias_id, _, revision = alias.partition("@")
        text = f"same weights, tokenizer and chat template as {model_id}, which is measured"
        known = listed.get(alias_id, Listing(model_id=alias_id))
        said = {"message": text, "alias_of": model_id}
        rows.append(_row(known, source=source, revision=revision, verdict="alias") | said)
    for refusal in plan.refusals:
        known = listed.get(refusal.model_id, Listing(model_id=refusal.model_id))
        why: dict[str, Any] = {"reason": refusal.reason, "message": refusal.message}
        why["transient"] = refusal.transient
        pinned = refusal.revision or known.revision
        rows.append(_row(known, source=source, revision=pinned, verdict="refused") | why)
    for model_id in plan.left_out:
        known = listed.get(model_id, Listing(model_id=model_id))
        rows.append(_row(known, source=source, revision=known.revision, verdict="left_out"))
    return rows


def _row(listing: Listing, *, source: str, revision: str | None, verdict: str) -> dict[str, Any]:
    return {
        "model_id": listing.model_id,
        "revision": revision,
        "source": source,
        "verdict": verdict,
        "reason": None,
        "transient": None,
        "message": None,
        "alias_of": None,
        "created_at": listing.created_at,
        "last_modified": listing.last_modified,
        "downloads": listing.downloads,
        "likes": listing.likes,
        "gated": listing.gated,
        "pipeline_tag": listing.pipeline_tag,
        "library": listing.library,
        "license": listing.license,
        "base_model": listing.base_model,
        "base_model_relation": listing.base_model_relation,
        "listed_parameters": listing.parameters,
        "parameters": None,
    }
