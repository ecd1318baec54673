"""Builds a model, fills its weights, and runs forward passes; nothing else knows where weights are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from zoo import architecture, checkpoints
from zoo.errors import ModelError, TransientModelError, first_line
from zoo.records import Architecture, Candidate, RunOptions


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Backbone:
    """A model ready to run under the probe, and how it came to be loaded.

    ``run`` calls each forward pass it is given; a streamed model runs them layer by layer in step, a
    whole one in turn.
    """

    model: PreTrainedModel
    architecture: Architecture
    device: str
    dtype: torch.dtype
    load: str
    load_reason: str
    verified: str
    run: Callable[[Iterable[Callable[[], None]]], None]


def open_backbone(candidate: Candidate, *, options: RunOptions) -> Backbone:
    """The candidate's model with every weight filled; raises ``ModelError`` (stages plan, load)."""
    device = resolve_device(options.device)
    config = _config(candidate)
    meta_model = architecture.build_on_meta(config)
    described = architecture.describe(meta_model)
    implementation = architecture.attention_implementation(meta_model)
    if candidate.format == "folder":
        checkpoints.check_safetensors(Path(candidate.location), expected_elements=described.parameters)
    dtype = resolve_dtype(
        options.dtype, config=config, candidate=candidate, device=device, route=described.attention_route
    )
    model = _load_whole(candidate, config=config, dtype=dtype, implementation=implementation)
    check_finite(model)
    return Backbone(
        model=model.to(device).eval(),
        architecture=described,
        device=device,
        dtype=dtype,
        load="whole",
        load_reason="every model is loaded whole",
        verified="headers, shapes, finite values",
        run=run_in_turn,
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


def _config(candidate: Candidate) -> PreTrainedConfig:
    if candidate.format == "folder":
        return architecture.read_config(Path(candidate.location))
    folder, name = gguf_file(candidate)
    try:
        config = AutoConfig.from_pretrained(folder, gguf_file=name, local_files_only=True)
    except Exception as error:
        text = f"the GGUF file cannot be read ({first_line(error)}); fetch it again"
        raise ModelError(text, stage="plan", reason="bad_config") from None
    architecture.check_config(config)
    return config


def gguf_file(candidate: Candidate) -> tuple[str, str]:
    """Folder and file name of a GGUF candidate."""
    path = Path(candidate.location)
    return str(path.parent), path.name


def _load_whole(
    candidate: Candidate, *, config: PreTrainedConfig, dtype: torch.dtype, implementation: str
) -> PreTrainedModel:
    common: dict[str, Any] = {
        "config": config,
        "dtype": dtype,
        "attn_implementation": implementation,
        "trust_remote_code": False,
        "local_files_only": True,
        "output_loading_info": True,
    }
    if candidate.format == "gguf":
        folder, name = gguf_file(candidate)
        where: dict[str, Any] = {"pretrained_model_name_or_path": folder, "gguf_file": name}
    else:
        where = {"pretrained_model_name_or_path": candidate.location, "use_safetensors": True}
        # Mismatches are reported rather than raised, so that check_filled can name them.
        where["ignore_mismatched_sizes"] = True
    try:
        with quiet_transformers():
            model, info = architecture.model_class(config).from_pretrained(**where, **common)
    except torch.cuda.OutOfMemoryError as error:
        text = f"the model does not fit the GPU's memory ({first_line(error)}); use a larger GPU"
        raise TransientModelError(text, stage="load", reason="gpu_memory") from None
    except Exception as error:
        text = f"the weights cannot be loaded ({first_line(error)}); fetch them again"
        raise ModelError(text, stage="load", reason="unreadable_weights") from None
    check_filled(model, info)
    if model.config._attn_implementation != implementation:
        text = f"{type(model).__name__} does not let its attention be observed; the model is not supported"
        raise ModelError(text, stage="load", reason="attention_not_observable")
    return model


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers' progress bars and reports out of the output; zoo says what they say itself."""
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        transformers_logging.enable_progress_bar()


def check_filled(model: PreTrainedModel, info: dict[str, Any]) -> None:
    """Raise ``ModelError`` unless every weight that runs came from the checkpoint.

    ``info`` is transformers' loading report. A missing LM head is no fault: it never runs. A stray
    tensor inside a layer is one, since the module that is built then differs from the one trained.
    """
    head = model.get_output_embeddings()
    unused = {name for name, module in model.named_modules() if module is head}
    missing = sorted(key for key in info["missing_keys"] if key.rpartition(".")[0] not in unused)
    unexpected = (key for key in info["unexpected_keys"] if not architecture.in_other_tower(key))
    stray = sorted(key for key in unexpected if architecture.layer_index(key) is not None)
    mismatched = sorted(str(key) for key in info["mismatched_keys"])
    for keys, what, reason in (
        (missing, "lacks", "missing_tensors"),
        (mismatched, "has other shapes than its config for", "mismatched_tensors"),
        (stray, "holds tensors its config has no place for:", "unexpected_tensors"),
    ):
        if keys:
            named = ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
            text = f"the checkpoint {what} {named}; a number from such weights would be wrong, fetch it again"
            raise ModelError(text, stage="load", reason=reason)
    if info.get("error_msgs"):
        raise ModelError(str(info["error_msgs"][0]), stage="load", reason="unreadable_weights")


def check_finite(model: PreTrainedModel) -> None:
    """Raise ``ModelError`` (``non_finite_weights``) naming the first weight with a NaN or infinity."""
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            text = f"weight {name} holds NaN or infinite values; the checkpoint is damaged, fetch it again"
            raise ModelError(text, stage="load", reason="non_finite_weights")
