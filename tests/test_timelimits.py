"""A model past its deadline, or a stage past its limit, is told from one that is in time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zoo.board import RunningModel
from zoo.timelimits import TimeLimits, duration_text, parse_duration, parse_stage_limit


def running(stage: str, *, model: float, stage_seconds: float) -> RunningModel:
    return RunningModel(model_id="org/m", stage=stage, model_seconds=model, stage_seconds=stage_seconds)


def test_a_large_model_has_the_time_that_its_bytes_take() -> None:
    limits = TimeLimits()
    assert limits.deadline_seconds(None) == 1800
    assert limits.deadline_seconds(140 * 10**9) == 1800 + 7000
    late = running("probe", model=1801, stage_seconds=5)
    assert "more than 30m; allow more with --deadline" in (limits.exceeded(late, weight_bytes=0) or "")
    assert limits.exceeded(late, weight_bytes=10**9) is None


def test_a_stage_that_moves_few_bytes_has_a_limit_of_its_own() -> None:
    stuck = running("render", model=1000, stage_seconds=901)
    assert "stage render for more than 15m" in (TimeLimits().exceeded(stuck, weight_bytes=0) or "")
    assert TimeLimits(stage_seconds={"render": 1000}).exceeded(stuck, weight_bytes=0) is None
    slow = running("probe", model=1000, stage_seconds=999)
    assert TimeLimits().exceeded(slow, weight_bytes=0) is None
    assert TimeLimits(stage_seconds={"probe": 10}).exceeded(slow, weight_bytes=0) is not None


@given(seconds=st.integers(1, 10**6))
def test_a_duration_is_read_back_as_it_is_written(seconds: int) -> None:
    assert parse_duration(duration_text(seconds)) == seconds


@pytest.mark.parametrize("text", ["", "5", "0s", "-3m", "1h 30x", "m", "1d"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write it like 90s"):
        parse_duration(text)


def test_stage_limits_name_stages_that_exist() -> None:
    assert parse_stage_limit("probe=1h30m") == ("probe", 5400)
    with pytest.raises(ValueError, match="of start, fetch, load"):
        parse_stage_limit("probing=5m")
