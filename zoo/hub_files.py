"""Byte ranges of the Hub's files through the Hub client's own session; nothing is written to disk."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

from zoo.errors import ModelError, TransientModelError
from zoo.hub_errors import BadAnswerError, limit_seconds, translate
from zoo.hub_limits import LONGEST_SECONDS, PROCESS_LIMITS, heeding_session, limit_key
from zoo.records import RepoFile

PATIENCE_SECONDS = 60.0
"""How long a range may bring no byte before it is given up."""

FIRST_WAIT_SECONDS = 0.5


class HubFile:
    """One weight file at one commit. Its redirect is resolved once and renewed when it expires.

    An answer with another commit, size or entity tag than was planned is refused (``file_changed``),
    since its bytes belong to another file.
    """

    def __init__(self, file: RepoFile, *, repo_id: str, revision: str) -> None:
        self.name, self.size = file.path, file.size
        self.sha256, self.header_sha256 = file.sha256, file.header_sha256
        self._what, self._revision, self._file = f"{repo_id}/{file.path}", revision, file
        self._url = _address(repo_id, file.path, revision)
        self._limit = limit_key(_endpoint(), "resolvers")
        self._lock = threading.Lock()
        self._tags: dict[str, str] = {}
        self._location, self._renewals = "", 0
        self._renew(0)

    def close(self) -> None:
        """Nothing is held open; the session is the client's."""

    def read_into(self, start: int, view: memoryview, *, on_bytes: Callable[[int], None]) -> None:
        """Fill ``view`` from byte ``start``; a broken connection goes on from the byte where it broke."""
        patience, done = _Patience(self._what, check=lambda: on_bytes(0)), 0
        while done < len(view):
            renewals, before = self._renewals, done
            if _origin(self._location) == _origin(self._url):
                patience.wait(PROCESS_LIMITS.wait_seconds(self._limit))
            try:
                for chunk in self._chunks(start + done, start + len(view)):
                    view[done : done + len(chunk)] = chunk
                    done += len(chunk)
                    on_bytes(len(chunk))
                if done < len(view):
                    raise BadAnswerError(f"the answer broke off {len(view) - done} bytes early")
            except Exception as error:
                if done > before:
                    patience.renew()
                patience.wait_or_raise(error, is_expired=self._is_expired(error))
                if self._is_expired(error):
                    self._renew(renewals)

    def _is_expired(self, error: Exception) -> bool:
        if not isinstance(error, HfHubHTTPError) or _origin(self._location) == _origin(self._url):
            return False
        return error.response.status_code in (400, 401, 403, 404, 410)

    def _chunks(self, start: int, stop: int) -> Iterator[bytes]:
        """The bytes ``start <= i < stop`` as they come: never more, but fewer when the answer breaks off."""
        location = self._location
        at_home = _origin(location) == _origin(self._url)
        headers = _headers() if at_home else {"User-Agent": _headers()["user-agent"]}
        headers |= {"Accept-Encoding": "identity", "Range": f"bytes={start}-{stop - 1}"}
        timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
        with heeding_session().stream("GET", location, headers=headers, timeout=timeout) as answer:
            hf_raise_for_status(answer)
            expected = f"bytes {start}-{stop - 1}/{self.size}"
            if answer.status_code != 206 or answer.headers.get("Content-Range") != expected:
                raise BadAnswerError(f"{answer.headers.get('Content-Range')} instead of {expected}")
            self._check_tag(_origin(location), answer.headers.get("ETag"))
            left = stop - start
            for chunk in answer.iter_raw():
                if len(chunk) > left:
                    raise BadAnswerError("the answer is longer than the range")
                left -= len(chunk)
                yield chunk

    def _check_tag(self, origin: tuple[str, str], tag: str | None) -> None:
        if tag is not None and self._tags.setdefault(origin[1], tag) != tag:
            raise self._changed()

    def _renew(self, seen: int) -> None:
        """Resolve the redirect again, once for all threads that saw renewal number ``seen``."""
        with self._lock:
            if self._renewals != seen:
                return
            patience = _Patience(self._what)
            while True:
                patience.wait(PROCESS_LIMITS.wait_seconds(self._limit))
                heeding_session()
                try:
                    facts = get_hf_file_metadata(self._url, headers=_headers())
                    if facts.size is None or facts.commit_hash is None:
                        raise BadAnswerError("no size or no commit is given")
                    break
                except Exception as error:
                    patience.wait_or_raise(error)
            tag = self._file.sha256 or self._file.blob_id
            if (facts.commit_hash, facts.etag, facts.size) != (self._revision, tag, self.size):
                raise self._changed()
            self._location = facts.location
            self._renewals += 1

    def _changed(self) -> ModelError:
        text = f"{self._what} was replaced on the Hub while it was read; measure its new revision instead"
        return ModelError(text, stage="fetch", reason="file_changed")


class _Patience:
    """Waits 0.5, 1, 2, 4, 8, 8, ... seconds after failures, or as long as a rate limit asks."""

    def __init__(self, what: str, *, check: Callable[[], None] = lambda: None) -> None:
        self._what, self._check = what, check
        self.renew()

    def renew(self) -> None:
        """Bytes came: start counting again."""
        self._since, self._failures = time.monotonic(), 0

    def wait_or_raise(self, error: Exception, *, is_expired: bool = False) -> None:
        """Wait before the next try, or raise what the error means to a user."""
        asked = limit_seconds(error)
        if asked is not None and asked <= LONGEST_SECONDS:
            self.wait(asked)
            return
        meaning = translate(error, what=self._what, stage="fetch")
        is_transient = is_expired or isinstance(meaning, TransientModelError)
        if not is_transient or time.monotonic() - self._since > PATIENCE_SECONDS:
            raise meaning from None
        self._sleep(min(FIRST_WAIT_SECONDS * 2**self._failures, 8.0))
        self._failures += 1

    def wait(self, seconds: float) -> None:
        """Wait as long as the Hub asks, which says nothing about its health."""
        self._sleep(seconds)
        self._since += seconds

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._check()
            time.sleep(min(left, 0.25))


def _address(repo_id: str, name: str, revision: str) -> str:
    return hf_hub_url(repo_id, name, revision=revision, endpoint=_endpoint())


def _endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")


def _headers() -> dict[str, str]:
    return build_hf_headers(library_name="zoo")


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc
