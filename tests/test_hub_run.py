"""A training run in a repository of the Hub: its branches and tags are followed as folders are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoints_on_disk import save_checkpoint
from click.testing import CliRunner, Result

from tests.hub_client import quick
from tests.hub_faults import FaultPlan
from tests.hub_models import write_model
from tests.hub_server import HubServer
from zoo.architecture import describe_raw
from zoo.cli import cli
from zoo.errors import ModelError, SourceError
from zoo.hub_run import hub_checkpoints, refs
from zoo.measure import measure_path
from zoo.track import in_training_order

PROMPTS = 10


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    monkeypatch.setenv("ZOO_WORK", str(tmp_path / "work"))
    with HubServer() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def write_run(server: HubServer, folder: Path) -> dict[str, str]:
    """A run of small models: main, two steps as branches, one as a tag, and a branch without weights."""
    commits = {"main": server.add_repo("org/run", write_model(folder / "main"))}
    for seed, name in enumerate(["step-1000", "step-200", "broken"], 1):
        made = write_model(folder / name, seed=seed)
        if name == "broken":
            (made / "model.safetensors").unlink()
        commits[name] = server.update_repo("org/run", made, branch=name)
    server.repos["org/run"].tags |= {"v1.0": commits["main"], "final": commits["step-1000"]}
    return commits


def test_branches_and_tags_are_read_with_their_commits_through_faults(
    server: HubServer, tmp_path: Path
) -> None:
    commits = write_run(server, tmp_path)
    expected = commits | {"v1.0": commits["main"], "final": commits["step-1000"]}
    assert refs(quick(server), "org/run") == expected
    server.faults = FaultPlan(3, kinds=["503", "html_page", "truncated", "reset"], where=["refs"])
    assert refs(quick(server), "org/run") == expected
    assert server.faults.committed
    with pytest.raises(ModelError, match="does not exist"):
        refs(quick(server), "org/none")


def test_every_commit_is_one_checkpoint_named_by_its_step(server: HubServer, tmp_path: Path) -> None:
    commits = write_run(server, tmp_path)
    found = hub_checkpoints(quick(server), "org/run", describe=describe_raw)
    ordered = in_training_order(found.candidates)
    assert [(its.model_id, its.revision) for its in ordered] == [
        (f"org/run@{name}", commits[name]) for name in ("step-200", "step-1000", "main")
    ]
    assert {its.location for its in ordered} == {"org/run"}
    ((refused, reason),) = {(its.model_id, its.reason) for its in found.refusals}
    assert (refused, reason) == ("org/run@broken", "no_safetensors")


def test_a_settled_checkpoint_costs_no_request(server: HubServer, tmp_path: Path) -> None:
    commits = write_run(server, tmp_path)
    settled = {(f"org/run@{name}", commit) for name, commit in commits.items()}
    server.log.clear()
    found = hub_checkpoints(quick(server), "org/run", describe=describe_raw, settled=settled)
    assert {(its.model_id, its.revision) for its in found.candidates} == settled
    assert [seen.where for seen in server.log] == ["refs"]


@pytest.mark.parametrize(
    ("repo", "text"),
    [("org/none", "no folder here, and no run on the Hub"), ("org/empty", "holds no checkpoint")],
)
def test_a_run_without_checkpoints_is_refused_by_name(
    server: HubServer, tmp_path: Path, repo: str, text: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "README.md").write_text("nothing yet")
    server.add_repo("org/empty", tmp_path / "empty")
    with pytest.raises(SourceError, match=text):
        hub_checkpoints(quick(server), repo, describe=describe_raw)


def track(catalog: Path, *more: str) -> Result:
    options = ["--prompts", str(PROMPTS), "--catalog", str(catalog), "--format", "json"]
    return CliRunner().invoke(cli, ["track", "org/vlm-run", *options, *more])


def test_a_run_on_the_hub_is_followed_incrementally_and_drawn(server: HubServer, tmp_path: Path) -> None:
    folders = [save_checkpoint(tmp_path / f"at-{step}", seed=step) for step in (0, 1)]
    (tmp_path / "card").mkdir()
    (tmp_path / "card" / "README.md").write_text("A run.")
    server.add_repo("org/vlm-run", tmp_path / "card")
    server.update_repo("org/vlm-run", folders[0], branch="step-50")
    first = track(tmp_path / "catalog")
    assert first.exit_code == 0, first.output
    assert "Refused org/vlm-run@main (" in first.stderr
    server.update_repo("org/vlm-run", folders[1], branch="step-100")
    picture = tmp_path / "run.png"
    second = track(tmp_path / "catalog", "--plot", str(picture), "--max-fall", "100")
    assert "Measuring 1 model" in second.stderr
    start, end = json.loads(second.stdout)
    assert json.loads(first.stdout) == [start]
    assert [(its["name"], its["step"]) for its in (start, end)] == [("step-50", 50), ("step-100", 100)]
    strengths = [measure_path(folder, prompt_count=PROMPTS).sink_strength for folder in folders]
    assert [start["sink_strength"], end["sink_strength"]] == pytest.approx(strengths, abs=1e-6)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_picture_of_another_kind_is_refused_before_anything_is_measured(
    server: HubServer, tmp_path: Path
) -> None:
    result = track(tmp_path / "catalog", "--plot", str(tmp_path / "run.jpg"))
    assert ".png, .svg, .pdf" in str(result.exception)
    assert server.log == []
