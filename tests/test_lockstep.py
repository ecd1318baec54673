"""Calls in step: what they stop for is made once, in order, and an error ends them all."""

from __future__ import annotations

import contextvars
from typing import Any

import pytest

from zoo.lockstep import run_in_step, wait_for

_own = contextvars.ContextVar("own", default=0)


class Recorder:
    def __init__(self) -> None:
        self.log: list[Any] = []

    def prepare(self, need: int, payloads: list[Any]) -> None:
        self.log.append(("prepare", need, payloads))

    def release(self, need: int) -> None:
        self.log.append(("release", need))


def test_each_need_is_prepared_once_for_all_calls_and_released_after_the_last() -> None:
    recorder = Recorder()

    def call(name: str) -> None:
        for need in (1, 2):
            wait_for(need, f"{name}{need}")
            recorder.log.append((name, need))

    run_in_step([lambda: call("a"), lambda: call("b")], provider=recorder)
    assert recorder.log == [
        ("prepare", 1, ["a1", "b1"]),
        *(("a", 1), ("b", 1), ("release", 1)),
        ("prepare", 2, ["a2", "b2"]),
        *(("a", 2), ("b", 2), ("release", 2)),
    ]


def test_calls_that_need_different_things_all_come_to_their_end() -> None:
    recorder, ended = Recorder(), []

    def call(needs: list[int]) -> None:
        for need in needs:
            wait_for(need)
        ended.append(needs)

    ways = [[1, 2, 3], [2, 3], [1, 3, 1]]
    run_in_step([lambda way=way: call(way) for way in ways], provider=recorder)
    assert sorted(ended) == sorted(ways)


def test_an_error_in_one_call_unwinds_the_others() -> None:
    unwound: list[str] = []

    def waits() -> None:
        try:
            wait_for(1)
            wait_for(2)
        finally:
            unwound.append("waits")

    def fails() -> None:
        wait_for(1)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run_in_step([waits, fails], provider=Recorder())
    assert unwound == ["waits"]


def test_calls_do_not_see_each_others_context_variables() -> None:
    seen: list[int] = []

    def call(number: int) -> None:
        _own.set(number)
        wait_for(1)
        seen.append(_own.get())

    run_in_step([lambda n=n: call(n) for n in (1, 2, 3)], provider=Recorder())
    assert seen == [1, 2, 3]
    assert _own.get() == 0
