"""The command that checks zoo against numbers that others have published: check-published."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from zoo.cli_catalog import format_option
from zoo.cli_hub import HubChoice, find_on_hub, say, shown_search
from zoo.errors import ModelError, SourceError
from zoo.exits import SOME_FAILED
from zoo.records import RunOptions
from zoo.tables import ABSENT, Format, format_rows, format_table

if TYPE_CHECKING:
    from zoo.records import Candidate


@click.command("check-published")
@click.argument("models", nargs=-1, metavar="[MODEL[@REVISION]]...")
@click.option("--source", help="Local models instead, as for zoo screen: those with a published number.")
@click.option("--all", "measure_all", is_flag=True, help="With --source: measure the other models too.")
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Where a model runs.",
)
@click.option(
    "--dtype",
    type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
    default="auto",
    show_default=True,
    help="A model's number format; the authors' code loads models in float32.",
)
@format_option
@click.pass_context
def check_published(
    context: click.Context,
    models: tuple[str, ...],
    source: str | None,
    measure_all: bool,
    device: str,
    dtype: str,
    format: Format,
) -> None:
    """Measure the sink rate of Gu et al. (arXiv:2410.10781) and print it beside the published one.

    The sink rate is the share of sequences, layers and heads in which the first of 64 tokens gets over 0.3 of
    the attention on average. MODEL is one of the Hub. The texts are zoo's own, so expect agreement within a
    few points, not digits.
    """
    from zoo.sink_rate import measure_sink_rate, published_rate

    if bool(models) == bool(source):
        raise click.UsageError("name models of the Hub or give --source")
    candidates, failed = _named(models) if models else (_local(source or "", measure_all=measure_all), False)
    rows = []
    for each in candidates:
        say(f"Measuring {each.model_id}")
        try:
            rate = measure_sink_rate(each, options=RunOptions(device=device, dtype=dtype))
        except ModelError as error:
            say(f"Failed {each.model_id} in {error.stage} ({error.reason}): {error}")
            failed = True
            continue
        published = published_rate(each.model_id)
        rows.append((each.model_id, rate.rate, rate.sequences, rate.layers, rate.heads, published))
    click.echo(_rates_text(rows, format=format))
    if failed:
        context.exit(SOME_FAILED)


def _local(source: str, *, measure_all: bool) -> list[Candidate]:
    from zoo.sink_rate import PUBLISHED, published_rate
    from zoo.sources import find_candidates

    found = find_candidates(source)
    candidates = [each for each in found.candidates if measure_all or published_rate(each.model_id)]
    if not candidates:
        raise SourceError(
            f"{source} holds no model with a published sink rate, which are {', '.join(PUBLISHED)}: "
            "name a source that does, or measure others with --all"
        )
    return candidates


def _named(models: tuple[str, ...]) -> tuple[list[Candidate], bool]:
    """The models of the Hub that can be measured, and whether any was refused."""
    from rich.console import Console

    from zoo.hub import Hub

    with shown_search(Console(stderr=True, highlight=False)) as report:
        plan = find_on_hub(HubChoice(model_ids=models, params="0.."), hub=Hub(report=say), report=report)
    for refusal in plan.refusals:
        say(f"Refused {refusal.model_id} ({refusal.reason}): {refusal.message}")
    if not plan.models:
        raise SourceError("none of these models can be measured; the reasons are above")
    return [each.candidate for each in plan.models], bool(plan.refusals)


def _rates_text(rows: list[tuple[str, float, int, int, int, float | None]], *, format: Format) -> str:
    columns = ("model_id", "sink_rate_eps03", "sequences", "layers", "heads", "published")
    if format != "table":
        return format_rows(columns, rows, format=format)
    cells = [
        [
            model_id,
            f"{rate:.2%}",
            str(sequences),
            str(heads),
            ABSENT if published is None else f"{published:.2%}",
            ABSENT if published is None else f"{100 * (rate - published):+.2f}",
        ]
        for model_id, rate, sequences, _, heads, published in rows
    ]
    headers = ("model", "sink rate", "sequences", "heads", "published", "points apart")
    return format_table(headers, cells, numeric=(False, *(True,) * 5))
