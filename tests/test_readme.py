"""The README names every command and every option."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from zoo.cli import cli

README = Path(__file__).parent.parent / "README.md"


def commands(group: click.Group, prefix: str = "zoo") -> Iterator[tuple[str, click.Command]]:
    for name, command in sorted(group.commands.items()):
        yield f"{prefix} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix} {name}")


@pytest.mark.parametrize(("name", "command"), list(commands(cli)))
def test_a_command_and_its_options_stand_in_the_readme(name: str, command: click.Command) -> None:
    text = README.read_text(encoding="utf-8")
    options = [
        option
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for option in (*parameter.opts, *parameter.secondary_opts)
        if option.startswith("--")
    ]
    missing = [each for each in (name, *options) if not re.search(rf"{re.escape(each)}(?![\w-])", text)]
    assert missing == []
