"""A plan as text: a table for people to pass on, exact rows for programs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from zoo.plan import refusals_by_reason
from zoo.records import Plan, PlannedModel
from zoo.tables import ABSENT, Format, count_text, format_rows, format_table, printable, seconds_text

LIMITS = {False: (500, 3000), True: (1000, 5000)}
"""API and resolver requests that the Hub allows in five minutes, without a token and with a free one."""

WINDOW_SECONDS = 300
SHOWN_IDS = 4
COLUMNS = (
    "model_id",
    "revision",
    "plan",
    "parameters",
    "layers",
    "heads",
    "qk_norm",
    "fetch_bytes",
    "fetch_seconds",
    "api_requests",
    "resolver_requests",
    "license",
    "base_model",
    "base_model_relation",
    "reason",
    "message",
)


def plan_text(
    plan: Plan,
    *,
    bandwidth: float,
    format: Format = "table",
    settled: Mapping[tuple[str, str], str] | None = None,
) -> str:
    """The plan for a person to read and pass on, or every repository as a row of JSON or CSV.

    ``settled`` says of (model_id, revision) what the catalog holds already, such as ``measured before``.
    """
    settled = settled or {}
    if format != "table":
        return format_rows(COLUMNS, plan_rows(plan, bandwidth=bandwidth, settled=settled), format=format)
    parts = []
    if plan.models:
        parts.append(_model_table(plan.models, bandwidth=bandwidth, settled=settled))
    todo = [each for each in plan.models if _key(each) not in settled]
    parts.append(_totals(todo, bandwidth=bandwidth, has_token=plan.has_token))
    parts += [_aliases_text(plan)] if plan.aliases else []
    parts += [refusals_text(plan)] if plan.refusals else []
    if plan.left_out:
        parts.append(f"Left out by --limit, not looked at: {len(plan.left_out)} repositories.")
    return "\n\n".join(parts)


def plan_rows(
    plan: Plan, *, bandwidth: float, settled: Mapping[tuple[str, str], str]
) -> list[tuple[Any, ...]]:
    """One row of ``COLUMNS`` for every repository that was looked at or left out."""
    rows: list[tuple[Any, ...]] = [
        (
            each.candidate.model_id,
            each.candidate.revision,
            settled.get(_key(each), "measure"),
            each.parameters,
            each.architecture.model_layers,
            sum(layer.heads for layer in each.architecture.attention_layers),
            each.architecture.qk_norm,
            each.fetch_bytes,
            each.fetch_bytes / bandwidth,
            each.api_requests,
            each.resolver_requests,
            each.listing.license,
            each.listing.base_model,
            each.listing.base_model_relation,
            None,
            None,
        )
        for each in plan.models
    ]
    empty = (None,) * 11
    for alias, model_id in plan.aliases.items():
        alias_id, _, revision = alias.partition("@")
        rows.append((alias_id, revision, "alias", *empty, None, f"the same weights as {model_id}"))
    rows += [
        (one.model_id, one.revision, "refused", *empty, one.reason, one.message) for one in plan.refusals
    ]
    rows += [(model_id, None, "left out", *empty, None, None) for model_id in plan.left_out]
    return rows


def _key(model: PlannedModel) -> tuple[str, str]:
    return model.candidate.model_id, model.candidate.revision


def _model_table(
    models: Sequence[PlannedModel], *, bandwidth: float, settled: Mapping[tuple[str, str], str]
) -> str:
    headers = ("model", "revision", "params", "layers", "heads", "QK-norm", "GB", "time", "plan")
    rows = [
        (
            each.candidate.model_id,
            each.candidate.revision[:12],
            count_text(each.parameters),
            _layers(each),
            _heads(each),
            each.architecture.qk_norm,
            f"{each.fetch_bytes / 1e9:.2f}",
            seconds_text(each.fetch_bytes / bandwidth),
            settled.get(_key(each), "measure"),
        )
        for each in models
    ]
    numeric = (False, False, True, True, True, False, True, True, False)
    return format_table(headers, rows, numeric=numeric)


def _layers(model: PlannedModel) -> str:
    """All layers, or the attention layers of all."""
    total, attention = model.architecture.model_layers, len(model.architecture.attention_layers)
    return str(total) if total == attention else f"{attention}/{total}"


def _heads(model: PlannedModel) -> str:
    """Query heads a layer; a range where layers differ."""
    counts = sorted({layer.heads for layer in model.architecture.attention_layers})
    return ABSENT if not counts else str(counts[0]) if len(counts) == 1 else f"{counts[0]}-{counts[-1]}"


def _totals(todo: Sequence[PlannedModel], *, bandwidth: float, has_token: bool) -> str:
    total = sum(each.fetch_bytes for each in todo)
    asked = [sum(each.api_requests for each in todo), sum(each.resolver_requests for each in todo)]
    limits = LIMITS[has_token]
    windows = max(math.ceil(count / limit) for count, limit in zip(asked, limits, strict=True)) if todo else 0
    seconds = max(total / bandwidth, max(0, windows - 1) * WINDOW_SECONDS)
    who = "with a free account's token" if has_token else "without a token"
    plural = "s" * (len(todo) != 1)
    return (
        f"To measure: {len(todo)} model{plural}, {total / 1e9:.2f} GB, about {seconds_text(seconds)} at "
        f"{bandwidth / 1e6:g} MB/s.\n"
        f"Requests: {asked[0]} API and {asked[1]} resolver; the Hub allows {limits[0]:,} and {limits[1]:,} "
        f"in five minutes {who}."
    )


def _aliases_text(plan: Plan) -> str:
    lines = [f"  {alias.partition('@')[0]} = {model_id}" for alias, model_id in plan.aliases.items()]
    return "\n".join(["Same weights, tokenizer and chat template, measured once:", *map(printable, lines)])


def refusals_text(plan: Plan) -> str:
    """The refused repositories by reason, most frequent first, with the sentence of the first of each."""
    lines = [f"Refused: {len(plan.refusals)} of {_seen(plan)} looked at."]
    for reason, group in refusals_by_reason(plan):
        ids = ", ".join(one.model_id for one in group[:SHOWN_IDS])
        more = f" and {len(group) - SHOWN_IDS} more" if len(group) > SHOWN_IDS else ""
        lines += [f"  {reason} ({len(group)}): {ids}{more}", f"    {group[0].message}"]
    return "\n".join(map(printable, lines))


def _seen(plan: Plan) -> int:
    return len(plan.models) + len(plan.aliases) + len(plan.refusals)
