"""What the pages on sensitivity say, through the command line."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from catalog.store import open_catalog
from tests.factories import make_measurement, shifted, without_slices
from zoo.cli import cli
from zoo.records import MeasurementSpec
from zoo.tables import BLOCKS, sparkline

SPEC = MeasurementSpec(prompts_digest="0" * 64, prompt_count=120)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments), catch_exceptions=False)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    catalog = open_catalog(str(tmp_path), create=True)
    catalog.commit(make_measurement("org/a", layers=12, spec=SPEC))
    catalog.commit(shifted(make_measurement("org/b", layers=12, spec=SPEC), -0.5))
    return str(tmp_path)


def test_the_page_fits_100_columns_and_names_every_factor(uri: str) -> None:
    page = invoke("show", "org/a", "--sensitivity", "--catalog", uri).output
    assert max(map(len, page.splitlines())) <= 100
    for text in ("last 15 layers", "content", "long third", "16-32", "mean log-odds + ln(keys)", "N^-0."):
        assert text in page


def test_the_tolerance_moves_the_stable_size(uri: str) -> None:
    def stable(tolerance: str) -> int | None:
        output = invoke(
            "show", "org/a", "--sensitivity", "--tolerance", tolerance, "--format", "json", "--catalog", uri
        ).output
        return json.loads(output)["stable_size"]

    assert stable("9") == 10
    assert (stable("0.03") or 1000) > 10
    assert stable("0.000001") is None


def test_csv_holds_the_choices(uri: str) -> None:
    output = invoke("show", "org/a", "--sensitivity", "--format", "csv", "--catalog", uri).output
    choices = {(row["factor"], row["choice"]) for row in csv.DictReader(io.StringIO(output))}
    assert {("window", "all layers"), ("subset, content", "30 prompts, seed 2")} <= choices


def test_another_dtype_and_format_of_the_same_weights_stand_beside_it(uri: str) -> None:
    catalog = open_catalog(uri)
    earlier = "2026-01-01T00:00:00+00:00"
    other = make_measurement("org/a", layers=12, spec=SPEC, sink_strength=-1.5, started_at=earlier)
    half = replace(other, run=replace(other.run, dtype="bfloat16"))
    catalog.commit(half, force=True)
    plain = replace(SPEC, prompt_format="plain")
    made = make_measurement("org/a", layers=12, spec=plain, sink_strength=0.75, started_at=earlier)
    catalog.commit(replace(made, prompts=replace(made.prompts, format="plain")))
    catalog.commit(make_measurement("org/a", layers=12, spec=SPEC), force=True)
    page = invoke("show", "org/a", "--sensitivity", "--catalog", uri, "--spec", SPEC.spec_id).output
    lines = sorted(" ".join(line.split()) for line in page.splitlines() if line.startswith("run"))
    assert lines[0].startswith("run chat, bfloat16 -1.50")
    assert lines[0].endswith("changes the sign")
    assert lines[1].startswith("run plain 0.75")


def test_an_older_measurement_says_what_is_missing_and_how_to_get_it(tmp_path: Path) -> None:
    catalog = open_catalog(str(tmp_path), create=True)
    catalog.commit(without_slices(make_measurement()))
    assert (
        "zoo screen --force" in invoke("show", "org/model", "--sensitivity", "--catalog", catalog.uri).output
    )
    ranking = invoke("rank", "--catalog", catalog.uri)
    assert ranking.stdout.splitlines()[1].endswith("partial")
    assert "zoo screen --force" in ranking.stderr


def test_the_ranking_marks_doubts_and_says_why(uri: str) -> None:
    ranking = invoke("rank", "--catalog", uri)
    first, second = (line.split() for line in ranking.stdout.splitlines()[1:])
    assert first[-1] == "-"
    assert second[-1] == "sign"
    assert "change the sign of S" in ranking.stderr
    rows = json.loads(invoke("rank", "--format", "json", "--catalog", uri).stdout)
    assert [row["doubt"] for row in rows] == [[], ["sign"]]


def test_a_piped_page_holds_no_block_characters(uri: str) -> None:
    page = invoke("show", "org/a", "--catalog", uri).output
    assert not set(page) & set(BLOCKS)
    assert max(map(len, page.splitlines())) <= 100


def test_a_sparkline_is_as_high_as_its_values() -> None:
    assert sparkline([0.0, 3.5, 7.0]) == "▁▅█"
    assert sparkline([None, 1.0, 1.0]) == " ▁▁"
    assert sparkline([]) == ""
