"""Writes docs/architectures.md: every causal language model type, its verdict and its QK-norm kind.

``python -m zoo.architectures_table docs/architectures.md``; without a path the page is printed.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from zoo import architecture, support
from zoo.errors import ModelError
from zoo.records import Architecture

_ROPE = {"rope_type": "default", "rope_theta": 10000.0}

NEEDED: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [9, 18, 27]},
    "cohere_compass_text": {"rope_parameters": {"full_attention": _ROPE}},
    "dbrx": {"attn_config": {"rope_theta": 10000.0}},
    "dots1": {"n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6},
    "granitemoehybrid": {
        "layer_types": (["linear_attention"] * 9 + ["full_attention"]) * 4,
        "num_hidden_layers": 40,
    },
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8, "head_dim": 128},
    "qwen4_exp_text": {
        "output_gate_type": "sigmoid",
        "indexer_n_heads": 16,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 256,
        "indexer_budget": 2048,
        "indexer_compress_ratio": 4,
    },
}
"""What a type's config class needs beside its defaults before a model can be built from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One model type: described from its default config, or refused with a reason code and a sentence."""

    model_type: str
    described: Architecture | None = None
    reason: str = ""
    message: str = ""


def rows() -> list[Row]:
    """One row for each causal language model type of the installed transformers, by name.

    Raises ``ModelError`` for a type that zoo claims to measure and that cannot be described.
    """
    return [_row(model_type) for model_type in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)]


def _row(model_type: str) -> Row:
    try:
        support.check_type(model_type)
        if model_type not in support.MEASURED:
            raise support.unknown_type(model_type)
    except ModelError as error:
        return Row(model_type=model_type, reason=error.reason, message=str(error))
    return Row(model_type=model_type, described=architecture.describe(_default_model(model_type)))


def _default_model(model_type: str) -> Any:
    config_class = CONFIG_MAPPING[model_type]
    needed = NEEDED.get(model_type, {})
    if model_type == "qwen4_exp":
        needed = {"text_config": NEEDED["qwen4_exp_text"]}
    return architecture.build_on_meta(architecture.measured_config(config_class(**needed)))


def page() -> str:
    """The page as Markdown."""
    table = rows()
    composites = sorted(
        t
        for t in support.MEASURED & MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.keys()
        if t not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    )
    refused = Counter(row.reason for row in table if row.described is None)
    lines = [
        "# Architectures",
        "",
        f"Every model type that transformers {transformers.__version__} maps to a causal language model. "
        "`python -m zoo.architectures_table docs/architectures.md` writes this page, and a test compares it.",
        "",
        f"Of {len(table)} types, {sum(row.described is not None for row in table)} are measured exactly "
        "(`tests/test_conformance.py` compares each with stock eager attention) and "
        f"{sum(refused.values())} are refused: "
        + ", ".join(f"{count} {reason}" for reason, count in sorted(refused.items()))
        + ".",
        "",
        "Kind, place and weight of the QK-norm, and the layers, are those of the type's default config; "
        "zoo reads them from each checkpoint's own. `other` is a norm of the low-rank latent of multi-head "
        "latent attention, or a bound on the length of queries and keys. Types that are trained as "
        "encoders, or as part of an encoder-decoder, are measured where the checkpoint is a causal decoder.",
        "",
        "| model type | QK-norm | modules | place | weighted | attention layers | read at | notes |",
        "|---|---|---|---|---|---|---|---|",
        *(_line(row.model_type, row.described) for row in table if row.described is not None),
        "",
        "## Refused",
        "",
        "| model type | reason | why |",
        "|---|---|---|",
        *(f"| {row.model_type} | {row.reason} | {row.message} |" for row in table if row.described is None),
        "",
        "## Multimodal models measured on their language model",
        "",
        f"{len(composites)} further types of image-text models: {', '.join(composites)}.",
        "",
    ]
    return "\n".join(lines)


def _line(model_type: str, described: Architecture) -> str:
    place = (described.qk_norm_position or "").replace("_", " ")
    weighted = {True: "yes", False: "no", None: ""}[described.qk_norm_weighted]
    layers = f"{len(described.attention_layers)} of {described.model_layers}"
    modules = ", ".join(described.qk_norm_modules)
    notes = [
        "learned sink" if described.learned_sink else "",
        f"soft-cap {described.softcap:g}" if described.softcap else "",
        described.note or "",
    ]
    cells = [model_type, described.qk_norm, modules, place, weighted, layers, described.attention_route]
    return "| " + " | ".join([*cells, "; ".join(filter(None, notes))]) + " |"


def main() -> None:
    """Write the page to the path given, or print it."""
    transformers.logging.set_verbosity_error()
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(page(), encoding="utf-8")
    else:
        print(page(), end="")


if __name__ == "__main__":
    main()
