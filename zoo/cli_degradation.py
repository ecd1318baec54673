"""The commands about losses: calibrate, pair, track."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from zoo.cli_catalog import catalog_option, format_option
from zoo.degradation_pages import change_text, predictions_text, track_text
from zoo.errors import PanelError, SourceError
from zoo.exits import SOME_FAILED
from zoo.panel import DEFAULT_PROTOCOL
from zoo.prediction import DEFAULT_LEVEL, DEFAULT_PREDICTOR, PREDICTOR_TEXTS
from zoo.tables import Format, format_rows, printable

FELL = 4
"""The exit code of `zoo track` when S fell by more than was allowed."""

address_option = click.option(
    "--address",
    metavar="ADDRESS",
    help="The Ray cluster; by default the running one, else one is started here.",
)
prompts_option = click.option(
    "--prompts",
    "prompt_count",
    type=click.IntRange(10, 256),
    default=256,
    show_default=True,
    help="Measure with the first N calibration prompts, as zoo screen --prompts does.",
)


@click.command()
@click.option("--source", help="Take the panel's reference LLMs from here, as zoo screen does, not the Hub.")
@click.option("--catalog-only", is_flag=True, help="Measure nothing: fit what the catalog holds.")
@click.option("--task", "tasks", multiple=True, help="Fit only this task; by default all of the protocol.")
@click.option(
    "--protocol",
    default=DEFAULT_PROTOCOL,
    show_default=True,
    help="Use pairs evaluated this way; protocols are never mixed.",
)
@click.option(
    "--predictor",
    type=click.Choice(list(PREDICTOR_TEXTS)),
    default=DEFAULT_PREDICTOR,
    show_default=True,
    help="What predicts the loss; all are compared, this one is used.",
)
@click.option(
    "--level",
    type=click.FloatRange(0.5, 0.999),
    default=DEFAULT_LEVEL,
    show_default=True,
    help="The share of new VLMs that a prediction interval should hold.",
)
@prompts_option
@address_option
@catalog_option
def calibrate(
    source: str | None,
    catalog_only: bool,
    tasks: tuple[str, ...],
    protocol: str,
    predictor: str,
    level: float,
    prompt_count: int,
    address: str | None,
    catalog_uri: str,
) -> None:
    """Fit the loss of text ability to Sink Strength, over the pairs of the panel.

    First the reference LLMs that the catalog lacks are fetched from the Hub and measured. A pair whose LLM
    cannot be measured is left out by name. A fit needs at least four reference LLMs; with fewer it is
    refused.
    """
    from catalog.store import open_catalog
    from zoo.calibration import fit_panel, measured_models, panel_of, unmeasured_llms
    from zoo.cli_named import in_source, on_hub
    from zoo.fit_pages import fit_text
    from zoo.measuring import measure_missing
    from zoo.prompts import make_spec

    if source and catalog_only:
        raise click.UsageError("give --source or --catalog-only, not both")

    catalog, spec = open_catalog(catalog_uri, create=True), make_spec(prompt_count=prompt_count)
    pairs = panel_of(catalog, protocol=protocol, tasks=tasks)
    missing = unmeasured_llms(pairs, measured_models(catalog, spec.spec_id))
    reasons: dict[str, str] = {}
    if not catalog_only:
        found = in_source(missing, source=source) if source else on_hub(missing)
        measure_missing(found.candidates, catalog=catalog, spec=spec, address=address)
        reasons = found.reasons
    fits = fit_panel(
        catalog,
        spec_id=spec.spec_id,
        protocol=protocol,
        tasks=tasks,
        predictor=predictor,
        level=level,
        reasons=reasons,
    )
    click.echo("\n\n".join(printable_lines(fit_text(fit, catalog_uri=catalog_uri)) for fit in fits))
    if not any(fit.calibration for fit in fits):
        raise PanelError("no task was fitted; the reasons are above")


@click.command()
@click.argument("llm")
@click.argument("vlm")
@prompts_option
@address_option
@catalog_option
@format_option
def pair(
    llm: str, vlm: str, prompt_count: int, address: str | None, catalog_uri: str, format: Format
) -> None:
    """Compare a VLM's attention sink with its backbone's, head by head.

    LLM and VLM are models of the catalog, or local checkpoints or models of the Hub (org/name or
    org/name@revision), which are measured first. The VLM is measured in its language model.
    """
    from catalog.store import open_catalog
    from zoo.cli_named import measured_one
    from zoo.losses import predictions
    from zoo.pair import panel_range, sink_change
    from zoo.prompts import make_spec

    catalog, spec = open_catalog(catalog_uri, create=True), make_spec(prompt_count=prompt_count)
    before, after = (measured_one(name, catalog=catalog, spec=spec, address=address) for name in (llm, vlm))
    change = sink_change(catalog, llm=before, vlm=after, spec_id=spec.spec_id)
    if format != "table":
        rows = [asdict(head) | {"change": head.change, "lost": head.lost} for head in change.heads]
        click.echo(format_rows(list(rows[0]), [list(row.values()) for row in rows], format=format))
        return
    click.echo(printable_lines(change_text(change, panel=panel_range(catalog, spec.spec_id))))
    predicted = predictions(catalog, model_id=before[0], revision=before[1], spec_id=spec.spec_id)
    click.echo(f"\nWhat the backbone alone predicted:\n{predictions_text(predicted)}")


@click.command()
@click.argument("run_dir")
@click.option("--max-fall", type=click.FloatRange(min=0), help="Exit with 4 when S fell by more nats.")
@click.option("--baseline", metavar="MODEL", help="Count the fall from this measured model, the backbone.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.png|.svg",
    help="Also draw S over the steps, with the baseline and the allowed fall.",
)
@prompts_option
@address_option
@catalog_option
@format_option
@click.pass_context
def track(
    context: click.Context,
    run_dir: str,
    max_fall: float | None,
    baseline: str | None,
    plot: Path | None,
    prompt_count: int,
    address: str | None,
    catalog_uri: str,
    format: Format,
) -> None:
    """Follow Sink Strength over the checkpoints of a training run; only new ones are measured.

    RUN_DIR is a folder of checkpoints, or a repository of the Hub (org/name) that has them as branches or
    tags, such as step-500.

    Exit code 4 tells a training script that a checkpoint's S fell by more than --max-fall nats below
    the first checkpoint, or below --baseline.
    """
    from catalog.store import open_catalog
    from zoo.calibration import measured_models
    from zoo.cli_named import run_checkpoints
    from zoo.measuring import measure_missing
    from zoo.prompts import make_spec
    from zoo.track import tracked

    if plot is not None:
        from zoo.pictures import check_ending
        from zoo.track_plot import save_track

        check_ending(plot)
    catalog, spec = open_catalog(catalog_uri, create=True), make_spec(prompt_count=prompt_count)
    found = run_checkpoints(run_dir, done=catalog.done(spec.spec_id))
    start = None
    if baseline is not None:
        backbone = measured_models(catalog, spec.spec_id).get(baseline)
        if backbone is None:
            raise SourceError(f"the catalog {catalog_uri} has no measurement of {baseline}; screen it first")
        start = backbone.sink_strength
    measure_missing(found.candidates, catalog=catalog, spec=spec, address=address)
    checkpoints = tracked(catalog, found.candidates, spec_id=spec.spec_id, max_fall=max_fall, baseline=start)
    if format == "table":
        click.echo(printable_lines(track_text(checkpoints)))
    else:
        rows = [asdict(its) for its in checkpoints]
        click.echo(format_rows(list(rows[0]), [list(row.values()) for row in rows], format=format))
    if plot is not None:
        save_track(checkpoints, plot, run=run_dir, max_fall=max_fall)
    for refusal in found.refusals:
        click.echo(printable(f"Refused {refusal.model_id} ({refusal.reason}): {refusal.message}"), err=True)
    if any(its.fell for its in checkpoints):
        context.exit(FELL)
    unseen = any(its.transient for its in found.refusals)
    if unseen or any(its.sink_strength is None for its in checkpoints):
        context.exit(SOME_FAILED)


def printable_lines(text: str) -> str:
    """The text with control characters escaped in every line."""
    return "\n".join(map(printable, text.splitlines()))
