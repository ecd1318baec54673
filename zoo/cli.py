"""The command line: the group, and the one place where errors become a line and an exit code."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

import click

from zoo.cli_catalog import rank, show, sql
from zoo.cli_degradation import calibrate, pair, track
from zoo.cli_diagnosis import compare, plot
from zoo.cli_panel import panel
from zoo.cli_published import check_published
from zoo.cli_rescan import rescan
from zoo.cli_screen import screen
from zoo.cli_status import status
from zoo.cli_verify import verify
from zoo.errors import ZooError
from zoo.exits import INTERRUPTED
from zoo.tables import printable


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="zoo")
def cli() -> None:
    """zoo tells which open LLM to build a vision-language model on.

    It measures Sink Strength, which predicts how much text ability a model loses when it is fine-tuned on
    image-text data, keeps the results in a catalog and ranks the models.

    \b
    Exit codes:
      0    done
      1    nothing done, for the one reason that is printed
      2    the command line was not understood
      3    done, but some models failed or could not be looked at, or files of the catalog are damaged
      4    zoo track: Sink Strength fell by more than was allowed
      130  ended by Ctrl-C; what was measured until then is kept
    """


for command in (
    screen,
    rescan,
    status,
    rank,
    show,
    sql,
    plot,
    compare,
    panel,
    calibrate,
    pair,
    track,
    check_published,
    verify,
):
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None, *, on_end: Callable[..., None] | None = None) -> NoReturn:
    """Runs a command and exits; the one place where errors become a line and an exit code.

    ``on_end`` is given to the command, which calls it with what it knows of its run when it ends.
    SIGTERM, by which a cluster ends a job, ends a command as Ctrl-C does.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code = cli.main(arguments, prog_name="zoo", standalone_mode=False, obj=on_end)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except ZooError as error:
        click.echo(f"Error: {printable(str(error))}", err=True)
        code = 1
    except (click.Abort, KeyboardInterrupt):
        click.echo("Stopped.", err=True)
        code = INTERRUPTED
    sys.exit(code)
