"""The weight files of a Hub repository, by name, digest and safetensors header; no weight is read."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

from zoo.checkpoints import INDEX_NAME, MAX_HEADER_BYTES, check_offsets
from zoo.errors import ModelError, TransientModelError, first_line
from zoo.hub import Hub
from zoo.records import RepoFile

SINGLE_NAME = "model.safetensors"
FIRST_BYTES = 100_000
"""Headers of most files fit, so one request does."""

DTYPE_BYTES = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
}
FLOATS = ("F64", "F32", "F16", "BF16")

Headers = Mapping[str, Mapping[str, Any]]


def refused(reason: str, text: str) -> ModelError:
    """A verdict on a repository."""
    return ModelError(text, stage="plan", reason=reason)


def choose_weights(files: Mapping[str, RepoFile]) -> str:
    """The file that loading starts from: ``model.safetensors``, else the index of its shards.

    Raises:
        ModelError: there is neither; ``adapter``, ``quantized`` or ``no_safetensors`` says what there is.
    """
    names = [name for name in files if "/" not in name]
    for name in (SINGLE_NAME, INDEX_NAME):
        if name in names:
            return name
    if "adapter_config.json" in names:
        raise refused("adapter", "it holds an adapter, not a model; screen the model it was made for")
    if any(name.endswith(".gguf") for name in names):
        raise refused("quantized", "it holds GGUF files only; screen the model it was converted from")
    if any(name.endswith(".safetensors") for name in names):
        text = (
            "its safetensors files have names that transformers does not load; ask its author to rename them"
        )
        raise refused("no_safetensors", text)
    if any(name.endswith((".bin", ".pt", ".pth", ".h5", ".msgpack")) for name in names):
        text = "its weights are in a format that can run code; ask its author for safetensors"
        raise refused("no_safetensors", text)
    raise refused("no_safetensors", "it holds no weights at its top level")


def shard_names(index: bytes, files: Mapping[str, RepoFile]) -> dict[str, str]:
    """Tensor name to shard of an index; every shard is a file of the repository's top level.

    Raises:
        ModelError: ``incomplete_repo`` for a missing shard, ``bad_index`` for anything else.
    """
    try:
        weight_map = json.loads(index)["weight_map"]
        names = sorted(set(weight_map.values()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise refused("bad_index", f"its {INDEX_NAME} cannot be read") from None
    for name in names:
        if not isinstance(name, str) or "/" in name or not name.endswith(".safetensors"):
            raise refused("bad_index", f"its {INDEX_NAME} points outside the repository's safetensors files")
        if name not in files:
            text = f"its index names {name}, which is not in the repository; its upload may be unfinished"
            raise refused("incomplete_repo", text)
    if not names:
        raise refused("bad_index", f"its {INDEX_NAME} names no tensor")
    return weight_map


def matches_digest(body: bytes, file: RepoFile) -> bool:
    """Whether bytes are the file that the Hub lists, by SHA-256 or git's SHA-1."""
    if file.sha256:
        return hashlib.sha256(body).hexdigest() == file.sha256
    return hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest() == file.blob_id


def read_file(hub: Hub, repo_id: str, file: RepoFile, *, revision: str, most: int) -> bytes:
    """A small file, checked against its digest; raises ``ModelError`` when it is larger than ``most``."""
    if file.size > most:
        raise refused("bad_config", f"its {file.path} is larger than {most >> 20} MB")
    return hub.file_bytes(
        repo_id, file.path, revision=revision, accept=lambda body: matches_digest(body, file)
    )


def read_header(
    hub: Hub, repo_id: str, file: RepoFile, *, revision: str, weight_map: Mapping[str, str]
) -> tuple[dict[str, Any], str]:
    """The tensors of one file by Range, name to ``dtype``, ``shape`` and ``data_offsets``, and their SHA-256.

    Nobody states a header's digest, so one that makes no sense, or lacks what the index places in the
    file, is read again, and blamed on the file only if it is the same twice.

    Raises:
        ModelError: ``unreadable_weights``, ``incomplete_repo``.
    """
    seen: set[bytes] = set()
    for _ in range(2):
        raw = _header_bytes(hub, repo_id, file, revision=revision)
        try:
            return parsed_header(raw, file, weight_map=weight_map), hashlib.sha256(raw).hexdigest()
        except ModelError:
            if raw in seen:
                raise
            seen.add(raw)
    text = f"the header of {file.path} of {repo_id} arrives differently each time; try again later"
    raise TransientModelError(text, stage="plan", reason="hub_unavailable")


