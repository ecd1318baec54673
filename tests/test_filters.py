"""A filter takes what a person would take by it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zoo.errors import SourceError
from zoo.filters import (
    ParameterRange,
    closest,
    parse_count,
    parse_filter,
    parse_parameter_range,
    parse_size,
    sizes_in,
)


@pytest.mark.parametrize(
    ("text", "taken", "not_taken"),
    [
        (
            "7B",
            ["Qwen/Qwen2.5-7B", "m/Mistral-7B-v0.1", "a/b_7b_it", "x/OLMo-2-1124-7B-Instruct", "c/7b"],
            ["Qwen/Qwen3-1.7B", "g/gemma-2-27b", "m/Mixtral-8x7B-v0.1", "Qwen/Qwen1.5-MoE-A7B", "7B/name"],
        ),
        ("0.5B", ["Qwen/Qwen2.5-0.5B", "x/thing-500M", "x/thing-0.5b-it"], ["a/b-5B", "a/b-10.5B"]),
        ("500M", ["Qwen/Qwen2.5-0.5B", "x/thing-500m"], ["a/b-1500M", "a/b-50M"]),
        ("1.5b", ["Qwen/Qwen2.5-1.5B-Instruct"], ["a/b-5B", "a/b-11.5B"]),
        ("7b-instruct", ["Qwen/Qwen2.5-7B-Instruct"], ["Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-14B-Instruct"]),
        ("qwen 7B", ["Qwen/Qwen2.5-7B"], ["m/Mistral-7B", "Qwen/Qwen2.5-14B"]),
    ],
)
def test_a_size_is_a_token_of_its_own(text: str, taken: list[str], not_taken: list[str]) -> None:
    wanted = parse_filter(text)
    assert [name for name in taken if wanted.misses(name, None)] == []
    assert [name for name in not_taken if not wanted.misses(name, None)] == []


@pytest.mark.parametrize(
    ("text", "parameters", "taken"),
    [
        ("7B", 7_240_000_000, True),
        ("7B", 6_500_000_000, True),
        ("7B", 7_500_000_000, False),
        ("7B", 1_700_000_000, False),
        ("7B", 46_700_000_000, False),
        ("0.5B", 494_032_768, True),
        ("135M", 134_515_008, True),
        ("1.5B", 1_543_714_304, True),
        ("1.5B", 1_720_000_000, False),
    ],
)
def test_a_count_is_taken_where_it_rounds_to_the_size(text: str, parameters: int, taken: bool) -> None:
    assert (parse_filter(text).misses("org/name", parameters) == 0) is taken


@given(st.integers(1, 999), st.sampled_from("kmbt"))
def test_every_size_takes_itself_in_a_name_and_as_a_count(number: int, unit: str) -> None:
    text = f"{number}{unit}"
    size = parse_size(text)
    assert size is not None
    assert size.low <= size.parameters < size.high
    assert parse_size(text.upper()) == size
    assert size.takes(f"Model-{text}-it", None)
    assert size.takes("Model", size.parameters)
    assert not size.takes(f"Model-1{text}", None)
    assert not size.takes(f"Model-8x{text}", None)
    assert not size.takes(f"Model-3.{text}" if number > 9 else f"Model-A{text}", None)


@given(st.integers(1, 99))
def test_tenths_of_billions_and_hundreds_of_millions_are_one_class(tenths: int) -> None:
    billions = f"{tenths // 10}.{tenths % 10}B" if tenths % 10 else f"{tenths // 10}B"
    assert parse_size(f"{tenths}00M") == parse_size(billions)


@given(st.integers(1, 10**12))
def test_neighbouring_classes_share_no_count(parameters: int) -> None:
    classes = [parse_size(f"{number}B") for number in range(1, 1001)]
    assert sum(one is not None and one.low <= parameters < one.high for one in classes) <= 1


@given(st.text(max_size=30), st.text(max_size=30))
def test_no_text_breaks_a_filter(text: str, name: str) -> None:
    wanted = parse_filter(text)
    assert wanted.misses(name, None) >= 0
    assert sizes_in(name) is not None


@given(st.text(alphabet="abc0123456789.bm-/ ", max_size=20))
def test_more_terms_never_take_more(text: str) -> None:
    fewer, more = parse_filter("7B"), parse_filter(f"7B {text}")
    for name in ("org/a-7B-b", "org/abc-0.5m", "org/c"):
        assert more.misses(name, None) >= fewer.misses(name, None)


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("6B..9B", 6 * 10**9, 9 * 10**9),
        ("6B..", 6 * 10**9, None),
        ("..9b", None, 9 * 10**9),
        ("..", None, None),
        ("1.5B..500000M", 15 * 10**8, 5 * 10**11),
        ("7B", 6_500_000_000, 7_499_999_999),
    ],
)
def test_a_range_has_both_its_ends(text: str, low: int | None, high: int | None) -> None:
    bounds = parse_parameter_range(text)
    assert bounds == ParameterRange(low=low, high=high)
    assert all(bounds.takes(end) for end in (low, high) if end is not None)
    assert low is None or not bounds.takes(low - 1)
    assert high is None or not bounds.takes(high + 1)


@pytest.mark.parametrize("text", ["9B..6B", "six", "6B...9B", "6B..x", "-1..2"])
def test_a_range_that_means_nothing_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(SourceError, match=r"6B|empty"):
        parse_parameter_range(text)


def test_a_count_may_be_written_out() -> None:
    assert parse_count("7240000000") == parse_count("7.24B")


def test_the_closest_ids_miss_the_fewest_terms_and_mend_a_slip_of_the_pen() -> None:
    models = [
        ("meta/Llama-3-8B", 8_030_000_000),
        ("Qwen/Qwen2.5-7B", 7_600_000_000),
        ("Qwen/Qwen2.5-72B", 72_700_000_000),
        ("x/tiny", 10),
    ]
    assert closest(models, parse_filter("7B qwne"))[0] == "Qwen/Qwen2.5-7B"
    assert closest(models, parse_filter("9B"))[0] == "meta/Llama-3-8B"
    assert closest(models, parse_filter("qwen 70B"))[0] == "Qwen/Qwen2.5-72B"
    assert closest([], parse_filter("7B")) == ()
