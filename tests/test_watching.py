"""A run's counts follow from its driver's looks, whatever the board still shows."""

from __future__ import annotations

from zoo.board import BoardLook, RunningModel, ScreenRun
from zoo.reports import ScreenProgress, TaskReport
from zoo.watching import Tally

FACTS = ScreenRun(run_id="r", catalog_uri="c", spec_id="s", models=2, where="here", started_at="now")
REVISION = "a" * 40


def look(fetched_bytes: int | None = None, *, ended: TaskReport | None = None) -> ScreenProgress:
    """One look at a model of which so much was fetched; ``None`` when the board does not show it."""
    running = {}
    if fetched_bytes is not None:
        running[f"org--m@{REVISION[:12]}"] = RunningModel(
            model_id="org/m", stage="probe", model_seconds=1, stage_seconds=1, fetched_bytes=fetched_bytes
        )
    return ScreenProgress(
        total=2,
        measured=0,
        failed=0,
        running=(),
        elapsed_seconds=5.0,
        remaining_seconds=None,
        where="here",
        ended=ended,
        seen=BoardLook(facts=FACTS, running=running, hub_waits={}),
    )


def measured(bytes_fetched: int) -> TaskReport:
    return TaskReport(
        model_id="org/m", revision=REVISION, status="measured", sink_strength=1.0, bytes_fetched=bytes_fetched
    )


def test_bytes_are_counted_while_a_model_runs_and_the_rest_when_it_ends() -> None:
    tally = Tally()
    assert [tally.hear(look(so_far)).fetched_bytes for so_far in (0, 30, 30, 70)] == [0, 30, 30, 70]
    assert tally.hear(look(ended=measured(100))).fetched_bytes == 100


def test_a_model_that_is_tried_again_fetches_its_bytes_again() -> None:
    tally = Tally()
    tally.hear(look(70))
    assert tally.hear(look(20)).fetched_bytes == 90
    assert tally.hear(look(ended=measured(50))).fetched_bytes == 120


def test_what_the_board_still_shows_of_an_ended_model_counts_nothing() -> None:
    tally = Tally()
    tally.hear(look(ended=measured(50)))
    counts = tally.hear(look(40))
    assert (counts.measured, counts.fetched_bytes, counts.done) == (1, 50, 1)


def test_failures_count_by_reason() -> None:
    tally = Tally()
    for number, reason in enumerate(("gated", "worker_lost", "gated")):
        failed = TaskReport(
            model_id=f"org/{number}", revision=REVISION, status="failed", stage="load", reason=reason
        )
        counts = tally.hear(look(ended=failed))
    assert counts.failed == {"gated": 2, "worker_lost": 1}
    assert (counts.measured, counts.done) == (0, 3)
