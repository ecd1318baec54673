"""Quantised checkpoints are measured as their dequantised weights, or refused by the method's name."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from scipy.special import expit
from test_conformance import LENGTHS, eager_maps, expected_masses, prompts
from tiny_models import tiny_model
from transformers import PreTrainedModel
from transformers.integrations.mxfp4 import FP4_VALUES

from zoo import architecture
from zoo.backbone import open_backbone
from zoo.errors import ModelError
from zoo.probe import Probe, make_batches
from zoo.records import Candidate, RenderedPrompts, RunOptions

BLOCK = 16


def measured_masses(folder: Path) -> list[np.ndarray]:
    """Per layer, the prompt masses [P, H, K] of a checkpoint folder, loaded as a measurement loads it."""
    candidate = Candidate(
        model_id="tiny/quantised", revision="0" * 40, location=str(folder), format="folder", source="test"
    )
    backbone = open_backbone(candidate, options=RunOptions(device="cpu"))
    token_ids = tuple(map(tuple, prompts()))
    rendered = RenderedPrompts(
        format="plain", token_ids=token_ids, shared_prefix_tokens=0, prefix_tokens_text=()
    )
    probe = Probe(
        model=backbone.model,
        layers=backbone.architecture.attention_layers,
        prompt_count=len(token_ids),
        candidates=8,
        first_query=8,
        content_query=8,
    )
    batches = make_batches(rendered, tokens_per_batch=10_000, device="cpu")
    backbone.run([partial(probe.forward, batch) for batch in batches])
    return [expit(layer.log_odds_RPHK[0]) for layer in probe.statistics()]


def assert_measures_as(folder: Path, model: PreTrainedModel) -> None:
    expected_PL = [expected_masses(eager_maps(model, token_ids)) for token_ids in prompts()]
    measured = measured_masses(folder)
    assert len(measured) == len(expected_PL[0]) > 0
    for layer, masses_PHK in enumerate(measured):
        for prompt in range(len(LENGTHS)):
            np.testing.assert_allclose(masses_PHK[prompt], expected_PL[prompt][layer], atol=1e-5)


def save(
    folder: Path, model: PreTrainedModel, tensors: dict[str, torch.Tensor], **quantization: object
) -> None:
    config = model.config.to_dict()
    config["architectures"] = [type(model).__name__]
    config["quantization_config"] = quantization
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


def test_block_scaled_fp8_is_measured_as_its_dequantised_weights(tmp_path: Path) -> None:
    model = tiny_model("llama")
    tensors = dict(model.state_dict())
    for name, weight in model.state_dict().items():
        if not name.endswith("proj.weight"):
            continue
        rows, columns = (size // BLOCK for size in weight.shape)
        blocks = weight.reshape(rows, BLOCK, columns, BLOCK)
        scale = blocks.abs().amax((1, 3), keepdim=True) / 448
        packed = (blocks / scale).to(torch.float8_e4m3fn)
        tensors[name] = packed.reshape(weight.shape)
        tensors[f"{name}_scale_inv"] = scale.reshape(rows, columns)
        weight.copy_((packed.float() * scale).reshape(weight.shape))
    save(
        tmp_path,
        model,
        tensors,
        quant_method="fp8",
        weight_block_size=[BLOCK] * 2,
        activation_scheme="dynamic",
    )
    assert_measures_as(tmp_path, model)


def test_mxfp4_experts_are_measured_as_their_dequantised_weights(tmp_path: Path) -> None:
    model = tiny_model("gpt_oss", intermediate_size=32)
    tensors = dict(model.state_dict())
    generator = torch.Generator().manual_seed(0)
    for name, weight in model.state_dict().items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            continue
        experts, inputs, outputs = weight.shape
        nibbles = torch.randint(0, 16, (experts, outputs, inputs // 32, 32), generator=generator)
        exponents = torch.randint(124, 127, (experts, outputs, inputs // 32), generator=generator)
        tensors[f"{name}_blocks"] = (nibbles[..., ::2] | nibbles[..., 1::2] << 4).to(torch.uint8)
        tensors[f"{name}_scales"] = exponents.to(torch.uint8)
        del tensors[name]
        values = torch.tensor(FP4_VALUES)[nibbles] * 2.0 ** (exponents - 127).unsqueeze(-1)
        weight.copy_(values.reshape(experts, outputs, inputs).transpose(1, 2))
    save(tmp_path, model, tensors, quant_method="mxfp4")
    assert_measures_as(tmp_path, model)


@pytest.mark.parametrize(
    ("stated", "named"),
    [
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "with gptq,"),
        ({"quantization_config": {"quant_method": "awq"}}, "with awq,"),
        ({"quantization_config": {"load_in_4bit": True}}, "with bitsandbytes,"),
        ({"quantization_config": {"quant_method": "compressed-tensors"}}, "with compressed-tensors,"),
        ({"compression_config": {"quant_method": "compressed-tensors"}}, "with compressed-tensors,"),
        ({"quantization_config": {"quant_method": "torchao"}}, "with torchao,"),
        ({"quantization": {"group_size": 64, "bits": 4}}, "with mlx,"),
        ({"quantization_config": {"quant_method": "made-up"}}, "by an unknown method"),
        ({"quantization_config": {"bits": 3}}, "by an unknown method"),
        ({"quantization_config": "int4"}, "by an unknown method"),
    ],
)
def test_other_methods_are_refused_by_name(stated: dict[str, object], named: str) -> None:
    with pytest.raises(ModelError, match=named) as refusal:
        architecture.parse_config({"model_type": "llama", **stated})
    assert (refusal.value.stage, refusal.value.reason) == ("plan", "quantized")
