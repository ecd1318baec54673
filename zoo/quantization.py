"""Quantised checkpoints: which are measured after dequantisation, and which are refused by name."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from zoo.errors import ModelError

DEQUANTISED = frozenset({"fp8", "mxfp4"})
"""Methods whose weights transformers turns back into floating point on any device, without kernels."""

KNOWN = DEQUANTISED | {
    "aqlm", "auto-round", "awq", "bitnet", "bitsandbytes", "compressed-tensors", "eetq", "exl2", "exl3",
    "fbgemm_fp8", "fouroversix", "fp_quant", "gemma", "gguf", "gptq", "higgs", "hqq", "metal", "mlx",
    "modelopt", "mxfp8", "nvfp4", "quanto", "quark", "sinq", "spqr", "torchao", "vptq",
}  # fmt: skip


def dequantising(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A raw config whose quantised weights will be loaded as floating point.

    Raises ``ModelError`` (stage ``plan``): ``quantized`` for a method that is unknown or that zoo does not
    dequantise, ``missing_library`` where the method needs accelerate.
    """
    changed = dict(raw)
    for key in ("text_config", "language_config", "llm_config"):
        if isinstance(raw.get(key), Mapping):
            changed[key] = dequantising(raw[key])
    stated = raw.get("quantization_config") or raw.get("compression_config") or raw.get("quantization")
    if not stated:
        return changed
    method = quantization_method(raw)
    if method not in DEQUANTISED:
        known = f"with {method}, which zoo does not dequantise" if method in KNOWN else "by an unknown method"
        text = f"the checkpoint is quantised {known}; screen the model it was quantised from"
        raise ModelError(text, stage="plan", reason="quantized")
    if importlib.util.find_spec("accelerate") is None:
        text = f"weights quantised with {method} are loaded with accelerate; pip install accelerate"
        raise ModelError(text, stage="plan", reason="missing_library")
    changed["quantization_config"] = {**raw["quantization_config"], "dequantize": True}
    return changed


def quantization_method(raw: Mapping[str, Any]) -> str | None:
    """The method a raw config names; ``None`` where it is quantised without naming one."""
    stated = raw.get("quantization_config") or raw.get("compression_config")
    if not isinstance(stated, Mapping):
        return "mlx" if isinstance(raw.get("quantization"), Mapping) else None
    if stated.get("load_in_4bit") or stated.get("load_in_8bit"):
        return "bitsandbytes"
    method = stated.get("quant_method")
    return method if isinstance(method, str) else None
