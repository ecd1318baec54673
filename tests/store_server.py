"""moto's S3 server on the loopback, behind a lock and a plan of faults.

The lock is there because moto looks whether an object exists and then stores it, and a store must do
both at once. moto checks neither keys nor rights, so refusals are answered by the plan.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

BUCKET = "zoo-test"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "do-not-pickle-me",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    "NO_PROXY": "*",
}
ERRORS = {
    "SlowDown": "503 Slow Down",
    "InternalError": "500 Internal Server Error",
    "AccessDenied": "403 Forbidden",
    "ExpiredToken": "400 Bad Request",
    "InvalidAccessKeyId": "403 Forbidden",
    "SignatureDoesNotMatch": "403 Forbidden",
    "QuotaExceeded": "507 Insufficient Storage",
    "NotImplemented": "501 Not Implemented",
}
PASSING = ("SlowDown", "InternalError", "reset", "lost_answer", "cut_body")
"""Faults after which the same request is answered. ``lost_answer``: done, and then the connection breaks."""

Plan = Callable[[str, str], str | None]


def at(rate: float, *, seed: int, kinds: Iterable[str] = PASSING) -> Plan:
    """A plan that hits requests at this rate, the same ones in every run for requests in one order."""
    chance, choices, lock = random.Random(seed), tuple(kinds), threading.Lock()

    def draw(method: str, path: str) -> str | None:
        with lock:
            return chance.choice(choices) if chance.random() < rate else None

    return draw


def first(count: int, kind: str, *, method: str, part: str = "") -> Plan:
    """A plan that hits the first requests of a method whose path holds a text."""
    left, lock = [count], threading.Lock()

    def draw(asked: str, path: str) -> str | None:
        with lock:
            if asked != method or part not in path or not left[0]:
                return None
            left[0] -= 1
            return kind

    return draw


class StoreServer:
    """One running server; ``plan`` may be set at any time."""

    def __init__(self) -> None:
        self.at_once = 0
        self.calm()
        self._app = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()
        self._counts = threading.Lock()
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=_Quiet)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def calm(self) -> None:
        """No faults from here on, and counts from zero."""
        self.plan: Plan = lambda method, path: None
        self.delay_seconds = 0.0
        self.ignores_conditions = False
        self.requests: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.most_at_once = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        with self._counts:
            self.requests[method] += 1
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            time.sleep(self.delay_seconds)
            kind = self.plan(method, path)
            if kind is None:
                return self._real(environ, start)
            with self._counts:
                self.faults[kind] += 1
            if kind in ERRORS:
                return _error(environ, start, kind)
            return self._break(environ, start, kind)
        finally:
            with self._counts:
                self.at_once -= 1

    def _real(self, environ: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
        if self.ignores_conditions:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        with self._lock:
            return list(self._app(environ, start))

    def _break(self, environ: dict[str, Any], start: Callable[..., Any], kind: str) -> Iterable[bytes]:
        answer: list[Any] = []
        if kind != "reset":
            body = b"".join(self._real(environ, lambda *head: answer.extend(head)))
        if kind == "cut_body" and len(body) > 1:
            start(*answer[:2])
            return _half(body, environ["werkzeug.socket"])
        environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        raise ConnectionAbortedError


class _Quiet(WSGIRequestHandler):
    def log(self, *_: object, **__: object) -> None:
        """Nothing: a refused request is no news to a test."""


def _half(body: bytes, connection: socket.socket) -> Iterator[bytes]:
    yield body[: len(body) // 2]
    connection.shutdown(socket.SHUT_RDWR)  # kept alive, the other half would be waited for


def _error(environ: Mapping[str, Any], start: Callable[..., Any], code: str) -> list[bytes]:
    environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    body = f"<Error><Code>{code}</Code><Message>as planned</Message></Error>".encode()
    start(ERRORS[code], [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
    return [body]


@contextmanager
def running() -> Iterator[StoreServer]:
    server = StoreServer()
    try:
        yield server
    finally:
        server.close()
