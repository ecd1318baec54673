"""What a checkpoint folder's safetensors files hold, from their headers alone."""

from __future__ import annotations

import json
import struct
from math import prod
from pathlib import Path
from typing import Any

from zoo.errors import ModelError, first_line

MAX_HEADER_BYTES = 100 << 20
"""The format's own limit on a header."""

INDEX_NAME = "model.safetensors.index.json"


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The safetensors files a checkpoint is loaded from, in name order.

    An index names them by base name; without one it is ``model.safetensors``. Raises ``ModelError``
    (``no_safetensors``, ``missing_shard``, ``bad_index``).
    """
    index, single = folder / INDEX_NAME, folder / "model.safetensors"
    if not index.is_file():
        if single.is_file():
            return (single,)
        text = f"there is no model.safetensors in {folder}; zoo reads safetensors, convert the weights first"
        raise _unreadable("no_safetensors", text)
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise _unreadable("bad_index", f"{INDEX_NAME} cannot be read ({first_line(error)})") from None
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise _unreadable("bad_index", f"{INDEX_NAME} points outside the folder, to {name!r}")
        if not (folder / name).is_file():
            raise _unreadable("missing_shard", f"{INDEX_NAME} names {name}, which is missing; fetch it again")
    return tuple(folder / name for name in names)


def read_header(path: Path) -> dict[str, Any]:
    """The tensors of one file: name to ``dtype``, ``shape`` and ``data_offsets``.

    Raises ``ModelError`` (``unreadable_weights``) for a header that lies about the file: too long, no
    JSON, offsets that leave gaps, overlap, disagree with the shape or end elsewhere than the file.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else size
            if length > min(MAX_HEADER_BYTES, size - 8):
                raise _unreadable("unreadable_weights", f"{path.name} is cut short or no safetensors file")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        check_offsets(header, data_bytes=size - 8 - length)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        text = f"{path.name} is damaged or cut short ({first_line(error)}); fetch it again"
        raise _unreadable("unreadable_weights", text) from None
    return header


def check_offsets(header: dict[str, Any], *, data_bytes: int) -> None:
    """Raise ``ValueError`` unless the tensors cover ``data_bytes`` exactly, one after the other."""
    end = 0
    for name, tensor in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        start, stop = tensor["data_offsets"]
        if start != end or stop < start:
            raise ValueError(f"tensor {name} starts at byte {start} where {end} was expected")
        if any(not isinstance(size, int) or size < 0 for size in tensor["shape"]):
            raise ValueError(f"tensor {name} has the shape {tensor['shape']}")
        end = stop
    if end != data_bytes:
        raise ValueError(f"the tensors end at byte {end} and the file holds {data_bytes}")


def check_safetensors(folder: Path, *, expected_elements: int) -> None:
    """Raise ``ModelError`` unless every file is whole and they hold enough for the config's parameters.

    Checked before anything is allocated, so that a config of 2,000 layers over four layers of weights
    costs nothing.
    """
    headers = [read_header(path) for path in weight_files(folder)]
    stored = sum(prod(tensor["shape"]) for header in headers for tensor in header.values())
    if stored < expected_elements // 2:
        text = (
            f"the config describes {expected_elements:,} parameters and the files hold {stored:,}; "
            "the config belongs to another model or shards are missing"
        )
        raise _unreadable("missing_tensors", text)


def _unreadable(reason: str, text: str) -> ModelError:
    return ModelError(text, stage="load", reason=reason)
