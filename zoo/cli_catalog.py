"""The commands that read the catalog: rank, show, sql."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from zoo.degradation_pages import losses_hint, losses_text, predictions_text
from zoo.errors import CatalogError
from zoo.pages import details_text, ranking_text
from zoo.sensitivity_pages import doubt_hint, sensitivity_record, sensitivity_text
from zoo.tables import BLOCKS, FORMATS, Format, format_json, format_rows

if TYPE_CHECKING:
    from catalog.lookup import ModelDetails
    from catalog.store import Catalog

_TABLES = ("layers", "sweep", "weak_heads", "layer_sinks", "sensitivity", "attempts")

catalog_option = click.option(
    "--catalog",
    "catalog_uri",
    envvar="ZOO_CATALOG",
    default="./zoo-catalog",
    show_default=True,
    show_envvar=True,
    metavar="PATH|URI",
    help="The catalog: a folder, or a URI such as s3://bucket/prefix.",
)
format_option = click.option(
    "--format",
    "format",
    type=click.Choice(FORMATS),
    default="table",
    show_default=True,
    help="A table with rounded numbers, or exact JSON or CSV.",
)
spec_option = click.option(
    "--spec",
    "spec_id",
    metavar="SPEC_ID",
    help="The measurement spec to read; by default the one measured last.",
)


@click.command()
@click.option("--task", help="Rank by the predicted loss on this task, such as gsm8k_cot.")
@click.option(
    "--max-loss",
    type=float,
    metavar="POINTS",
    help="With --task: only models predicted to lose at most this.",
)
@catalog_option
@spec_option
@format_option
def rank(
    task: str | None, max_loss: float | None, catalog_uri: str, spec_id: str | None, format: Format
) -> None:
    """Rank the measured models, the best backbone first.

    Models are ordered by Sink Strength (nats): above 0 the typical head gives the attention sink more
    than half of its attention. The points of IFEval that zoo calibrate predicts them to lose stand beside it,
    once it has run; with --task they are ordered by the points of that task. Only results of one measurement
    spec are compared.
    """
    from catalog.lookup import rank_rows
    from catalog.store import open_catalog
    from zoo.losses import calibrated_tasks, ranked_losses, with_losses

    if max_loss is not None and task is None:
        raise click.UsageError("--max-loss needs a --task")
    catalog = open_catalog(catalog_uri)
    ranking = rank_rows(catalog, spec_id)
    if task is None:
        table = with_losses(catalog, ranking.table, ranking.spec_id)
        click.echo(ranking_text(table, format=format))
    else:
        losses = ranked_losses(catalog, ranking.spec_id, task=task, max_loss=max_loss)
        click.echo(losses_text(losses, format=format))
    if format == "table":
        if task is None and (hint := doubt_hint(ranking.table)):
            click.echo(hint, err=True)
        click.echo(losses_hint(task, calibrated_tasks(catalog, ranking.spec_id)), err=True)
    if ranking.other_spec_ids:
        others = ", ".join(ranking.other_spec_ids)
        click.echo(f"Left out, since their numbers do not compare: specs {others} (see --spec).", err=True)


@click.command()
@click.argument("model")
@catalog_option
@click.option("--revision", metavar="HEX", help="The revision to show; its first digits are enough.")
@spec_option
@click.option(
    "--sensitivity", is_flag=True, help="Show what S would be under other choices, and how it spreads."
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0, min_open=True),
    default=0.05,
    show_default=True,
    metavar="NATS",
    help="With --sensitivity: how near S must stay to count as stable.",
)
@format_option
def show(
    model: str,
    catalog_uri: str,
    revision: str | None,
    spec_id: str | None,
    sensitivity: bool,
    tolerance: float,
    format: Format,
) -> None:
    """Show everything the catalog knows about MODEL, such as org/name.

    JSON holds the layers, the sweep, weak heads, each layer's sink, other choices, all attempts and the
    predicted losses; CSV holds the model's one row. With --sensitivity both hold S under other choices.
    """
    from catalog.lookup import model_details
    from catalog.store import open_catalog
    from zoo.losses import predictions

    catalog = open_catalog(catalog_uri)
    details = model_details(catalog, model, revision=revision, spec_id=spec_id)
    if sensitivity:
        click.echo(_sensitivity(catalog, details, tolerance=tolerance, format=format))
        return
    key = {name: details.outcome[name] for name in ("model_id", "revision", "spec_id")}
    predicted_losses = predictions(catalog, **key)
    if format == "table":
        click.echo(details_text(details, blocks=shows_blocks()))
        if details.outcome["status"] == "measured":
            click.echo(f"\n{predictions_text(predicted_losses)}")
    elif format == "csv":
        click.echo(format_rows(list(details.outcome), [list(details.outcome.values())], format="csv"))
    else:
        tables = {name: getattr(details, name).records() for name in _TABLES}
        predicted = {"predictions": [asdict(prediction) for prediction in predicted_losses]}
        click.echo(format_json(details.outcome | tables | predicted))


def shows_blocks() -> bool:
    """Whether the standard output is a terminal that can show block characters."""
    if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        return False
    try:
        BLOCKS.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _sensitivity(catalog: Catalog, details: ModelDetails, *, tolerance: float, format: Format) -> str:
    from catalog.robustness import model_robustness

    if details.outcome["status"] != "measured":
        raise CatalogError(f"{details.outcome['model_id']} was not measured: zoo show says why")
    robustness = model_robustness(catalog, details.outcome, attempts=details.attempts.records())
    if format == "table":
        return sensitivity_text(robustness, tolerance=tolerance)
    if format == "json":
        return format_json(sensitivity_record(robustness, tolerance=tolerance))
    return format_rows(robustness.choices.columns, robustness.choices.rows, format="csv")


@click.command()
@click.argument("query", required=False)
@catalog_option
@click.option(
    "--timeout",
    "timeout_seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Stop a query that runs longer.",
)
@format_option
def sql(query: str | None, catalog_uri: str, timeout_seconds: float, format: Format) -> None:
    """Run one SELECT over the catalog; without QUERY, list the views it can read."""
    from catalog.query import run_query
    from catalog.store import open_catalog
    from catalog.view_files import list_views

    if query is None:
        click.echo(format_rows(("view", "holds"), list_views(), format=format))
        return
    result = run_query(open_catalog(catalog_uri), query, timeout_seconds=timeout_seconds)
    click.echo(format_rows(result.columns, result.rows, format=format))
