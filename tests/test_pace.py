"""The estimate of what is left follows the bytes, and is silent where it knows nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tasks import candidate

from zoo.board import RunningModel
from zoo.pace import remaining_seconds, stage_text

SMALL, LARGE = candidate("small"), replace(candidate("large"), weight_bytes=5 * 10**9)


def test_a_model_of_five_times_the_work_is_expected_to_take_that_much_longer() -> None:
    seconds = remaining_seconds(done=[SMALL], left=[LARGE], ended_after_seconds=10, since_then_seconds=0)
    assert seconds == pytest.approx(60, rel=1e-5)
    later = remaining_seconds(done=[SMALL], left=[LARGE], ended_after_seconds=10, since_then_seconds=20)
    assert later == pytest.approx(40, rel=1e-5)


def test_nothing_is_claimed_before_a_first_model_or_once_the_estimate_has_passed() -> None:
    late = {"ended_after_seconds": 10.0, "since_then_seconds": 100.0}
    assert remaining_seconds(done=[], left=[SMALL], **late) is None
    assert remaining_seconds(done=[SMALL], left=[SMALL], **late) is None
    assert remaining_seconds(done=[SMALL], left=[], **late) == 0


def test_a_model_that_streams_shows_its_bytes_and_rate() -> None:
    running = RunningModel(model_id="org/m", stage="probe", model_seconds=10, stage_seconds=1)
    assert stage_text(running) == "probe"
    streams = replace(running, fetched_bytes=500_000_000, planned_bytes=2_000_000_000)
    assert stage_text(streams) == "probe 500 of 2,000 MB, 50 MB/s"
