"""The Hub over its own client: requests that wait, ask again, and end in an answer or a reason."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import httpx2
from huggingface_hub import constants, hf_hub_url
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import (
    build_hf_headers,
    get_token,
    hf_raise_for_status,
    validate_repo_id,
)

from zoo import __version__
from zoo.errors import ModelError, SourceError, TransientModelError, ZooError
from zoo.hub_errors import BadAnswerError, limit_seconds, translate
from zoo.hub_limits import PROCESS_LIMITS, HubLimits, heeding_session, limit_key

T = TypeVar("T")

ANSWER_BYTES = 256 * 1024 * 1024
"""No answer that is read into memory may be longer."""


class Hub:
    """How the Hub is asked: at which endpoint, how patiently.

    ``report`` gets one line whenever a wait is long enough for a person to wonder. One object is
    shared by all threads. A rate limit that is met holds back whoever shares ``limits``.
    """

    def __init__(
        self,
        *,
        endpoint: str | None = None,
        timeout_seconds: float = 10.0,
        attempts: int = 6,
        first_wait_seconds: float = 1.0,
        patience_seconds: float = 3600.0,
        report: Callable[[str], None] = lambda line: None,
        limits: HubLimits = PROCESS_LIMITS,
    ) -> None:
        self.endpoint = (endpoint or os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")
        self.timeout_seconds, self.attempts = timeout_seconds, attempts
        self.first_wait_seconds, self.patience_seconds = first_wait_seconds, patience_seconds
        self.report = report
        self.reached = False
        self._stopped, self._why_stopped = threading.Event(), ""
        self._limits, self._told_until = limits, 0.0

    @property
    def has_token(self) -> bool:
        """Whether requests are made as somebody."""
        return get_token() is not None and not constants.HF_HUB_DISABLE_IMPLICIT_TOKEN

    def ask(self, what: str, request: Callable[[], T], *, bucket: str) -> T:
        """The result of ``request``, asked again while that can help.

        A 429 is waited out for as long as the Hub says; a 5xx, a broken or stalled connection and a
        malformed answer are asked again after 1, 2, 4, ... seconds.

        Raises:
            ModelError: the repository, not the moment, is the problem (``reason`` says which).
            TransientModelError: ``hub_unavailable``, ``rate_limited`` or ``network``.
            SourceError: nothing can be had from this Hub at all.
        """
        failures, waited = 0, 0.0
        while True:
            waited += self._wait_for(bucket)
            try:
                result = request()
            except Exception as error:
                wait = limit_seconds(error)
                if wait is not None and waited + wait <= self.patience_seconds:
                    self._limits.close(limit_key(self.endpoint, bucket), wait)
                    continue
                translated = translate(error, what=what)
                failures += 1
                if not may_help(translated) or failures >= self._tries(error):
                    raise translated from None
                self._wait(min(self.first_wait_seconds * 2 ** (failures - 1), 30.0))
            else:
                self.reached = True
                return result

    def _tries(self, error: Exception) -> int:
        """A Hub that was never reached is given up early: there is probably no network."""
        unreachable = isinstance(error, httpx2.ConnectError) and not self.reached
        return min(2, self.attempts) if unreachable else self.attempts

    def _wait_for(self, bucket: str) -> float:
        seconds = self._limits.wait_seconds(limit_key(self.endpoint, bucket))
        if seconds and time.monotonic() + seconds > self._told_until + 1:
            self._told_until = time.monotonic() + seconds
            self.report(f"the Hub's rate limit is used up; waiting {seconds:.0f} s, as it asks")
        self._wait(seconds)
        return seconds

    def _wait(self, seconds: float) -> None:
        if self._stopped.wait(seconds):
            raise SourceError(self._why_stopped)

    def stop(self, why: str = "the search was stopped; run the same command again") -> None:
        """End every wait of every thread: neither Ctrl-C nor an error lasts as long as a rate limit."""
        self._why_stopped = why
        self._stopped.set()

    def read(
        self,
        url: str,
        *,
        what: str,
        bucket: str,
        parse: Callable[[httpx2.Response, bytes], T],
        params: Mapping[str, Any] | None = None,
        span: tuple[int, int] | None = None,
    ) -> T:
        """GET an address and parse its whole answer; ``span`` asks for bytes ``start <= i < stop``."""

        def request() -> T:
            headers = build_hf_headers(library_name="zoo", library_version=__version__)
            if span:
                headers["Accept-Encoding"] = "identity"
                headers["Range"] = f"bytes={span[0]}-{span[1] - 1}"
            deadline = time.monotonic() + 12 * self.timeout_seconds
            with heeding_session().stream(
                "GET", url, params=params, headers=headers, timeout=self.timeout_seconds
            ) as answer:
                hf_raise_for_status(answer)
                if span:
                    check_span(answer, span)
                body = read_body(answer, most=span[1] - span[0] if span else ANSWER_BYTES, deadline=deadline)
            if span and len(body) != span[1] - span[0]:
                raise BadAnswerError(f"{len(body)} bytes instead of {span[1] - span[0]}")
            return parse(answer, body)

        return self.ask(what, request, bucket=bucket)

    def pages(self, params: Mapping[str, Any]) -> Iterator[list[dict[str, Any]]]:
        """The pages of a model listing, each asked for again on its own when it breaks."""
        url: str | None = f"{self.endpoint}/api/models"
        query: Mapping[str, Any] | None = params
        while url:
            page, following = self.read(url, what="the listing", bucket="api", parse=_page, params=query)
            # The query of the next page is the server's; where it is asked, and with which token, is not.
            url = f"{self.endpoint}/api/models?{urlsplit(following).query}" if following else None
            query = None
            yield page

    def model_info(self, repo_id: str, *, revision: str | None) -> dict[str, Any]:
        """The model info of one revision with all files' sizes and digests."""
        suffix = f"/revision/{quote(revision, safe='')}" if revision else ""
        url = f"{self.endpoint}/api/models/{checked_id(repo_id)}{suffix}"

        def parse(answer: httpx2.Response, body: bytes) -> dict[str, Any]:
            info = as_json(answer, body)
            if not isinstance(info, dict) or not isinstance(info.get("id"), str):
                raise BadAnswerError("no model info")
            if not is_commit(info.get("sha")) or (is_commit(revision) and info["sha"] != revision):
                raise BadAnswerError("another commit than the one asked for")
            return info

        return self.read(url, what=repo_id, bucket="api", parse=parse, params={"blobs": True})

    def file_bytes(
        self,
        repo_id: str,
        path: str,
        *,
        revision: str,
        span: tuple[int, int] | None = None,
        accept: Callable[[bytes], bool] = lambda body: True,
    ) -> bytes:
        """A file of a repository, or a span of it; what ``accept`` declines is asked for again."""
        url = hf_hub_url(checked_id(repo_id), path, revision=revision, endpoint=self.endpoint)

        def parse(answer: httpx2.Response, body: bytes) -> bytes:
            stated = (answer.history or [answer])[0].headers.get("X-Repo-Commit", revision)
            if stated != revision:
                raise BadAnswerError("another commit than the one asked for")
            if not accept(body):
                raise BadAnswerError(f"{path} has not the content that the Hub lists")
            return body

        return self.read(url, what=repo_id, bucket="resolvers", parse=parse, span=span)