def _header_bytes(hub: Hub, repo_id: str, file: RepoFile, *, revision: str) -> bytes:
    """A header with the 8 bytes of its length before it, or as much of that as makes sense to read."""
    stop = min(file.size, FIRST_BYTES)
    if stop < 8:
        return b""
    head = hub.file_bytes(repo_id, file.path, revision=revision, span=(0, stop))
    length = struct.unpack("<Q", head[:8])[0]
    if length > min(MAX_HEADER_BYTES, file.size - 8):
        return head[:8]
    if 8 + length > len(head):
        return head[:8] + hub.file_bytes(repo_id, file.path, revision=revision, span=(8, 8 + length))
    return head[: 8 + length]


def parsed_header(raw: bytes, file: RepoFile, *, weight_map: Mapping[str, str]) -> dict[str, Any]:
    """The tensors of a header that begins with its length.

    Raises:
        ModelError: ``unreadable_weights`` where it does not describe the file, ``incomplete_repo`` where
            it lacks a tensor that the index places in the file.
    """
    try:
        header = json.loads(raw[8:])
        header.pop("__metadata__", None)
        check_offsets(header, data_bytes=file.size - len(raw))
        check_shapes(header)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        text = f"the header of its {file.path} does not describe the file ({first_line(error)})"
        raise refused("unreadable_weights", text) from None
    for tensor, shard in weight_map.items():
        if shard == file.path and tensor not in header:
            text = (
                f"its index places {tensor} in {shard}, which does not hold it; its upload may be unfinished"
            )
            raise refused("incomplete_repo", text)
    return header


def check_shapes(header: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` where the bytes of a tensor are not what its shape and dtype need."""
    for name, tensor in header.items():
        start, stop = tensor["data_offsets"]
        width = DTYPE_BYTES.get(tensor["dtype"])
        if width is not None and width * prod(tensor["shape"]) != stop - start:
            raise ValueError(f"tensor {name} of shape {tensor['shape']} has {stop - start} bytes")


def check_not_packed(headers: Headers) -> None:
    """Raise ``ModelError`` (``quantized``) where most weight bytes are no ordinary floating-point numbers."""
    weights = [
        tensor for header in headers.values() for tensor in header.values() if len(tensor["shape"]) > 1
    ]
    sizes = [(one["dtype"], one["data_offsets"][1] - one["data_offsets"][0]) for one in weights]
    packed = sum(size for dtype, size in sizes if dtype not in FLOATS)
    if packed * 2 > sum(size for _, size in sizes):
        kinds = sorted({dtype for dtype, _ in sizes if dtype not in FLOATS})
        text = f"most of its weights are stored as {', '.join(kinds)}; screen the model it was quantised from"
        raise refused("quantized", text)


def count_parameters(headers: Headers, *, tied: bool) -> int:
    """Floating-point numbers in all tensors, each name once, a stored copy of tied embeddings not at all."""
    shapes = {
        name: tuple(tensor["shape"])
        for header in headers.values()
        for name, tensor in header.items()
        if tensor["dtype"] in FLOATS
    }
    if tied:
        head = next((name for name in shapes if name.endswith("lm_head.weight")), None)
        embedding = (name for name in shapes if name.endswith(("embed_tokens.weight", "wte.weight")))
        if head and any(shapes[name] == shapes[head] for name in embedding):
            shapes.pop(head)
    return sum(prod(shape) for shape in shapes.values())


def identity(weights: Iterable[RepoFile], others: Iterable[RepoFile], config: Mapping[str, Any]) -> str:
    """A digest that two repositories share only if they cannot differ in the measurement.

    It covers the weights' digests, names and digests of tokenizer and chat template files, and the
    config without what names its origin.
    """
    cosmetic = {"_name_or_path", "transformers_version", "use_cache"}
    facts = [
        sorted(file.sha256 or file.blob_id for file in weights),
        sorted((file.path, file.sha256 or file.blob_id) for file in others),
        {key: value for key, value in config.items() if key not in cosmetic},
    ]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
