"""The command that reads every byte of the catalog: verify."""

from __future__ import annotations

import click

from zoo.cli_catalog import catalog_option, format_option
from zoo.tables import Format, format_rows

DAMAGED = 3
"""The exit code when files are damaged."""


@click.command()
@catalog_option
@format_option
@click.pass_context
def verify(context: click.Context, *, catalog_uri: str, format: Format) -> None:
    """Read every file of the catalog against its checksums and name those that are damaged.

    Exits with 3 when there are any. A query reads on without checking everything, so a damaged file can
    give a wrong number: remove or restore the file; a model whose row is gone is measured again.
    """
    from catalog.store import open_catalog

    found = open_catalog(catalog_uri).verify()
    rows = [(each.path, each.problem) for each in found.problems]
    if rows or format != "table":
        click.echo(format_rows(("path", "problem"), rows, format=format))
    click.echo(f"{found.files} files read, {len(rows)} problems.", err=True)
    if found.uncommitted:
        click.echo(
            f"{found.uncommitted} files of attempts that were never committed; they do no harm.", err=True
        )
    if rows:
        context.exit(DAMAGED)
