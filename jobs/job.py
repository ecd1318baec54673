"""A command of zoo as a Ray job: its cluster, the times in its log, its summary, how it stops."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NoReturn, TextIO


class TimedLines(io.TextIOBase):
    """A text stream that writes every line to another one with the time (UTC) before it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._at_line_start = True

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if not isinstance(text, str):  # Click asks a stream with bytes whether it takes them
            raise TypeError("a stream of text takes no bytes")
        for line in text.splitlines(keepends=True):
            stamp = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} " if self._at_line_start else ""
            self._stream.write(stamp + line)
            self._at_line_start = line.endswith("\n")
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()


def run(command: str, arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs a command of zoo on the cluster this process is a job of, and exits with the command's code.

    Without ``--address`` and ``RAY_ADDRESS``, which the job server sets, the Ray on this machine is
    used, and none is started. ``ray job stop`` ends it as Ctrl-C does: what was measured is kept.
    """
    os.environ.setdefault("RAY_ADDRESS", "auto")
    sys.stderr = TimedLines(sys.stderr)
    from zoo.cli import main
    from zoo.cli_output import say_end

    main([command, *(sys.argv[1:] if arguments is None else arguments)], on_end=say_end)
