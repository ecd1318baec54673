"""The loopback Hub answers the real client as the Hub does."""

from __future__ import annotations

import hashlib
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import httpx2
import pytest
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    DisabledRepoError,
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from tests.hub_faults import FAULT_KINDS, FaultPlan
from tests.hub_models import write_model
from tests.hub_server import HubServer


def test_a_listing_comes_in_pages_filtered_and_sorted(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    with HubServer(page_size=2) as hub:
        for number in range(5):
            hub.add_repo(f"org/m{number}-7B", folder, downloads=number, license="mit")
        hub.add_repo("org/other", folder, pipeline_tag="fill-mask")
        api = HfApi(endpoint=hub.url, token=False)
        found = list(api.list_models(search="7b", pipeline_tag="text-generation", sort="downloads"))
        assert [info.id for info in found] == [f"org/m{number}-7B" for number in (4, 3, 2, 1, 0)]
        assert hub.requests["list"] == 3
        assert [info.id for info in api.list_models(filter="license:mit", limit=1, sort="downloads")] == [
            "org/m4-7B"
        ]
        total = next(iter(api.list_models(search="m0", expand=["safetensors"]))).safetensors.total
        assert [i.id for i in api.list_models(search="m0", num_parameters=f"min:{total},max:{total}")]
        assert not list(api.list_models(num_parameters=f"min:{total + 1}"))


def test_a_snapshot_equals_the_folder_and_old_commits_stay(tmp_path: Path) -> None:
    old, new = write_model(tmp_path / "old", seed=1), write_model(tmp_path / "new", seed=2)
    with HubServer(tokens=["hf_canary"]) as hub:
        first = hub.add_repo("org/m", old)
        second = hub.update_repo("org/m", new)
        assert first != second
        api = HfApi(endpoint=hub.url, token="hf_canary")
        info = api.model_info("org/m", revision=first, files_metadata=True)
        assert info.sha == first
        lfs = {one.rfilename: one.lfs.sha256 for one in info.siblings if one.lfs}
        for commit, folder in ((first, old), (second, new)):
            path = snapshot_download(
                "org/m",
                revision=commit,
                endpoint=hub.url,
                token="hf_canary",
                cache_dir=tmp_path / "cache",
                local_dir=tmp_path / commit,
            )
            for file in folder.iterdir():
                assert (Path(path) / file.name).read_bytes() == file.read_bytes()
        assert (
            lfs["model.safetensors"] == hashlib.sha256((old / "model.safetensors").read_bytes()).hexdigest()
        )
        assert hub.sent_bytes["cdn"] == 2 * (old / "model.safetensors").stat().st_size
        assert not hub.leaks


def test_access_is_refused_with_the_errors_of_the_hub(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    with HubServer(tokens=["hf_a", "hf_b"]) as hub:
        hub.add_repo("org/gated", folder, gated="manual", access=["hf_a"])
        hub.add_repo("org/private", folder, private=True, access=["hf_a"])
        hub.add_repo("org/disabled", folder, disabled=True)
        out, ok = HfApi(endpoint=hub.url, token="hf_b"), HfApi(endpoint=hub.url, token="hf_a")
        assert out.model_info("org/gated").gated == "manual"
        assert ok.file_exists("org/gated", "config.json")
        with pytest.raises(GatedRepoError):
            out.parse_safetensors_file_metadata("org/gated", "model.safetensors")
        for api, repo, error in (
            (out, "org/private", RepositoryNotFoundError),
            (out, "org/absent", RepositoryNotFoundError),
            (ok, "org/disabled", DisabledRepoError),
            (HfApi(endpoint=hub.url, token="hf_wrong"), "org/gated", HfHubHTTPError),
        ):
            with pytest.raises(error):
                api.model_info(repo)
        with pytest.raises(RevisionNotFoundError):
            ok.model_info("org/private", revision="nope")
        assert ok.model_info("org/private").id == "org/private"


def test_safetensors_metadata_is_read_by_range(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", shards=3)
    with HubServer() as hub:
        hub.add_repo("org/m", folder)
        metadata = HfApi(endpoint=hub.url, token=False).parse_safetensors_file_metadata(
            "org/m", "model-00002-of-00003.safetensors"
        )
        assert metadata.tensors
        assert any(seen.range == "bytes=0-100000" and seen.status == 206 for seen in hub.log)


def test_a_fault_plan_gives_every_address_the_same_fate_again() -> None:
    def fates(seed: int) -> list[str | None]:
        plan = FaultPlan(seed, rate=0.5, most=None)
        drawn = [plan.draw("cdn", f"/file{number % 7}") for number in range(200)]
        return [fault.kind if fault else None for fault in drawn]

    assert fates(3) == fates(3)
    assert fates(3) != fates(4)
    assert {kind for seed in range(5) for kind in fates(seed)} == {None, *FAULT_KINDS}


def test_the_limit_of_a_window_is_kept_and_announced(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    with HubServer(limits={"api": (2, 60.0)}) as hub:
        hub.add_repo("org/m", folder)
        api = HfApi(endpoint=hub.url, token=False)
        api.model_info("org/m")
        api.model_info("org/m")
        with pytest.raises(HfHubHTTPError, match="429") as caught:
            api.model_info("org/m")
        assert caught.value.response.headers["RateLimit"].startswith('"api";r=0;t=')


def test_any_range_is_the_slice_of_the_file_and_a_stale_address_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    content = Random(1).randbytes(3_000_000)
    (folder / "w.safetensors").write_bytes(content)
    with HubServer() as hub, httpx2.Client() as client:
        commit = hub.add_repo("org/m", folder)
        url = hub.signed("org/m", commit, "w.safetensors")
        for seed in range(40):
            start, stop = sorted(Random(seed).sample(range(len(content)), 2))
            answer = client.get(url, headers={"Range": f"bytes={start}-{stop - 1}"})
            assert answer.status_code == 206
            assert answer.content == content[start:stop]
        assert client.get(url, headers={"Range": f"bytes={len(content)}-"}).status_code == 416
        assert client.get(hub.signed("org/m", commit, "w.safetensors", seconds=-1)).status_code == 403
        assert client.get(url.replace("org/m", "org/n")).status_code == 403


def test_all_connections_share_one_bandwidth(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "w.safetensors").write_bytes(bytes(8_000_000))
    with HubServer(bytes_per_second=10_000_000) as hub, httpx2.Client() as client:
        url = hub.signed("org/m", hub.add_repo("org/m", folder), "w.safetensors")
        started = time.monotonic()
        with ThreadPoolExecutor(4) as pool:
            ranges = [f"bytes={part * 2_000_000}-{part * 2_000_000 + 1_999_999}" for part in range(4)]
            list(pool.map(lambda one: client.get(url, headers={"Range": one}), ranges))
        assert 0.75 < time.monotonic() - started < 5
        assert hub.sent_bytes["cdn"] == 8_000_000