def checked_id(repo_id: str) -> str:
    """The id if it can be one.

    Raises:
        ModelError: it cannot, so there is no such repository.
    """
    try:
        validate_repo_id(repo_id)
    except HFValidationError:
        message = f"'{repo_id}' is no repository id; write it as organisation/name"
        raise ModelError(message, stage="plan", reason="not_found") from None
    return repo_id


def may_help(error: ZooError) -> bool:
    """Whether asking again a little later may end better."""
    return isinstance(error, TransientModelError) and error.reason != "disk_full"


def is_commit(revision: object) -> bool:
    """Whether a revision is pinned: 40 hex digits."""
    return isinstance(revision, str) and re.fullmatch(r"[0-9a-f]{40}", revision) is not None


def check_span(answer: httpx2.Response, span: tuple[int, int]) -> None:
    """Make sure that the answer is the range asked for, before its body is read."""
    stated = answer.headers.get("Content-Range", "").partition("/")[0]
    if answer.status_code != 206 or stated != f"bytes {span[0]}-{span[1] - 1}":
        raise BadAnswerError("another range than the one asked for")


def read_body(answer: httpx2.Response, *, most: int, deadline: float) -> bytes:
    """The body, refused when it is longer than ``most`` bytes or takes past the deadline."""
    parts, size = [], 0
    for part in answer.iter_bytes():
        parts.append(part)
        size += len(part)
        if size > most:
            raise BadAnswerError(f"more than {most} bytes")
        if time.monotonic() > deadline:
            raise httpx2.ReadTimeout("the answer came too slowly")
    return b"".join(parts)


def as_json(answer: httpx2.Response, body: bytes) -> Any:
    """The body as JSON."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise BadAnswerError("not JSON") from None


def _page(answer: httpx2.Response, body: bytes) -> tuple[list[dict[str, Any]], str | None]:
    page = as_json(answer, body)
    if not isinstance(page, list) or not all(
        isinstance(item, dict) and isinstance(item.get("id"), str) for item in page
    ):
        raise BadAnswerError("no list of models")
    return page, answer.links.get("next", {}).get("url")
