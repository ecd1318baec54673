"""A rate limit that one process met holds back everybody who shares it."""

from __future__ import annotations

from zoo.board import Board, ScreenRun
from zoo.hub_limits import HubLimits

FACTS = ScreenRun(run_id="r", catalog_uri="c", spec_id="s", models=1, where="here", started_at="now")


def test_a_bucket_closed_by_one_process_is_closed_for_another_and_others_stay_open() -> None:
    board, one, other = Board(FACTS), HubLimits(), HubLimits()
    for limits in (one, other):
        limits.share(tell=board.close_hub, ask=board.hub_waits)
    assert other.wait_seconds("api") == 0
    assert one.close("resolvers", 30.0)
    late = HubLimits()
    late.share(tell=board.close_hub, ask=board.hub_waits)
    assert 29 < late.wait_seconds("resolvers") <= 30
    assert late.wait_seconds("api") == 0
    assert 29 < board.look().hub_waits["resolvers"] <= 30


def test_a_shorter_wait_than_the_known_one_is_no_news_and_opens_nothing_early() -> None:
    told: list[tuple[str, float]] = []
    limits = HubLimits()
    limits.share(tell=lambda *said: told.append(said), ask=dict)
    assert limits.close("api", 30.0)
    assert not limits.close("api", 10.0)
    assert limits.wait_seconds("api") > 29
    assert told == [("api", 30.0)]
