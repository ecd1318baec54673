"""The command line: what it prints for people and programs, and its exit codes."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import psutil
import pytest
import tasks
from checkpoints_on_disk import save_checkpoint
from click.testing import CliRunner, Result

from catalog.store import open_catalog
from zoo.cli import cli, main
from zoo.errors import ZooError
from zoo.records import Failure

ROOT = Path(__file__).parent.parent
ZOO = [sys.executable, "-W", "error", "-c", "from zoo.cli import main; main()"]


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    assert isinstance(caught.value.code, int)
    return caught.value.code


@pytest.fixture
def catalog_uri(tmp_path: Path) -> str:
    """A catalog with two measured models and one failure."""
    catalog = open_catalog(str(tmp_path / "catalog"), create=True)
    catalog.commit(tasks.measurement(tasks.candidate("low"), sink_strength=-0.123456789012345))
    catalog.commit(tasks.measurement(tasks.candidate("high-" + "x" * 120), sink_strength=1.5))
    catalog.commit(
        Failure(
            candidate=tasks.candidate("bad"),
            spec=tasks.SPEC,
            stage="load",
            reason="missing_tensors",
            message="3 tensors are missing: download the checkpoint again",
        )
    )
    return catalog.uri


def test_the_ranking_is_rounded_for_people_and_exact_for_programs(catalog_uri: str) -> None:
    table = invoke("rank", "--catalog", catalog_uri).stdout.splitlines()
    assert table[0].split()[:3] == ["rank", "model", "S"]
    assert table[1].split()[:3] == ["1", "org/high-" + "x" * 120, "1.50"]
    assert table[2].split()[:3] == ["2", "org/low", "-0.12"]
    assert len({len(line) - len(line.lstrip()) for line in table[1:]}) == 1
    records = json.loads(invoke("rank", "--catalog", catalog_uri, "--format", "json").output)
    assert [record["sink_strength"] for record in records] == [1.5, -0.123456789012345]
    rows = list(
        csv.DictReader(io.StringIO(invoke("rank", "--catalog", catalog_uri, "--format", "csv").output))
    )
    assert [row["sink_strength"] for row in rows] == ["1.5", "-0.123456789012345"]
    assert [row["model_id"] for row in rows] == [record["model_id"] for record in records]


def test_a_measured_model_is_shown_on_a_page_of_100_columns(catalog_uri: str) -> None:
    page = invoke("show", "org/low", "--catalog", catalog_uri).output
    assert max(map(len, page.splitlines())) <= 100
    for text in ("-0.12 nats", "95% interval -0.22 to -0.02", "position 0, token <s>, mass 0.70", "none"):
        assert text in page
    assert re.search(r"\d+ of 18 prompt subsets keep the sign", page)
    details = json.loads(invoke("show", "org/low", "--catalog", catalog_uri, "--format", "json").output)
    assert details["sink_strength"] == -0.123456789012345
    assert [layer["layer"] for layer in details["layers"]] == [0, 1, 2, 3]
    (row,) = csv.DictReader(
        io.StringIO(invoke("show", "org/low", "--catalog", catalog_uri, "--format", "csv").output)
    )
    assert row["model_id"] == "org/low"


def test_a_failed_model_is_shown_with_its_stage_reason_and_remedy(catalog_uri: str) -> None:
    page = invoke("show", "org/bad", "--catalog", catalog_uri).output
    assert "failed in load (missing_tensors); zoo screen --force tries it again" in page
    assert "3 tensors are missing: download the checkpoint again" in page


def test_sql_prints_what_one_select_returns(catalog_uri: str) -> None:
    query = "select model_id, sink_strength, null as nothing from ranking where rank = 2"
    assert json.loads(invoke("sql", query, "--catalog", catalog_uri, "--format", "json").output) == [
        {"model_id": "org/low", "sink_strength": -0.123456789012345, "nothing": None}
    ]
    assert invoke("sql", query, "--catalog", catalog_uri).output.splitlines()[1].split() == [
        "org/low",
        "-0.1235",
        "-",
    ]


def test_sql_without_a_query_lists_the_views() -> None:
    views = [record["view"] for record in json.loads(invoke("sql", "--format", "json").output)]
    assert {"outcomes", "measurements", "heads", "sweep", "ranking"} <= set(views)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["rank", "--catalog", "missing"], "there is no catalog at missing"),
        (["show", "org/lo", "--catalog", "CATALOG"], "did you mean org/low"),
        (["sql", "delete from outcomes", "--catalog", "CATALOG"], "the catalog is only read"),
        (["sql", "select 1; select 2", "--catalog", "CATALOG"], "2 statements"),
        (
            ["sql", "select * from read_csv('/etc/passwd')", "--catalog", "CATALOG"],
            "reaches outside the catalog",
        ),
        (
            [
                "sql",
                "select count(*) from range(10000000000) a, range(1000) b",
                "--timeout",
                "0.5",
                "--catalog",
                "CATALOG",
            ],
            "longer than 0.5 s",
        ),
        (["screen", "--source", "missing"], "'missing' does not exist"),
        (["screen", "--source", "SOURCE"], "no model that can be measured"),
        (["screen", "--source", "demo", "--catalog", "FILE"], "is a file"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_1(
    tmp_path: Path,
    catalog_uri: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "source" / "org" / "empty").mkdir(parents=True)
    (tmp_path / "file").write_text("x")
    places = {"CATALOG": catalog_uri, "SOURCE": str(tmp_path / "source"), "FILE": str(tmp_path / "file")}
    assert exit_code(*(places.get(each, each) for each in arguments)) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("Error: ")
    assert says in error


def test_a_command_line_that_is_not_understood_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("rank", "--format", "yaml") == 2
    assert exit_code("screen", "--source", "demo", "--prompts", "9") == 2
    assert "9 is not in the range" in capsys.readouterr().err


def test_an_interruption_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("catalog.store.open_catalog", interrupt)
    assert exit_code("rank") == 130


def test_an_error_cannot_steer_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ZooError("\x1b[31mred\nline")

    monkeypatch.setattr("catalog.store.open_catalog", fail)
    assert exit_code("rank") == 1
    assert capsys.readouterr().err == "Error: \\x1b[31mred\\nline\n"


def test_a_dry_run_says_what_would_happen_and_writes_nothing(tmp_path: Path) -> None:
    model = tmp_path / "tree" / "org" / "good"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (tmp_path / "tree" / "org" / "empty").mkdir()
    catalog = tmp_path / "catalog"
    result = invoke(
        "screen",
        "--source",
        str(tmp_path / "tree"),
        "--catalog",
        str(catalog),
        "--dry-run",
        "--format",
        "json",
    )
    assert result.exit_code == 0, result.output
    assert {row["model_id"]: row["plan"] for row in json.loads(result.output)} == {
        "org/good": "measure",
        "org/empty": "refused",
    }
    assert not catalog.exists()


def test_both_prompt_formats_are_measured_and_ranked_apart(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "org" / "model")
    options = ["--source", str(folder), "--prompt-format", "both", "--prompts", "10", "--format", "json"]
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    done = subprocess.run(
        [*ZOO, "screen", *options],
        env=kept | {"ZOO_CATALOG": str(tmp_path / "catalog"), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [row["prompt_format"] for row in rows] == ["chat", "plain"]
    assert len({row["spec_id"] for row in rows}) == 2
    assert [row["rank"] for row in rows] == [1, 1]


def test_every_command_and_option_has_help() -> None:
    for name, command in cli.commands.items():
        assert command.help, name
        for parameter in command.params:
            assert isinstance(parameter, click.Argument) or parameter.help, f"{name} {parameter.name}"


@pytest.mark.parametrize("arguments", [["--help"], ["screen", "--help"], ["rank"], ["sql", "select 1"]])
def test_what_measures_nothing_imports_no_heavy_library(catalog_uri: str, arguments: list[str]) -> None:
    script = (
        "import sys\nfrom zoo.cli import main\n"
        "try:\n    main()\nfinally:\n"
        "    print(sorted({'ray', 'torch', 'transformers'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=os.environ | {"ZOO_CATALOG": catalog_uri, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "[]"


def test_a_reader_that_goes_away_is_no_error(catalog_uri: str) -> None:
    query = "select repeat('x', 100) from range(100000)"
    process = subprocess.Popen(
        [*ZOO, "sql", query],
        env=os.environ | {"ZOO_CATALOG": catalog_uri, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    _, error = process.communicate(timeout=30)
    assert error == b""


def test_ctrl_c_stops_a_query_that_never_ends(catalog_uri: str) -> None:
    process = subprocess.Popen(
        [*ZOO, "sql", "select count(*) from range(10000000000) a, range(1000) b", "--timeout", "100"],
        env=os.environ | {"ZOO_CATALOG": catalog_uri, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    give_up = time.monotonic() + 60
    while sum(psutil.Process(process.pid).cpu_times()[:2]) < 4 and time.monotonic() < give_up:
        time.sleep(0.1)  # its imports take less than that
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=20)
    assert process.returncode == 130
    assert (out, error.splitlines()[-1]) == ("", "Stopped.")
