"""Byte ranges of local files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from zoo.errors import ModelError, first_line

READ_BYTES = 16 << 20


class LocalFile:
    """Positional reads of one file. It is not mapped: a mapped file that is cut short kills the process."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self.sha256: str | None = None
        self.header_sha256: str | None = None
        self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        self._identity = self._seen()
        self.size = self._identity[0]

    def _seen(self) -> tuple[int, int]:
        status = os.fstat(self._descriptor)
        return status.st_size, status.st_mtime_ns

    def read_into(self, start: int, view: memoryview, *, on_bytes: Callable[[int], None]) -> None:
        done = 0
        while done < len(view):
            try:
                count = os.preadv(self._descriptor, [view[done : done + READ_BYTES]], start + done)
            except OSError as error:
                text = f"{self.name} cannot be read ({first_line(error)}); check the disk"
                raise ModelError(text, stage="fetch", reason="unreadable_weights") from None
            if count == 0:
                break
            done += count
            on_bytes(count)
        if done < len(view) or self._seen() != self._identity:
            text = f"{self.name} was changed while it was read; run again once it is complete"
            raise ModelError(text, stage="fetch", reason="file_changed")

    def close(self) -> None:
        os.close(self._descriptor)
