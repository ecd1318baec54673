"""Builds a model, fills its weights, and runs forward passes; nothing else knows where weights are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from zoo import architecture, checkpoints
from zoo.errors import ModelError, first_line
from zoo.fetch import fetch
from zoo.hub import Hub
from zoo.loadplan import CannotStreamError, build_empty, plan_loading
from zoo.placement import device_map
from zoo.quiet import quiet_transformers
from zoo.records import Architecture, Candidate, RunOptions
from zoo.streaming import StreamedModel
from zoo.weights import OnBytes, open_weights
from zoo.whole import check_filled, check_finite, check_observable, gguf_file, load_whole


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Backbone:
    """A model ready to run under the probe, and how it came to be loaded.

    ``run`` calls each forward pass it is given; a streamed model runs them layer by layer in step, and
    only once, a whole one in turn. ``close`` ends what still runs in the background.
    """

    model: PreTrainedModel
    architecture: Architecture
    device: str
    dtype: torch.dtype
    load: str
    load_reason: str
    verified: str
    run: Callable[[Iterable[Callable[[], None]]], None]
    close: Callable[[], None] = lambda: None
    bytes_fetched: Callable[[], int | None] = lambda: None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Opening:
    """What is known of a model before a weight is read."""

    candidate: Candidate
    folder: Path
    config: PreTrainedConfig
    architecture: Architecture
    implementation: str
    device: str
    dtype: torch.dtype


def open_backbone(
    candidate: Candidate,
    *,
    options: RunOptions,
    folder: Path | None = None,
    on_bytes: OnBytes | None = None,
) -> Backbone:
    """The candidate's model, streamed or whole; raises ``ModelError`` (stages plan, fetch, load).

    ``folder`` holds the configuration and the index of a Hub model, whose weights stay on the Hub.
    ``on_bytes`` is told, from other threads, the bytes of weights fetched so far and those planned.
    Close what is returned.
    """
    device = resolve_device(options.device)
    folder = folder or Path(candidate.location)
    config = _config(candidate, folder)
    meta_model = architecture.build_on_meta(config)
    described = architecture.describe(meta_model)
    opening = _Opening(
        candidate=candidate,
        folder=folder,
        config=config,
        architecture=described,
        implementation=architecture.attention_implementation(meta_model),
        device=device,
        dtype=resolve_dtype(
            options.dtype, config=config, candidate=candidate, device=device, route=described.attention_route
        ),
    )
    reason = "whole was asked for"
    if options.load != "whole":
        try:
            return _open_streamed(opening, options=options, on_bytes=on_bytes)
        except CannotStreamError as error:
            reason = f"cannot be streamed: {error}"
        if options.load == "stream":
            text = f"this model {reason}; use --load auto or whole"
            raise ModelError(text, stage="load", reason="cannot_stream")
    return _open_whole(opening, reason=reason)


def _open_streamed(opening: _Opening, *, options: RunOptions, on_bytes: OnBytes | None) -> Backbone:
    if opening.candidate.format == "gguf":
        raise CannotStreamError("it is a GGUF file")
    model = build_empty(opening.config, dtype=opening.dtype, implementation=opening.implementation)
    check_observable(model, opening.implementation)
    weights = open_weights(opening.candidate, folder=opening.folder, on_bytes=on_bytes)
    try:
        checkpoints.check_elements(weights.headers, expected_elements=opening.architecture.parameters)
        digests = weights.verify_digests() if options.verify == "full" else None
        with quiet_transformers():
            plan, info = plan_loading(model, weights.spans, dtype=opening.dtype)
        check_filled(model, info)
        streamed = StreamedModel(
            plan=plan,
            weights=weights,
            architecture=opening.architecture,
            device=opening.device,
            window_bytes=options.prefetch_bytes,
        )
    except BaseException:
        weights.close()
        raise
    return Backbone(
        model=model,
        architecture=opening.architecture,
        device=opening.device,
        dtype=opening.dtype,
        load="stream",
        load_reason="safetensors, read layer by layer",
        verified=digests or "headers, lengths, finite values of what was read",
        run=streamed.run,
        close=streamed.close,
        bytes_fetched=lambda: weights.bytes_fetched,
    )


def _open_whole(opening: _Opening, *, reason: str) -> Backbone:
    candidate, verified = opening.candidate, "headers, shapes, finite values"
    fetched: int | None = None
    model_bytes = opening.architecture.parameters * opening.dtype.itemsize
    spread = device_map(model_bytes, device=opening.device)  # before anything is fetched
    with ExitStack() as stack:
        if candidate.format == "hub":
            folder = stack.enter_context(fetch(candidate, hub=Hub()))
            fetched = sum(file.size for file in candidate.files)
            candidate = replace(candidate, location=str(folder), format="folder")
            verified = f"digest of every file, {verified}"
        if candidate.format == "folder":
            checkpoints.check_safetensors(
                Path(candidate.location), expected_elements=opening.architecture.parameters
            )
        model = load_whole(
            candidate,
            config=opening.config,
            dtype=opening.dtype,
            implementation=opening.implementation,
            device_map=spread,
        )
        check_finite(model)
        model = (model if spread else model.to(opening.device)).eval()
        # The weights may be a memory map of the downloaded files.
        close = stack.pop_all().close
    return Backbone(
        model=model,
        architecture=opening.architecture,
        device=opening.device,
        dtype=opening.dtype,
        load="whole",
        load_reason=reason,
        verified=verified,
        run=run_in_turn,
        close=close,
        bytes_fetched=lambda: fetched,
    )


def run_in_turn(forwards: Iterable[Callable[[], None]]) -> None:
    """Run forward passes one after the other."""
    for forward in forwards:
        forward()


def resolve_device(device: str) -> str:
    """``cuda`` when asked for or, for ``auto``, when there is a GPU; ``cpu`` otherwise."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError(
            "--device cuda was asked for and no GPU is visible here; use --device cpu or auto",
            stage="load",
            reason="no_gpu",
        )
    return device


def resolve_dtype(
    dtype: str, *, config: PreTrainedConfig, candidate: Candidate, device: str, route: str = "interface"
) -> torch.dtype:
    """The dtype to run in: as asked, else the checkpoint's on a GPU and float32 on a CPU.

    A model that computes its own attention logits rounds them to its dtype, so it runs in float32.
    """
    if dtype != "auto":
        return getattr(torch, dtype)
    if device == "cpu" or candidate.format == "gguf" or route == "softmax":
        return torch.float32
    return config.dtype or torch.bfloat16


def _config(candidate: Candidate, folder: Path) -> PreTrainedConfig:
    if candidate.format != "gguf":
        return architecture.read_config(folder)
    where, name = gguf_file(candidate)
    try:
        config = AutoConfig.from_pretrained(where, gguf_file=name, local_files_only=True)
    except Exception as error:
        text = f"the GGUF file cannot be read ({first_line(error)}); fetch it again"
        raise ModelError(text, stage="plan", reason="bad_config") from None
    architecture.check_config(config)
    return config
