"""Byte ranges of local files: planned, read and refused."""

from __future__ import annotations

import json
import os
import struct
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from zoo.buffers import ALIGNMENT, BlockBuffer
from zoo.errors import ModelError
from zoo.records import Candidate
from zoo.spans import TensorSpan, coalesce, pieces, row_runs
from zoo.weights import open_weights


def at(folder: Path) -> Candidate:
    return Candidate(model_id="a/b", revision="0" * 40, location=str(folder), format="folder", source="test")


def stored(folder: Path, **tensors: torch.Tensor) -> Candidate:
    save_file(tensors, folder / "model.safetensors")
    return at(folder)


def span(start: int, stop: int, *, file: str = "f") -> TensorSpan:
    return TensorSpan(
        name=f"{file}{start}", file=file, dtype="U8", shape=(stop - start,), start=start, stop=stop
    )


@given(start=st.integers(0, 1000), size=st.integers(0, 5000), piece=st.integers(1, 3000))
def test_pieces_cover_the_range_once_in_order(start: int, size: int, piece: int) -> None:
    cuts = pieces(start, start + size, piece_bytes=piece)
    assert (cuts[0][0], cuts[-1][1]) == (start, start + size)
    assert all(one[1] == other[0] for one, other in pairwise(cuts))
    assert all(piece <= stop - begin < 2 * piece + 1 for begin, stop in cuts) or size < piece


@given(rows=st.sets(st.integers(0, 300), min_size=1), gap=st.integers(0, 20))
def test_row_runs_cover_every_row_and_no_gap_beyond_the_limit(rows: set[int], gap: int) -> None:
    runs = row_runs(sorted(rows), gap_rows=gap)
    covered = [row for first, last in runs for row in range(first, last)]
    assert rows <= set(covered)
    assert len(covered) == len(set(covered))
    assert all(other[0] - one[1] > gap for one, other in pairwise(runs))


def test_near_tensors_of_one_file_are_read_together() -> None:
    spans = [span(100, 200), span(0, 90), span(500, 600), span(0, 50, file="g")]
    blocks = coalesce(spans, gap_bytes=10)
    assert [(block.file, block.start, block.stop) for block in blocks] == [
        ("f", 0, 200),
        ("f", 500, 600),
        ("g", 0, 50),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
def test_tensors_are_read_as_they_were_written(dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = {"odd": torch.ones(3, dtype=torch.uint8), "none": torch.zeros(0, 4).to(dtype)}
    tensors["x"] = (torch.randn(7, 5) * 3).to(dtype)
    weights = open_weights(stored(tmp_path, **tensors))
    read = weights.read(coalesce(weights.spans.values(), gap_bytes=weights.gap_bytes))
    weights.close()
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize("start", [0, 8, 40])
def test_a_tensor_lies_as_in_its_file_and_on_another_device_as_on_its_own(start: int) -> None:
    (block,) = coalesce([span(start, start + 16), span(start + 24, start + 40)], gap_bytes=8)
    buffer = BlockBuffer(block)
    buffer.view(start, start + 40)[:] = bytes(range(40))
    here, there = buffer.tensors(), buffer.tensors(buffer.bytes.clone())
    for each in block.spans:
        assert here[each.name].data_ptr() % ALIGNMENT == each.start % ALIGNMENT
        assert there[each.name].data_ptr() % ALIGNMENT == 0
        assert here[each.name].equal(there[each.name])


def test_rows_are_read_in_the_order_asked_for(tmp_path: Path) -> None:
    table = torch.randn(1000, 8)
    weights = open_weights(stored(tmp_path, table=table))
    rows = [0, 1, 500, 999]
    assert torch.equal(weights.read_rows(weights.spans["table"], rows), table[rows])
    weights.close()


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    weights = open_weights(stored(tmp_path, x=torch.randn(100, 100)))
    blocks = coalesce(weights.spans.values(), gap_bytes=0)
    path = tmp_path / "model.safetensors"
    os.utime(path, ns=(1, 1))
    with pytest.raises(ModelError, match="was changed while it was read") as caught:
        weights.read(blocks)
    assert caught.value.reason == "file_changed"
    os.truncate(path, 1000)
    with pytest.raises(ModelError, match="was changed while it was read"):
        weights.read(blocks)
    weights.close()


def lie(**tensor: object) -> bytes:
    header = json.dumps({"x": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]} | tensor}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(16)


LIES = {
    "a gap": lie(data_offsets=[4, 16]),
    "too long": lie(data_offsets=[0, 20]),
    "too short": lie(data_offsets=[0, 12]),
    "another shape": lie(shape=[2, 3]),
    "a negative size": lie(shape=[-2, -2]),
    "backwards": lie(data_offsets=[16, 0]),
    "no numbers": lie(data_offsets=["a", "b"]),
    "a header of 200 MB": struct.pack("<Q", 200 << 20) + bytes(100),
    "an overlap": struct.pack("<Q", 118)
    + b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
    + b'"y":{"dtype":"F32","shape":[3],"data_offsets":[4,16]}}'.ljust(118 - 54)
    + bytes(16),
    "nothing": b"",
}


@pytest.mark.parametrize("name", LIES)
def test_a_header_that_lies_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(LIES[name])
    with pytest.raises(ModelError, match=r"model\.safetensors is (damaged or )?cut short") as caught:
        open_weights(at(tmp_path))
    assert caught.value.reason == "unreadable_weights"
