"""The options by which a command names or searches models of the Hub."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zoo.errors import SourceError
from zoo.tables import printable

if TYPE_CHECKING:
    from rich.console import Console

    from zoo.hub import Hub
    from zoo.listing import Sort
    from zoo.records import Architecture, Plan
    from zoo.searches import Search


@dataclass(frozen=True, slots=True, kw_only=True)
class HubChoice:
    """The models of the Hub that a command line asks for, as it was written."""

    model_ids: tuple[str, ...] = ()
    filter_text: str | None = None
    params: str | None = None
    author: str | None = None
    since: datetime | None = None
    min_downloads: int = 0
    license: str | None = None
    sort: Sort = "downloads"
    ids_from: Path | None = None

    @property
    def names_models(self) -> bool:
        """Whether single repositories are named, instead of searched for."""
        return bool(self.model_ids or self.ids_from)

    @property
    def is_search(self) -> bool:
        """Whether anything is searched for."""
        return bool(
            self.filter_text is not None
            or self.author
            or self.since
            or self.min_downloads
            or self.license
            or (self.params and not self.names_models)
        )

    @property
    def search(self) -> Search | None:
        """What is searched for, in whatever order; ``None`` where models are named."""
        from zoo.searches import Search

        if self.names_models:
            return None
        return Search(
            filter=self.filter_text,
            params=self.params,
            author=self.author,
            license=self.license,
            min_downloads=self.min_downloads,
        )

    @property
    def text(self) -> str:
        """The choice as options, for the record."""
        parts = [*self.model_ids, f"--ids-from {self.ids_from.name}" if self.ids_from else ""]
        parts += [f'--filter "{self.filter_text}"' if self.filter_text is not None else ""]
        parts += [f"--params {self.params}" if self.params else ""]
        parts += [f"--author {self.author}" if self.author else ""]
        parts += [f"--since {self.since:%Y-%m-%d}" if self.since else ""]
        parts += [f"--min-downloads {self.min_downloads}" if self.min_downloads else ""]
        parts += [f"--license {self.license}" if self.license else "", f"--sort {self.sort}"]
        return " ".join(filter(None, parts))


_OPTIONS = (
    click.argument("model_ids", metavar="[MODEL[@REVISION]]...", nargs=-1),
    click.option(
        "--filter",
        "filter_text",
        metavar="WORDS",
        help='Search the Hub: words and sizes, all of which must match, such as "7B" or "qwen 0.5B".',
    ),
    click.option(
        "--params",
        metavar="LOW..HIGH",
        help="Only models of so many parameters, such as 6B..9B, 6B.. or ..9B.  [default: 10M..]",
    ),
    click.option("--author", metavar="NAME", help="Only models of this user or organisation."),
    click.option("--since", type=click.DateTime(["%Y-%m-%d"]), help="Only models changed on or after."),
    click.option("--min-downloads", type=click.IntRange(min=0), default=0, help="In the last 30 days."),
    click.option("--license", metavar="ID", help="Only models under this license, such as apache-2.0."),
    click.option(
        "--sort",
        type=click.Choice(["downloads", "likes", "created", "modified", "parameters"]),
        default="downloads",
        show_default=True,
        help="Which models of the Hub come first; --limit takes the first ones.",
    ),
    click.option(
        "--ids-from",
        type=click.Path(path_type=Path, dir_okay=False),
        help="A file with one MODEL[@REVISION] a line.",
    ),
    click.option(
        "--bandwidth",
        default="100MB/s",
        show_default=True,
        metavar="RATE",
        help="For the time that --dry-run estimates, such as 1GB/s or 400Mbit/s.",
    ),
)


def hub_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the Hub's arguments and options; ``hub_choice`` takes them out of the keyword arguments."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def hub_choice(**options: Any) -> HubChoice:
    """The choice of the Hub's options (all but ``bandwidth``).

    Raises ``click.UsageError`` when models are both named and searched for.
    """
    choice = HubChoice(**options)
    if choice.names_models and choice.is_search:
        raise click.UsageError("name models or search for them with filters, not both")
    return choice


def describe(config: Mapping[str, Any]) -> Architecture:
    """``architecture.describe_raw``, imported when there is something to describe: torch takes seconds."""
    from zoo.architecture import describe_raw

    return describe_raw(config)


def find_on_hub(
    choice: HubChoice, *, hub: Hub, limit: int | None = None, report: Callable[[str], None]
) -> Plan:
    """The plan for a choice; raises ``SourceError`` when nothing matches or the Hub cannot be asked."""
    from zoo.filters import parse_filter, parse_parameter_range
    from zoo.listing import HubQuery
    from zoo.plan import make_plan, parse_targets, search

    params = parse_parameter_range(choice.params)
    if choice.names_models:
        targets = parse_targets(choice.model_ids, ids_from=choice.ids_from)
        return make_plan(hub, targets, describe=describe, params=params, limit=limit, report=report)
    query = HubQuery(
        filter=parse_filter(choice.filter_text),
        params=params,
        author=choice.author,
        since=f"{choice.since:%Y-%m-%d}" if choice.since else None,
        min_downloads=choice.min_downloads,
        license=choice.license,
        sort=choice.sort,
    )
    return search(hub, query, describe=describe, limit=limit, report=report)


def plan_of_names(names: Sequence[str]) -> Plan:
    """The plan for models of any size that a command needs by name, ``org/name`` or ``org/name@revision``.

    Raises ``SourceError`` when the Hub cannot be asked at all.
    """
    from rich.console import Console

    from zoo.hub import Hub

    choice = HubChoice(model_ids=tuple(names), params="0..")
    with shown_search(Console(stderr=True, highlight=False)) as report:
        return find_on_hub(choice, hub=Hub(report=say), report=report)


def say(line: str) -> None:
    """One line on the standard error."""
    click.echo(printable(line), err=True)


@contextmanager
def shown_search(console: Console) -> Iterator[Callable[[str], None]]:
    """A callback for progress: a live line on a terminal, else a line every few seconds."""
    if console.is_terminal:
        with console.status("asking the Hub") as status:
            yield lambda line: status.update(printable(line))
        return
    next_at = time.monotonic() + 5

    def now_and_then(line: str) -> None:
        nonlocal next_at
        if time.monotonic() >= next_at:
            click.echo(printable(line), err=True)
            next_at = time.monotonic() + 5

    yield now_and_then


def parse_bandwidth(text: str) -> float:
    """Bytes per second of ``100MB/s``, ``1GB`` or ``400Mbit/s``; raises ``SourceError``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kKMGT]?)(B|bit)(?:/s)?", text.strip())
    if match is None or float(match[1]) == 0:
        raise SourceError(f"'{text}' is no bandwidth; write it like 100MB/s, 1GB/s or 400Mbit/s")
    size = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[match[2].upper()]
    return float(match[1]) * size / (8 if match[3] == "bit" else 1)
