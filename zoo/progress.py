"""A running screen on a terminal, or as one line a model in a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from zoo.reports import ScreenProgress, TaskReport
from zoo.tables import printable, seconds_text


@contextmanager
def shown_progress(console: Console) -> Iterator[Callable[[ScreenProgress], None]]:
    """A callback for ``screen``: a live line on a terminal, else one line a model that ended."""
    started, noticed = False, ""

    def ended_lines(look: ScreenProgress) -> None:
        nonlocal started, noticed
        if not started:
            _print(console, start_line(look))
            started = True
        if (news := notice_kind(look.notice)) and news != noticed:
            _print(console, look.notice)
        noticed = news
        if look.ended:
            _print(console, f"[{look.measured + look.failed}/{look.total}] {ended_line(look.ended)}")

    if not console.is_terminal or console.is_dumb_terminal:
        yield ended_lines
        return
    spinner = Spinner("dots", Text("starting Ray", overflow="ellipsis", no_wrap=True))
    with Live(spinner, console=console, transient=True, refresh_per_second=8):

        def live_line(look: ScreenProgress) -> None:
            ended_lines(look)
            spinner.update(text=Text(status_line(look), overflow="ellipsis", no_wrap=True))

        yield live_line


def start_line(look: ScreenProgress) -> str:
    """What is about to be measured, and on what."""
    return f"Measuring {look.total} model{'s' * (look.total != 1)}: {look.where}."


def ended_line(report: TaskReport) -> str:
    """How one model ended."""
    if report.sink_strength is None:
        return f"{report.model_id}: failed in {report.stage} ({report.reason}): {report.message}"
    return f"{report.model_id}: Sink Strength {report.sink_strength:.2f}, {seconds_text(report.wall_seconds)}"


def notice_kind(notice: str) -> str:
    """A notice without its numbers, so that a wait that grows shorter is one piece of news."""
    return "".join(letter for letter in notice if not letter.isdigit())


def status_line(look: ScreenProgress) -> str:
    """Models done, failed, running and waiting, the time since the start and what is left of it."""
    waiting = look.total - look.measured - look.failed - len(look.running)
    left = "" if look.remaining_seconds is None else f", about {seconds_text(look.remaining_seconds)} left"
    parts = [
        f"{look.measured + look.failed}/{look.total} done",
        f"{look.failed} failed" if look.failed else "",
        f"{waiting} waiting" if waiting else "",
        look.notice,
        f"{seconds_text(look.elapsed_seconds)}{left}",
        ", ".join(f"{model_id} ({stage})" for model_id, stage in look.running),
    ]
    return printable(" · ".join(filter(None, parts)))


def _print(console: Console, line: str) -> None:
    console.print(Text(printable(line)), soft_wrap=True)
