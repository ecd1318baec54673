"""The command that measures: screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

import click

from zoo.cli_catalog import catalog_option, format_option
from zoo.cli_hub import HubChoice, find_on_hub, hub_choice, hub_options, parse_bandwidth, say, shown_search
from zoo.cli_output import hub_plan_text, local_plan_text, print_rankings, say_refusals, say_summary
from zoo.cli_types import DURATION, STAGE_LIMIT
from zoo.errors import NoCatalogError, SourceError
from zoo.exits import INTERRUPTED, SOME_FAILED
from zoo.tables import Format

if TYPE_CHECKING:
    from rich.console import Console

    from catalog.store import Catalog, Recorded
    from zoo.records import MeasurementSpec, Plan, PromptFormat
    from zoo.reports import ScreenSummary
    from zoo.sources import Found


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
    type=click.Choice(["auto", "chat", "plain", "both"]),
    default="auto",
    show_default=True,
    help="Render prompts with the chat template, as plain text, by what the model has (auto), or auto and "
    "then plain (both).",
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
@click.option(
    "--deadline",
    type=DURATION,
    help="End a model that takes longer, such as 2h.  [default: 30m, and 1m for every 1.2 GB]",
)
@click.option(
    "--stage-timeout",
    "stage_timeouts",
    type=STAGE_LIMIT,
    multiple=True,
    help="End a model that is longer in one stage, such as probe=30m; may be given several times.",
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
    prompt_format: Literal["auto", "chat", "plain", "both"],
    device: str,
    dtype: str,
    load: Literal["auto", "stream", "whole"],
    verify: Literal["parts", "full"],
    deadline: float | None,
    stage_timeouts: tuple[tuple[str, float], ...],
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
    formats: tuple[PromptFormat, ...] = ("auto", "plain") if prompt_format == "both" else (prompt_format,)
    specs = [make_spec(prompt_count=prompt_count, prompt_format=each) for each in formats]
    started = datetime.now(UTC)
    plan = _hub_plan(choice, limit=limit, console=console) if source is None else None
    found = _found(source, plan)
    candidates = found.candidates[:limit]
    if dry_run:
        done = {} if force else _recorded(catalog_uri, specs)
        if plan is not None:
            click.echo(hub_plan_text(plan, done=done, bandwidth=rate, format=format))
        else:
            click.echo(local_plan_text(found, candidates, done=done, format=format))
        return

    from catalog.store import open_catalog
    from zoo.progress import shown_progress
    from zoo.screen import screen as run_screen
    from zoo.timelimits import TimeLimits

    catalog = open_catalog(catalog_uri, create=True) if candidates or plan else None
    if plan is not None and catalog is not None:
        _keep(plan, choice, catalog=catalog, specs=specs, started=started)
    say_refusals(found, plan)
    if not candidates or catalog is None:
        place = source or "the Hub"
        raise SourceError(f"{place} holds no model that can be measured; the reasons are above")
    summaries: list[ScreenSummary] = []
    for spec in specs:
        with shown_progress(console) as progress:
            summary = run_screen(
                candidates,
                catalog=catalog,
                spec=spec,
                options=RunOptions(device=device, dtype=dtype, load=load, verify=verify),
                address=address,
                gpus_per_model=gpus_per_model,
                force=force,
                limits=TimeLimits(model_seconds=deadline, stage_seconds=dict(stage_timeouts)),
                refusals=found.refusals,
                progress=progress,
            )
        summaries.append(summary)
        if summary.interrupted:
            break
    if any(each.measured or each.already_measured for each in summaries):
        print_rankings(candidates, catalog=catalog, specs=specs[: len(summaries)], format=format)
    for summary in summaries:
        say_summary(summary, catalog_uri=catalog_uri)
    if context.obj is not None:
        context.obj(summaries, refusals=found.refusals, catalog_uri=catalog_uri)
    if summaries[-1].interrupted:
        context.exit(INTERRUPTED)
    if any(each.failed or each.failed_before for each in summaries) or any(
        each.transient for each in found.refusals
    ):
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
        return find_on_hub(choice, hub=Hub(report=say), limit=limit, report=report)


def _found(source: str | None, plan: Plan | None) -> Found:
    """The models of a local source, or of a plan."""
    from zoo.sources import Found, find_candidates

    if plan is None:
        assert source is not None
        return find_candidates(source)
    return Found(candidates=tuple(each.candidate for each in plan.models), refusals=plan.refusals)


def _keep(
    plan: Plan,
    choice: HubChoice,
    *,
    catalog: Catalog,
    specs: Sequence[MeasurementSpec],
    started: datetime,
) -> None:
    """Keeps what a search saw, and how far it saw for the rescans that go on from there."""
    from catalog.scans import ScanFacts, record_scan, seen_until
    from zoo.changes import newest_time
    from zoo.plan import scan_rows

    facts = ScanFacts()
    if (search := choice.search) is not None and (newest := newest_time(plan.listed)) is not None:
        elapsed = (datetime.now(UTC) - started).total_seconds()
        watermark = seen_until(newest, started=started, elapsed_seconds=elapsed)
        facts = ScanFacts(
            search=search.key, spec_ids=tuple(spec.spec_id for spec in specs), watermark=watermark
        )
    record_scan(catalog, scan_rows(plan), query=choice.text, facts=facts)


def _recorded(catalog_uri: str, specs: Sequence[MeasurementSpec]) -> Mapping[tuple[str, str], Recorded]:
    """What the catalog holds for all the specs; nothing where there is no catalog yet, and none is made."""
    from catalog.store import open_catalog

    try:
        catalog = open_catalog(catalog_uri)
    except NoCatalogError:
        return {}
    first, *others = (catalog.done(spec.spec_id) for spec in specs)
    return {key: recorded for key, recorded in first.items() if all(key in other for other in others)}
