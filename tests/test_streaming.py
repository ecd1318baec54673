"""A streamed model yields the very numbers of the whole one, from fewer bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_probe import as_rendered
from tiny_models import SHAPE, TINY_CONFIGS, random_prompts, tiny_model
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from zoo import buffers, prefetch
from zoo.backbone import Backbone, open_backbone
from zoo.errors import ModelError
from zoo.probe import Probe, make_batches
from zoo.records import Candidate, LayerStatistics, RunOptions

MIXTURES = {
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
}


def a_model(model_type: str, **overrides: object) -> PreTrainedModel:
    if model_type in TINY_CONFIGS:
        return tiny_model(model_type, **overrides)
    torch.manual_seed(0)
    config = CONFIG_MAPPING[model_type](**(SHAPE | MIXTURES[model_type] | {"initializer_range": 0.3}))
    return AutoModelForCausalLM.from_config(config)


def saved(model: PreTrainedModel, folder: Path, *, shard: str = "20KB") -> Path:
    model.save_pretrained(folder, max_shard_size=shard)
    assert shard != "20KB" or len(list(folder.glob("*.safetensors"))) > 2
    return folder


def backbone_at(folder: Path, **options: object) -> Backbone:
    one = Candidate(
        model_id="tiny/model", revision="0" * 40, location=str(folder), format="folder", source="test"
    )
    return open_backbone(one, options=RunOptions(**({"device": "cpu"} | options)))


def statistics(
    folder: Path, prompts: list[list[int]], **options: object
) -> tuple[tuple[LayerStatistics, ...], Backbone]:
    backbone = backbone_at(folder, **options)
    return statistics_of(backbone, prompts), backbone


def statistics_of(backbone: Backbone, prompts: list[list[int]]) -> tuple[LayerStatistics, ...]:
    probe = Probe(
        model=backbone.model,
        layers=backbone.architecture.attention_layers,
        prompt_count=len(prompts),
        candidates=8,
        first_query=8,
        content_query=0,
    )
    batches = make_batches(as_rendered(prompts), tokens_per_batch=150, device=backbone.device)
    assert len(batches) > 1
    backbone.run([partial(probe.forward, batch) for batch in batches])
    return probe.statistics()


def assert_identical(first: tuple[LayerStatistics, ...], second: tuple[LayerStatistics, ...]) -> None:
    for one, other in zip(first, second, strict=True):
        assert one.layer == other.layer
        assert one.log_odds_RPHK.tobytes() == other.log_odds_RPHK.tobytes(), one.layer


def stored_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model_type", [*TINY_CONFIGS, *MIXTURES])
def test_streamed_statistics_are_bit_identical_to_whole_ones(
    model_type: str, dtype: str, tmp_path: Path
) -> None:
    folder, prompts = saved(a_model(model_type), tmp_path), random_prompts(8)
    whole, _ = statistics(folder, prompts, dtype=dtype, load="whole")
    streamed, backbone = statistics(folder, prompts, dtype=dtype, load="stream")
    assert_identical(whole, streamed)
    assert backbone.load == "stream"
    assert backbone.bytes_fetched() < stored_bytes(folder)


@pytest.mark.parametrize("stored", ["model.embed_tokens.weight", "lm_head.weight"])
def test_a_tied_embedding_is_found_under_either_name(stored: str, tmp_path: Path) -> None:
    folder, prompts = (
        saved(tiny_model("llama", tie_word_embeddings=True), tmp_path, shard="1GB"),
        random_prompts(6),
    )
    tensors = load_file(folder / "model.safetensors")
    tensors[stored] = tensors.pop("model.embed_tokens.weight")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    whole, _ = statistics(folder, prompts, load="whole")
    streamed, _ = statistics(folder, prompts, load="stream")
    assert_identical(whole, streamed)


def test_a_bfloat16_checkpoint_runs_in_float32_alike(tmp_path: Path) -> None:
    folder, prompts = saved(tiny_model("qwen3").to(torch.bfloat16), tmp_path), random_prompts(6)
    whole, _ = statistics(folder, prompts, dtype="float32", load="whole")
    streamed, _ = statistics(folder, prompts, dtype="float32", load="stream")
    assert_identical(whole, streamed)


def ranges_read(folder: Path, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the tensors that at least one byte was read of."""
    from zoo import weights

    read: list[tuple[str, int, int]] = []
    original = weights.Weights.read_into

    def noted(self: weights.Weights, file: str, start: int, view: memoryview) -> None:
        read.append((file, start, start + len(view)))
        original(self, file, start, view)

    monkeypatch.setattr(weights.Weights, "read_into", noted)
    monkeypatch.setattr(weights, "LOCAL_GAP_BYTES", 0)
    backbone = backbone_at(folder, load="stream")
    spans = backbone.run.__self__.weights.spans.values()  # type: ignore[attr-defined]
    backbone.close()
    statistics(folder, prompts, load="stream")
    return {
        span.name
        for span in spans
        for file, start, stop in read
        if file == span.file and start < span.stop and span.start < stop
    }


