"""Loads a model whole, as transformers does, and proves that every weight was filled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from zoo import architecture
from zoo.errors import GpuMemoryError, ModelError, TransientModelError, first_line
from zoo.memory import is_out_of_memory
from zoo.quiet import quiet_transformers
from zoo.records import Candidate


def gguf_file(candidate: Candidate) -> tuple[str, str]:
    """Folder and file name of a GGUF candidate."""
    path = Path(candidate.location)
    return str(path.parent), path.name


def load_whole(
    candidate: Candidate,
    *,
    config: PreTrainedConfig,
    dtype: torch.dtype,
    implementation: str,
    device_map: str | None = None,
) -> PreTrainedModel:
    """The candidate's model with every weight filled, on the CPU or spread by transformers' ``device_map``.

    Raises ``ModelError`` (stage load).
    """
    common: dict[str, Any] = {
        "config": config,
        "dtype": dtype,
        "attn_implementation": architecture.attention_choice(config, implementation),
        "trust_remote_code": False,
        "local_files_only": True,
        "output_loading_info": True,
        "device_map": device_map,
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
        raise GpuMemoryError(text) from None
    except Exception as error:
        if is_out_of_memory(error):
            text = f"the model does not fit this machine's memory ({first_line(error)}); use a larger one"
            raise TransientModelError(text, stage="load", reason="out_of_memory") from None
        text = f"the weights cannot be loaded ({first_line(error)}); fetch them again"
        raise ModelError(text, stage="load", reason="unreadable_weights") from None
    check_filled(model, info)
    check_observable(model, implementation)
    return model


def check_observable(model: PreTrainedModel, implementation: str) -> None:
    """Raise ``ModelError`` unless the model's attention is the one it is to be measured with."""
    if model.config._attn_implementation != implementation:
        text = f"{type(model).__name__} does not let its attention be observed; the model is not supported"
        raise ModelError(text, stage="load", reason="attention_not_observable")


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
