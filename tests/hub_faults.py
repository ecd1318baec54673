"""What can go wrong on the wire, drawn from a seed so that a failing run can be repeated."""

from __future__ import annotations

import hashlib
import random
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

STATUS_FAULTS = ("500", "502", "503", "504", "408", "429_ratelimit", "429_retry_after")
"""Answered instead of the real thing; the 429s say when to come back."""

BODY_FAULTS = ("truncated", "reset", "stalled", "wrong_bytes", "wrong_length")
"""The right status line, then a body that ends early, breaks, hangs, lies or is too short."""

ROUTE_FAULTS = ("no_reply", "expired_redirect", "html_page", "replaced", "range_ignored", "wrong_range")
"""Nothing at all, a stale signed address, a captive portal, another commit, another range."""

NAME_FAULT = "wrong_name"
"""One wrong character in a tensor name, where the answer holds one: a header that still makes sense."""

FAULT_KINDS = STATUS_FAULTS + BODY_FAULTS + ROUTE_FAULTS

REQUEST_KINDS = ("list", "refs", "info", "tree", "resolve", "cdn")


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault to commit, with its own source of randomness."""

    kind: str
    random: random.Random


class FaultPlan:
    """Faults by seed: request number ``n`` to one address has the same fate in every run.

    ``rate`` is the chance that a request of a kind in ``where`` is hit; ``most`` bounds the faults an
    address sees in a row (``None``: no bound, so ``rate=1`` is a fault that never goes away), and
    ``only`` restricts them to addresses that contain one of these strings. The first ``skip`` requests to
    an address are spared, and those after number ``last``.
    """

    def __init__(
        self,
        seed: int,
        *,
        kinds: Iterable[str] = FAULT_KINDS,
        where: Iterable[str] = REQUEST_KINDS,
        rate: float = 1.0,
        most: int | None = 1,
        only: Iterable[str] = ("",),
        skip: int = 0,
        last: int | None = None,
    ) -> None:
        self.seed, self.rate, self.most, self.skip, self.last = seed, rate, most, skip, last
        self.kinds, self.where, self.only = tuple(kinds), frozenset(where), tuple(only)
        if unknown := set(self.kinds) - {*FAULT_KINDS, NAME_FAULT}:
            raise ValueError(f"unknown fault kinds {sorted(unknown)}")
        self.committed: Counter[str] = Counter()
        self._seen: Counter[str] = Counter()
        self._in_a_row: Counter[str] = Counter()
        self._lock = threading.Lock()

    def draw(self, where: str, address: str) -> Fault | None:
        """The fault that this request meets, or ``None``; counted in ``committed``."""
        if where not in self.where or not any(part in address for part in self.only):
            return None
        target = f"{where} {address}"
        with self._lock:
            self._seen[target] += 1
            number = self._seen[target]
            key = hashlib.sha256(f"{self.seed} {target} {number}".encode()).digest()
            chance = random.Random(key)
            spent = self.most is not None and self._in_a_row[target] >= self.most
            spared = number <= self.skip or (self.last is not None and number > self.last)
            if spared or spent or chance.random() >= self.rate:
                self._in_a_row[target] = 0
                return None
            self._in_a_row[target] += 1
            kind = chance.choice(self.kinds)
            self.committed[kind] += 1
        return Fault(kind, chance)
