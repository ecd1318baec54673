"""One model from start to end, in process; and every way a model can be unfit."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints_on_disk import candidate, edit_json, save_checkpoint
from safetensors.torch import load_file, save_file
from scipy.special import expit, logit
from tiny_models import TINY_CONFIGS, eager_prompt_masses
from transformers import AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaModel

import zoo
from zoo.errors import ModelError, SourceError
from zoo.measure import measure
from zoo.prompts import make_spec
from zoo.records import Candidate, Failure, Measurement, RunOptions

SPEC = make_spec(prompt_count=20)


def measured(one: Candidate) -> Measurement:
    outcome = measure(one, spec=SPEC)
    assert isinstance(outcome, Measurement), outcome
    return outcome


def eager_strength(model: torch.nn.Module, result: Measurement) -> tuple[float, list[np.ndarray]]:
    """S and the per-head masses recomputed from stock eager attention, from DESIGN's definition alone."""
    masses = eager_prompt_masses(model, result.prompts.token_ids, candidates=8, first_query=8)
    mean_HK = np.concatenate([layer_PHK.mean(0) for layer_PHK in masses[-10:]])
    sink = int(mean_HK.mean(0).argmax())
    return float(np.median(logit(mean_HK[:, sink]))), [layer_PHK[:, :, sink] for layer_PHK in masses]


@pytest.mark.parametrize("model_type", TINY_CONFIGS)
def test_strength_and_masses_equal_stock_eager_attention(model_type: str, tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / model_type, model_type=model_type)
    result = measured(candidate(folder))
    eager = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    expected, masses = eager_strength(eager, result)
    assert result.sink_strength == pytest.approx(expected, abs=1e-4)
    for row in result.strength.heads:
        np.testing.assert_allclose(expit(row.prompt_log_odds), masses[row.layer][:, row.head], atol=1e-5)


def test_batching_does_not_change_the_strength(tmp_path: Path) -> None:
    one = candidate(save_checkpoint(tmp_path / "model"))
    alone = measure(one, spec=SPEC, options=RunOptions(tokens_per_batch=1))
    together = measured(one)
    assert isinstance(alone, Measurement)
    assert together.sink_strength == pytest.approx(alone.sink_strength, abs=1e-5)


def test_what_turns_out_not_to_be_streamable_while_it_runs_is_loaded_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = candidate(save_checkpoint(tmp_path / "model"))
    expected, original = measured(one).sink_strength, LlamaModel.forward

    def forward(self: LlamaModel, *args: object, **kwargs: object) -> object:
        assert float(self.layers[1].mlp.up_proj.weight.sum()) != 0  # of a layer whose turn has not come
        return original(self, *args, **kwargs)

    monkeypatch.setattr(LlamaModel, "forward", forward)
    result = measured(one)
    assert (result.run.load, result.sink_strength) == ("whole", expected)
    assert result.run.load_reason.startswith("cannot be streamed: the model uses a weight in a way")
    refused = measure(one, spec=SPEC, options=RunOptions(load="stream"))
    assert isinstance(refused, Failure)
    assert refused.reason == "cannot_stream"


def test_memory_that_runs_out_is_a_failure_of_the_stage_that_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = candidate(save_checkpoint(tmp_path / "model"))

    def no_memory(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("zoo.measure.strength.summarise", no_memory)
    refused = measure(one, spec=SPEC, options=RunOptions(tokens_per_batch=64))
    assert isinstance(refused, Failure)
    assert (refused.stage, refused.reason, refused.transient) == ("summarise", "out_of_memory", True)


def test_the_result_says_how_it_came_about(tmp_path: Path) -> None:
    result = measured(candidate(save_checkpoint(tmp_path / "model")))
    assert result.prompts.format == "chat"
    assert result.run.dtype == "float32"
    assert set(result.run.wall_seconds) == {"load", "render", "probe", "summarise"}
    assert result.run.peak_memory_bytes > 10**7
    assert result.run.versions["torch"] == torch.__version__
    assert [layer.heads for layer in result.architecture.attention_layers] == [4, 4, 4]


def test_a_sink_token_is_named_only_where_all_prompts_have_the_same(tmp_path: Path) -> None:
    result = measured(candidate(save_checkpoint(tmp_path / "model")))
    shared = result.prompts.shared_prefix_tokens
    assert 0 < shared < 8

    def token_at(position: int) -> str | None:
        strength = replace(result.strength, sink_position=position)
        return replace(result, strength=strength).sink_token

    assert token_at(0) == "<s>"
    assert token_at(shared) is None


def test_the_python_api_takes_a_path_and_returns_a_measurement(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "model")
    result = zoo.measure(folder, prompt_count=20)
    assert isinstance(result, Measurement)
    assert np.isfinite(result.sink_strength)
    with pytest.raises(SourceError, match="does not exist"):
        zoo.measure(tmp_path / "nothing")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"no model\.safetensors"):
        zoo.measure(folder, prompt_count=20)


def set_config(**values: object) -> Callable[[Path], None]:
    return lambda folder: edit_json(folder / "config.json", lambda config: config.update(values))


