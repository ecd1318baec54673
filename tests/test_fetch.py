"""A model is handed on whole, byte for byte as pinned, or not at all, whatever the wire does."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.hub_client import candidate_of, quick
from tests.hub_faults import FAULT_KINDS, FaultPlan
from tests.hub_models import write_model
from tests.hub_server import HubServer
from zoo.errors import ModelError, TransientModelError
from zoo.fetch import fetch
from zoo.records import Candidate, RepoFile
from zoo.work_folder import MARKER_NAME, mark, remove_abandoned

PASSING = {"hub_unavailable", "rate_limited", "network", "corrupt_download"}
"""Reasons that blame the moment and not the model."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("fetch") / "m", shards=2)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def outcome(folder: Path, work: Path, faults: FaultPlan, *, attempts: int = 6) -> str:
    """``whole`` or the reason; anything else, a partial folder above all, fails the test."""
    result = "whole"
    with HubServer(faults=faults, stall_seconds=3) as server:
        server.add_repo("org/m", folder)
        try:
            candidate = candidate_of(server)
            with fetch(
                candidate, hub=quick(server, patience_seconds=8.0, attempts=attempts), work=work
            ) as found:
                assert contents(found) == contents(folder)
        except ModelError as error:
            result = error.reason
    assert not work.exists() or not list(work.iterdir())
    return result


def outcomes(
    folder: Path, tmp_path: Path, plans: list[FaultPlan], *, attempts: int = 6
) -> Iterator[tuple[FaultPlan, str]]:
    """Many downloads at once: most of their time is spent in the client's own waits."""
    with ThreadPoolExecutor(16) as pool:
        results = pool.map(
            lambda item: outcome(folder, tmp_path / str(item[0]), item[1], attempts=attempts),
            list(enumerate(plans)),
        )
        yield from zip(plans, results, strict=True)


def check_passing_faults(folder: Path, tmp_path: Path, seeds: range) -> None:
    """No fault that passes loses a model for good, and nearly all are simply waited out.

    What the Hub states as JSON has no digest: wrong bytes there can only make a wrong address.
    """
    committed: Counter[str] = Counter()
    results: Counter[str] = Counter()
    plans = [FaultPlan(seed, kinds=[kind], rate=0.3) for seed in seeds for kind in FAULT_KINDS]
    for plan, result in outcomes(folder, tmp_path, plans):
        committed += plan.committed
        results[result] += 1
        assert result in PASSING | {"whole"} or plan.kinds == ("wrong_bytes",), (
            plan.seed,
            plan.kinds,
            result,
        )
    assert set(committed) == set(FAULT_KINDS)
    assert results["whole"] >= 0.9 * results.total(), results


def test_a_model_survives_faults_that_pass(folder: Path, tmp_path: Path) -> None:
    check_passing_faults(folder, tmp_path, range(2))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_model_survives_faults_that_pass_over_many_seeds(folder: Path, tmp_path: Path) -> None:
    check_passing_faults(folder, tmp_path, range(2, 40))


def test_faults_that_stay_end_in_a_reason(folder: Path, tmp_path: Path) -> None:
    kinds = [kind for kind in FAULT_KINDS if not kind.startswith("429") and kind != "stalled"]
    plans = [FaultPlan(seed, kinds=[kind], where=["cdn"], most=None) for seed in range(2) for kind in kinds]
    results = Counter(result for _, result in outcomes(folder, tmp_path, plans))
    assert set(results) <= PASSING | {"whole"}
    assert results["hub_unavailable"] > len(kinds)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_faults_that_stay_end_in_a_reason_over_many_seeds(folder: Path, tmp_path: Path) -> None:
    plans = [
        FaultPlan(seed, kinds=[kind], where=["cdn"], most=None, rate=0.7 + 0.3 * (seed % 2))
        for seed in range(2, 6)
        for kind in FAULT_KINDS
        if kind not in ("stalled", "429_ratelimit", "429_retry_after")
    ]
    results = Counter(result for _, result in outcomes(folder, tmp_path, plans, attempts=1))
    assert set(results) <= PASSING | {"whole"}


def test_wrong_bytes_of_the_right_length_are_fetched_again_and_then_refused(
    folder: Path, tmp_path: Path
) -> None:
    for most, expected in ((1, "whole"), (None, "corrupt_download")):
        with HubServer() as server:
            server.add_repo("org/m", folder)
            candidate = candidate_of(server)
            server.faults = FaultPlan(1, kinds=["wrong_bytes"], where=["cdn"], most=most)
            try:
                with fetch(candidate, hub=quick(server), work=tmp_path) as found:
                    assert contents(found) == contents(folder)
                    result = "whole"
            except TransientModelError as error:
                result = error.reason
            assert result == expected
            assert server.faults.committed["wrong_bytes"]
    assert not list(tmp_path.iterdir())


