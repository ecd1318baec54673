"""Models that a command needs by name, fetched from the loopback Hub where the catalog lacks them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from causal_lm_configs import tiny_causal_config
from checkpoints_on_disk import save_checkpoint
from click.testing import CliRunner, Result
from test_calibration import LLMS, panel_csv, strong
from test_text_towers import tiny_composite
from tiny import tiny_tokenizer
from transformers import AutoModelForCausalLM, PreTrainedModel

from catalog.panel_files import add_panel_file
from catalog.query import run_query
from catalog.store import open_catalog
from tests.hub_models import write_model
from tests.hub_server import HubServer
from zoo.cli import cli
from zoo.cli_named import on_hub
from zoo.errors import ZooError
from zoo.measure import measure_path
from zoo.prompts import make_spec
from zoo.records import Measurement

PROMPTS = "10"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    monkeypatch.setenv("ZOO_WORK", str(tmp_path / "work"))
    with HubServer() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A catalog with seven made-up reference LLMs and their pairs, under the spec of ten prompts."""
    from dataclasses import replace

    def under_spec(measurement: Measurement) -> Measurement:
        return replace(measurement, spec=make_spec(prompt_count=int(PROMPTS)))

    made = open_catalog(str(tmp_path / "catalog"), create=True)
    for name, (s, qk_norm, _) in LLMS.items():
        made.commit(under_spec(strong(name, s, qk_norm)))
    add_panel_file(made, panel_csv(*LLMS), name="mine")
    return str(made.root)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, [*arguments, "--prompts", PROMPTS])


def calibrate(uri: str, *more: str) -> Result:
    return invoke("calibrate", "--task", "ifeval", "--catalog", uri, *more)


def save_language_model(vlm: PreTrainedModel, folder: Path) -> Path:
    """The language model of a LLaVA composite as a checkpoint of its own."""
    llm = AutoModelForCausalLM.from_config(vlm.config.text_config)
    llm.model.load_state_dict(vlm.model.language_model.state_dict())
    llm.lm_head.load_state_dict(vlm.lm_head.state_dict())
    llm.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def test_calibrate_fetches_what_the_catalog_lacks_and_names_what_the_hub_refuses(
    hub: HubServer, uri: str, tmp_path: Path
) -> None:
    qwen = save_checkpoint(tmp_path / "qwen3", model_type="qwen3")
    hub.add_repo("Qwen/Qwen3-8B", qwen)
    hub.add_repo("meta-llama/Meta-Llama-3-8B-Instruct", qwen, gated="manual")
    packed = write_model(tmp_path / "awq", config={"quantization_config": {"quant_method": "awq"}})
    hub.add_repo("Qwen/Qwen2-7B-Instruct", packed)
    result = calibrate(uri)
    assert result.exit_code == 0, result.output
    assert "Found on the Hub: 1 model, 0.00 GB." in result.stderr
    assert "n = 9 pairs on 8 reference LLMs" in result.stdout
    for pair_id, reason in {
        "llava-next-llama3-8b": "meta-llama/Meta-Llama-3-8B-Instruct is gated",
        "llava-onevision-7b": "(quantized)",
        "qwen2.5-vl-7b": "Qwen/Qwen2.5-7B-Instruct does not exist, or is private",
    }.items():
        (line,) = [line for line in result.stdout.splitlines() if line.startswith(f"Left out {pair_id}:")]
        assert reason in line
    asked = len(hub.log)
    again = calibrate(uri, "--catalog-only")
    assert "n = 9 pairs on 8 reference LLMs" in again.stdout
    assert len(hub.log) == asked


