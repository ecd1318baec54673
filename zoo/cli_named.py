"""The models that a command needs by name: of the catalog, of a local source, or of the Hub."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from catalog.query import run_query
from zoo.calibration import failure_reasons, measured_models
from zoo.cli_hub import describe, plan_of_names, say
from zoo.errors import SourceError
from zoo.measuring import measure_missing
from zoo.sources import NAMED_SOURCES, find_candidates
from zoo.track import find_checkpoints

if TYPE_CHECKING:
    from catalog.store import Catalog, Recorded
    from zoo.records import Candidate, MeasurementSpec, Plan
    from zoo.sources import Found


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """Models found by name, and for every other name why there is none."""

    candidates: tuple[Candidate, ...]
    reasons: dict[str, str]


def in_source(names: Sequence[str], *, source: str) -> Named:
    """The models of a local source with these names. Raises SourceError when the source has no model."""
    found = find_candidates(source)
    candidates = tuple(its for its in found.candidates if its.model_id in names)
    absent = {name: f"{source} does not hold {name}" for name in names}
    refused = {its.model_id: f"{its.message} ({its.reason})" for its in found.refusals}
    there = {its.model_id for its in candidates}
    reasons = {name: why for name, why in (absent | refused).items() if name not in there}
    return Named(candidates=candidates, reasons=reasons)


def on_hub(names: Sequence[str]) -> Named:
    """The models of the Hub with these names, after lines on the standard error of what they take.

    A Hub that cannot be asked is the reason of every name, so that a command goes on without it.
    """
    if not names:
        return Named(candidates=(), reasons={})
    try:
        plan = plan_of_names(names)
        candidates, reasons = _by_name(names, plan)
    except SourceError as error:
        say(f"Not looked up on the Hub: {error}.")
        return Named(candidates=(), reasons=dict.fromkeys(names, str(error)))
    if candidates:
        size = sum(file.size for its in candidates for file in its.files) / 1e9
        say(f"Found on the Hub: {len(candidates)} model{'s' * (len(candidates) != 1)}, {size:.2f} GB.")
    if plan.refusals:
        from zoo.plan_text import refusals_text

        click.echo(refusals_text(plan), err=True)
    return Named(candidates=candidates, reasons=reasons)


def _by_name(names: Sequence[str], plan: Plan) -> tuple[tuple[Candidate, ...], dict[str, str]]:
    """Each model under the name it was asked for by, also where the Hub moved it or has it twice."""
    found = {its.candidate.model_id: its.candidate for its in plan.models}
    reasons = {its.model_id: f"{its.message} ({its.reason})" for its in plan.refusals}
    candidates = []
    for name in names:
        if name in found:
            candidates.append(found[name])
        elif name not in reasons:
            alone = plan_of_names([name])
            candidates += [replace(its.candidate, model_id=name) for its in alone.models]
            for refusal in alone.refusals:
                reasons[name] = f"{refusal.message} ({refusal.reason})"
    return tuple(candidates), reasons


def measured_one(
    name: str, *, catalog: Catalog, spec: MeasurementSpec, address: str | None
) -> tuple[str, str]:
    """The catalog's name and revision of one model, measured now if the catalog lacks it.

    ``name`` is a model of the catalog (``org/name`` or ``org/name@commit``), a local checkpoint, or a
    model of the Hub (``org/name`` or ``org/name@revision``); it is looked for in this order.

    Raises SourceError when there is no such model, more than one, or it could not be measured.
    """
    known = measured_models(catalog, spec.spec_id).get(name)
    if known is not None:
        return known.model_id, known.revision
    model_id, _, revision = name.partition("@")
    if re.fullmatch(r"[0-9a-f]{40}", revision) and _is_measured(catalog, spec, model_id, revision):
        return model_id, revision
    candidate = _one_candidate(name)
    measure_missing([candidate], catalog=catalog, spec=spec, address=address)
    if not _is_measured(catalog, spec, candidate.model_id, candidate.revision):
        why = failure_reasons(catalog, spec.spec_id).get(candidate.model_id, "no attempt ended")
        raise SourceError(f"{name} could not be measured: {why}")
    return candidate.model_id, candidate.revision


def run_checkpoints(run: str, *, done: Mapping[tuple[str, str], Recorded]) -> Found:
    """The checkpoints of a training run: of a folder, or of a repository ``org/name`` of the Hub.

    ``done`` is what the catalog holds of them. Raises SourceError when there is none.
    """
    if Path(run).expanduser().exists() or not re.fullmatch(r"[\w.-]+/[\w.-]+", run):
        return find_checkpoints(run)
    from zoo.hub import Hub
    from zoo.hub_run import hub_checkpoints

    settled = {key for key, recorded in done.items() if not recorded.transient}
    return hub_checkpoints(Hub(report=say), run, describe=describe, settled=settled)


def _one_candidate(name: str) -> Candidate:
    if name in NAMED_SOURCES or Path(name).expanduser().exists():
        candidates = find_candidates(name).candidates
        if len(candidates) != 1:
            raise SourceError(f"{name} holds {len(candidates)} models; name the one to compare")
        return candidates[0]
    plan = plan_of_names([name])
    for refusal in plan.refusals:
        raise SourceError(
            f"{name} is neither in the catalog nor a path, and cannot be had from the Hub: {refusal.message}"
        )
    return plan.models[0].candidate


def _is_measured(catalog: Catalog, spec: MeasurementSpec, model_id: str, revision: str) -> bool:
    sql = "SELECT count(*) > 0 FROM measurements WHERE model_id = ? AND revision = ? AND spec_id = ?"
    ((found,),) = run_query(catalog, sql, parameters=[model_id, revision, spec.spec_id]).rows
    return bool(found)
