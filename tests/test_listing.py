"""A listing is complete, filtered as asked, or an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hub_client import quick
from tests.hub_faults import FaultPlan
from tests.hub_models import write_model
from tests.hub_server import HubServer
from zoo.errors import SourceError
from zoo.filters import parse_filter, parse_parameter_range
from zoo.hub import Hub
from zoo.listing import HubQuery, list_models


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def counted(total: int) -> dict[str, object]:
    return {"parameters": {"BF16": total}, "total": total}


def fill(server: HubServer, folder: Path) -> None:
    server.add_repo("Qwen/Qwen2.5-7B", folder, downloads=50, license="apache-2.0", created_at="2025-01-01")
    server.add_repo("a/by-count", folder, downloads=70, safetensors=counted(7_240_000_000), license="mit")
    server.add_repo("Qwen/Qwen3-1.7B", folder, downloads=90, safetensors=counted(1_720_000_000))
    server.add_repo("g/gemma-27b", folder, downloads=95, safetensors=counted(27_200_000_000))
    server.add_repo("m/Mixtral-8x7B", folder, downloads=99, safetensors=counted(46_700_000_000))
    server.add_repo("x/encoder-7B", folder, pipeline_tag="fill-mask", downloads=999)
    server.add_repo("b/Mini-500M-chat", folder, downloads=5, created_at="2026-05-01", tags=["chat"])
    server.add_repo(
        "b/gated-7b",
        folder,
        downloads=3,
        gated="auto",
        base_model="Qwen/Qwen2.5-7B",
        base_model_relation="merge",
    )


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        (HubQuery(filter=parse_filter("7B")), ["a/by-count", "Qwen/Qwen2.5-7B", "b/gated-7b"]),
        (HubQuery(filter=parse_filter("qwen")), ["Qwen/Qwen3-1.7B", "Qwen/Qwen2.5-7B"]),
        (HubQuery(filter=parse_filter("qwen 7B")), ["Qwen/Qwen2.5-7B"]),
        (HubQuery(filter=parse_filter("0.5B")), ["b/Mini-500M-chat"]),
        (HubQuery(filter=parse_filter("7B"), min_downloads=60), ["a/by-count"]),
        (HubQuery(filter=parse_filter("7B"), license="MIT"), ["a/by-count"]),
        (HubQuery(filter=parse_filter("7B"), author="qwen"), []),
        (HubQuery(filter=parse_filter("7B"), author="Qwen"), ["Qwen/Qwen2.5-7B"]),
        (HubQuery(since="2026-05-01"), ["b/Mini-500M-chat"]),
        (HubQuery(params=parse_parameter_range("20B..")), ["m/Mixtral-8x7B", "g/gemma-27b"]),
        (
            HubQuery(params=parse_parameter_range("1B..30B"), sort="parameters"),
            ["g/gemma-27b", "a/by-count", "Qwen/Qwen3-1.7B"],
        ),
        (
            HubQuery(filter=parse_filter("7B"), sort="created"),
            ["a/by-count", "b/gated-7b", "Qwen/Qwen2.5-7B"],
        ),
    ],
)
@pytest.mark.parametrize("page_size", [2, 1000])
def test_a_query_takes_what_it_says_in_its_order(
    folder: Path, query: HubQuery, ids: list[str], page_size: int
) -> None:
    with HubServer(page_size=page_size) as server:
        fill(server, folder)
        if not ids:
            with pytest.raises(SourceError, match="closest: "):
                list_models(quick(server), query)
            return
        assert [one.model_id for one in list_models(quick(server), query)] == ids


def test_a_listing_says_what_the_hub_says(folder: Path) -> None:
    with HubServer() as server:
        fill(server, folder)
        gated = list_models(quick(server), HubQuery(filter=parse_filter("gated")))[0]
        assert gated.gated == "auto"
        assert (gated.base_model_relation, gated.base_model) == ("merge", "Qwen/Qwen2.5-7B")
        assert gated.revision == server.repos["b/gated-7b"].head
        assert gated.created_at == "2026-01-01T00:00:00.000Z"


def test_nothing_found_names_what_came_closest(folder: Path) -> None:
    with HubServer() as server:
        fill(server, folder)
        with pytest.raises(SourceError, match=r"closest: Qwen/Qwen2.5-7B"):
            list_models(quick(server), HubQuery(filter=parse_filter("qwne 7B")))
    with HubServer() as empty, pytest.raises(SourceError, match="nothing close"):
        list_models(quick(empty), HubQuery(filter=parse_filter("7B")))


@pytest.mark.parametrize("kind", ["500", "truncated", "html_page", "no_reply", "reset"])
def test_a_listing_that_dies_midway_is_a_failed_listing(folder: Path, kind: str) -> None:
    faults = FaultPlan(1, kinds=[kind], where=["list"], most=None, only=["?4"])
    with HubServer(page_size=2, faults=faults) as server:
        for number in range(8):
            server.add_repo(f"org/m{number}", folder)
        with pytest.raises(SourceError, match=r"broke off after 4 repositories.*nothing was screened"):
            list_models(quick(server), HubQuery())
        assert faults.committed[kind] == 6


def test_a_page_that_breaks_is_asked_for_again_alone(folder: Path) -> None:
    for seed in range(8):
        faults = FaultPlan(
            seed, kinds=["500", "503", "truncated", "reset", "no_reply"], where=["list"], rate=0.5
        )
        with HubServer(page_size=2, faults=faults) as server:
            for number in range(8):
                server.add_repo(f"org/m{number}", folder)
            assert len(list_models(quick(server), HubQuery())) == 8
            assert server.requests["list"] == 4 + faults.committed.total()


def test_a_rate_limit_is_waited_out_and_said_so(folder: Path) -> None:
    said: list[str] = []
    with HubServer(page_size=2, limits={"api": (3, 1.5)}) as server:
        for number in range(12):
            server.add_repo(f"org/m{number}", folder)
        assert len(list_models(quick(server, report=said.append), HubQuery())) == 12
        refused = [seen for seen in server.log if seen.status == 429]
    assert len(refused) == len(said) > 0
    assert "rate limit is used up; waiting" in said[0]


def test_without_a_network_one_line_names_the_local_source() -> None:
    with HubServer() as server:
        url = server.url
    with pytest.raises(SourceError, match="cannot be reached") as caught:
        list_models(Hub(endpoint=url, first_wait_seconds=0.01), HubQuery(filter=parse_filter("7B")))
    assert "--source" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_refused_token_is_no_missing_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_canary_stale")
    with HubServer(tokens=["hf_other"]) as server:
        server.add_repo("org/m", folder)
        with pytest.raises(SourceError, match="access token") as caught:
            list_models(quick(server), HubQuery())
    assert "canary" not in str(caught.value)