def test_bytes_that_cannot_matter_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = saved(tiny_model("qwen3"), tmp_path)
    last = "model.layers.2."
    parts = (
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.q_norm",
        "self_attn.k_norm",
        "input_layernorm",
    )
    read = ranges_read(folder, random_prompts(6), monkeypatch)
    assert {name for name in read if name.startswith(last)} == {f"{last}{part}.weight" for part in parts}
    assert {name for name in read if "layers" not in name} == {"model.embed_tokens.weight"}
    assert sum(name.startswith("model.layers.1.") for name in read) == 11


def test_only_the_embedding_rows_of_tokens_that_occur_are_read(tmp_path: Path) -> None:
    config = {"vocab_size": 60_000, "hidden_size": 32}
    folder = saved(tiny_model("llama", **config), tmp_path, shard="1GB")
    _, backbone = statistics(folder, [[3, 5, 59_000] * 5, [7, 9] * 30, [7] * 90], load="stream")
    assert backbone.bytes_fetched() < 300_000 < 60_000 * 32 * 4


def test_a_token_outside_the_embedding_is_refused(tmp_path: Path) -> None:
    folder = saved(tiny_model("llama"), tmp_path)
    with pytest.raises(ModelError, match="token 600 is outside the 512 rows"):
        statistics(folder, [[600] * 10, [7] * 100, [5] * 100], load="stream")


def test_a_value_projection_that_the_logits_depend_on_is_refused_and_not_taken_for_unused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.llama.modeling_llama import LlamaAttention

    original = LlamaAttention.forward

    def forward(self: LlamaAttention, hidden_states: torch.Tensor, **kwargs: object) -> object:
        return original(self, hidden_states + self.v_proj(hidden_states).mean(), **kwargs)

    folder = saved(tiny_model("llama"), tmp_path)
    monkeypatch.setattr(LlamaAttention, "forward", forward)
    monkeypatch.setattr(LlamaAttention, "original", original, raising=False)  # it tells how to observe it
    with pytest.raises(ModelError, match="attention logits that are NaN"):
        statistics(folder, random_prompts(8), load="stream")


def test_memory_of_a_layer_is_given_back_before_the_next_but_one(tmp_path: Path) -> None:
    folder = saved(tiny_model("llama", num_hidden_layers=6), tmp_path)
    backbone = backbone_at(folder, load="stream")
    resident: list[set[int]] = []

    def look(module: torch.nn.Module, args: object, stage: int) -> None:
        layers = backbone.model.model.layers
        resident.append(
            {i for i, layer in enumerate(layers) if layer.mlp.up_proj.weight.device.type == "cpu"}
        )

    for stage, layer in enumerate(backbone.model.model.layers):
        layer.mlp.register_forward_pre_hook(partial(look, stage=stage))
    tokens = torch.tensor([[5] * 12])
    backbone.run([lambda: backbone.model.model(input_ids=tokens, use_cache=False)] * 2)
    assert resident == [{stage} for stage in range(6) for _ in range(2)]
    assert all(parameter.device.type == "meta" for parameter in backbone.model.parameters())


def test_a_damaged_weight_is_refused_in_the_stage_that_holds_it(tmp_path: Path) -> None:
    model = tiny_model("llama")
    model.model.layers[1].mlp.up_proj.weight.data[3, 3] = torch.inf
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.up_proj\.weight holds NaN or infinite") as caught:
        statistics(saved(model, tmp_path), random_prompts(8), load="stream")
    assert caught.value.reason == "non_finite_weights"


