"""Kills victims of a seed's choice, a few seconds apart, and counts those that were alive when hit."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable

import psutil
from chaos.nodes import Nodes, is_running

Progress = Callable[[], float]

FIVE = ("task", "task", "task", "raylet")
"""Of every five kills: three tasks, a whole node, and in turn the driver and the run's board."""

SOONEST_SECONDS = 0.7
PLANNED = 1.25
"""How many kills are meant to happen for each that is wanted; the last models leave no time for more."""

AHEAD = 4
"""How many kills may be ahead of the models' progress."""

REPLACED_WITHIN_SECONDS = (1.0, 5.0)


class Killer:
    """``strike`` is called again and again; it kills when it is time, and looks after the nodes."""

    def __init__(
        self, nodes: Nodes, *, seed: int, wanted: int, every: float, progress: Progress, kill_driver: bool
    ) -> None:
        self.nodes, self.wanted, self.every, self.progress = nodes, wanted, every, progress
        self.kill_driver = kill_driver
        self.kills: Counter[str] = Counter()
        self.added = self.removed = 0
        self._random = random.Random(seed)
        self._deck: list[str] = []
        self._fives = 0
        self._last = self._next = time.monotonic()

    def strike(self, driver: psutil.Process) -> None:
        """At most one kill, when it is due and its victim is there."""
        self.added += self.nodes.add_due()
        if not self._is_due():
            return
        if not self._deck:
            self._deck = self._five()
        kind = next((each for each in (*self._deck, "task") if getattr(self, f"_kill_{each}")(driver)), None)
        if kind is None:
            return
        if kind in self._deck:
            self._deck.remove(kind)
        self.kills[kind] += 1
        self._last = time.monotonic()
        self._next = self._last + self.every * self._random.uniform(0.5, 1.5)
        if self.kills.total() % 10 == 0:
            self._remove_a_node()

    def _is_due(self) -> bool:
        """A few seconds after the last; sooner when the models would end before the kills do, later on a
        machine so slow that the models would never end."""
        now, kills, planned = time.monotonic(), self.kills.total(), PLANNED * self.wanted * self.progress()
        if kills < planned:
            return now - self._last >= SOONEST_SECONDS
        return kills < planned + AHEAD and now >= self._next

    def _five(self) -> list[str]:
        last = "driver" if self.kill_driver and self._fives % 2 == 0 else "board"
        self._fives += 1
        deck = [*FIVE, last]
        self._random.shuffle(deck)
        return deck

    def _kill_task(self, driver: psutil.Process) -> bool:
        return self._kill_one_of(self.nodes.tasks())

    def _kill_board(self, driver: psutil.Process) -> bool:
        return self._kill_one_of(self.nodes.boards())

    def _kill_driver(self, driver: psutil.Process) -> bool:
        return bool(self.nodes.tasks()) and self._kill_one_of([driver])

    def _kill_raylet(self, driver: psutil.Process) -> bool:
        """A raylet's death takes its node with it; one node is always left."""
        if len(self.nodes.workers) < 2:
            return False
        node = self._random.choice(self.nodes.workers)
        hit = self._kill_one_of([self.nodes.raylet(node)])
        self.nodes.remove(node, gracefully=False)
        self.nodes.replace_later(self._random.uniform(*REPLACED_WITHIN_SECONDS))
        return hit

    def _kill_one_of(self, victims: list[psutil.Process]) -> bool:
        """Whether one was alive when it was hit, and died of it."""
        living = [each for each in victims if is_running(each)]
        if not living:
            return False
        victim = self._random.choice(living)
        try:
            victim.kill()
        except psutil.NoSuchProcess:
            return False
        give_up = time.monotonic() + 10
        while is_running(victim) and time.monotonic() < give_up:
            time.sleep(0.01)
        return not is_running(victim)

    def _remove_a_node(self) -> None:
        if len(self.nodes.workers) >= 2:
            self.nodes.remove(self._random.choice(self.nodes.workers), gracefully=True)
            self.removed += 1
            self.nodes.replace_later(self._random.uniform(*REPLACED_WITHIN_SECONDS))
