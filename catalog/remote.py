"""Files away from this machine as a dataset: fetched whole, many at a time, once however often it is scanned.

DuckDB scans a table anew for every mention in a view (ten times for the ranking), and Arrow fetches a
file's footer and columns with requests of their own: from a store, that is latency and nothing else.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow.dataset as pads
import pyarrow.fs as pafs

AT_ONCE = 16
"""How many files are fetched at a time."""


class RemoteDataset(pads.FileSystemDataset):
    """A dataset whose files are copied to a temporary folder before its first scan, and removed with it."""

    _lock = threading.Lock()
    _near: pads.FileSystemDataset | None = None

    def scanner(self, **how: Any) -> pads.Scanner:
        return self.fetched().scanner(**how)

    def fetched(self) -> pads.FileSystemDataset:
        """The same dataset on this machine. Raises OSError or CatalogError when a file cannot be had."""
        with self._lock:
            if self._near is None:
                folder = tempfile.mkdtemp(prefix="zoo-")
                weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
                self._near = self._fetch(Path(folder))
            return self._near

    def _fetch(self, folder: Path) -> pads.FileSystemDataset:
        def copy(number: int, path: str) -> str:
            local = folder / f"{number}-{PurePosixPath(path).name}"
            with self.filesystem.open_input_stream(path) as stream:
                local.write_bytes(stream.read())
            return str(local)

        here = pafs.LocalFileSystem()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            copies = pool.map(copy, range(len(self.files)), self.files)
            fragments = [self.format.make_fragment(path, here) for path in copies]
        return pads.FileSystemDataset(fragments, self.schema, self.format, here)