Change = Callable[[dict[str, torch.Tensor]], object]
UNFIT: dict[str, Change] = {
    "missing_tensors": lambda tensors: tensors.pop("model.layers.1.self_attn.k_proj.weight"),
    "mismatched_tensors": lambda tensors: tensors.update({"model.norm.weight": torch.ones(7)}),
    "unexpected_tensors": lambda tensors: tensors.update(
        {"model.layers.0.self_attn.q_norm.weight": torch.ones(8)}
    ),
}


@pytest.mark.parametrize("reason", UNFIT)
def test_streaming_refuses_what_a_whole_load_refuses_in_the_same_words(reason: str, tmp_path: Path) -> None:
    folder = saved(tiny_model("llama"), tmp_path, shard="1GB")
    tensors = load_file(folder / "model.safetensors")
    UNFIT[reason](tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    texts = []
    for load in ("whole", "stream"):
        with pytest.raises(ModelError) as caught:
            backbone_at(folder, load=load)
        assert caught.value.reason == reason
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


def test_auto_loads_whole_what_cannot_be_streamed_and_says_why(tmp_path: Path) -> None:
    model = tiny_model("llama")
    folder, prompts = saved(model, tmp_path, shard="1GB"), random_prompts(6)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight"] = torch.ones(48, 32).to(torch.float8_e4m3fn)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    backbone = backbone_at(folder)
    assert (backbone.load, backbone.load_reason) == (
        "whole",
        "cannot be streamed: tensors are stored as F8_E4M3",
    )
    with pytest.raises(ModelError, match="cannot be streamed"):
        backbone_at(folder, load="stream")
    assert statistics(folder, prompts)[0]


def test_the_window_bounds_what_is_read_ahead(tmp_path: Path) -> None:
    """With no room for two layers nothing is read of a layer before the one before it was taken."""
    folder = saved(tiny_model("llama", num_hidden_layers=8), tmp_path)
    whole, _ = statistics(folder, random_prompts(6), load="whole")
    streamed, _ = statistics(folder, random_prompts(6), load="stream", prefetch_bytes=1)
    assert_identical(whole, streamed)


def test_progress_ends_at_the_bytes_that_were_planned(tmp_path: Path) -> None:
    folder = saved(tiny_model("llama"), tmp_path)
    one = Candidate(
        model_id="tiny/model", revision="0" * 40, location=str(folder), format="folder", source="test"
    )
    seen: list[tuple[int, int]] = []
    backbone = open_backbone(
        one, options=RunOptions(device="cpu", load="stream"), on_bytes=lambda *both: seen.append(both)
    )
    probe = Probe(
        model=backbone.model,
        layers=backbone.architecture.attention_layers,
        prompt_count=1,
        candidates=8,
        first_query=8,
        content_query=0,
    )
    batches = make_batches(as_rendered([[5] * 12]), tokens_per_batch=150, device="cpu")
    backbone.run([partial(probe.forward, batch) for batch in batches])
    fetched, planned = seen[-1]
    assert fetched == planned == backbone.bytes_fetched()
    assert [one for one, _ in seen] == sorted(one for one, _ in seen)


@pytest.mark.gpu
@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_a_gpu_is_streamed_to_from_pinned_memory_and_to_the_bit(
    model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[prefetch.BlockBuffer] = []

    def noted(*args: Any, **options: Any) -> prefetch.BlockBuffer:
        made.append(buffers.BlockBuffer(*args, **options))
        return made[-1]

    monkeypatch.setattr(prefetch, "BlockBuffer", noted)
    folder, prompts = saved(tiny_model(model_type), tmp_path), random_prompts(8)
    whole, _ = statistics(folder, prompts, device="cuda", dtype="bfloat16", load="whole")
    assert made == []
    streamed, backbone = statistics(folder, prompts, device="cuda", dtype="bfloat16", load="stream")
    assert_identical(whole, streamed)
    assert (backbone.device, backbone.load) == ("cuda", "stream")
    assert made
    assert all(buffer.bytes.is_pinned() for buffer in made)
