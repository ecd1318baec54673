"""Tables line up, lose nothing and cannot be steered; JSON and CSV keep every digit."""

from __future__ import annotations

import csv
import io
import json
from datetime import datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from zoo.tables import count_text, format_rows, format_table, printable, seconds_text

CELLS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text())


@given(rows=st.lists(st.tuples(CELLS, CELLS, CELLS), max_size=5))
def test_every_row_is_one_printable_line_in_the_same_columns(rows: list[tuple[object, ...]]) -> None:
    lines = format_rows(("a", "b", "c"), [(*row, "end") for row in rows] and rows, format="table").split("\n")
    assert len(lines) == len(rows) + 1
    assert all(line.isprintable() for line in lines)


@given(texts=st.lists(st.text(min_size=1), min_size=1, max_size=5))
def test_a_second_column_begins_at_the_same_cell_on_every_line(texts: list[str]) -> None:
    lines = format_table(("name", "mark"), [(text, "|") for text in texts], numeric=(False, False)).split(
        "\n"
    )
    assert len({cell_len(line[: line.rindex("|")]) for line in lines[1:]}) == 1


@given(rows=st.lists(st.tuples(st.floats(allow_nan=False, allow_infinity=False), st.integers()), max_size=5))
def test_json_and_csv_keep_every_digit(rows: list[tuple[float, int]]) -> None:
    records = json.loads(format_rows(("x", "n"), rows, format="json"))
    assert [(record["x"], record["n"]) for record in records] == rows
    read = list(csv.reader(io.StringIO(format_rows(("x", "n"), rows, format="csv"))))[1:]
    assert [(float(x), int(n)) for x, n in read] == rows


@given(text=st.text())
def test_printable_text_has_no_control_characters(text: str) -> None:
    assert printable(text).isprintable()


def test_numbers_are_flush_right_and_text_flush_left() -> None:
    assert format_rows(("n", "name"), [(1, "a"), (200, "bbb")], format="table") == (
        "  n  name\n  1  a\n200  bbb"
    )


def test_json_has_no_word_that_is_not_json_and_no_column_is_lost() -> None:
    text = format_rows(("x", "x"), [(float("nan"), datetime(2026, 1, 2))], format="json")
    assert json.loads(text) == [{"x": None, "x_2": "2026-01-02T00:00:00"}]
    assert json.loads(format_rows(("d",), [(Decimal("1.50"),)], format="json")) == [{"d": 1.5}]


@pytest.mark.parametrize(
    ("number", "text"),
    [(134_515_008, "135M"), (7.24e9, "7.2B"), (999_999, "1.0M"), (950, "950"), (None, "-")],
)
def test_large_counts_are_short(number: float | None, text: str) -> None:
    assert count_text(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.44, "0.4 s"), (9.96, "10 s"), (59.6, "1 min 00 s"), (125, "2 min 05 s"), (11400, "3 h 10 min")],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text