def test_only_what_is_needed_is_fetched_and_only_once(tmp_path: Path) -> None:
    extra = {
        "pytorch_model.bin": b"x" * 10_000,
        "README.md": "words",
        "original/model.safetensors": b"y" * 999,
    }
    folder = write_model(tmp_path / "m", extra=extra)
    with HubServer() as server:
        server.add_repo("org/m", folder)
        candidate = candidate_of(server)
        before, asked = server.sent_bytes["cdn"], server.requests["cdn"]
        with fetch(candidate, hub=quick(server), work=tmp_path / "work") as found:
            assert set(contents(found)) == set(contents(folder)) - set(extra)
        assert server.sent_bytes["cdn"] - before == candidate.weight_bytes
        assert server.requests["cdn"] - asked == 1
        assert "zoo/" in server.log[-1].agent


def test_a_repository_that_changes_meanwhile_does_not_mix_revisions(folder: Path, tmp_path: Path) -> None:
    other = write_model(tmp_path / "other", seed=9, shards=2)
    with HubServer() as server:
        server.add_repo("org/m", folder)
        candidate = candidate_of(server)
        server.update_repo("org/m", other)
        with fetch(candidate, hub=quick(server), work=tmp_path / "work") as found:
            assert contents(found) == contents(folder)


def test_a_hub_that_is_gone_for_a_while_is_waited_for(folder: Path, tmp_path: Path) -> None:
    with HubServer() as server:
        server.add_repo("org/m", folder)
        candidate = candidate_of(server)
        server.outage(2.0)
        hub = quick(server)
        hub.first_wait_seconds = 0.2
        with fetch(candidate, hub=hub, work=tmp_path) as found:
            assert contents(found) == contents(folder)


def test_what_does_not_fit_is_refused_before_a_byte_is_fetched(folder: Path, tmp_path: Path) -> None:
    with HubServer() as server:
        server.add_repo("org/m", folder)
        candidate = candidate_of(server)
        huge = replace(candidate.files[-1], size=shutil.disk_usage(tmp_path).free)
        candidate = replace(candidate, files=(*candidate.files[:-1], huge))
        asked = len(server.log)
        with (
            pytest.raises(ModelError, match="ZOO_WORK") as caught,
            fetch(candidate, hub=quick(server), work=tmp_path),
        ):
            pass
        assert len(server.log) == asked
    assert (caught.value.stage, caught.value.reason) == ("fetch", "disk_full")
    assert not list(tmp_path.iterdir())


def test_downloads_that_run_side_by_side_share_the_disk(tmp_path: Path) -> None:
    other = tmp_path / "running"
    other.mkdir()
    owner = mark(other, reserved_bytes=shutil.disk_usage(tmp_path).free)
    small = RepoFile(path="model.safetensors", size=1, blob_id="0" * 40)
    candidate = Candidate(
        model_id="org/m", revision="0" * 40, location="org/m", format="hub", source="hub", files=(small,)
    )
    with owner, HubServer() as server:
        with (
            pytest.raises(ModelError, match="other running downloads"),
            fetch(candidate, hub=quick(server), work=tmp_path),
        ):
            pass
        assert not server.log


def test_a_disk_that_fills_up_midway_is_said_at_once_and_is_no_fault_of_the_model() -> None:
    asked = []

    def fill_up() -> None:
        asked.append(1)
        raise OSError(errno.ENOSPC, "No space left on device")

    with HubServer() as server, pytest.raises(TransientModelError, match="ZOO_WORK") as caught:
        quick(server).ask("org/m", fill_up, bucket="resolvers")
    assert caught.value.reason == "disk_full"
    assert len(asked) == 1


