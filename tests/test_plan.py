"""Every repository that was seen is planned, an alias or refused with the right reason."""

from __future__ import annotations

import hashlib
import json
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.hub_client import ANY_SIZE, planned, quick
from tests.hub_faults import FaultPlan
from tests.hub_models import LLAMA, TOKENIZER, llama_shapes, write_model
from tests.hub_server import HubServer
from zoo.architecture import describe_raw
from zoo.errors import SourceError
from zoo.filters import ParameterRange, parse_filter
from zoo.listing import HubQuery
from zoo.plan import make_plan, parse_targets, refusals_by_reason, scan_rows, search
from zoo.preflight import Target
from zoo.records import Plan


def reasons(plan: Plan) -> dict[str, str]:
    return {refusal.model_id: refusal.reason for refusal in plan.refusals}


@pytest.mark.parametrize("shards", [1, 3])
def test_a_candidate_is_pinned_counted_and_costed(tmp_path: Path, shards: int) -> None:
    folder = write_model(tmp_path / "m", shards=shards)
    with HubServer() as server:
        commit = server.add_repo("org/m-7B", folder, license="mit")
        plan = planned(server, ["org/m-7B"])
        before = server.sent_bytes["cdn"]
    (model,) = plan.models
    shapes = llama_shapes(LLAMA)
    assert model.candidate.revision == commit
    assert model.parameters == sum(a * (b[0] if b else 1) for a, *b in shapes.values())
    assert model.parameters == model.architecture.parameters
    assert [layer.heads for layer in model.architecture.attention_layers] == [4, 4]
    assert model.fetch_bytes == sum(
        path.stat().st_size for path in folder.iterdir() if path.name != "special_tokens_map.json"
    )
    assert model.listing.license == "mit"
    assert before < model.fetch_bytes


@pytest.mark.parametrize("method", ["fp8", "mxfp4"])
def test_weights_that_can_be_dequantised_are_planned_with_the_configs_count(
    tmp_path: Path, method: str
) -> None:
    folder = write_model(tmp_path / "m", config={"quantization_config": {"quant_method": method}})
    with HubServer() as server:
        server.add_repo("org/m-7B", folder, tags=["safetensors", method, "8-bit"])
        (model,) = planned(server, ["org/m-7B"]).models
    assert model.parameters == model.architecture.parameters


def test_tied_embeddings_that_are_stored_twice_count_once(tmp_path: Path) -> None:
    tied = write_model(tmp_path / "tied", config={"tie_word_embeddings": True})
    loose = write_model(tmp_path / "loose")
    with HubServer() as server:
        server.add_repo("org/tied", tied)
        server.add_repo("org/loose", loose)
        one, other = planned(server, ["org/tied", "org/loose"]).models
    assert other.parameters - one.parameters == LLAMA["vocab_size"] * LLAMA["hidden_size"]
    assert one.parameters == one.architecture.parameters


def refused_repos(server: HubServer, tmp_path: Path) -> dict[str, str]:
    """One repository for each way of being refused: id to the expected reason."""
    expected: dict[str, str] = {}

    def add(name: str, reason: str, *, facts: Mapping[str, Any] | None = None, **content: Any) -> None:
        folder = write_model(tmp_path / name, **content)
        server.add_repo(f"org/{name}", folder, **(facts or {}))
        expected[f"org/{name}"] = reason

    quantized = [("gptq", "gptq"), ("awq", "awq"), ("bnb", "bitsandbytes"), ("new", "made-up")]
    for name, method in quantized:
        add(name, "quantized", config={"quantization_config": {"quant_method": method}})
    add("mlx", "quantized", config={"quantization": {"group_size": 64, "bits": 4}})
    add("gguf", "quantized", extra={"m.gguf": b"GGUF"}, leave_out=("model.safetensors", "config.json"))
    add("lora", "adapter", extra={"adapter_config.json": "{}"}, leave_out=("model.safetensors",))
    add("pickle", "no_safetensors", extra={"pytorch_model.bin": b"x"}, leave_out=("model.safetensors",))
    add("empty", "no_safetensors", leave_out=("model.safetensors",))
    add("code", "remote_code_required", config={"auto_map": {"AutoModelForCausalLM": "m.Model"}})
    add("t5", "not_causal_lm", config={"model_type": "t5"})
    add("bert", "not_causal_lm", config={"architectures": ["LlamaForSequenceClassification"]})
    add("novel", "unknown_architecture", config={"model_type": "brand_new"})
    add("broken", "bad_config", extra={"config.json": "{"})
    add("list", "bad_config", extra={"config.json": "[]"})
    add("zero", "bad_config", extra={"config.json": json.dumps({**LLAMA, "num_attention_heads": 0})})
    add("mamba", "no_attention", extra={"config.json": json.dumps(MAMBA)})
    add("no-config", "incomplete_repo", leave_out=("config.json",))
    add("no-tokenizer", "incomplete_repo", leave_out=("tokenizer.json",))
    add("no-shard", "incomplete_repo", shards=2, leave_out=("model-00002-of-00002.safetensors",))
    add(
        "outside", "bad_index", shards=2, extra={INDEX: json.dumps({"weight_map": {"a": "../x.safetensors"}})}
    )
    add("lying", "unreadable_weights", extra={"model.safetensors": b"\xff" * 64})
    add("short", "unreadable_weights", extra={"model.safetensors": b"\x01"})
    add("packed", "quantized", extra={"model.safetensors": packed()})
    add("gated", "gated", facts={"gated": "manual"})
    add("disabled", "disabled", facts={"disabled": True})
    add("private", "not_found", facts={"private": True})
    return expected | {"org/absent": "not_found", "no//id": "not_found"}


