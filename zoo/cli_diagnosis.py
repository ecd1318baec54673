"""The commands that look closer: plot, compare."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from zoo.cli_catalog import catalog_option, format_option, spec_option
from zoo.errors import CatalogError
from zoo.tables import Format, format_json, format_rows, format_table

if TYPE_CHECKING:
    from catalog.store import Catalog
    from zoo.sensitivity import Order

output_option = click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The picture to write; its ending says how: .png, .svg or .pdf.",
)


@click.command()
@click.argument("model", required=False)
@click.option("--ranking", is_flag=True, help="Draw all models of the ranking instead of one model.")
@output_option
@catalog_option
@spec_option
def plot(
    model: str | None, ranking: bool, output: Path | None, catalog_uri: str, spec_id: str | None
) -> None:
    """Draw MODEL's heads, sweep and layers, or the ranking, as PNG, SVG or PDF."""
    from catalog.store import open_catalog
    from zoo.pictures import save

    if (model is None) != ranking:
        raise click.UsageError("give either a MODEL or --ranking")
    catalog = open_catalog(catalog_uri)
    if model is None:
        figure, name = _ranking_figure(catalog, spec_id), "ranking"
    else:
        figure, name = _model_figure(catalog, model, spec_id), model.replace("/", "--")
    path = output or Path(f"{name}.png")
    save(figure, path)
    click.echo(f"Drawn in {path}.", err=True)


def _ranking_figure(catalog: Catalog, spec_id: str | None) -> Any:
    from catalog.lookup import rank_rows
    from zoo.plots import ranking_figure

    return ranking_figure(rank_rows(catalog, spec_id).table.records())


def _model_figure(catalog: Catalog, model: str, spec_id: str | None) -> Any:
    from catalog.robustness import head_matrix
    from zoo.plots import ModelPicture, model_figure

    outcome, cells = _measured(catalog, model, spec_id)
    picture = ModelPicture(
        model_id=outcome["model_id"],
        sink_strength=outcome["sink_strength"],
        interval=(outcome["interval_low"], outcome["interval_high"]),
        window_layers=outcome["window_layers"],
        log_odds_LH=head_matrix(catalog, outcome),
        cells=cells,
    )
    return model_figure(picture)


def _measured(
    catalog: Catalog, model: str, spec_id: str | None
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The model's measured row and the cells of its sweep."""
    from catalog.lookup import model_details

    details = model_details(catalog, model, spec_id=spec_id)
    if details.outcome["status"] != "measured":
        raise CatalogError(f"{model} was not measured: zoo show {model} says why")
    return details.outcome, details.sweep.records()


@click.command()
@click.argument("models", nargs=-1, required=True, metavar="A B [C...]")
@output_option
@catalog_option
@spec_option
@format_option
def compare(
    models: tuple[str, ...], output: Path | None, catalog_uri: str, spec_id: str | None, format: Format
) -> None:
    """Compare measured models: their heads side by side, and whether the order of their S is certain.

    Both models of a pair are resampled on the same prompts. With --output their heads are drawn.
    """
    from catalog.robustness import window_log_odds
    from catalog.store import open_catalog
    from zoo.sensitivity import order
    from zoo.strength import head_log_odds

    if len(set(models)) < 2:
        raise click.UsageError("give at least two different models")
    catalog = open_catalog(catalog_uri)
    rows = [_measured(catalog, model, spec_id)[0] for model in dict.fromkeys(models)]
    specs = sorted({row["spec_id"] for row in rows})
    if len(specs) > 1:
        raise CatalogError(
            f"these models were measured under specs {', '.join(specs)}, which do not compare: choose one "
            "with --spec"
        )
    rows.sort(key=lambda row: -row["sink_strength"])
    log_odds = {row["model_id"]: window_log_odds(catalog, row) for row in rows}
    orders = {
        (one["model_id"], other["model_id"]): order(log_odds[one["model_id"]], log_odds[other["model_id"]])
        for one, other in combinations(rows, 2)
    }
    heads = {name: head_log_odds(log_odds_PH) for name, log_odds_PH in log_odds.items()}
    click.echo(_comparison(rows, heads, orders, format=format))
    if output:
        from zoo.pictures import save
        from zoo.plots import comparison_figure, short

        drawn = [(row["model_id"], row["sink_strength"], heads[row["model_id"]]) for row in rows]
        names = {row["model_id"]: short(row["model_id"].rpartition("/")[2], 30) for row in rows}
        verdicts = [_verdict(names[one], names[other], found) for (one, other), found in orders.items()]
        save(comparison_figure(drawn, verdicts), output)
        click.echo(f"Drawn in {output}.", err=True)


def _verdict(one: str, other: str, order: Order) -> str:
    sure = "Certain" if order.certain else "Not certain"
    interval = f"{order.interval.low:.2f} to {order.interval.high:.2f}"
    return f"{sure}: {one} above {other} by {order.difference:.2f} nats ({interval})"


def _comparison(
    rows: list[dict[str, Any]],
    heads: dict[str, np.ndarray],
    orders: dict[tuple[str, str], Order],
    *,
    format: Format,
) -> str:
    columns = ("above", "below", "difference", "low", "high", "share_above", "certain")
    pairs = [
        (*pair, each.difference, each.interval.low, each.interval.high, each.share_above, each.certain)
        for pair, each in orders.items()
    ]
    if format == "csv":
        return format_rows(columns, pairs, format="csv")
    quantiles = {name: np.nanquantile(values, [0.1, 0.25, 0.5, 0.75, 0.9]) for name, values in heads.items()}
    if format == "json":
        records = [
            {
                "model_id": row["model_id"],
                "sink_strength": row["sink_strength"],
                "weak_head_share": row["weak_head_share"],
                "quantiles": quantiles[row["model_id"]].tolist(),
            }
            for row in rows
        ]
        return format_json(
            {"models": records, "pairs": [dict(zip(columns, pair, strict=True)) for pair in pairs]}
        )
    table = [
        [
            row["model_id"],
            f"{row['sink_strength']:.2f}",
            f"{row['weak_head_share']:.0%}",
            *(f"{value:.2f}" for value in quantiles[row["model_id"]]),
        ]
        for row in rows
    ]
    headers = ("model", "S (nats)", "below 0", "10 %", "25 %", "50 %", "75 %", "90 %")
    shown = [
        [
            one,
            other,
            f"{each.difference:.2f}",
            f"{each.interval.low:.2f} to {each.interval.high:.2f}",
            f"{each.share_above:.1%}",
            "yes" if each.certain else "no",
        ]
        for (one, other), each in orders.items()
    ]
    pair_headers = ("above", "below", "by (nats)", "95 % interval", "of resamples", "certain")
    return "\n\n".join(
        [
            format_table(headers, table, numeric=(False, *(True,) * 7)),
            format_table(pair_headers, shown, numeric=(False, False, True, True, True, False)),
        ]
    )
