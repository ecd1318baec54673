"""A Hub on the loopback that the real client talks to, with faults on demand.

    with HubServer() as hub:
        hub.add_repo("org/tiny-7B", folder, downloads=12, license="apache-2.0")
        ...                                # HF_ENDPOINT=hub.url, or Hub(endpoint=hub.url)
        hub.requests["cdn"], hub.sent_bytes["cdn"]

Weights are redirected to a second listener, another origin, as the Hub sends them to its CDN: an
Authorization header that follows them there is recorded in ``leaks``. For tests and benchmarks only.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

from tests.hub_faults import FaultPlan
from tests.hub_handler import Handler, Seen
from tests.hub_repos import Repo, hub_time


class TokenBucket:
    """Bytes per second shared by all connections; ``None`` lets everything through."""

    def __init__(self, bytes_per_second: float | None) -> None:
        self.bytes_per_second = bytes_per_second
        self._free_at = 0.0
        self._lock = threading.Lock()

    def take(self, count: int) -> None:
        """Block until ``count`` bytes may be sent."""
        if not self.bytes_per_second:
            return
        with self._lock:
            start = max(self._free_at, time.monotonic() - 0.01)
            self._free_at = start + count / self.bytes_per_second
            wait = self._free_at - time.monotonic()
        if wait > 0:
            time.sleep(wait)


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, hub: HubServer, *, cdn: bool) -> None:
        self.hub, self.cdn = hub, cdn
        self.open_sockets: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no error of the server."""


