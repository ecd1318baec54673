"""Byte ranges of a checkpoint's files become tensors: local files here, the Hub's in ``zoo.hub_files``."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from zoo import checkpoints
from zoo.buffers import BlockBuffer
from zoo.errors import ModelError, TransientModelError
from zoo.hub_files import HubFile
from zoo.local_files import LocalFile
from zoo.records import Candidate
from zoo.spans import TORCH_DTYPES, Block, TensorSpan, pieces, row_runs, tensor_spans

OnBytes = Callable[[int, int], None]
"""Told the bytes fetched so far and the bytes planned."""

ROW_PIECE_BYTES = 32 << 20
LOCAL_GAP_BYTES = 16 << 10
HUB_GAP_BYTES = 4 << 20


class _Cancelled(Exception):
    """Nobody waits for this read any more."""


class WeightFile(Protocol):
    """One file of weights; a read either fills the whole view or raises ``ModelError``."""

    name: str
    size: int

    @property
    def sha256(self) -> str | None:
        """The published digest of the whole file, where there is one."""

    @property
    def header_sha256(self) -> str | None:
        """The digest of the header with its length, where the plan knows it."""

    def read_into(self, start: int, view: memoryview, *, on_bytes: Callable[[int], None]) -> None:
        """Fill ``view`` with the file's bytes from ``start``.

        Tells the bytes as they come, and 0 while it waits; what ``on_bytes`` raises ends the read.
        """

    def close(self) -> None:
        """Give back what the file holds open."""


@dataclass(slots=True, eq=False, kw_only=True)
class Weights:
    """A checkpoint's tensors, readable one range at a time.

    ``gap_bytes`` is how many unneeded bytes cost less than one more request; ``connections`` ranges
    of about ``piece_bytes`` are read at a time.
    """

    files: Mapping[str, WeightFile]
    spans: Mapping[str, TensorSpan]
    headers: Sequence[checkpoints.Header]
    gap_bytes: int
    piece_bytes: int
    connections: int
    on_bytes: OnBytes | None = None
    bytes_fetched: int = 0
    bytes_planned: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_cancelled: bool = False

    @property
    def stored_bytes(self) -> int:
        """The size of all files."""
        return sum(file.size for file in self.files.values())

    def read_into(self, file: str, start: int, view: memoryview) -> None:
        """Fill ``view`` from byte ``start`` of a file, and count the bytes."""
        self.files[file].read_into(start, view, on_bytes=self._count)

    def plan(self, blocks: Iterable[Block]) -> None:
        """Expect these blocks to be read, for whoever watches the progress."""
        self._plan_bytes(sum(block.size for block in blocks))

    def _plan_bytes(self, count: int) -> None:
        with self._lock:
            self.bytes_planned += count

    def cancel(self) -> None:
        """End reads that are under way in other threads."""
        self._is_cancelled = True

    def _count(self, count: int) -> None:
        if self._is_cancelled:
            raise _Cancelled
        with self._lock:
            self.bytes_fetched += count
            fetched, planned = self.bytes_fetched, self.bytes_planned
        if self.on_bytes is not None:
            self.on_bytes(fetched, planned)

    def read(self, blocks: Sequence[Block]) -> dict[str, Tensor]:
        """The tensors of the blocks, read now."""
        self.plan(blocks)
        buffers = [BlockBuffer(block) for block in blocks]
        cuts = [
            (buffer, start, stop)
            for buffer in buffers
            for start, stop in pieces(buffer.block.start, buffer.block.stop, piece_bytes=self.piece_bytes)
        ]
        self._in_parallel([partial(self.read_piece, *cut) for cut in cuts])
        return {name: tensor for buffer in buffers for name, tensor in buffer.tensors().items()}

    def read_piece(self, buffer: BlockBuffer, start: int, stop: int) -> None:
        """Fill a part of a block's buffer; positions are the file's."""
        self.read_into(buffer.block.file, start, buffer.view(start, stop))

    def read_rows(self, span: TensorSpan, rows: Sequence[int]) -> Tensor:
        """The sorted distinct ``rows`` of a matrix, [len(rows), width]; near ones share a request."""
        row_bytes = (span.stop - span.start) // span.shape[0]
        row_count = max(1, ROW_PIECE_BYTES // row_bytes)
        table = torch.empty((len(rows), *span.shape[1:]), dtype=TORCH_DTYPES[span.dtype])
        target = memoryview(table.view(torch.uint8).reshape(-1).numpy().data)
        position = {row: i for i, row in enumerate(rows)}

        def read_run(first: int, last: int) -> None:
            scratch = memoryview(bytearray((last - first) * row_bytes))
            self.read_into(span.file, span.start + first * row_bytes, scratch)
            for row in range(first, last):
                if (i := position.get(row)) is not None:
                    from_byte = (row - first) * row_bytes
                    target[i * row_bytes : (i + 1) * row_bytes] = scratch[from_byte : from_byte + row_bytes]

        runs = [
            (first, min(first + row_count, stop))
            for start, stop in row_runs(rows, gap_rows=self.gap_bytes // row_bytes)
            for first in range(start, stop, row_count)
        ]
        self._plan_bytes(sum(last - first for first, last in runs) * row_bytes)
        self._in_parallel([partial(read_run, *run) for run in runs])
        return table

    def verify_digests(self) -> str:
        """Read every file whole and compare it with its published SHA-256; says what was compared.

        Raises ``ModelError`` (``digest_mismatch``). Local files have no published digest.
        """
        published = {name: file.sha256 for name, file in self.files.items() if file.sha256 is not None}
        for name, expected in published.items():
            digest, size = hashlib.sha256(), self.files[name].size
            for start in range(0, size, ROW_PIECE_BYTES):
                piece = memoryview(bytearray(min(ROW_PIECE_BYTES, size - start)))
                self.read_into(name, start, piece)
                digest.update(piece)
            if digest.hexdigest() != expected:
                text = f"{name} does not have its published SHA-256; it was damaged on the way"
                raise ModelError(text, stage="fetch", reason="digest_mismatch")
        counted = f"SHA-256 of {len(published)} of {len(self.files)} files"
        return f"{counted}, headers, lengths, finite values of what was read"

    def _in_parallel(self, reads: Sequence[Callable[[], None]]) -> None:
        with ThreadPoolExecutor(max_workers=max(1, min(self.connections, len(reads)))) as pool:
            for future in [pool.submit(read) for read in reads]:
                future.result()

    def close(self) -> None:
        """Close every file."""
        for file in self.files.values():
            file.close()


def open_weights(
    candidate: Candidate, *, folder: Path | None = None, on_bytes: OnBytes | None = None
) -> Weights:
    """The candidate's safetensors files with their headers read and checked.

    ``folder`` holds the index of a Hub model.

    Raises ``ModelError`` (stages fetch, load) for files that are missing, damaged or lie about
    themselves. Close what is returned.
    """
    with ExitStack() as opened:
        files: list[WeightFile] = []
        for file in _files(candidate, folder or Path(candidate.location)):
            opened.callback(file.close)
            files.append(file)
        weights = _read_headers(files, is_hub=candidate.format == "hub")
        weights.on_bytes = on_bytes
        opened.pop_all()
    return weights


def _files(candidate: Candidate, folder: Path) -> Sequence[WeightFile]:
    if candidate.format != "hub":
        return [LocalFile(path) for path in checkpoints.weight_files(folder)]
    index, listed = folder / checkpoints.INDEX_NAME, {file.path: file for file in candidate.files}
    is_indexed = index.is_file()
    names = checkpoints.index_names(index.read_bytes()) if is_indexed else (checkpoints.SINGLE_NAME,)
    for name in names:
        if name not in listed:
            text = f"{candidate.model_id} has no {name}, which its weights need; it was uploaded incompletely"
            raise ModelError(text, stage="load", reason="missing_shard" if is_indexed else "no_safetensors")
    open_file = partial(HubFile, repo_id=candidate.location, revision=candidate.revision)
    with ThreadPoolExecutor(max_workers=8) as pool:
        return list(pool.map(open_file, [listed[name] for name in names]))


def _read_headers(files: Sequence[WeightFile], *, is_hub: bool) -> Weights:
    weights = Weights(
        files={file.name: file for file in files},
        spans={},
        headers=(),
        gap_bytes=HUB_GAP_BYTES if is_hub else LOCAL_GAP_BYTES,
        piece_bytes=128 << 20,
        connections=8 if is_hub else 2,
    )

    read = _sound_header if is_hub else _header
    with ThreadPoolExecutor(max_workers=weights.connections) as pool:
        parsed = list(pool.map(lambda file: read(weights, file)[:2], files))
    for file, (header, data_start) in zip(files, parsed, strict=True):
        spans = tensor_spans(header, file=file.name, data_start=data_start)
        weights.spans = {**weights.spans, **{span.name: span for span in spans}}
    weights.headers = tuple(header for header, _ in parsed)
    return weights


def _header(weights: Weights, file: WeightFile) -> tuple[checkpoints.Header, int, str]:
    """A file's header, where its data begin, and the SHA-256 of what was read."""
    digest = hashlib.sha256()

    def read(start: int, count: int) -> bytes:
        memory = bytearray(count)
        weights._plan_bytes(count)
        weights.read_into(file.name, start, memoryview(memory))
        digest.update(memory)
        return bytes(memory)

    header, data_start = checkpoints.parse_header(read, name=file.name, size=file.size)
    return header, data_start, digest.hexdigest()


def _sound_header(weights: Weights, file: WeightFile) -> tuple[checkpoints.Header, int, str]:
    """The header that the plan has read at this commit: any other one was damaged on its way."""
    for _ in range(2):
        try:
            arrived = _header(weights, file)
        except ModelError as error:
            if error.reason != "unreadable_weights":
                raise
            continue
        if file.header_sha256 in (None, arrived[2]):
            return arrived
    text = f"the header of {file.name} arrived damaged twice; the same command tries again"
    raise TransientModelError(text, stage="fetch", reason="corrupt_download")
