"""What a checkpoint's safetensors files hold, from their headers alone."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable
from math import prod
from pathlib import Path
from typing import Any

from zoo.errors import ModelError, first_line

MAX_HEADER_BYTES = 100 << 20
"""The format's own limit on a header."""

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

# The numbers of bits of the format's types.
DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64,
}  # fmt: skip

Header = dict[str, dict[str, Any]]


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The safetensors files a checkpoint is loaded from, in name order.

    An index names them by base name; without one it is ``model.safetensors``. Raises ``ModelError``
    (``no_safetensors``, ``missing_shard``, ``bad_index``).
    """
    index, single = folder / INDEX_NAME, folder / SINGLE_NAME
    if not index.is_file():
        if single.is_file():
            return (single,)
        text = f"there is no model.safetensors in {folder}; zoo reads safetensors, convert the weights first"
        raise _unreadable("no_safetensors", text)
    try:
        names = index_names(index.read_bytes())
    except OSError as error:
        raise _unreadable("bad_index", f"{INDEX_NAME} cannot be read ({first_line(error)})") from None
    for name in names:
        if not (folder / name).is_file():
            raise _unreadable("missing_shard", f"{INDEX_NAME} names {name}, which is missing; fetch it again")
    return tuple(folder / name for name in names)


def index_names(index: bytes) -> tuple[str, ...]:
    """The weight files that an index names, sorted; raises ``ModelError`` (``bad_index``)."""
    try:
        names = sorted(set(json.loads(index)["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise _unreadable("bad_index", f"{INDEX_NAME} cannot be read ({first_line(error)})") from None
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise _unreadable("bad_index", f"{INDEX_NAME} points outside the checkpoint, to {name!r}")
    return tuple(names)


def read_header(path: Path) -> Header:
    """The tensors of one local file: name to ``dtype``, ``shape`` and ``data_offsets``.

    Raises as ``parse_header`` does.
    """

    def read(start: int, count: int) -> bytes:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(count)

    try:
        return parse_header(read, name=path.name, size=path.stat().st_size)[0]
    except OSError as error:
        raise _damaged(path.name, error) from None


def parse_header(read: Callable[[int, int], bytes], *, name: str, size: int) -> tuple[Header, int]:
    """The tensors of a file of ``size`` bytes, and the byte at which their data begins.

    ``read(start, count)`` returns bytes of the file. Raises ``ModelError`` (``unreadable_weights``) for
    a header that lies about the file: too long, no JSON, offsets that leave gaps, overlap, disagree
    with the shape or end elsewhere than the file.
    """
    prefix = read(0, min(8, size))
    length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else size
    if length > min(MAX_HEADER_BYTES, size - 8):
        raise _unreadable("unreadable_weights", f"{name} is cut short or no safetensors file; fetch it again")
    try:
        header = json.loads(read(8, length))
        header.pop("__metadata__", None)
        check_offsets(header, data_bytes=size - 8 - length)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(name, error) from None
    return header, 8 + length


def check_offsets(header: Header, *, data_bytes: int) -> None:
    """Raise ``ValueError`` unless the tensors cover ``data_bytes`` exactly, one after the other."""
    end = 0
    for name, tensor in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        start, stop = tensor["data_offsets"]
        if start != end or stop < start:
            raise ValueError(f"tensor {name} starts at byte {start} where {end} was expected")
        if any(not isinstance(size, int) or size < 0 for size in tensor["shape"]):
            raise ValueError(f"tensor {name} has the shape {tensor['shape']}")
        bits = DTYPE_BITS.get(tensor["dtype"])
        if bits is not None and prod(tensor["shape"]) * bits != 8 * (stop - start):
            raise ValueError(f"tensor {name} of shape {tensor['shape']} has {stop - start} bytes")
        end = stop
    if end != data_bytes:
        raise ValueError(f"the tensors end at byte {end} and the file holds {data_bytes}")


def check_safetensors(folder: Path, *, expected_elements: int) -> None:
    """Raise ``ModelError`` unless every file is whole and they hold enough for the config's parameters."""
    check_elements(map(read_header, weight_files(folder)), expected_elements=expected_elements)


def check_elements(headers: Iterable[Header], *, expected_elements: int) -> None:
    """Raise ``ModelError`` (``missing_tensors``) when the files hold less than half the parameters.

    Checked before anything is allocated, so that a config of 2,000 layers over four layers of weights
    costs nothing.
    """
    stored = sum(prod(tensor["shape"]) for header in headers for tensor in header.values())
    if stored < expected_elements // 2:
        text = (
            f"the config describes {expected_elements:,} parameters and the files hold {stored:,}; "
            "the config belongs to another model or shards are missing"
        )
        raise _unreadable("missing_tensors", text)


def _damaged(name: str, error: Exception) -> ModelError:
    text = f"{name} is damaged or cut short ({first_line(error)}); fetch it again"
    return _unreadable("unreadable_weights", text)


def _unreadable(reason: str, text: str) -> ModelError:
    return ModelError(text, stage="load", reason=reason)
