"""The command that measures: screen."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import click

from zoo.cli_catalog import catalog_option, format_option
from zoo.cli_hub import HubChoice, find_on_hub, hub_choice, hub_options, parse_bandwidth, shown_search
from zoo.errors import SourceError
from zoo.pages import ranking_text
from zoo.sensitivity_pages import doubt_hint
from zoo.tables import ABSENT, Format, format_rows, format_table, printable, seconds_text

if TYPE_CHECKING:
    from rich.console import Console

    from catalog.store import Catalog, Recorded
    from zoo.records import Candidate, MeasurementSpec, Plan, PromptFormat
    from zoo.reports import ScreenSummary
    from zoo.sources import Found

SOME_FAILED = 3
INTERRUPTED = 130


@click.command()
@click.option(
    "--source",
    help="Instead of the Hub: demo, a checkpoint folder, a folder tree of org/name checkpoints, or a .gguf "
    "file.",
)
@hub_options
@catalog_option
@click.option(
    "--address",
    metavar="ADDRESS",
    help="The Ray cluster; by default the running one, else one is started here.",
)
@click.option(
    "--gpus-per-model",
    type=click.FloatRange(min=0),
    help="GPUs a model gets, a fraction shares one.  [default: 1, or 0 where there are none]",
)
@click.option(
    "--prompts",
    "prompt_count",
    type=click.IntRange(10, 256),
    default=256,
    show_default=True,
    help="Use the first N calibration prompts; results for different N are never ranked together.",
)
@click.option(
    "--prompt-format",
    type=click.Choice(["auto", "chat", "plain"]),
    default="auto",
    show_default=True,
    help="Render prompts with the chat template, as plain text, or by what the model has.",
)
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Where a model runs; auto is a GPU where the cluster has one.",
)
@click.option(
    "--dtype",
    type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
    default="auto",
    show_default=True,
    help="A model's number format; auto is the checkpoint's on a GPU and float32 on a CPU.",
)
@click.option(
    "--load",
    type=click.Choice(["auto", "stream", "whole"]),
    default="auto",
    show_default=True,
    help="Read weights layer by layer while the model runs, or all at first; auto streams what it can.",
)
@click.option(
    "--verify",
    type=click.Choice(["parts", "full"]),
    default="parts",
    show_default=True,
    help="What is checked of streamed weights: the parts that are read, or first every file's SHA-256.",
)
@click.option("--limit", type=click.IntRange(min=1), help="Take only the first N models to be measured.")
@click.option("--force", is_flag=True, help="Measure again what the catalog holds; the new result counts.")
@click.option(
    "--dry-run", is_flag=True, help="Only list what would be measured, and what was refused and why."
)
@format_option
@click.pass_context
def screen(
    context: click.Context,
    *,
    source: str | None,
    bandwidth: str,
    catalog_uri: str,
    address: str | None,
    gpus_per_model: float | None,
    prompt_count: int,
    prompt_format: PromptFormat,
    device: str,
    dtype: str,
    load: Literal["auto", "stream", "whole"],
    verify: Literal["parts", "full"],
    limit: int | None,
    force: bool,
    dry_run: bool,
    format: Format,
    **hub_arguments: Any,
) -> None:
    """Measure models and rank them: the ones named, those a search of the Hub finds, or local ones.

    \b
    zoo screen --filter "7B" --limit 20     the 20 most downloaded models of about 7 billion parameters
    zoo screen Qwen/Qwen2.5-7B              one model of the Hub
    zoo screen --source ./checkpoints       local models, without a network

    Each model is measured once: running the same command again measures what is new or could not be
    reached. The ranking goes to the standard output, everything else to the standard error.
    """
    from rich.console import Console

    from zoo.prompts import make_spec
    from zoo.records import RunOptions

    console = Console(stderr=True, highlight=False)
    choice = hub_choice(**hub_arguments)
    _check_source(source, choice)
    rate = parse_bandwidth(bandwidth)
    spec = make_spec(prompt_count=prompt_count, prompt_format=prompt_format)
    plan = _hub_plan(choice, limit=limit, console=console) if source is None else None
    found = _found(source, plan)
    candidates = found.candidates[:limit]
    if dry_run:
        done = {} if force else _recorded(catalog_uri, spec.spec_id)
        if plan is not None:
            click.echo(_hub_plan_text(plan, done=done, bandwidth=rate, format=format))
        else:
            click.echo(_plan_text(found, candidates, done=done, format=format))
        return

    from catalog.store import open_catalog
    from zoo.progress import shown_progress
    from zoo.screen import screen as run_screen

    catalog = open_catalog(catalog_uri, create=True) if candidates or plan else None
    if plan is not None and catalog is not None:
        _keep(plan, choice, catalog=catalog)
    _say_refusals(found, plan)
    if not candidates or catalog is None:
        place = source or "the Hub"
        raise SourceError(f"{place} holds no model that can be measured; the reasons are above")
    with shown_progress(console) as progress:
        summary = run_screen(
            candidates,
            catalog=catalog,
            spec=spec,
            options=RunOptions(device=device, dtype=dtype, load=load, verify=verify),
            address=address,
            gpus_per_model=gpus_per_model,
            force=force,
            progress=progress,
        )
    if summary.measured or summary.already_measured:
        _print_ranking(candidates, catalog=catalog, spec=spec, format=format)
    _say_summary(summary, catalog_uri=catalog_uri)
    if summary.interrupted:
        context.exit(INTERRUPTED)
    if summary.failed or summary.failed_before or any(each.transient for each in found.refusals):
        context.exit(SOME_FAILED)


def _check_source(source: str | None, choice: HubChoice) -> None:
    asks_hub = choice.names_models or choice.is_search
    if source is not None and asks_hub:
        raise click.UsageError("give --source or models of the Hub, not both")
    if source is None and not asks_hub:
        raise click.UsageError('name models of the Hub, search it with --filter "7B", or give --source')


def _hub_plan(choice: HubChoice, *, limit: int | None, console: Console) -> Plan:
    from zoo.hub import Hub

    with shown_search(console) as report:
        return find_on_hub(choice, hub=Hub(report=_say), limit=limit, report=report)


def _found(source: str | None, plan: Plan | None) -> Found:
    """The models of a local source, or of a plan."""
    from zoo.sources import Found, find_candidates

    if plan is None:
        assert source is not None
        return find_candidates(source)
    return Found(candidates=tuple(each.candidate for each in plan.models), refusals=plan.refusals)


def _hub_plan_text(
    plan: Plan, *, done: Mapping[tuple[str, str], Recorded], bandwidth: float, format: Format
) -> str:
    from zoo.plan_text import plan_text

    settled = {key: f"{each.status} before" for key, each in done.items() if not each.transient}
    return plan_text(plan, bandwidth=bandwidth, format=format, settled=settled)


def _keep(plan: Plan, choice: HubChoice, *, catalog: Catalog) -> None:
    """Keeps what a search saw."""
    from catalog.scans import record_scan
    from zoo.plan import scan_rows

    record_scan(catalog, scan_rows(plan), query=choice.text)


def _plan_text(
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


def _recorded(catalog_uri: str, spec_id: str) -> Mapping[tuple[str, str], Recorded]:
    """What the catalog holds for a spec; nothing where there is no catalog yet, and none is made."""
    from catalog.store import open_catalog

    is_local = "://" not in catalog_uri
    if is_local and not os.path.exists(os.path.expanduser(catalog_uri)):
        return {}
    return open_catalog(catalog_uri, create=not is_local).done(spec_id)


def _print_ranking(
    candidates: Sequence[Candidate], *, catalog: Catalog, spec: MeasurementSpec, format: Format
) -> None:
    """Prints where the catalog ranks these candidates."""
    from catalog.lookup import rank_rows

    table = rank_rows(catalog, spec.spec_id).table
    at, names = table.columns.index("model_id"), {each.model_id for each in candidates}
    rows = tuple(row for row in table.rows if row[at] in names)
    click.echo(ranking_text(replace(table, rows=rows), format=format))
    if format == "table" and (hint := doubt_hint(replace(table, rows=rows))):
        _say(hint)


def _say_summary(summary: ScreenSummary, *, catalog_uri: str) -> None:
    for report in summary.failed:
        _say(f"Failed {report.model_id} in {report.stage} ({report.reason}): {report.message}")
    for report in summary.failed_before:
        _say(f"Failed before {report.model_id} in {report.stage} ({report.reason})")
    ended = f"{len(summary.measured)} measured, {len(summary.failed)} failed"
    if summary.interrupted:
        left = len(summary.not_ended)
        _say(f"Stopped: {ended}, all kept in {catalog_uri}; the same command goes on with the {left} left.")
    elif summary.measured or summary.failed:
        _say(f"{ended} in {seconds_text(summary.elapsed_seconds)}, kept in {catalog_uri}.")
    if before := len(summary.already_measured) + len(summary.failed_before):
        _say(f"{before} already in {catalog_uri} and not measured again; --force does.")


def _say_refusals(found: Found, plan: Plan | None) -> None:
    """One line a local model, the Hub's many by reason."""
    if plan is not None and plan.refusals:
        from zoo.plan_text import refusals_text

        click.echo(refusals_text(plan), err=True)
        return
    for refusal in found.refusals:
        _say(f"Refused {refusal.model_id} ({refusal.reason}): {refusal.message}")


def _say(line: str) -> None:
    click.echo(printable(line), err=True)
