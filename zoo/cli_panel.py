"""The commands for the panel of known degradations: panel list, add, check."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zoo.cli_catalog import catalog_option, format_option
from zoo.degradation_pages import panel_text
from zoo.errors import PanelError
from zoo.panel import QK_NORMS, PanelPair, load_panel, merge_pairs, pairs_csv, parse_pairs, task_order
from zoo.tables import Format, format_rows, format_table

if TYPE_CHECKING:
    from catalog.store import Catalog
    from zoo.lm_eval import Degradation


@click.group()
def panel() -> None:
    """The panel: pairs of reference LLM and VLM whose loss of text ability is known.

    zoo comes with published pairs; your own are kept beside the catalog and used with them.
    """


@panel.command("list")
@click.option("--task", help="Only this task, such as ifeval.")
@click.option("--protocol", help="Only this protocol, such as instruct or paper.")
@catalog_option
@format_option
def list_pairs(task: str | None, protocol: str | None, catalog_uri: str, format: Format) -> None:
    """List the pairs with their degradation in points (negative = lost) and their LLM's S where measured.

    A shipped pair has no S until its LLM is measured: zoo calibrate does that.
    """
    rows = [
        row
        for row in _panel_rows(catalog_uri)
        if row["problem"] or (task in (None, row["task"]) and protocol in (None, row["protocol"]))
    ]
    if format == "table":
        click.echo(panel_text(rows))
    else:
        columns = list(rows[0]) if rows else []
        click.echo(format_rows(columns, [list(row.values()) for row in rows], format=format))


@panel.command()
@catalog_option
def check(catalog_uri: str) -> None:
    """Check every panel file, and say which tasks have enough reference LLMs to be fitted."""
    from zoo.degradation import SPARE_LLMS

    pairs = load_panel(_own_files(catalog_uri))
    needed = 2 + SPARE_LLMS
    rows = []
    kinds = {(pair.task, pair.protocol) for pair in pairs}
    for task, protocol in sorted(kinds, key=lambda kind: (task_order(kind[0]), kind[1])):
        chosen = [p for p in pairs if (p.task, p.protocol) == (task, protocol)]
        llms = len({p.reference_llm for p in chosen})
        lacking = max(0, needed - llms)
        verdict = f"needs {lacking} more LLM{'s' * (lacking > 1)}" if lacking else "enough, once measured"
        rows.append((task, protocol, str(len(chosen)), str(llms), verdict))
    headers = ("task", "protocol", "pairs", "reference LLMs", f"linear fit (needs {needed})")
    click.echo(format_table(headers, rows, numeric=[False, False, True, True, False]))
    own = sum(pair.origin == "yours" for pair in pairs)
    click.echo(f"{len(pairs) - own} shipped rows and {own} of yours are well-formed.")


@panel.command()
@click.argument("llm")
@click.argument("vlm")
@click.option(
    "--lm-eval",
    "result_files",
    nargs=2,
    type=click.Path(path_type=Path),
    metavar="LLM.json VLM.json",
    help="The results_*.json of lm-evaluation-harness 0.4 of both models.",
)
@click.option("--task", "tasks", multiple=True, help="Only this task; by default all that both files have.")
@click.option("--metric", metavar="NAME,FILTER", help="Another metric than the panel's, for one --task.")
@click.option("--delta", type=float, help="Without --lm-eval: the points the VLM gained (negative = lost).")
@click.option("--stderr", type=float, help="With --delta: its standard error in points.")
@click.option("--source", help="With --delta: where the number comes from.")
@click.option("--protocol", help="How it was evaluated; by default what the files say, instruct for --delta.")
@click.option(
    "--qk-norm", type=click.Choice(QK_NORMS), help="The LLM's QK-norm, where the catalog does not have it."
)
@catalog_option
def add(
    llm: str,
    vlm: str,
    result_files: tuple[Path, Path] | None,
    tasks: tuple[str, ...],
    metric: str | None,
    delta: float | None,
    stderr: float | None,
    source: str | None,
    protocol: str | None,
    qk_norm: str | None,
    catalog_uri: str,
) -> None:
    """Add a pair of yours: what VLM lost against LLM, by two result files or by a number.

    The files must come from the same protocol: few-shot examples, chat template, harness and task
    version, limit, generation settings. What differs is named and nothing is added.
    """
    from catalog.panel_files import add_panel_file, own_panel_files
    from catalog.store import open_catalog

    if metric and len(tasks) != 1:
        raise click.UsageError("--metric needs exactly one --task")
    found = (
        _from_files(result_files, llm=llm, vlm=vlm, tasks=tasks, metric=metric)
        if result_files
        else _from_number(tasks, delta=delta, stderr=stderr, source=source, protocol=protocol)
    )
    catalog = open_catalog(catalog_uri, create=True)
    own = own_panel_files(catalog)
    known = load_panel(own)
    pair_id = _pair_id(known, llm, vlm)
    pairs = [
        PanelPair(
            pair_id=pair_id,
            reference_llm=llm,
            vlm=vlm,
            qk_norm=_known_qk_norm(catalog, known, llm, qk_norm),
            task=its.task,
            protocol=protocol or its.protocol,
            llm_score=its.llm_points,
            vlm_score=its.vlm_points,
            delta_points=its.delta_points,
            stderr_points=its.stderr_points,
            source=its.source,
        )
        for its in found
    ]
    text = pairs_csv(pairs)
    merge_pairs(known, parse_pairs(text, name="the new pair"))
    path = add_panel_file(catalog, text, name=pair_id)
    for pair in pairs:
        error = "" if pair.stderr_points is None else f" ± {pair.stderr_points:.1f}"
        click.echo(f"{pair.task}: {pair.delta_points:+.2f}{error} points (protocol {pair.protocol})")
    click.echo(f"Kept in {path}; zoo calibrate uses it.")


def _from_files(
    files: tuple[Path, Path], *, llm: str, vlm: str, tasks: Sequence[str], metric: str | None
) -> list[Degradation]:
    from zoo.lm_eval import degradation, read_results, tasks_in_both

    before, after = (read_results(path) for path in files)
    if before.get("model_name") == vlm or after.get("model_name") == llm:
        raise PanelError(f"{files[0]} and {files[1]} are in the wrong order; give the LLM's results first")
    chosen = tasks or tasks_in_both(before, after)
    if not chosen:
        raise PanelError(f"{files[0]} and {files[1]} share no task of the panel; name one with --task")
    return [degradation(before, after, task=task, metric=metric) for task in chosen]


def _from_number(
    tasks: Sequence[str],
    *,
    delta: float | None,
    stderr: float | None,
    source: str | None,
    protocol: str | None,
) -> list[Degradation]:
    from zoo.lm_eval import Degradation
    from zoo.panel import DEFAULT_PROTOCOL

    if delta is None or not source or len(tasks) != 1:
        raise click.UsageError("give --lm-eval LLM.json VLM.json, or --delta with one --task and a --source")
    return [
        Degradation(
            task=tasks[0],
            protocol=protocol or DEFAULT_PROTOCOL,
            llm_points=None,
            vlm_points=None,
            delta_points=delta,
            stderr_points=stderr,
            source=source,
        )
    ]


def _known_qk_norm(catalog: Catalog, known: Sequence[PanelPair], llm: str, given: str | None) -> str:
    from catalog.query import run_query

    sql = "SELECT qk_norm FROM ranking WHERE model_id = ? LIMIT 1"
    measured = [kind for (kind,) in run_query(catalog, sql, parameters=[llm]).rows]
    in_panel = [pair.qk_norm for pair in known if pair.reference_llm == llm]
    for kind in (*measured, *in_panel):
        if given not in (None, kind):
            raise PanelError(f"{llm} has QK-norm {kind}, not {given}; leave --qk-norm out")
        return str(kind)
    if given is None:
        raise PanelError(
            f"zoo does not know the QK-norm of {llm}; say it with --qk-norm, or screen {llm} first"
        )
    return given


def _pair_id(known: Sequence[PanelPair], llm: str, vlm: str) -> str:
    """The pair's id in the panel, or a new one made of the VLM's name, with its owner where that is taken."""
    for pair in known:
        if (pair.reference_llm, pair.vlm) == (llm, vlm):
            return pair.pair_id
    taken = {pair.pair_id for pair in known}
    short = _slug(vlm.rpartition("/")[2])
    return _slug(vlm) if short in taken else short


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9.+-]+", "-", name.lower()).strip("-.")


def _own_files(catalog_uri: str) -> dict[str, str]:
    from catalog.panel_files import own_panel_files

    catalog = _catalog_if_any(catalog_uri)
    return {} if catalog is None else own_panel_files(catalog)


def _panel_rows(catalog_uri: str) -> list[dict[str, object]]:
    from catalog.query import run_query

    catalog = _catalog_if_any(catalog_uri)
    if catalog is not None:
        return run_query(catalog, "SELECT * FROM panel").records()
    unmeasured = dict.fromkeys(("spec_id", "revision", "sink_strength", "measured_qk_norm", "problem"))
    return [asdict(pair) | unmeasured for pair in load_panel()]


def _catalog_if_any(catalog_uri: str) -> Catalog | None:
    """The catalog, or None where there is none yet: the shipped pairs are there without one."""
    from catalog.store import open_catalog

    if "://" not in catalog_uri and not os.path.exists(os.path.expanduser(catalog_uri)):
        return None
    return open_catalog(catalog_uri)
