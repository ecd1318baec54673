"""Where tensors lie in their files, and which byte ranges to read for some of them; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

TORCH_DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8,
    "I16": torch.int16, "I32": torch.int32, "I64": torch.int64,
    "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64,
}  # fmt: skip
"""What is streamed; 8-bit floats and packed integers are quantised checkpoints, which are loaded whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpan:
    """One tensor's bytes ``start <= i < stop`` in its file."""

    name: str
    file: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Block:
    """Bytes ``start <= i < stop`` of one file, read together, and the tensors that lie in them."""

    file: str
    start: int
    stop: int
    spans: tuple[TensorSpan, ...]

    @property
    def size(self) -> int:
        """Bytes to read."""
        return self.stop - self.start


def tensor_spans(header: dict[str, dict[str, Any]], *, file: str, data_start: int) -> list[TensorSpan]:
    """The spans of a checked header whose data begin at byte ``data_start``."""
    return [
        TensorSpan(
            name=name,
            file=file,
            dtype=tensor["dtype"],
            shape=tuple(tensor["shape"]),
            start=data_start + tensor["data_offsets"][0],
            stop=data_start + tensor["data_offsets"][1],
        )
        for name, tensor in header.items()
    ]


def coalesce(spans: Iterable[TensorSpan], *, gap_bytes: int) -> tuple[Block, ...]:
    """Blocks that cover the spans, by file and position; gaps of up to ``gap_bytes`` are read along."""
    groups: list[list[TensorSpan]] = []
    for span in sorted(spans, key=lambda span: (span.file, span.start)):
        last = groups[-1][-1] if groups else None
        if last is not None and last.file == span.file and span.start - last.stop <= gap_bytes:
            groups[-1].append(span)
        else:
            groups.append([span])
    return tuple(Block(group[0].file, group[0].start, group[-1].stop, tuple(group)) for group in groups)


def pieces(start: int, stop: int, *, piece_bytes: int) -> list[tuple[int, int]]:
    """The range cut into as few equal pieces as keep within twice ``piece_bytes``, in order."""
    count = max(1, (stop - start) // piece_bytes)
    cuts = [start + (stop - start) * i // count for i in range(count + 1)]
    return list(pairwise(cuts))


def row_runs(rows: Sequence[int], *, gap_rows: int) -> list[tuple[int, int]]:
    """Runs ``first <= row < last`` covering sorted distinct rows; gaps of up to ``gap_rows`` are joined."""
    runs: list[list[int]] = []
    for row in rows:
        if runs and row - runs[-1][1] <= gap_rows:
            runs[-1][1] = row + 1
        else:
            runs.append([row, row + 1])
    return [(first, last) for first, last in runs]
