"""The sink rate against its definition, computed from stock eager attention."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints_on_disk import save_checkpoint
from click.testing import CliRunner
from test_probe import as_rendered
from tiny import tiny_tokenizer
from tiny_models import TINY_CONFIGS, random_prompts, tiny_model
from transformers.models.llama.modeling_llama import LlamaModel

from tests.hub_server import HubServer
from zoo import architecture
from zoo.cli import cli
from zoo.errors import ModelError
from zoo.probe import IMPLEMENTATION, Probe, make_batches
from zoo.records import RunOptions
from zoo.sink_rate import PUBLISHED, THRESHOLD, TOKENS, load_texts, measure_sink_rate, published_rate, rate_of
from zoo.sources import folder_candidate


def eager_rate(model: torch.nn.Module, prompts: list[list[int]]) -> tuple[float, float]:
    """The rate by the definition, and how near any importance comes to the threshold."""
    importance = []
    for ids in prompts:
        with torch.no_grad():
            maps = model(torch.tensor([ids]), output_attentions=True, use_cache=False).attentions
        importance.append(torch.stack(maps)[:, 0, :, :, 0].double().mean(-1).numpy())
    values = np.stack(importance)
    return float((values > THRESHOLD).mean()), float(np.abs(values - THRESHOLD).min())


@pytest.mark.parametrize("model_type", TINY_CONFIGS)
def test_the_rate_is_the_share_of_importances_above_the_threshold(model_type: str) -> None:
    model = tiny_model(model_type)
    prompts = random_prompts(30, shortest=TOKENS, longest=TOKENS)
    expected, margin = eager_rate(model, prompts)
    assert margin > 1e-6, "a value on the threshold decides nothing"
    model.set_attn_implementation(IMPLEMENTATION)
    probe = Probe(
        model=model,
        layers=architecture.describe(model).attention_layers,
        prompt_count=len(prompts),
        candidates=1,
        first_query=0,
        content_query=0,
    )
    for batch in make_batches(as_rendered(prompts), tokens_per_batch=512, device="cpu"):
        probe.forward(batch)
    assert rate_of(probe.statistics()) == pytest.approx(expected, abs=1e-12)


def test_the_texts_are_100_different_ones_and_long_enough_for_any_tokenizer() -> None:
    texts = load_texts()
    assert len(texts) == len(set(texts)) == 100
    assert len({text.split()[0] + text.split()[1] for text in texts}) > 80
    # At least one token a word and one a sentence's end, whatever the vocabulary.
    assert min(len(text.split()) + text.count(".") for text in texts) >= TOKENS


def test_published_rates_are_found_by_the_models_name_whoever_copied_it() -> None:
    assert published_rate("mirror/mistral-7b-v0.1") == PUBLISHED["mistralai/Mistral-7B-v0.1"]
    assert published_rate("org/llama-2-7b-chat-hf") is None


def save_tiny(folder: Path) -> Path:
    folder.mkdir(parents=True)
    tiny_model("llama").save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def test_a_checkpoint_is_measured_on_every_text(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "org" / "tiny")
    found = measure_sink_rate(folder_candidate(folder, model_id="org/tiny"), options=RunOptions(device="cpu"))
    assert (found.sequences, found.layers, found.heads) == (100, 3, 12)
    assert 0 <= found.rate <= 1


def test_a_model_that_cannot_be_run_as_it_was_to_be_is_run_in_another_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = folder_candidate(save_tiny(tmp_path / "org" / "tiny"), model_id="org/tiny")
    expected, original = measure_sink_rate(one, options=RunOptions(device="cpu")), LlamaModel.forward

    def forward(self: LlamaModel, input_ids: torch.Tensor, **kwargs: object) -> object:
        assert float(self.layers[1].mlp.up_proj.weight.sum()) != 0  # of a layer whose turn has not come
        if input_ids.numel() > 256:
            raise MemoryError
        return original(self, input_ids=input_ids, **kwargs)

    monkeypatch.setattr(LlamaModel, "forward", forward)
    assert measure_sink_rate(one, options=RunOptions(device="cpu")) == expected
    with pytest.raises(ModelError) as refused:
        measure_sink_rate(one, options=RunOptions(device="cpu", load="stream"))
    assert refused.value.reason == "cannot_stream"


def test_the_command_measures_what_has_a_published_number_and_the_rest_if_asked(tmp_path: Path) -> None:
    save_tiny(tmp_path / "models" / "org" / "tiny")
    assert CliRunner().invoke(cli, ["check-published"]).exit_code == 2
    arguments = ["check-published", "--source", str(tmp_path / "models"), "--device", "cpu"]
    refused = CliRunner().invoke(cli, arguments)
    assert refused.exit_code == 1
    assert "mistralai/Mistral-7B-v0.1" in str(refused.exception)
    measured = CliRunner().invoke(cli, [*arguments, "--all"], catch_exceptions=False)
    assert measured.stdout.splitlines()[1].split()[0] == "org/tiny"
    assert measured.stdout.splitlines()[1].split()[-2:] == ["-", "-"]
    save_tiny(tmp_path / "models" / "me" / "gpt2-xl")
    named = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert "77.00%" in named.stdout.splitlines()[1]
    assert "org/tiny" not in named.stdout


def test_a_model_of_the_hub_has_the_rate_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_checkpoint(tmp_path / "m", model_type="llama")
    local = measure_sink_rate(folder_candidate(folder, model_id="org/m"), options=RunOptions(device="cpu"))
    monkeypatch.setenv("ZOO_WORK", str(tmp_path / "work"))
    with HubServer() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        server.add_repo("org/m", folder)
        result = CliRunner().invoke(
            cli, ["check-published", "org/m", "--device", "cpu", "--format", "json"], catch_exceptions=False
        )
    (row,) = json.loads(result.stdout)
    assert (row["sink_rate_eps03"], row["published"]) == (local.rate, None)
