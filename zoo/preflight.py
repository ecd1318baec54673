"""One repository's verdict before any weight moves: a planned model, or a refusal with a reason."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from zoo import quantization, shards
from zoo.checkpoints import INDEX_NAME
from zoo.errors import ModelError, TransientModelError
from zoo.filters import ParameterRange
from zoo.hub import Hub
from zoo.hub_errors import gated_sentence
from zoo.listing import listing_from
from zoo.records import Architecture, Candidate, Listing, PlannedModel, Refusal, RepoFile
from zoo.shards import refused

Describe = Callable[[Mapping[str, Any]], Architecture]
"""Architecture of a raw config; raises ``ModelError`` for one that cannot be measured."""

MAX_CONFIG_BYTES = 4 << 20
MAX_INDEX_BYTES = 64 << 20

SMALLEST_PARAMETERS = 10_000_000
"""Below this a repository is a toy or a test fixture unless ``--params`` asks for it."""

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
    "chat_template.jinja",
    "chat_template.json",
)
VOCABULARIES = (
    {"tokenizer.json"},
    {"tokenizer.model"},
    {"vocab.json", "merges.txt"},
    {"vocab.txt"},
    {"spiece.model"},
    {"sentencepiece.bpe.model"},
    {"tekken.json"},
)
QUANTIZED_TAGS = frozenset(("gptq", "awq", "bitsandbytes", "mlx", "compressed-tensors", "exl2", "4-bit"))
"""Tags of what zoo cannot dequantise; checkpoints tagged ``8-bit`` differ, their config tells which it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A repository to look at: named by a person, or seen in a listing."""

    model_id: str
    revision: str | None = None
    listing: Listing | None = None


def examine(
    hub: Hub, target: Target, *, describe: Describe, params: ParameterRange | None = None
) -> PlannedModel | Refusal:
    """The verdict on one repository at one commit; at most the headers of its weights are read.

    Raises:
        SourceError: the Hub cannot be asked at all.
    """
    revision = target.revision
    try:
        if target.listing is not None:
            refuse_by_listing(target.listing, has_token=hub.has_token)
            revision = target.listing.revision
        info = hub.model_info(target.model_id, revision=revision)
        revision = info["sha"]
        return _plan(hub, info, describe=describe, params=params or ParameterRange())
    except ModelError as error:
        message = str(error)
        named = message if target.model_id in message else f"{target.model_id}: {message}"
        return Refusal(
            model_id=target.model_id,
            revision=revision,
            reason=error.reason,
            message=named,
            transient=isinstance(error, TransientModelError),
        )


def refuse_by_listing(listing: Listing, *, has_token: bool) -> None:
    """Raise ``ModelError`` for what the listing alone rules out, so that no request is spent on it."""
    tags = {tag.lower() for tag in listing.tags}
    if listing.disabled:
        raise refused("disabled", "it was disabled on the Hub and cannot be downloaded by anyone")
    if listing.base_model_relation == "adapter" or listing.library == "peft":
        raise refused("adapter", "it is an adapter, not a model; screen the model it was made for")
    if kinds := sorted(tags & QUANTIZED_TAGS):
        raise refused("quantized", f"it is tagged {kinds[0]}; screen the model it was quantised from")
    if tags and "safetensors" not in tags:
        if "gguf" in tags:
            raise refused("quantized", "it holds GGUF files only; screen the model it was converted from")
        raise refused("no_safetensors", "it has no safetensors weights; ask its author for them")
    if listing.gated and not has_token:
        raise refused("gated", gated_sentence(listing.model_id, as_somebody=False))


def _plan(hub: Hub, info: Mapping[str, Any], *, describe: Describe, params: ParameterRange) -> PlannedModel:
    listing, files = listing_from(info), repo_files(info)
    repo_id, revision = listing.model_id, info["sha"]
    if listing.disabled:
        raise refused("disabled", "it was disabled on the Hub and cannot be downloaded by anyone")
    if listing.gated and not hub.has_token:
        raise refused("gated", gated_sentence(repo_id, as_somebody=False))
    start = shards.choose_weights(files)
    tokenizer = tokenizer_files(files)
    config = read_config(hub, repo_id, files, revision=revision)
    dequantised = quantization.dequantising(config) != config
    architecture = describe(config)
    index = [files[start]] if start == INDEX_NAME else []
    weight_map: Mapping[str, str] = {}
    if index:
        body = shards.read_file(hub, repo_id, files[start], revision=revision, most=MAX_INDEX_BYTES)
        weight_map = shards.shard_names(body, files)
    weights = [files[name] for name in sorted(set(weight_map.values()) or {start})]
    read = partial(shards.read_header, hub, repo_id, revision=revision, weight_map=weight_map)
    arrived = [read(one) for one in weights]
    headers = {one.path: header for one, (header, _) in zip(weights, arrived, strict=True)}
    weights = [replace(one, header_sha256=sha) for one, (_, sha) in zip(weights, arrived, strict=True)]
    if dequantised:
        parameters = architecture.parameters
    else:
        shards.check_not_packed(headers)
        parameters = shards.count_parameters(headers, tied=config.get("tie_word_embeddings") is True)
    refuse_size(parameters, params)
    needed = (files["config.json"], *tokenizer, *index, *weights)
    candidate = Candidate(
        model_id=repo_id,
        revision=revision,
        location=repo_id,
        format="hub",
        source="hub",
        weight_bytes=sum(one.size for one in weights),
        files=needed,
    )
    return PlannedModel(
        candidate=candidate,
        listing=listing,
        architecture=architecture,
        parameters=parameters,
        fetch_bytes=sum(one.size for one in needed),
        api_requests=0,
        resolver_requests=sum(1 if one.sha256 else 2 for one in needed),
        identity=shards.identity(weights, tokenizer, config),
    )


def repo_files(info: Mapping[str, Any]) -> dict[str, RepoFile]:
    """The files of a model info by path.

    Raises:
        ModelError: ``incomplete_repo`` where sizes or digests are missing.
    """
    files = {}
    try:
        for item in info["siblings"]:
            lfs = item.get("lfs") or {}
            path, size = str(item["rfilename"]), int(lfs.get("size", item["size"]))
            digest = lfs.get("sha256")
            files[path] = RepoFile(path=path, size=size, blob_id=str(item["blobId"]), sha256=digest)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise refused(
            "incomplete_repo", "the Hub does not state sizes and digests of all its files"
        ) from None
    return files


def tokenizer_files(files: Mapping[str, RepoFile]) -> tuple[RepoFile, ...]:
    """Tokenizer and chat template files; raises ``ModelError`` when no vocabulary is among them."""
    found = {name for name in TOKENIZER_FILES if name in files}
    if not any(vocabulary <= found for vocabulary in VOCABULARIES):
        raise refused("incomplete_repo", "it holds no tokenizer; screen a repository that has one")
    named = [name for name in files if re.fullmatch(r"additional_chat_templates/[\w-]+\.jinja", name)]
    return tuple(files[name] for name in sorted([*found, *named]))


def read_config(hub: Hub, repo_id: str, files: Mapping[str, RepoFile], *, revision: str) -> dict[str, Any]:
    """The raw ``config.json``; raises ``ModelError`` (``incomplete_repo``, ``bad_config``, ``gated``)."""
    if "config.json" not in files:
        raise refused("incomplete_repo", "it holds no config.json, so nothing says what model it is")
    body = shards.read_file(hub, repo_id, files["config.json"], revision=revision, most=MAX_CONFIG_BYTES)
    try:
        config = json.loads(body)
    except (ValueError, RecursionError):
        raise refused("bad_config", "its config.json is not JSON") from None
    if not isinstance(config, dict):
        raise refused("bad_config", "its config.json is no JSON object")
    return config


def refuse_size(parameters: int, params: ParameterRange) -> None:
    """Raise ``ModelError`` where the count from the tensors lies outside of what was asked for."""
    low = SMALLEST_PARAMETERS if params.low is None else params.low
    if parameters < low:
        text = (
            f"it has {parameters:,} parameters, fewer than {low:,}; ask for it with --params if you mean it"
        )
        raise refused("too_small", text)
    if params.high is not None and parameters > params.high:
        text = f"it has {parameters:,} parameters, more than the {params.high:,} of --params"
        raise refused("too_large", text)
