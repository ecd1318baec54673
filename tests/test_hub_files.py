"""Weights streamed over HTTP from a loopback Hub: right or refused, whatever happens on the wire."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants
from test_streaming import assert_identical, random_prompts, saved, statistics_of, tiny_model

from tests.hub_faults import FaultPlan
from tests.hub_server import HubServer
from zoo import hub_files
from zoo.backbone import Backbone, open_backbone
from zoo.errors import ModelError, TransientModelError
from zoo.records import Candidate, LayerStatistics, RepoFile, RunOptions

PROMPTS = random_prompts(6)
RECOVERABLE = (
    *("500", "503", "408", "429_ratelimit", "429_retry_after"),
    *("truncated", "reset", "stalled", "wrong_length", "no_reply"),
    *("expired_redirect", "html_page", "range_ignored", "wrong_range"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tiny_model("llama"), tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def expected(folder: Path) -> tuple[LayerStatistics, ...]:
    one = Candidate(
        model_id="org/tiny", revision="0" * 40, location=str(folder), format="folder", source="test"
    )
    return statistics_of(open_backbone(one, options=RunOptions(device="cpu", load="whole")), PROMPTS)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 1)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hub_files, "FIRST_WAIT_SECONDS", 0.02)
    with HubServer(stall_seconds=5) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def backbone_of(hub: HubServer, folder: Path, **options: object) -> Backbone:
    if "org/tiny" not in hub.repos:
        hub.add_repo("org/tiny", folder)
    repo = hub.repos["org/tiny"]
    files = tuple(
        RepoFile(path=name, size=file.size, blob_id=file.blob_id, sha256=file.sha256)
        for name, file in repo.revisions[repo.head].items()
    )
    one = Candidate(
        model_id="org/tiny", revision=repo.head, location="org/tiny", format="hub", source="test", files=files
    )
    how = RunOptions(**({"device": "cpu", "load": "stream"} | options))
    return open_backbone(one, options=how, folder=folder)


def streamed(hub: HubServer, folder: Path, **options: object) -> tuple[LayerStatistics, ...]:
    return statistics_of(backbone_of(hub, folder, **options), PROMPTS)


def test_a_model_on_the_hub_is_streamed_without_touching_the_disk(
    hub: HubServer, folder: Path, expected: tuple[LayerStatistics, ...], tmp_path: Path
) -> None:
    assert_identical(streamed(hub, folder), expected)
    assert list(tmp_path.iterdir()) == []
    files = len(list(folder.glob("*.safetensors")))
    assert hub.requests["resolve"] == files
    assert hub.leaks == []


@pytest.mark.parametrize("kind", RECOVERABLE)
def test_a_fault_that_passes_leaves_no_trace_in_the_numbers(
    kind: str, hub: HubServer, folder: Path, expected: tuple[LayerStatistics, ...]
) -> None:
    rate = 0.15 if kind.startswith("429") or kind == "stalled" else 0.4
    hub.faults = FaultPlan(1, kinds=[kind], where=["cdn", "resolve"], rate=rate, most=1)
    assert_identical(streamed(hub, folder), expected)
    assert hub.faults.committed[kind]


def test_a_hub_that_is_gone_for_a_while_is_waited_for(
    hub: HubServer, folder: Path, expected: tuple[LayerStatistics, ...]
) -> None:
    hub.add_repo("org/tiny", folder)
    hub.outage(3)
    assert_identical(streamed(hub, folder), expected)


@pytest.mark.slow
def test_a_hub_that_goes_for_twenty_seconds_amid_the_weights_is_waited_for(
    hub: HubServer, folder: Path, expected: tuple[LayerStatistics, ...]
) -> None:
    """It goes while the first layer runs, when nothing was asked for yet of the last one."""
    backbone = backbone_of(hub, folder, prefetch_bytes=1)
    went: list[int] = []

    def go(module: object, args: object) -> None:
        if not went:
            went.append(hub.sent_bytes["cdn"])
            hub.outage(20)

    backbone.model.model.layers[0].mlp.register_forward_pre_hook(go)
    began = time.monotonic()
    assert_identical(statistics_of(backbone, PROMPTS), expected)
    assert time.monotonic() - began > 20
    assert hub.sent_bytes["cdn"] > went[0] > 0


def test_a_redirect_that_expires_is_renewed(
    hub: HubServer, folder: Path, expected: tuple[LayerStatistics, ...]
) -> None:
    hub.redirect_seconds = 0.2
    hub.latency_seconds = 0.1
    assert_identical(streamed(hub, folder), expected)
    assert hub.requests["resolve"] > len(list(folder.glob("*.safetensors")))
    assert hub.leaks == []


@pytest.mark.parametrize("where", ["cdn", "resolve"])
def test_a_file_that_is_replaced_under_its_name_is_refused(where: str, hub: HubServer, folder: Path) -> None:
    kinds, skip = (["replaced"], 1) if where == "cdn" else (["expired_redirect", "replaced"], 0)
    hub.faults = FaultPlan(
        0, kinds=kinds, where=["cdn", "resolve"] if skip == 0 else [where], most=2, skip=skip
    )
    with pytest.raises(ModelError, match="replaced on the Hub") as caught:
        streamed(hub, folder)
    assert caught.value.reason == "file_changed"
    assert not isinstance(caught.value, TransientModelError)


@pytest.mark.parametrize("kind", ["503", "reset", "wrong_range", "expired_redirect"])
def test_a_fault_that_stays_is_a_reason_and_not_a_number(
    kind: str, hub: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_files, "PATIENCE_SECONDS", 0.5)
    hub.faults = FaultPlan(0, kinds=[kind], where=["cdn"], most=None)
    with pytest.raises(TransientModelError) as caught:
        streamed(hub, folder)
    assert caught.value.stage == "fetch"
    assert "\n" not in str(caught.value)


def test_a_fault_in_the_last_layer_ends_the_run_without_a_number(
    hub: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_files, "PATIENCE_SECONDS", 0.5)
    shard = sorted(folder.glob("*.safetensors"))[-1].name
    hub.faults = FaultPlan(0, kinds=["truncated"], where=["cdn"], most=None, only=[shard], skip=2)
    with pytest.raises(TransientModelError, match=shard):
        streamed(hub, folder)


def test_a_wrong_byte_is_found_by_full_verification(hub: HubServer, folder: Path) -> None:
    hub.faults = FaultPlan(0, kinds=["wrong_bytes"], where=["cdn"], most=1, skip=2)
    with pytest.raises(ModelError) as caught:
        streamed(hub, folder, verify="full")
    assert caught.value.reason == "digest_mismatch"


def test_full_verification_says_what_it_compared(
    hub: HubServer, folder: Path, expected: tuple[LayerStatistics, ...]
) -> None:
    backbone = backbone_of(hub, folder, verify="full")
    files = len(list(folder.glob("*.safetensors")))
    assert backbone.verified.startswith(f"SHA-256 of {files} of {files} files")
    assert_identical(statistics_of(backbone, PROMPTS), expected)


def test_a_shard_that_the_repository_lacks_is_refused(hub: HubServer, folder: Path, tmp_path: Path) -> None:
    import shutil

    partial = shutil.copytree(folder, tmp_path / "partial")
    sorted(partial.glob("*.safetensors"))[1].unlink()
    with pytest.raises(ModelError, match="uploaded incompletely") as caught:
        streamed(hub, partial)
    assert caught.value.reason == "missing_shard"


def test_a_gated_model_says_what_to_do(hub: HubServer, folder: Path) -> None:
    hub.add_repo("org/tiny", folder, gated="auto")
    with pytest.raises(ModelError, match="gated: accept its terms"):
        streamed(hub, folder)
