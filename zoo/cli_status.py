"""The command that looks at runs: status."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import click
from click.core import ParameterSource

from zoo.cli_catalog import catalog_option
from zoo.errors import CatalogError

if TYPE_CHECKING:
    from zoo.status import CatalogLook, ClusterLook

STATE_API_NOTE = (
    "Tasks are not counted: Ray's state API does not answer, as on a cluster without a dashboard "
    "(install ray[default] and leave --include-dashboard on)."
)


@click.command()
@catalog_option
@click.option("--address", metavar="ADDRESS", help="The Ray cluster; by default the one that runs here.")
@click.option(
    "--format",
    "format",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="A page for people, or JSON with every digit.",
)
@click.pass_context
def status(
    context: click.Context, *, catalog_uri: str, address: str | None, format: Literal["table", "json"]
) -> None:
    """Show what runs on a Ray cluster, how far it is, and what the catalog holds.

    Without --catalog the catalogs that the runs write to are read. Where no Ray runs, what the catalog
    alone says is shown.
    """
    from zoo.status import cluster_look, running_cluster
    from zoo.status_pages import status_json, status_text

    notes = []
    with running_cluster(address) as why_none:
        cluster = None if why_none else cluster_look()
    if cluster is None:
        notes.append(f"No Ray cluster was found ({why_none}), so no run is seen; name one with --address.")
    else:
        notes += [] if cluster.tasks is not None else [STATE_API_NOTE]
        notes += [f"The board of run {run} did not answer." for run in cluster.silent_runs]
    is_named = context.get_parameter_source("catalog_uri") is not ParameterSource.DEFAULT
    catalogs = _catalogs(cluster, catalog_uri=catalog_uri, is_named=is_named, notes=notes)
    show = status_text if format == "table" else status_json
    click.echo(show(cluster, catalogs, notes))


def _catalogs(
    cluster: ClusterLook | None, *, catalog_uri: str, is_named: bool, notes: list[str]
) -> Sequence[CatalogLook]:
    """The catalog that was named, or those of the runs; one that cannot be read becomes a note."""
    from catalog.store import open_catalog
    from zoo.status import catalog_look

    wanted: dict[tuple[str, str | None], None] = {}
    for run in cluster.runs if cluster else ():
        wanted[catalog_uri if is_named else run.facts.catalog_uri, run.facts.spec_id] = None
    looks = []
    for uri, spec_id in wanted or {(catalog_uri, None): None}:
        try:
            looks.append(catalog_look(open_catalog(uri), spec_id=spec_id))
        except CatalogError as error:
            if is_named:
                raise
            notes.append(f"No catalog is read: {error}.")
    return looks