def test_a_work_folder_that_cannot_be_made_is_named_with_the_remedy(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with HubServer() as server:
        server.add_repo("org/m", folder)
        candidate = candidate_of(server)
        with (
            pytest.raises(TransientModelError, match="set ZOO_WORK"),
            fetch(candidate, hub=quick(server), work=tmp_path / "file" / "work"),
        ):
            pass


DYING = """
import os, sys
from pathlib import Path
from zoo.fetch import fetch
from zoo.hub import Hub
from zoo.records import Candidate, RepoFile
from zoo.work_folder import MARKER_NAME, mark, remove_abandoned
work, url, commit = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
files = tuple(RepoFile(**one) for one in __import__("json").loads(sys.argv[4]))
candidate = Candidate(
    model_id="org/m", revision=commit, location="org/m", format="hub", source="hub", files=files
)
with fetch(candidate, hub=Hub(endpoint=url), work=work):
    print("fetched", flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_download_left_is_removed_at_the_next_start(folder: Path, tmp_path: Path) -> None:
    with HubServer() as server:
        server.add_repo("org/m", folder)
        candidate = candidate_of(server)
        described = json.dumps(
            [
                {"path": one.path, "size": one.size, "blob_id": one.blob_id, "sha256": one.sha256}
                for one in candidate.files
            ]
        )
        arguments = [sys.executable, "-c", DYING, str(tmp_path), server.url, candidate.revision, described]
        with subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": "."},
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "fetched\n"
            (running,) = tmp_path.iterdir()
            assert remove_abandoned(tmp_path) == []
            assert (running / "model" / "config.json").is_file()
            process.kill()
        with fetch(candidate, hub=quick(server), work=tmp_path) as found:
            assert not running.exists()
            assert contents(found) == contents(folder)
    assert not list(tmp_path.iterdir())


def test_nothing_is_removed_but_marked_folders_whose_owner_is_gone(tmp_path: Path) -> None:
    """Whatever lies in the work folder, and however old it is: only zoo's own marker makes it zoo's."""

    def foreign(name: str, files: dict[str, str]) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        for file, text in files.items():
            (folder / file).write_text(text)
        return folder

    outside = foreign("outside", {"thesis.tex": "years of work"})
    root = tmp_path / "work"
    root.mkdir()
    kept = {foreign(f"work/{name}", files) for name, files in STRANGERS.items()}
    (root / "a-file").write_text("")
    (root / "link").symlink_to(outside)
    with mark(foreign("work/running", {"weights": "x"}), reserved_bytes=0):
        mark(foreign("work/elsewhere", {"weights": "x"}), reserved_bytes=0).close()
        marker = root / "elsewhere" / MARKER_NAME
        marker.write_text(json.dumps(json.loads(marker.read_text()) | {"host": "another-host"}))
        mark(foreign("work/abandoned", {"weights": "x"}), reserved_bytes=0).close()
        for path in [*root.iterdir(), *outside.iterdir()]:
            os.utime(path, (0, 0), follow_symlinks=False)
        assert [task.name for task in remove_abandoned(root)] == ["abandoned"]
    left = {path for path in root.iterdir() if path.is_dir() and not path.is_symlink()}
    assert left == kept | {root / "running", root / "elsewhere"}
    assert (root / "a-file").is_file()
    assert (outside / "thesis.tex").is_file()


STRANGERS = {
    "empty": {},
    "checkpoints": {"model.safetensors": "weights of somebody else"},
    "same-marker-name": {MARKER_NAME: "{}", "notes": "x"},
    "no-json": {MARKER_NAME: "zoo", "notes": "x"},
    "a-list": {MARKER_NAME: "[1]", "notes": "x"},
    "marked-before-zoo-used-locks": {"owner.json": '{"host": "here", "pid": 1, "started": "1"}'},
}
"""Folders that no running zoo owns, by name: file name to text."""


def test_no_token_or_address_is_said_or_left(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_canary_token")
    said: list[str] = []

    def try_with(kind: str) -> None:
        with HubServer(tokens=["hf_canary_token"]) as server:
            server.add_repo("org/m", folder, gated="auto", access=["hf_canary_token"])
            candidate = candidate_of(server)
            server.faults = FaultPlan(
                3, kinds=[kind], where=["cdn"], most=2 if kind.startswith("429") else None
            )
            hub = quick(server, report=said.append, attempts=2)
            try:
                with fetch(candidate, hub=hub, work=tmp_path) as found:
                    said.extend(text.decode(errors="replace") for text in contents(found.parent).values())
            except ModelError as error:
                said.append(f"{error!r} {error.__cause__!r} {candidate!r}")
            assert not server.leaks

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(try_with, ["500", "truncated", "reset", "wrong_bytes", "html_page", "429_ratelimit"]))
    text = "\n".join([*said, caplog.text, *capfd.readouterr()])
    assert "hub_unavailable" in text or "try again later" in text
    assert "canary" not in text
    assert "Signature=" not in text
