"""The Hub from the command line, as a user runs it: only HF_ENDPOINT says that it is another one."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest
from checkpoints_on_disk import save_checkpoint
from click.testing import CliRunner

from catalog.query import run_query
from catalog.scans import record_scan
from catalog.store import open_catalog
from tests.hub_models import write_model
from tests.hub_server import HubServer
from zoo.cli_hub import hub_choice, hub_options, parse_bandwidth
from zoo.errors import SourceError
from zoo.measure import measure_path
from zoo.preflight import TOKENIZER_FILES

TOKEN = "hf_canary_4711"
ZOO = [sys.executable, "-W", "error", "-c", "from zoo.cli import main; main()"]


def zoo(
    *arguments: str, endpoint: str, home: Path, command: Sequence[str] = ZOO, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs zoo as a user does, with everything it writes below ``home``."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "RAY_"))}
    own = {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home / "hf"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "ZOO_CATALOG": str(home / "catalog"),
        "PYTHONPATH": str(Path(__file__).parent.parent),
    }
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=250, env=kept | own | environment
    )


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    """Two models that can be measured, a copy of one, and some that cannot."""
    folder = tmp_path_factory.mktemp("repos")
    llama = save_checkpoint(folder / "llama")
    qwen = save_checkpoint(folder / "qwen", model_type="qwen3")
    awq = write_model(folder / "awq", config={"quantization_config": {"quant_method": "awq"}})
    with HubServer(tokens=[TOKEN], page_size=3) as server:
        server.add_repo("alpha/Tiny-7B", llama, downloads=900, license="mit", base_model="alpha/Base")
        server.add_repo("beta/copy-7b", llama, downloads=10)
        server.add_repo("gamma/Qwen-7B-gated", qwen, downloads=500, gated="auto", access=[TOKEN])
        server.add_repo("delta/Tiny-7B-AWQ", awq, downloads=70)
        server.add_repo("delta/Closed-7B", llama, downloads=60, gated="manual")
        server.add_repo("omega/Other-1.7B", llama, downloads=9000)
        yield server


def test_a_dry_run_is_a_table_to_pass_on(
    hub: HubServer, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    before = hub.sent_bytes["cdn"]
    code, text, _ = run("screen", "--filter", "7B", "--params", "0..", "--dry-run", "--bandwidth", "1MB/s")
    assert code == 0
    header, *rows = text.splitlines()
    names = ["model", "revision", "params", "layers", "heads", "QK-norm", "GB", "time", "plan"]
    assert header.split() == names
    assert rows[0].split()[:2] == ["alpha/Tiny-7B", hub.repos["alpha/Tiny-7B"].head[:12]]
    assert rows[1].split()[0] == "gamma/Qwen-7B-gated"
    assert "per_head" in rows[1]
    for part in (
        "To measure: 2 models",
        "the Hub allows 1,000 and 5,000 in five minutes with a free account's token",
        "beta/copy-7b = alpha/Tiny-7B",
        "quantized (1): delta/Tiny-7B-AWQ",
        "gated (1): delta/Closed-7B",
        "has not been granted it yet",
    ):
        assert part in text
    assert "1.7B" not in text
    assert not (tmp_path / "catalog").exists()
    assert hub.sent_bytes["cdn"] - before <= 3 * 100_000


def test_a_plan_for_programs_has_every_repository_and_no_rounding(hub: HubServer, run: Run) -> None:
    options = ["screen", "alpha/Tiny-7B", "beta/copy-7b", "no/model", "--params", "0..", "--dry-run"]
    first, *others = json.loads(run(*options, "--format", "json")[1])
    repo = hub.repos["alpha/Tiny-7B"]
    names = {"config.json", "model.safetensors", *TOKENIZER_FILES}
    needed = [file.size for name, file in repo.revisions[repo.head].items() if name in names]
    assert first["fetch_bytes"] == sum(needed)
    assert first["fetch_seconds"] == first["fetch_bytes"] / 1e8
    assert (first["license"], first["base_model"]) == ("mit", "alpha/Base")
    assert [(one["model_id"], one["plan"], one["reason"]) for one in others] == [
        ("beta/copy-7b", "alias", None),
        ("no/model", "refused", "not_found"),
    ]
    rows = list(csv.DictReader(io.StringIO(run(*options, "--format", "csv")[1])))
    assert [row["plan"] for row in rows] == ["measure", "alias", "refused"]


def test_a_search_is_measured_ranked_and_kept_without_the_token(
    hub: HubServer, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray_folder = Path(tempfile.mkdtemp(prefix="zr", dir="/tmp"))
    options = ["screen", "--filter", "7B", "--params", "0..", "--prompts", "12", "--format", "json"]
    try:
        result = zoo(*options, endpoint=hub.url, home=tmp_path, HF_TOKEN=TOKEN, RAY_TMPDIR=str(ray_folder))
        assert result.returncode == 0, result.stderr
        said = result.stdout + result.stderr
        for root in (tmp_path, ray_folder):
            said += "".join(path.read_bytes().decode(errors="replace") for path in every_file(root))
    finally:
        shutil.rmtree(ray_folder, ignore_errors=True)
    assert TOKEN not in said
    assert not hub.leaks
    assert not list((tmp_path / "hf" / "zoo-work").iterdir())
    ranking = {row["model_id"]: row["sink_strength"] for row in json.loads(result.stdout)}
    alpha = hub.repos["alpha/Tiny-7B"].revisions[hub.repos["alpha/Tiny-7B"].head]["config.json"].path.parent
    assert set(ranking) == {"alpha/Tiny-7B", "gamma/Qwen-7B-gated"}
    assert ranking["alpha/Tiny-7B"] == measure_path(alpha, prompt_count=12).sink_strength
    catalog = open_catalog(str(tmp_path / "catalog"))
    seen = run_query(
        catalog, "select model_id, verdict, reason, alias_of, query from models order by model_id"
    )
    assert [row[:4] for row in seen.rows] == [
        ("alpha/Tiny-7B", "candidate", None, None),
        ("beta/copy-7b", "alias", None, "alpha/Tiny-7B"),
        ("delta/Closed-7B", "refused", "gated", None),
        ("delta/Tiny-7B-AWQ", "refused", "quantized", None),
        ("gamma/Qwen-7B-gated", "candidate", None, None),
    ]
    assert {row[4] for row in seen.rows} == {'--filter "7B" --params 0.. --sort downloads'}
    facts = run_query(catalog, "select verified, bytes_fetched > 0, source from outcomes").rows
    assert {row[1:] for row in facts} == {(True, "hub")}
    assert all(row[0].startswith("headers, lengths") for row in facts)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    again = run(*options[:7], "--dry-run")[1]
    assert again.count("measured before") == 2
    assert "To measure: 0 models" in again


def every_file(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["screen", "--filter", "9000B"], 1, "closest: "),
        (["screen", "--filter", "7B", "--params", "9B..6B"], 1, "first end is the larger"),
        (["screen", "a/b", "--filter", "7B"], 2, "not both"),
        (["screen", "a/b", "--source", "demo"], 2, "not both"),
        (["screen"], 2, "--source"),
        (["screen", "a/b", "--bandwidth", "fast", "--dry-run"], 1, "100MB/s"),
        (["screen", "no/model"], 1, "holds no model that can be measured"),
    ],
)
def test_a_mistake_is_one_line_with_its_remedy(run: Run, arguments: list[str], code: int, text: str) -> None:
    exit_code, _, errors = run(*arguments)
    assert exit_code == code, errors
    assert text in errors.splitlines()[-1]


def test_without_a_network_one_line_names_the_local_source(tmp_path: Path) -> None:
    with HubServer() as gone:
        endpoint = gone.url
    for environment, text in (({}, "cannot be reached"), ({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE")):
        result = zoo("screen", "--filter", "7B", endpoint=endpoint, home=tmp_path, **environment)
        assert result.returncode == 1
        (line,) = result.stderr.splitlines()
        assert text in line
        assert "--source" in line


@click.command()
@hub_options
def chosen(bandwidth: str, **options: Any) -> None:
    click.echo(hub_choice(**options).text)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["--filter", "7B chat", "--since", "2026-01-31"],
            '--filter "7B chat" --since 2026-01-31 --sort downloads',
        ),
        (["a/b@main", "c/d"], "a/b@main c/d --sort downloads"),
        (
            ["--author", "a", "--min-downloads", "5", "--license", "mit", "--sort", "likes"],
            "--author a --min-downloads 5 --license mit --sort likes",
        ),
    ],
)
def test_a_choice_says_what_was_asked_for(arguments: list[str], text: str) -> None:
    assert CliRunner().invoke(chosen, arguments).output.strip() == text


@pytest.mark.parametrize(
    ("text", "rate"),
    [("100MB/s", 1e8), ("1GB", 1e9), ("400Mbit/s", 5e7), ("1.5kB/s", 1500.0), ("8 Gbit", 1e9)],
)
def test_a_bandwidth_is_bytes_a_second(text: str, rate: float) -> None:
    assert parse_bandwidth(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "0MB/s", "10", "-1MB/s", "10MB/h"])
def test_a_bandwidth_without_a_meaning_is_refused(text: str) -> None:
    with pytest.raises(SourceError, match="Mbit"):
        parse_bandwidth(text)


def test_scans_are_kept_side_by_side_and_read_as_one_table(tmp_path: Path) -> None:
    catalog = open_catalog(str(tmp_path / "catalog"), create=True)
    row = {
        "model_id": "a/b",
        "verdict": "refused",
        "reason": "gated",
        "created_at": "2026-05-01T10:00:00.000Z",
    }
    moment = datetime(2026, 6, 1, tzinfo=UTC)
    names = [record_scan(catalog, [row], query="7B", scanned_at=moment) for _ in range(3)]
    assert len(set(names)) == 3
    read = run_query(
        catalog, "select count(*), min(created_at)::varchar, min(scanned_at)::varchar from models"
    )
    assert read.rows[0] == (3, "2026-05-01 10:00:00", "2026-06-01 00:00:00")
    assert record_scan(catalog, [], query="nothing")
