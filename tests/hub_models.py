"""Tiny checkpoints for the loopback Hub, written in milliseconds and valid to their last byte."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

LLAMA: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}

TOKENIZER = {"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}


def llama_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The tensor shapes of a Llama checkpoint with this config."""
    width, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    kv_width = width // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, width)}
    for layer in range(config["num_hidden_layers"]):
        stem = f"model.layers.{layer}."
        shapes |= {
            stem + "self_attn.q_proj.weight": (width, width),
            stem + "self_attn.k_proj.weight": (kv_width, width),
            stem + "self_attn.v_proj.weight": (kv_width, width),
            stem + "self_attn.o_proj.weight": (width, width),
            stem + "mlp.gate_proj.weight": (inner, width),
            stem + "mlp.up_proj.weight": (inner, width),
            stem + "mlp.down_proj.weight": (width, inner),
            stem + "input_layernorm.weight": (width,),
            stem + "post_attention_layernorm.weight": (width,),
        }
    return shapes | {"model.norm.weight": (width,), "lm_head.weight": (vocab, width)}


def write_model(
    folder: Path,
    *,
    seed: int = 0,
    shards: int = 1,
    config: Mapping[str, Any] | None = None,
    extra: Mapping[str, str | bytes] | None = None,
    leave_out: tuple[str, ...] = (),
) -> Path:
    """A Llama checkpoint of random weights in ``folder``; ``extra`` adds or replaces files."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {**LLAMA, **(config or {})}
    random = np.random.default_rng(seed)
    tensors = {
        name: random.standard_normal(shape).astype(np.float32) * 0.05
        for name, shape in llama_shapes({**LLAMA, **settings}).items()
    }
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    else:
        _write_shards(folder, tensors, shards)
    files: dict[str, str | bytes] = {
        "config.json": json.dumps(settings),
        "tokenizer.json": json.dumps(TOKENIZER),
        "tokenizer_config.json": json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}),
    } | dict(extra or {})
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    for name in leave_out:
        (folder / name).unlink()
    return folder


def _write_shards(folder: Path, tensors: Mapping[str, np.ndarray], shards: int) -> None:
    names = list(tensors)
    weight_map: dict[str, str] = {}
    for number in range(shards):
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in names[number::shards]}
        save_file(part, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    index = {
        "metadata": {"total_size": sum(one.nbytes for one in tensors.values())},
        "weight_map": weight_map,
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
