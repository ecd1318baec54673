"""The board knows which models run, in which stage, since when."""

from __future__ import annotations

import time

from zoo.board import Board, ScreenRun

FACTS = ScreenRun(run_id="r", catalog_uri="c", spec_id="s", models=2, where="here", started_at="now")


def test_a_model_is_on_the_board_from_its_start_until_it_leaves() -> None:
    board = Board(FACTS)
    board.start("a@1", "org/a")
    board.enter("a@1", "probe")
    board.enter("a@1", "probe", 5, 10)
    seen = board.look().running["a@1"]
    assert (seen.model_id, seen.stage, seen.fetched_bytes, seen.planned_bytes) == ("org/a", "probe", 5, 10)
    board.leave("a@1")
    board.enter("a@1", "summarise")
    assert board.look().running == {}


def test_the_clock_of_a_stage_starts_when_the_stage_does_and_a_new_try_starts_anew() -> None:
    board = Board(FACTS)
    board.start("a@1", "org/a")
    time.sleep(0.05)
    board.enter("a@1", "probe", 1, 10)
    board.enter("a@1", "probe", 2, 10)
    seen = board.look().running["a@1"]
    assert seen.model_seconds >= 0.05 > seen.stage_seconds
    board.start("a@1", "org/a")
    again = board.look().running["a@1"]
    assert again.model_seconds < 0.05
    assert again.planned_bytes == 0