INDEX = "model.safetensors.index.json"
MAMBA = {"model_type": "mamba", "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 96, "state_size": 4}


def packed() -> bytes:
    entry = {"a": {"dtype": "U8", "shape": [4, 4], "data_offsets": [0, 16]}}
    header = json.dumps(entry).encode()
    return struct.pack("<Q", len(header)) + header + b"\0" * 16


def test_every_refusal_has_its_reason_and_a_sentence(tmp_path: Path) -> None:
    with HubServer() as server:
        expected = refused_repos(server, tmp_path)
        plan = planned(server, [*expected])
    assert reasons(plan) == expected
    assert not plan.models
    for refusal in plan.refusals:
        assert refusal.model_id in refusal.message
        assert not refusal.message.endswith(".")
        assert "\n" not in refusal.message
    assert [len(group) for _, group in refusals_by_reason(plan)] == sorted(
        (list(expected.values()).count(reason) for reason in set(expected.values())), reverse=True
    )


def test_a_listing_refuses_without_a_request_what_it_can(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    gguf = write_model(tmp_path / "g", extra={"m.gguf": b"GGUF"}, leave_out=("model.safetensors",))
    with HubServer() as server:
        server.add_repo("org/awq-7B", folder, tags=["awq"], downloads=9)
        server.add_repo("org/gguf-7B", gguf, downloads=8)
        server.add_repo("org/lora-7B", folder, library_name="peft", downloads=7)
        server.add_repo("org/gated-7B", folder, gated="auto", downloads=6)
        server.add_repo("org/good-7B", folder, downloads=5)
        query = HubQuery(filter=parse_filter("7B"), params=ParameterRange())
        plan = search(quick(server), query, describe=describe_raw)
        assert server.requests["info"] == 1
    assert [one.reason for one in plan.refusals] == [
        "quantized",
        "quantized",
        "adapter",
        "gated",
        "too_small",
    ]
    assert "HF_TOKEN" in next(one.message for one in plan.refusals if one.reason == "gated")


def test_a_token_opens_a_gate_and_is_sent_to_no_other_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_model(tmp_path / "m")
    monkeypatch.setenv("HF_TOKEN", "hf_canary_in")
    with HubServer(tokens=["hf_canary_in", "hf_canary_out"]) as server:
        server.add_repo("org/gated", folder, gated="manual", access=["hf_canary_in"])
        assert len(planned(server, ["org/gated"]).models) == 1
        monkeypatch.setenv("HF_TOKEN", "hf_canary_out")
        plan = planned(server, ["org/gated"])
        assert reasons(plan) == {"org/gated": "gated"}
        assert "not been granted" in plan.refusals[0].message
        assert server.requests["cdn"]
        assert not server.leaks


def test_the_same_weights_are_measured_once_and_another_tokenizer_is_another_model(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    copy = write_model(tmp_path / "copy", config={"_name_or_path": "elsewhere"})
    retold = write_model(tmp_path / "t", extra={"tokenizer.json": json.dumps(TOKENIZER | {"x": 1})})
    chat = write_model(tmp_path / "c", extra={"chat_template.jinja": "{{ messages }}"})
    bent = write_model(tmp_path / "b", config={"rope_theta": 5.0})
    with HubServer() as server:
        for downloads, (name, one) in enumerate(
            [("bent", bent), ("chat", chat), ("retold", retold), ("copy", copy), ("first", folder)]
        ):
            server.add_repo(f"org/{name}", one, downloads=downloads)
        plan = planned(server, ["org/first", "org/copy", "org/retold", "org/chat", "org/bent"])
        alias = f"org/copy@{server.repos['org/copy'].head}"
    assert [model.candidate.model_id for model in plan.models] == [
        f"org/{name}" for name in ("first", "retold", "chat", "bent")
    ]
    assert plan.aliases == {alias: "org/first"}
    assert plan.models[0].candidate.aliases == (alias,)


def test_what_was_listed_stays_pinned_when_the_repository_moves_on(tmp_path: Path) -> None:
    old, new = write_model(tmp_path / "old", seed=1), write_model(tmp_path / "new", seed=2, shards=2)
    with HubServer() as server:
        first = server.add_repo("org/m-7B", old)
        target = Target(model_id="org/m-7B", revision=first)
        second = server.update_repo("org/m-7B", new)
        (pinned,) = make_plan(quick(server), [target], describe=describe_raw, params=ANY_SIZE).models
        (latest,) = planned(server, ["org/m-7B"]).models
        (named,) = planned(server, [f"org/m-7B@{first}"]).models
    assert (pinned.candidate.revision, latest.candidate.revision) == (first, second)
    assert named == pinned
    assert len(latest.candidate.files) > len(pinned.candidate.files)


def test_a_limit_counts_models_to_measure_and_leaves_the_rest_unasked(tmp_path: Path) -> None:
    with HubServer() as server:
        for number in range(40):
            content = {"leave_out": ("tokenizer.json",)} if number == 1 else {}
            folder = write_model(tmp_path / str(number), seed=number, **content)
            server.add_repo(f"org/m{number:02}", folder, downloads=100 - number)
        plan = search(quick(server), HubQuery(params=ParameterRange(low=1)), describe=describe_raw, limit=3)
        assert server.requests["info"] <= 16
    assert [model.candidate.model_id for model in plan.models] == ["org/m00", "org/m02", "org/m03"]
    assert reasons(plan) == {"org/m01": "incomplete_repo"}
    assert len(plan.left_out) == 36
    rows = scan_rows(plan)
    assert sorted(row["model_id"] for row in rows) == [f"org/m{number:02}" for number in range(40)]
    assert {row["verdict"] for row in rows} == {"candidate", "refused", "left_out"}


def test_sizes_come_from_the_tensors_and_not_from_the_hub(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    claim = {"parameters": {"BF16": 7_000_000_000}, "total": 7_000_000_000}
    with HubServer() as server:
        server.add_repo("org/m", folder, safetensors=claim)
        plan = search(quick(server), HubQuery(filter=parse_filter("7B")), describe=describe_raw)
    assert reasons(plan) == {"org/m": "too_small"}


def test_ids_come_from_arguments_and_a_file(tmp_path: Path) -> None:
    file = tmp_path / "ids.txt"
    file.write_text("# seen on Monday\norg/a\n\norg/b@main  # pinned later\norg/a\n")
    targets = parse_targets(["org/c"], ids_from=file)
    assert [(one.model_id, one.revision) for one in targets] == [
        ("org/c", None),
        ("org/a", None),
        ("org/b", "main"),
    ]
    file.write_text("# nothing\n")
    with pytest.raises(SourceError, match="names no model"):
        parse_targets([], ids_from=file)
    with pytest.raises(SourceError, match="cannot be read"):
        parse_targets([], ids_from=tmp_path / "absent")


def test_a_hub_that_is_down_is_not_a_repository_without_weights(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    for where in ("info", "resolve", "cdn"):
        faults = FaultPlan(1, kinds=["503"], where=[where], most=None)
        with HubServer(faults=faults) as server:
            server.add_repo("org/m", folder)
            plan = planned(server, ["org/m"])
            assert reasons(plan) == {"org/m": "hub_unavailable"}
            assert [refusal.transient for refusal in plan.refusals] == [True]


def test_one_repository_named_twice_is_no_alias_of_itself(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    with HubServer() as server:
        commit = server.add_repo("org/m", folder)
        plan = planned(server, ["org/m", "org/m@main", f"org/m@{commit}"])
    assert len(plan.models) == 1
    assert plan.aliases == {}


def test_an_error_ends_the_waits_of_all_threads_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_model(tmp_path / "m")
    monkeypatch.setenv("HF_TOKEN", "hf_stale")
    faults = FaultPlan(1, kinds=["503"], most=None, only=["org/m1"])
    with HubServer(faults=faults) as server:
        for number in range(4):
            server.add_repo(f"org/m{number}", folder)
        hub = quick(server)
        hub.first_wait_seconds = 60.0
        started = time.monotonic()
        with pytest.raises(SourceError, match="token"):
            make_plan(hub, parse_targets(["org/m1", "org/m0"]), describe=describe_raw)
        assert time.monotonic() - started < 20


@pytest.mark.parametrize(("most", "shards"), [(1, 1), (1, 3), (None, 3)])
def test_a_tensor_name_that_is_damaged_on_its_way_refuses_no_repository_for_good(
    tmp_path: Path, most: int | None, shards: int
) -> None:
    folder = write_model(tmp_path / "m", shards=shards)
    with HubServer() as server:
        server.add_repo("org/m-7B", folder)
        for seed in range(4):
            server.faults = FaultPlan(seed, kinds=["wrong_name"], where=["cdn"], most=most)
            plan = planned(server, ["org/m-7B"])
            assert server.faults.committed
            assert all(refusal.transient for refusal in plan.refusals), plan.refusals
            assert plan.refusals or most == 1


def test_a_plan_pins_the_header_of_every_weight_file(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", shards=3)
    with HubServer() as server:
        server.add_repo("org/m-7B", folder)
        (model,) = planned(server, ["org/m-7B"]).models
    pinned = {file.path: file.header_sha256 for file in model.candidate.files if file.header_sha256}
    for path in folder.glob("*.safetensors"):
        content = path.read_bytes()
        header = content[: 8 + struct.unpack("<Q", content[:8])[0]]
        assert pinned.pop(path.name) == hashlib.sha256(header).hexdigest()
    assert not pinned
