"""The command for the nights: rescan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from zoo.cli_catalog import catalog_option, format_option
from zoo.cli_hub import describe, parse_bandwidth, say, shown_search
from zoo.errors import SourceError
from zoo.profiles import CHOICES, Profile, Settings, read_profile
from zoo.tables import Format

if TYPE_CHECKING:
    from rich.console import Console

    from catalog.store import Catalog
    from zoo.nights import NightSummary
    from zoo.records import MeasurementSpec
    from zoo.rescan import Night

_SETTINGS = (
    click.option(
        "--budget-bytes",
        metavar="BYTES",
        help="Fetch at most so much, such as 2TB; the rest comes next night.",
    ),
    click.option(
        "--budget-hours",
        type=click.FloatRange(min=0, min_open=True),
        help="Start no model after so many hours.",
    ),
    click.option(
        "--bandwidth",
        metavar="RATE",
        help="What all workers fetch together, for --budget-hours and --dry-run.  [default: 100MB/s]",
    ),
    click.option(
        "--overlap",
        "overlap_hours",
        type=click.FloatRange(min=0),
        metavar="HOURS",
        help="How far before the last scan the listing begins.  [default: 24]",
    ),
    click.option(
        "--prompts",
        type=click.IntRange(10, 256),
        help="Use the first N calibration prompts.  [default: 256]",
    ),
    click.option("--gpus-per-model", type=click.FloatRange(min=0), help="As in zoo screen."),
    *(
        click.option(f"--{name.replace('_', '-')}", type=click.Choice(values), help="As in zoo screen.")
        for name, values in CHOICES.items()
    ),
)


def settings_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that a profile may hold too."""
    for option in reversed(_SETTINGS):
        command = option(command)
    return command


@click.command()
@click.option("--profile", "profile_name", metavar="NAME", help="What to look for and how, from a file.")
@click.option(
    "--profiles",
    "profiles_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file of profiles.  [default: zoo.toml, else profiles.toml]",
)
@click.option(
    "--since",
    type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"]),
    help="Look at least this far back, in UTC; needed where nothing was scanned yet.",
)
@settings_options
@catalog_option
@click.option(
    "--address",
    metavar="ADDRESS",
    help="The Ray cluster; by default the running one, else one is started here.",
)
@click.option("--dry-run", is_flag=True, help="Only list what would be measured; nothing is kept.")
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.md",
    help="Write the summary to this file, too, as Markdown.",
)
@click.option("--keep-report", is_flag=True, help="Keep it in the catalog's reports/ unless nothing was new.")
@format_option
@click.pass_context
def rescan(
    context: click.Context,
    *,
    profile_name: str | None,
    profiles_file: Path | None,
    since: datetime | None,
    catalog_uri: str,
    address: str | None,
    dry_run: bool,
    report: Path | None,
    keep_report: bool,
    format: Format,
    **given: Any,
) -> None:
    """Measure what the Hub released or changed since the last scan, and say what is new in the ranking.

    The filters are those of the last zoo screen that searched the Hub, or a profile's. What a night cannot
    do comes back the next night. A failed listing changes nothing: the next rescan starts at the same point.
    """
    from rich.console import Console

    from catalog.store import open_catalog
    from zoo.night_run import measure_night
    from zoo.progress import shown_progress
    from zoo.rescan import keep

    started = monotonic()
    profile = read_profile(profile_name, path=profiles_file) if profile_name else None
    if profiles_file and not profile:
        raise click.UsageError("--profiles needs a --profile")
    settings = (profile.settings if profile else Settings()).overruled(given)
    _check_report(report)
    catalog = open_catalog(catalog_uri, create=profile is not None and not dry_run)
    begin = since.replace(tzinfo=UTC) if since else None
    if begin and begin > datetime.now(UTC):
        raise SourceError(f"--since {since:%Y-%m-%d} lies in the future; give a day that has begun, in UTC")
    console = Console(stderr=True, highlight=False)
    night, spec = _look(catalog, profile=profile, settings=settings, since=begin, console=console)
    if dry_run:
        click.echo(_plan_text(night, catalog=catalog, settings=settings, format=format))
        return
    keep(night, catalog=catalog)
    with shown_progress(console) as progress:
        summary = measure_night(
            night,
            catalog=catalog,
            spec=spec,
            settings=settings,
            address=address,
            started=started,
            progress=progress,
        )
    _tell(summary, report=report, catalog=catalog if keep_report else None, format=format)
    context.exit(summary.exit_code)


def _look(
    catalog: Catalog,
    *,
    profile: Profile | None,
    settings: Settings,
    since: datetime | None,
    console: Console,
) -> tuple[Night, MeasurementSpec]:
    from catalog.watermarks import read_history
    from zoo.budget import Budget
    from zoo.hub import Hub
    from zoo.prompts import make_spec
    from zoo.rescan import OVERLAP, last_search, look

    budget = Budget.of(settings.budget_bytes, hours=settings.budget_hours, bandwidth=_rate(settings))
    spec = make_spec(prompt_count=settings.prompts or 256, prompt_format=settings.prompt_format or "auto")
    history = read_history(catalog, spec_id=spec.spec_id)
    search = profile.search if profile else last_search(history.scans)
    hours = settings.overlap_hours
    with shown_search(console) as report:
        night = look(
            Hub(report=say),
            catalog=catalog,
            history=history,
            search=search,
            spec_id=spec.spec_id,
            describe=describe,
            budget=budget,
            since=since,
            overlap=OVERLAP if hours is None else timedelta(hours=hours),
            profile=profile.name if profile else None,
            report=report,
        )
    return night, spec


def _rate(settings: Settings) -> float:
    return parse_bandwidth(settings.bandwidth or "100MB/s")


def _plan_text(night: Night, *, catalog: Catalog, settings: Settings, format: Format) -> str:
    from zoo.cli_output import hub_plan_text
    from zoo.rescan_pages import lead_text

    say(lead_text(night))
    plan = night.plan if format != "table" else replace(night.plan, left_out=())
    if night.plan.left_out:
        say(f"Left for later nights by the budget: {len(night.plan.left_out)} repositories.")
    return hub_plan_text(plan, done=catalog.done(night.spec_id), bandwidth=_rate(settings), format=format)


def _tell(summary: NightSummary, *, report: Path | None, catalog: Catalog | None, format: Format) -> None:
    """Prints the summary, and writes it where it was asked for."""
    from zoo.rescan_pages import night_markdown, night_text

    click.echo(night_text(summary, format=format))
    if report is not None:
        try:
            report.write_text(night_markdown(summary), encoding="utf-8")
        except OSError as error:
            raise SourceError(
                f"{report} cannot be written ({error.strerror}); --format json has it all"
            ) from None
    if catalog is not None and summary.night.work.targets:
        from catalog.scans import keep_report

        say(f"Kept as {keep_report(catalog, night_markdown(summary))} in {catalog.uri}.")


def _check_report(report: Path | None) -> None:
    """Raises SourceError where a report could not be written hours later."""
    if report is None:
        return
    try:
        report.open("a").close()
    except OSError as error:
        raise SourceError(
            f"the report cannot be written to {report} ({error.strerror}); name another file with --report"
        ) from None
