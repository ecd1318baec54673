"""A running screen says how far it is, on a terminal and in a log."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from zoo.progress import shown_progress, status_line
from zoo.reports import ScreenProgress, TaskReport

LOOK = ScreenProgress(
    total=5,
    measured=1,
    failed=1,
    running=(("org/a", "load"), ("org/b", "probe")),
    elapsed_seconds=125,
    remaining_seconds=11400,
    where="1 GPU a model",
)
ENDED = TaskReport(model_id="org/c", revision="0", status="measured", wall_seconds=31, sink_strength=1.055)
FAILED = TaskReport(
    model_id="org/d\x1b[2J", revision="0", status="failed", stage="load", reason="why", message="two\nlines"
)


def shown(*looks: ScreenProgress, terminal: bool) -> str:
    file = io.StringIO()
    console = Console(
        file=file, force_terminal=terminal, width=40, highlight=False, _environ={"TERM": "xterm"}
    )
    with shown_progress(console) as progress:
        for look in looks:
            progress(look)
    return file.getvalue()


def test_the_status_counts_every_model_once_and_tells_the_time_left() -> None:
    assert status_line(LOOK) == (
        "2/5 done · 1 failed · 1 waiting · 2 min 05 s, about 3 h 10 min left · org/a (load), org/b (probe)"
    )


def test_a_log_gets_one_plain_line_a_model_whatever_its_width() -> None:
    assert shown(LOOK, replace(LOOK, ended=ENDED), replace(LOOK, ended=FAILED), terminal=False) == (
        "Measuring 5 models: 1 GPU a model.\n"
        "[2/5] org/c: Sink Strength 1.05, 31 s\n"
        "[2/5] org/d\\x1b[2J: failed in load (why): two\\nlines\n"
    )


def test_a_terminal_keeps_the_lines_of_ended_models_and_clears_the_live_line() -> None:
    text = shown(LOOK, replace(LOOK, ended=ENDED), terminal=True)
    assert "org/c: Sink Strength 1.05, 31 s" in text
    assert text.rstrip().endswith(("\x1b[2K", "\x1b[?25h"))
