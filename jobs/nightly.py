"""The nightly job: zoo rescan on the running cluster, with a time before every line of its log.

    python -m jobs.nightly --profile small --catalog s3://bucket/zoo

It takes the options of zoo rescan and ends with its exit code.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NoReturn, TextIO

from zoo.cli import main as zoo


class Stamped(io.TextIOBase):
    """A text stream that writes the time in UTC before every line."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._at_start = stream, True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self._stream.errors

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError("a text stream takes no bytes")  # this is how click tells it from another
        for line in text.splitlines(keepends=True):
            stamp = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} " if self._at_start else ""
            self._stream.write(stamp + line)
            self._at_start = line.endswith("\n")
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the job and exits; options given beat the job's own."""
    given = sys.argv[1:] if arguments is None else arguments
    sys.stderr = Stamped(sys.stderr)
    zoo(["rescan", "--address", "auto", "--keep-report", *given])


if __name__ == "__main__":
    main()