class HubServer:
    """The listeners and what they serve; every public attribute may be changed while it runs."""

    def __init__(
        self,
        *,
        faults: FaultPlan | None = None,
        bytes_per_second: float | None = None,
        link_bytes_per_second: float | None = None,
        latency_seconds: float = 0.0,
        page_size: int = 1000,
        tokens: Iterable[str] = (),
        limits: Mapping[str, tuple[int, float]] | None = None,
        redirect_seconds: float = 3600.0,
        stall_seconds: float = 30.0,
    ) -> None:
        self.faults = faults
        self.bucket = TokenBucket(bytes_per_second)
        self._links: dict[str, TokenBucket] = {}
        self.link_bytes_per_second = link_bytes_per_second
        """The bandwidth that each repository's weights have for themselves, as if each node had its link."""
        self.latency_seconds, self.page_size = latency_seconds, page_size
        self.tokens, self.limits = set(tokens), dict(limits or {})
        self.redirect_seconds, self.stall_seconds = redirect_seconds, stall_seconds
        self.repos: dict[str, Repo] = {}
        self.moved: dict[str, str] = {}
        """The new names of renamed repositories, to which the Hub redirects."""
        self.requests: Counter[str] = Counter()
        self.sent_bytes: Counter[str] = Counter()
        self.log: list[Seen] = []
        self.leaks: list[str] = []
        self.closing = threading.Event()
        self._down_until = 0.0
        self._windows: dict[str, tuple[float, int]] = {}
        self._lock = threading.Lock()
        self._secret = hashlib.sha256(repr(time.time_ns()).encode()).digest()
        self._listeners = (_Listener(self, cdn=False), _Listener(self, cdn=True))
        self.url, self.cdn_url = (f"http://127.0.0.1:{one.server_address[1]}" for one in self._listeners)

    def __enter__(self) -> HubServer:
        for listener in self._listeners:
            threading.Thread(target=listener.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closing.set()
        for listener in self._listeners:
            listener.shutdown()
            for connection in list(listener.open_sockets):
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue
            listener.server_close()

    def add_repo(
        self,
        repo_id: str,
        folder: Path,
        *,
        pipeline_tag: str | None = "text-generation",
        downloads: int = 0,
        likes: int = 0,
        created_at: datetime | str = "2026-01-01",
        last_modified: datetime | str | None = None,
        license: str | None = None,
        base_model: str | None = None,
        base_model_relation: str | None = None,
        library_name: str | None = None,
        tags: Iterable[str] = (),
        gated: str | bool = False,
        private: bool = False,
        disabled: bool = False,
        access: Iterable[str] = (),
        safetensors: dict[str, Any] | None = None,
    ) -> str:
        """Serve a folder as a repository and return its commit; ``access`` lists tokens let in."""
        card = {"license": license, "base_model": base_model, "base_model_relation": base_model_relation}
        created = hub_time(created_at)
        facts = {
            "pipeline_tag": pipeline_tag,
            "downloads": downloads,
            "likes": likes,
            "trendingScore": likes,
            "createdAt": created,
            "lastModified": hub_time(last_modified) if last_modified else created,
            "cardData": {key: value for key, value in card.items() if value},
            "library_name": library_name,
            "tags": tuple(tags),
            "gated": gated,
            "private": private,
            "disabled": disabled,
            "safetensors": safetensors,
            "_access": frozenset(access),
        }
        repo = self.repos[repo_id] = Repo(repo_id, facts)
        return repo.commit(folder)

    def update_repo(
        self,
        repo_id: str,
        folder: Path,
        *,
        branch: str = "main",
        last_modified: datetime | str | None = None,
    ) -> str:
        """Push a folder as a branch's newest revision and return its commit; older ones stay served."""
        repo = self.repos[repo_id]
        if last_modified is not None:
            repo.facts["lastModified"] = hub_time(last_modified)
        return repo.commit(folder, branch=branch)

    def outage(self, seconds: float) -> None:
        """Answer nothing for a while, as a Hub that is gone."""
        self._down_until = time.monotonic() + seconds

    @property
    def is_down(self) -> bool:
        return time.monotonic() < self._down_until

    def signed(self, repo_id: str, commit: str, name: str, *, seconds: float | None = None) -> str:
        """An address on the CDN that is good for a while."""
        lifetime = self.redirect_seconds if seconds is None else seconds
        path = f"/cdn/{repo_id}/{commit}/{quote(name)}"
        expires = f"{time.time() + lifetime:.3f}"
        return f"{self.cdn_url}{path}?Expires={expires}&Signature={self.signature(path, expires)}"

    def signature(self, path: str, expires: str) -> str:
        return hmac.new(self._secret, f"{path} {expires}".encode(), hashlib.sha256).hexdigest()[:24]

    def link(self, route: str) -> TokenBucket:
        """The link over which the weights of a CDN address come."""
        repo_id = "/".join(route.split("/")[2:4])
        with self._lock:
            return self._links.setdefault(repo_id, TokenBucket(self.link_bytes_per_second))

    def over_limit(self, bucket: str) -> dict[str, str] | None:
        """Count one request and return the rate-limit headers when the window is used up."""
        if bucket not in self.limits:
            return None
        quota, window = self.limits[bucket]
        with self._lock:
            started, used = self._windows.get(bucket, (time.monotonic(), 0))
            if time.monotonic() - started >= window:
                started, used = time.monotonic(), 0
            self._windows[bucket] = (started, used + 1)
        if used < quota:
            return None
        left = max(0, int(window - (time.monotonic() - started)) + 1)
        return rate_headers(bucket, seconds=left, quota=quota, window=int(window))

    def record(self, seen: Seen) -> None:
        with self._lock:
            self.requests[seen.where] += 1
            self.log.append(seen)

    def count_bytes(self, where: str, count: int) -> None:
        with self._lock:
            self.sent_bytes[where] += count


def rate_headers(bucket: str, *, seconds: int, quota: int, window: int) -> dict[str, str]:
    """The headers by which the Hub says that a limit is used up and when it opens again."""
    return {
        "RateLimit": f'"{bucket}";r=0;t={seconds}',
        "RateLimit-Policy": f'"fixed window";"{bucket}";q={quota};w={window}',
    }
