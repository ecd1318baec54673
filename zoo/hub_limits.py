"""The Hub's rate limits: a bucket that one process used up stays closed for all that share it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import httpx2
from huggingface_hub.utils import get_session, parse_ratelimit_headers

ASK_SECONDS = 2.0
"""How often at most the others are asked what they met."""

CLOSED_SECONDS = 1.0
"""By how much a wait must exceed the known one to be news."""

LONGEST_SECONDS = 600.0
"""The longest wait that is believed: the Hub's windows are of five minutes."""

Tell = Callable[[str, float], None]
Ask = Callable[[], Mapping[str, float]]


def limit_key(address: str, bucket: str) -> str:
    """The name of a bucket (``api`` or ``resolvers``) of the server at an address."""
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc} {bucket}"


def asked_seconds(answer: httpx2.Response) -> float | None:
    """How long an answer asks to wait: one that is refused, or the last one of a window."""
    info = parse_ratelimit_headers(answer.headers)
    is_used_up = info is not None and info.remaining == 0
    if answer.status_code in (429, 503):
        if answer.status_code == 429 and info is not None and is_used_up:
            return info.reset_in_seconds + 0.5
        return _retry_after(answer.headers.get("Retry-After", "").strip())
    return info.reset_in_seconds + 0.5 if info is not None and is_used_up else None


def _retry_after(text: str) -> float | None:
    if text.isdigit():
        return float(text) + 0.5
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time()) + 0.5
    except ValueError:
        return None


def heeding_session() -> httpx2.Client:
    """The Hub client's own session, made to close a bucket in ``PROCESS_LIMITS`` when an answer says so.

    The client waits by itself inside a download; without this nobody else would hear of it.
    """
    session = get_session()
    hooks = session.event_hooks
    if _heed not in hooks["response"]:
        session.event_hooks = {**hooks, "response": [*hooks["response"], _heed]}
    return session


def _heed(answer: httpx2.Response) -> None:
    url = str(answer.request.url)
    bucket = "api" if answer.request.url.path.startswith("/api/") else "resolvers"
    # A content server's limit is its own; its addresses are signed and not asked of the Hub.
    if (seconds := asked_seconds(answer)) is not None and "RateLimit" in answer.headers:
        PROCESS_LIMITS.close(limit_key(url, bucket), min(seconds, LONGEST_SECONDS))


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