def truncate_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def rewrite_weights(change: Callable[[dict[str, torch.Tensor]], None]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return damage


def write(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: [None, (folder / name).write_bytes(content)][0]


def remove_tokenizer(folder: Path) -> None:
    for path in folder.glob("*token*"):
        path.unlink()


def make_nan(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.1.mlp.up_proj.weight"][3, 3] = torch.nan


def rename_layer(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.7.mlp.up_proj.weight"] = tensors.pop("model.layers.1.mlp.up_proj.weight")


def reshape_tensor(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.0.self_attn.q_proj.weight"] = torch.zeros(8, 32)


def add_tensor(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.0.self_attn.q_norm.weight"] = torch.ones(8)


def set_template(template: str) -> Callable[[Path], None]:
    return write("chat_template.jinja", template.encode())


UNFIT: dict[str, tuple[Callable[[Path], object], str, str, str]] = {
    "truncated": (truncate_weights, "load", "unreadable_weights", "cut short"),
    "garbage": (write("model.safetensors", b"x" * 500), "load", "unreadable_weights", "cut short"),
    "missing tensor": (rewrite_weights(rename_layer), "load", "missing_tensors", "lacks"),
    "mismatched tensor": (rewrite_weights(reshape_tensor), "load", "mismatched_tensors", "other shapes"),
    "stray tensor": (rewrite_weights(add_tensor), "load", "unexpected_tensors", "no place for"),
    "NaN weights": (rewrite_weights(make_nan), "load", "non_finite_weights", "NaN"),
    "remote code": (
        set_config(auto_map={"AutoModelForCausalLM": "modeling.Own"}),
        "plan",
        "remote_code_required",
        "auto_map",
    ),
    "no layers": (set_config(num_hidden_layers=0), "plan", "bad_config", "num_hidden_layers = 0"),
    "minus one layer": (set_config(num_hidden_layers=-1), "plan", "bad_config", "num_hidden_layers = -1"),
    "2,000 layers": (set_config(num_hidden_layers=2000), "plan", "bad_config", "num_hidden_layers = 2000"),
    "more layers than weights": (set_config(num_hidden_layers=40), "load", "missing_tensors", "describes"),
    "no hidden size": (set_config(hidden_size=0), "plan", "bad_config", "hidden_size = 0"),
    "layers as text": (set_config(num_hidden_layers="many"), "plan", "bad_config", "config"),
    "nested JSON": (write("config.json", b"[" * 100_000), "plan", "bad_config", "JSON"),
    "not an object": (write("config.json", b"[1]"), "plan", "bad_config", "JSON object"),
    "unknown type": (set_config(model_type="llamb"), "plan", "unknown_architecture", "'llamb'"),
    "encoder only": (
        set_config(model_type="vit", architectures=["ViTModel"]),
        "plan",
        "not_causal_lm",
        "vit",
    ),
    "classifier": (
        set_config(architectures=["LlamaForSequenceClassification"]),
        "plan",
        "not_causal_lm",
        "LlamaForSequenceClassification",
    ),
    "no tokenizer": (remove_tokenizer, "render", "no_tokenizer", "tokenizer"),
    "template raises": (set_template("{{ raise_exception('no') }}"), "render", "template_failed", "failed"),
    "short prompts": (set_template("{{ messages[0].content[:2] }}"), "render", "prompt_lost", "template"),
    "outside weight": (
        write("model.safetensors.index.json", b'{"weight_map": {"a": "../other.safetensors"}}'),
        "load",
        "bad_index",
        "outside",
    ),
    "missing shard": (
        write("model.safetensors.index.json", b'{"weight_map": {"a": "model-2.safetensors"}}'),
        "load",
        "missing_shard",
        "missing",
    ),
}


@pytest.mark.parametrize("name", UNFIT)
def test_an_unfit_model_is_a_failure_with_its_stage_and_reason(name: str, tmp_path: Path) -> None:
    damage, stage, reason, words = UNFIT[name]
    folder = save_checkpoint(tmp_path / "model")
    damage(folder)
    outcome = measure(candidate(folder), spec=SPEC)
    assert isinstance(outcome, Failure)
    assert (outcome.stage, outcome.reason) == (stage, reason), outcome.message
    assert words in outcome.message
    assert "\n" not in outcome.message
    assert not outcome.transient


def test_a_state_space_model_has_no_attention_to_measure(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "model")
    mamba = {
        "model_type": "mamba",
        "architectures": ["MambaForCausalLM"],
        "hidden_size": 32,
        "num_hidden_layers": 2,
    }
    write("config.json", zoo_json(mamba))(folder)
    outcome = measure(candidate(folder), spec=SPEC)
    assert isinstance(outcome, Failure)
    assert (outcome.stage, outcome.reason) == ("plan", "no_attention")


def test_an_attention_implementation_in_the_config_changes_nothing(tmp_path: Path) -> None:
    plain = measured(candidate(save_checkpoint(tmp_path / "plain")))
    folder = save_checkpoint(tmp_path / "sdpa")
    set_config(_attn_implementation="sdpa", attn_implementation="flash_attention_2", use_kernels=True)(folder)
    assert measured(candidate(folder)).sink_strength == plain.sink_strength


def test_a_tokenizer_beyond_the_embedding_is_refused(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "model", vocab_size=100)
    outcome = measure(candidate(folder), spec=SPEC)
    assert isinstance(outcome, Failure)
    assert outcome.reason == "tokenizer_mismatch"


def test_a_window_shorter_than_the_first_used_query_is_refused(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "model", model_type="mistral", sliding_window=4)
    outcome = measure(candidate(folder), spec=SPEC)
    assert isinstance(outcome, Failure)
    assert (outcome.stage, outcome.reason) == ("summarise", "sink_out_of_sight")


def zoo_json(content: dict[str, object]) -> bytes:
    import json

    return json.dumps(content).encode()