@pytest.mark.parametrize(
    ("offline", "text"), [("1", "HF_HUB_OFFLINE is set"), ("", "the Hub cannot be reached")]
)
def test_without_a_network_the_fit_goes_on_with_the_catalog(
    uri: str, monkeypatch: pytest.MonkeyPatch, offline: str, text: str
) -> None:
    from huggingface_hub import constants

    with HubServer() as gone:
        monkeypatch.setenv("HF_ENDPOINT", gone.url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", bool(offline))
    result = calibrate(uri)
    assert result.exit_code == 0, result.output
    assert sum(text in line for line in result.stderr.splitlines()) == 1
    assert "n = 7 pairs on 7 reference LLMs" in result.stdout
    left_out = [line for line in result.stdout.splitlines() if line.startswith("Left out ")]
    assert len(left_out) == 6
    assert all(text in line for line in left_out)


def test_a_model_keeps_the_name_it_was_asked_for_by(hub: HubServer, tmp_path: Path) -> None:
    """The Hub has two under other names: one it moved, one that has the weights of another."""
    one, two = (write_model(tmp_path / f"{seed}", seed=seed) for seed in (0, 1))
    hub.add_repo("org/one", one)
    hub.add_repo("org/copy", one)
    hub.add_repo("org/new", two)
    hub.moved["org/old"] = "org/new"
    names = ["org/one", "org/copy", "org/old", "org/none"]
    found = on_hub(names)
    places = {its.model_id: (its.location, its.revision) for its in found.candidates}
    assert places == {
        name: (place, hub.repos[place].head)
        for name, place in {"org/one": "org/one", "org/copy": "org/copy", "org/old": "org/new"}.items()
    }
    assert list(found.reasons) == ["org/none"]
    assert "(not_found)" in found.reasons["org/none"]


def test_a_source_and_the_catalog_alone_exclude_each_other(uri: str) -> None:
    result = calibrate(uri, "--source", "demo", "--catalog-only")
    assert result.exit_code == 2
    assert "not both" in result.stderr


def test_a_vlm_of_the_hub_is_compared_with_its_llm_in_its_language_model(
    hub: HubServer, tmp_path: Path
) -> None:
    vlm = tiny_composite("llava")
    hub.add_repo("org/llm", save_language_model(vlm, tmp_path / "llm"))
    torch.manual_seed(1)
    for parameter in vlm.model.language_model.parameters():
        parameter.data += 0.3 * parameter.std().nan_to_num() * torch.randn_like(parameter)
    vlm.save_pretrained(tmp_path / "vlm")
    tiny_tokenizer().save_pretrained(tmp_path / "vlm")
    commit = hub.add_repo("org/vlm", tmp_path / "vlm", pipeline_tag="image-text-to-text")
    catalog = str(tmp_path / "catalog")
    pair = ["pair", "org/llm", f"org/vlm@{commit}", "--catalog", catalog]
    text = invoke(*pair)
    assert text.exit_code == 0, text.output
    alone = save_language_model(vlm, tmp_path / "tuned")
    strengths = {
        name: measure_path(tmp_path / folder, prompt_count=int(PROMPTS)).sink_strength
        for name, folder in {"org/llm": "llm", "org/vlm": alone.name}.items()
    }
    for name, strength in strengths.items():
        assert f"S {strength:.2f} nats (" in text.stdout
        assert f") in {name}\n" in text.stdout
    assert f"Change {strengths['org/vlm'] - strengths['org/llm']:+.2f} nats" in text.stdout
    asked = len(hub.log)
    rows = json.loads(invoke(*pair, "--format", "json").stdout)
    assert len(hub.log) == asked, "both are in the catalog by now"
    config = tiny_causal_config("llava").text_config
    assert len(rows) == config.num_hidden_layers * config.num_attention_heads
    query = "SELECT model_id, source, sink_strength FROM measurements ORDER BY model_id"
    held = run_query(open_catalog(catalog), query).rows
    assert [row[:2] for row in held] == [("org/llm", "hub"), ("org/vlm", "hub")]
    assert [row[2] for row in held] == pytest.approx([strengths["org/llm"], strengths["org/vlm"]], abs=1e-6)


def test_a_name_that_is_nowhere_is_one_line(hub: HubServer, tmp_path: Path) -> None:
    result = invoke("pair", "no/llm", "no/vlm", "--catalog", str(tmp_path / "catalog"))
    assert isinstance(result.exception, ZooError)
    assert str(result.exception) == (
        "no/llm is neither in the catalog nor a path, and cannot be had from the Hub: no/llm does not exist, "
        "or is private; check the spelling, or set HF_TOKEN if it is yours"
    )
