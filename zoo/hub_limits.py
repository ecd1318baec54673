"""The Hub's rate limits: a bucket that one process used up stays closed for all that share it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

ASK_SECONDS = 2.0
"""How often at most the others are asked what they met."""

CLOSED_SECONDS = 1.0
"""By how much a wait must exceed the known one to be news."""

Tell = Callable[[str, float], None]
Ask = Callable[[], Mapping[str, float]]


def limit_key(endpoint: str, bucket: str) -> str:
    """The name of one of an endpoint's buckets (``api`` or ``resolvers``)."""
    return f"{endpoint} {bucket}"


class HubLimits:
    """When each bucket of the Hub opens again. Safe to use from all threads."""

    def __init__(self) -> None:
        self._open_at: dict[str, float] = {}
        self._lock = threading.Lock()
        self._tell: Tell = lambda bucket, seconds: None
        self._ask: Ask | None = None
        self._asked_at = 0.0

    def share(self, *, tell: Tell, ask: Ask) -> None:
        """Tell others of every closed bucket, and hear of theirs (seconds by bucket) before each wait."""
        self._tell, self._ask, self._asked_at = tell, ask, 0.0

    def close(self, bucket: str, seconds: float) -> bool:
        """The Hub asks to wait; whether that is news to this process."""
        if is_news := self._close_here(bucket, seconds):
            self._tell(bucket, seconds)
        return is_news

    def wait_seconds(self, bucket: str) -> float:
        """How long the bucket stays closed; 0 when it is open."""
        self._hear()
        return max(0.0, self._open_at.get(bucket, 0.0) - time.monotonic())

    def _close_here(self, bucket: str, seconds: float) -> bool:
        with self._lock:
            until, known = time.monotonic() + seconds, self._open_at.get(bucket, 0.0)
            self._open_at[bucket] = max(until, known)
            return until > known + CLOSED_SECONDS

    def _hear(self) -> None:
        now = time.monotonic()
        with self._lock:
            if self._ask is None or now - self._asked_at < ASK_SECONDS:
                return
            self._asked_at = now
        for bucket, seconds in self._ask().items():
            self._close_here(bucket, seconds)


PROCESS_LIMITS = HubLimits()
"""The limits that everything in this process shares."""
