"""What the screen command prints: its plan, its refusals, its ranking and how it ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from zoo.cli_hub import say
from zoo.pages import ranking_text
from zoo.sensitivity_pages import doubt_hint
from zoo.tables import ABSENT, Format, format_rows, format_table, seconds_text

if TYPE_CHECKING:
    from catalog.query import QueryResult
    from catalog.store import Catalog, Recorded
    from zoo.records import Candidate, MeasurementSpec, Plan, Refusal
    from zoo.reports import ScreenSummary
    from zoo.sources import Found


def hub_plan_text(
    plan: Plan, *, done: Mapping[tuple[str, str], Recorded], bandwidth: float, format: Format
) -> str:
    """What a run would do with the repositories of a search."""
    from zoo.plan_text import plan_text

    settled = {key: f"{each.status} before" for key, each in done.items() if not each.transient}
    return plan_text(plan, bandwidth=bandwidth, format=format, settled=settled)


def local_plan_text(
    found: Found, candidates: Sequence[Candidate], *, done: Mapping[tuple[str, str], Recorded], format: Format
) -> str:
    """What a run would do with every model of the source, one row each."""
    from zoo.screen import plan

    todo, summary = plan(candidates, done=done)
    rows: list[tuple[str, str | None, int | None, str, str | None]]
    rows = [(each.model_id, each.revision, each.weight_bytes, "measure", None) for each in todo]
    rows += [
        (each.model_id, each.revision, each.weight_bytes, "measured before", None)
        for each in summary.already_measured
    ]
    rows += [
        (each.model_id, each.revision, None, "failed before", each.reason) for each in summary.failed_before
    ]
    rows += [(each.model_id, each.revision, None, "refused", each.message) for each in found.refusals]
    if format != "table":
        return format_rows(("model_id", "revision", "weight_bytes", "plan", "reason"), rows, format=format)
    cells = [
        (model_id, ABSENT if size is None else f"{size / 1e9:.2f}", verdict, reason or "")
        for model_id, _, size, verdict, reason in rows
    ]
    return format_table(("model", "GB", "plan", "reason"), cells, numeric=(False, True, False, False))


def print_rankings(
    candidates: Sequence[Candidate], *, catalog: Catalog, specs: Sequence[MeasurementSpec], format: Format
) -> None:
    """Prints where the catalog ranks these candidates: a table a spec, or all rows as one for programs."""
    from catalog.lookup import rank_rows

    tables = [_of(candidates, rank_rows(catalog, spec.spec_id).table) for spec in specs]
    if format != "table":
        rows = tuple(row for table in tables for row in table.rows)
        click.echo(ranking_text(replace(tables[0], rows=rows), format=format))
        return
    for spec, table in zip(specs, tables, strict=True):
        if len(specs) > 1:
            click.echo(f"Prompts {spec.prompt_format} (spec {spec.spec_id})")
        click.echo(ranking_text(table, format=format))
    if hint := doubt_hint(replace(tables[0], rows=tuple(row for table in tables for row in table.rows))):
        say(hint)


def _of(candidates: Sequence[Candidate], table: QueryResult) -> QueryResult:
    at, names = table.columns.index("model_id"), {each.model_id for each in candidates}
    return replace(table, rows=tuple(row for row in table.rows if row[at] in names))


def say_summary(summary: ScreenSummary, *, catalog_uri: str) -> None:
    """How every model ended, and where the rows are."""
    for report in summary.failed:
        say(f"Failed {report.model_id} in {report.stage} ({report.reason}): {report.message}")
    for report in summary.failed_before:
        say(f"Failed before {report.model_id} in {report.stage} ({report.reason})")
    ended = f"{len(summary.measured)} measured, {len(summary.failed)} failed"
    if summary.interrupted:
        left = len(summary.not_ended)
        say(f"Stopped: {ended}, all kept in {catalog_uri}; the same command goes on with the {left} left.")
    elif summary.catalog_error:
        left = len(summary.not_ended)
        say(f"Ended early with {ended}; {left} were not started: {summary.catalog_error}.")
    elif summary.out_of_time:
        left = len(summary.not_ended)
        say(f"Out of time: {ended}, all kept in {catalog_uri}; {left} were not started.")
    elif summary.measured or summary.failed:
        say(f"{ended} in {seconds_text(summary.elapsed_seconds)}, kept in {catalog_uri}.")
    if before := len(summary.already_measured) + len(summary.failed_before):
        say(f"{before} already in {catalog_uri} and not measured again; --force does.")


def say_end(summaries: Sequence[ScreenSummary], *, refusals: Sequence[Refusal], catalog_uri: str) -> None:
    """The end of a run as a block for a log: counts with reasons, the time, the rows, and how to go on."""
    failed = [report.reason for each in summaries for report in (*each.failed, *each.failed_before)]
    left = sum(len(each.not_ended) for each in summaries)
    again = left + sum(each.transient for each in refusals)
    again += sum(report.transient for each in summaries for report in each.failed)
    block = {
        "measured": str(sum(len(each.measured) for each in summaries)),
        "before": str(sum(len(each.already_measured) for each in summaries)),
        "failed": _by_reason(failed),
        "refused": _by_reason([each.reason for each in refusals]),
        "not ended": str(left),
        "time": seconds_text(sum(each.elapsed_seconds for each in summaries)),
        "catalog": catalog_uri,
        "to go on": f"the same command tries {again} of them again"
        if again
        else "the same command measures what is new; zoo rank shows the ranking",
    }
    say("Summary")
    for name, text in block.items():
        say(f"  {name:<10}{text}")


def _by_reason(reasons: Sequence[str]) -> str:
    """A count, and the counts by reason, the most frequent first."""
    counts = Counter(reasons).most_common()
    return str(len(reasons)) + (f" ({', '.join(f'{reason} {n}' for reason, n in counts)})" if counts else "")


def say_refusals(found: Found, plan: Plan | None) -> None:
    """One line a local model, the Hub's many by reason."""
    if plan is not None and plan.refusals:
        from zoo.plan_text import refusals_text

        click.echo(refusals_text(plan), err=True)
        return
    for refusal in found.refusals:
        say(f"Refused {refusal.model_id} ({refusal.reason}): {refusal.message}")
