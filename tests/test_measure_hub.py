"""A model measured from the Hub is the model measured from its folder, or a failure with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from checkpoints_on_disk import save_checkpoint
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.hub_client import candidate_of
from tests.hub_faults import FaultPlan
from tests.hub_server import HubServer
from zoo.measure import make_spec, measure
from zoo.records import Candidate, Failure, Measurement, RunOptions
from zoo.sources import demo_models, folder_candidate

SPEC = make_spec(prompt_count=16)
PASSING = ["truncated", "reset", "503"]
Load = Literal["auto", "whole", "stream"]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("ZOO_WORK", str(tmp_path / "work"))
    with HubServer() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def hub_candidate(server: HubServer, folder: Path, *, model_id: str = "org/m") -> Candidate:
    server.add_repo(model_id, folder)
    return candidate_of(server, model_id)


def measured(candidate: Candidate, *, load: Load = "auto") -> Measurement:
    outcome = measure(candidate, spec=SPEC, options=RunOptions(load=load))
    assert isinstance(outcome, Measurement), outcome
    return outcome


@pytest.mark.parametrize(("load", "kinds"), [("whole", [*PASSING, "wrong_bytes"]), ("stream", PASSING)])
@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gemma2"])
def test_the_hub_and_the_folder_give_the_same_numbers(
    server: HubServer, tmp_path: Path, model_type: str, load: Load, kinds: list[str]
) -> None:
    """Wrong bytes of the right length are found in whole files alone; see ``--verify full``."""
    folder = save_checkpoint(tmp_path / "m", model_type=model_type)
    candidate = hub_candidate(server, folder)
    server.faults = FaultPlan(2, kinds=kinds, where=["cdn", "resolve"])
    remote, local = measured(candidate, load=load), measured(folder_candidate(folder, model_id="org/m"))
    assert server.faults.committed
    assert remote.sink_strength == local.sink_strength
    for one, other in zip(remote.strength.heads, local.strength.heads, strict=True):
        np.testing.assert_array_equal(one.prompt_log_odds, other.prompt_log_odds)
    assert remote.candidate == candidate
    stored = sum(file.size for file in candidate.files)
    assert remote.run.bytes_fetched == stored if load == "whole" else remote.run.bytes_fetched < stored
    assert "fetch" in remote.run.wall_seconds
    assert not list((tmp_path / "work").iterdir())


@pytest.mark.parametrize("load", ["whole", pytest.param("stream", marks=pytest.mark.slow)])
def test_damage_on_the_way_is_a_transient_failure_and_no_number(
    server: HubServer, tmp_path: Path, load: Load
) -> None:
    candidate = hub_candidate(server, save_checkpoint(tmp_path / "m"))
    kind = "wrong_bytes" if load == "whole" else "wrong_length"
    server.faults = FaultPlan(1, kinds=[kind], where=["cdn"], most=None)
    outcome = measure(candidate, spec=SPEC, options=RunOptions(load=load))
    assert isinstance(outcome, Failure)
    assert (outcome.stage, outcome.transient) == ("fetch", True), outcome
    assert not list((tmp_path / "work").iterdir())


def test_a_tensor_name_that_is_damaged_on_its_way_is_never_the_models_fault(
    server: HubServer, tmp_path: Path
) -> None:
    """A file's header is its second request; the first one asks for the header's length."""
    folder = save_checkpoint(tmp_path / "m")
    candidate, local = hub_candidate(server, folder), measured(folder_candidate(folder, model_id="org/m"))
    for seed, last in ((0, 2), (1, 2), (2, None), (3, None)):
        server.faults = FaultPlan(seed, kinds=["wrong_name"], where=["cdn"], most=None, skip=1, last=last)
        outcome = measure(candidate, spec=SPEC, options=RunOptions(load="stream"))
        assert server.faults.committed
        if last is None:
            assert isinstance(outcome, Failure)
            assert (outcome.reason, outcome.transient) == ("corrupt_download", True), outcome
        else:
            assert isinstance(outcome, Measurement), outcome
            assert outcome.sink_strength == local.sink_strength


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_the_real_models_measure_the_same_through_the_hub(
    server: HubServer, tmp_path: Path, number: int
) -> None:
    gguf = demo_models().candidates[number]
    path = Path(gguf.location)
    loaded = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    config = loaded.config
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(tmp_path / "m", max_shard_size="200MB")
    AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(tmp_path / "m")
    del loaded, model
    remote = measured(hub_candidate(server, tmp_path / "m", model_id=gguf.model_id))
    assert remote.sink_strength == pytest.approx(measured(gguf).sink_strength, abs=1e-4)
