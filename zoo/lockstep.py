"""Runs many calls in step: each stops where it needs something, and what they need is made once for all.

A call runs in a greenlet of its own, on this thread. A model's forward pass can so be stopped in the
middle of any layer without the model knowing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Protocol, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet

Need = TypeVar("Need", bound=Hashable, contravariant=True)


class Provider(Protocol[Need]):
    """Makes what the calls stop for."""

    def prepare(self, need: Need, payloads: list[Any]) -> None:
        """Make ``need`` for the calls that wait for it, given what each of them handed in."""

    def release(self, need: Need) -> None:
        """Every call that waited for ``need`` has moved on."""


def wait_for(need: Hashable, payload: Any = None) -> None:
    """Stop the running call until ``need`` has been prepared; only inside ``run_in_step``."""
    parent = getcurrent().parent
    assert parent is not None, "a streamed model runs only inside Backbone.run"
    parent.switch((need, payload))


def run_in_step(calls: Iterable[Callable[[], None]], *, provider: Provider[Any]) -> None:
    """Run the calls to their end; whatever one of them raises ends them all.

    Calls that wait for the same need are resumed one after the other between its ``prepare`` and its
    ``release``.
    """
    runners = [greenlet(call) for call in calls]
    waiting: dict[greenlet, tuple[Hashable, Any]] = {}

    def resume(runner: greenlet) -> None:
        request = runner.switch()
        if not runner.dead:
            waiting[runner] = request

    try:
        for runner in runners:
            resume(runner)
        while waiting:
            need = next(iter(waiting.values()))[0]
            group = {runner: payload for runner, (wanted, payload) in waiting.items() if wanted == need}
            provider.prepare(need, list(group.values()))
            for runner in group:
                del waiting[runner]
                resume(runner)
            provider.release(need)
    finally:
        for runner in runners:
            if not runner.dead:
                runner.throw(GreenletExit)
