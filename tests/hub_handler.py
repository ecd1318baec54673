"""One connection to the loopback Hub: routes, access, ranges, and faults on the way out."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import struct
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from tests.hub_faults import BODY_FAULTS, NAME_FAULT, Fault
from tests.hub_repos import Repo, StoredFile, matching, refs_json, repo_json, tree_json

if TYPE_CHECKING:
    from tests.hub_server import HubServer

PIECE_BYTES = 256 * 1024
DENIED = b"<Error><Code>AccessDenied</Code></Error>"
HTML = b"<!doctype html><title>Sign in</title><p>Please sign in to this network.</p>"


@dataclass(slots=True)
class Reply:
    """What would be answered if nothing went wrong; the body is bytes or a slice of a file."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    file: StoredFile | None = None
    start: int = 0
    length: int | None = None

    @property
    def size(self) -> int:
        return len(self.body) if self.file is None else self.length or 0

    def read(self) -> bytes:
        if self.file is None:
            return self.body
        with self.file.path.open("rb") as stream:
            stream.seek(self.start)
            return stream.read(self.size)


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as the server saw it."""

    method: str
    where: str
    address: str
    range: str | None
    status: int
    authorised: bool
    agent: str
    at: float = field(default_factory=time.monotonic)


def refusal(status: int, message: str, *, code: str | None = None) -> Reply:
    headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
    body = json.dumps({"error": message}).encode()
    return Reply(status, body, headers | {"Content-Type": "application/json"})


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.server.open_sockets.add(self.connection)  # type: ignore[attr-defined]

    def finish(self) -> None:
        self.server.open_sockets.discard(self.connection)  # type: ignore[attr-defined]
        with contextlib.suppress(OSError):
            super().finish()

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent; requests are in ``HubServer.log``."""

    @property
    def hub(self) -> HubServer:
        return self.server.hub  # type: ignore[attr-defined]

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        if self.hub.is_down:
            self._hang_up(reset=True)
            return
        if self.hub.latency_seconds:
            time.sleep(self.hub.latency_seconds)
        url = urlsplit(self.path)
        self.route, self.query = unquote(url.path), parse_qs(url.query)
        where, address = self._where()
        bucket = "resolvers" if where == "resolve" else "api"
        limited = None if where == "cdn" else self.hub.over_limit(bucket)
        fault = self.hub.faults.draw(where, address) if self.hub.faults else None
        if limited:
            fault, reply = None, refusal(429, "Too many requests")
            reply.headers |= limited
        else:
            reply = self._status_fault(fault, bucket) or self._reply(where)
        self._record(where, reply.status)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, socket.timeout):
            self._send(reply, where, fault)

    def _where(self) -> tuple[str, str]:
        """The kind of request and the address that its faults are counted by."""
        if self.server.cdn:  # type: ignore[attr-defined]
            return "cdn", self.route
        if self.route == "/api/models":
            return "list", f"{self.route}?{self.query.get('cursor', [''])[0]}"
        if self.route.startswith("/api/models/"):
            if re.fullmatch(r"/api/models/[^/]+(/[^/]+)?/refs", self.route):
                return "refs", self.route
            return ("tree" if "/tree/" in self.route else "info"), self.route
        return "resolve", f"{self.command} {self.route}"

    def _record(self, where: str, status: int) -> None:
        authorised = "Authorization" in self.headers
        if where == "cdn" and authorised:
            self.hub.leaks.append(self.route)
        agent = self.headers.get("User-Agent", "")
        asked = self.headers.get("Range")
        self.hub.record(Seen(self.command, where, self.route, asked, status, authorised, agent))

    def _status_fault(self, fault: Fault | None, bucket: str) -> Reply | None:
        if fault is None:
            return None
        if fault.kind == "429_retry_after":
            reply = refusal(429, "Too many requests")
            reply.headers["Retry-After"] = "1"
            return reply
        if fault.kind == "429_ratelimit":
            reply = refusal(429, "Too many requests")
            reply.headers["RateLimit"] = f'"{bucket}";r=0;t=1'
            return reply
        if fault.kind.isdigit():
            return refusal(int(fault.kind), "Something went wrong on our side")
        return None

    def _reply(self, where: str) -> Reply:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ") or None
        if where == "cdn":
            return self._cdn()
        if token is not None and token not in self.hub.tokens:
            return refusal(401, "Invalid credentials in Authorization header")
        if where == "list":
            return self._listing(token)
        if where == "resolve":
            match = re.fullmatch(r"/([^/]+(?:/[^/]+)?)/resolve/([^/]+)/(.+)", self.route)
        else:
            match = re.fullmatch(
                r"/api/models/([^/]+?(?:/[^/]+?)?)(?:/refs|/(?:revision|tree)/([^/]+)(?:/(.+))?)?", self.route
            )
        if match is None:
            return refusal(404, "Not found")
        if (moved := self.hub.moved.get(match[1])) is not None:
            return Reply(307, headers={"Location": self.path.replace(match[1], moved, 1)})
        repo = self.hub.repos.get(match[1])
        if (denied := _denied(repo, token)) is not None or repo is None:
            return denied or refusal(404, "Repository not found", code="RepoNotFound")
        if where == "refs":
            return _json(refs_json(repo))
        commit = repo.resolve(match[2] or "main")
        if commit is None:
            return refusal(404, f"Invalid rev id: {match[2]}", code="RevisionNotFound")
        if where == "info":
            expand, blobs = self.query.get("expand", []), "blobs" in self.query
            return _json(repo_json(repo, commit, expand=expand, blobs=blobs))
        if where == "tree":
            recursive = self.query.get("recursive", ["false"])[0].lower() == "true"
            return _json(tree_json(repo.revisions[commit], under=match[3] or "", recursive=recursive))
        return self._resolve(repo, commit, match[3], token)

    def _listing(self, token: str | None) -> Reply:
        visible = [repo for repo in self.hub.repos.values() if _denied(repo, token) is None]
        found = matching(visible, self.query)
        start = int(self.query.get("cursor", ["0"])[0])
        limit = min(int(self.query.get("limit", [str(self.hub.page_size)])[0]), self.hub.page_size)
        expand = self.query.get("expand", [])
        page = [
            repo_json(repo, repo.head, expand=expand, blobs=False) for repo in found[start : start + limit]
        ]
        reply = _json(page)
        if start + limit < len(found):
            query = {**self.query, "cursor": [str(start + limit)]}
            link = f"{self.hub.url}/api/models?{urlencode(query, doseq=True)}"
            reply.headers["Link"] = f'<{link}>; rel="next"'
        return reply

    def _resolve(self, repo: Repo, commit: str, name: str, token: str | None) -> Reply:
        if repo.facts["gated"] and token not in repo.facts["_access"]:
            how = "You must be authenticated." if token is None else "You are not in the list."
            message = f"Access to model {repo.repo_id} is restricted. {how}"
            return refusal(401 if token is None else 403, message, code="GatedRepo")
        file = repo.revisions[commit].get(name)
        if file is None:
            reply = refusal(404, "Entry not found", code="EntryNotFound")
            reply.headers["X-Repo-Commit"] = commit
            return reply
        headers = {"X-Repo-Commit": commit, "ETag": f'"{file.blob_id}"', "Accept-Ranges": "bytes"}
        if file.sha256 is None:
            return self._file(file, headers)
        headers |= {"X-Linked-Etag": f'"{file.sha256}"', "X-Linked-Size": str(file.size)}
        headers["Location"] = self.hub.signed(repo.repo_id, commit, name)
        return Reply(302, b"Found. Redirecting", headers)

    def _cdn(self) -> Reply:
        expires, signature = (self.query.get(key, [""])[0] for key in ("Expires", "Signature"))
        path = urlsplit(self.path).path
        if signature != self.hub.signature(path, expires) or float(expires) < time.time():
            return Reply(
                403, b"<Error><Code>AccessDenied</Code></Error>", {"Content-Type": "application/xml"}
            )
        match = re.fullmatch(r"/cdn/(.+?)/([0-9a-f]{40})/(.+)", self.route)
        repo = self.hub.repos.get(match[1]) if match else None
        if match is None or repo is None:
            return refusal(404, "Not found")
        file = repo.revisions[match[2]][match[3]]
        return self._file(file, {"ETag": f'"{file.etag}"', "Accept-Ranges": "bytes"})

    def _file(self, file: StoredFile, headers: dict[str, str]) -> Reply:
        headers = {"Content-Type": "application/octet-stream", **headers}
        match = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if match is None or match[0] == "bytes=-":
            return Reply(200, headers=headers, file=file, length=file.size)
        if not match[1]:
            start, stop = max(0, file.size - int(match[2])), file.size
        else:
            start, stop = int(match[1]), min(int(match[2] or file.size) + 1, file.size)
        if start >= file.size:
            return Reply(416, headers={"Content-Range": f"bytes */{file.size}"})
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{file.size}"
        return Reply(206, headers=headers, file=file, start=start, length=stop - start)

    def _send(self, reply: Reply, where: str, fault: Fault | None) -> None:
        kind = fault.kind if fault else ""
        if kind == "no_reply" or (self.command == "HEAD" and kind in ("truncated", "reset")):
            self._hang_up(reset=kind == "reset")
            return
        if kind == "stalled" and (self.command == "HEAD" or reply.size == 0):
            self.hub.closing.wait(self.hub.stall_seconds)
            self._hang_up()
            return
        reply = _rewritten(reply, fault) if fault else reply
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(reply.size))
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault is None or kind not in BODY_FAULTS:
            self._stream(reply, where)
        else:
            self._break_off(reply, where, fault)

    def _stream(self, reply: Reply, where: str) -> None:
        if reply.file is None:
            self.hub.bucket.take(len(reply.body))
            self.wfile.write(reply.body)
            self.hub.count_bytes(where, len(reply.body))
            return
        with reply.file.path.open("rb") as stream:
            offset, stop = reply.start, reply.start + reply.size
            while offset < stop:
                piece = min(PIECE_BYTES, stop - offset)
                self.hub.bucket.take(piece)
                self.hub.link(self.route).take(piece)
                sent = os.sendfile(self.connection.fileno(), stream.fileno(), offset, piece)
                if sent == 0 or self.hub.is_down:
                    raise ConnectionResetError
                offset += sent
                self.hub.count_bytes(where, sent)

    def _break_off(self, reply: Reply, where: str, fault: Fault) -> None:
        """Send a body that ends early, breaks, hangs or carries one wrong byte."""
        body = bytearray(reply.read())
        if fault.kind == "wrong_bytes" and body:
            body[fault.random.randrange(len(body))] ^= 1 << fault.random.randrange(8)
        whole = fault.kind in ("wrong_bytes", "wrong_length") or not body
        stop = len(body) if whole else fault.random.randrange(len(body))
        self.wfile.write(body[:stop])
        self.hub.count_bytes(where, stop)
        if whole:
            return
        if fault.kind == "stalled":
            self.hub.closing.wait(self.hub.stall_seconds)
        self._hang_up(reset=fault.kind == "reset")

    def _hang_up(self, *, reset: bool = False) -> None:
        if reset:
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.close_connection = True


def _denied(repo: Repo | None, token: str | None) -> Reply | None:
    """The answer to someone who may not know that a repository exists, or to anyone when it is disabled."""
    if repo is None or (repo.facts["private"] and token not in repo.facts["_access"]):
        if token is None:
            return refusal(401, "Invalid username or password.")
        return refusal(404, "Repository not found", code="RepoNotFound")
    return refusal(403, "Access to this resource is disabled.") if repo.facts["disabled"] else None


def _json(value: Any) -> Reply:
    def plain(one: Any) -> Any:
        if isinstance(one, dict):
            return {key: plain(part) for key, part in one.items() if not key.startswith("_")}
        return [plain(part) for part in one] if isinstance(one, list | tuple) else one

    return Reply(200, json.dumps(plain(value)).encode(), {"Content-Type": "application/json"})


def _with_a_wrong_name(body: bytes, fault: Fault) -> bytes:
    names = [match.span() for match in re.finditer(rb"(?<=\")model\.layers[\w.]+", body)]
    if not names:
        return body
    wrong = bytearray(body)
    wrong[fault.random.randrange(*fault.random.choice(names))] ^= 1
    return bytes(wrong)


def _rewritten(reply: Reply, fault: Fault) -> Reply:
    """The reply with what a fault of its head changes: another page, commit, address, range or length."""
    headers = dict(reply.headers)
    if fault.kind == "html_page":
        return Reply(200, HTML, {"Content-Type": "text/html"})
    if fault.kind == "expired_redirect" and "Location" in headers:
        headers["Location"] = re.sub(r"Expires=[\d.]+", "Expires=1.000", headers["Location"])
    elif fault.kind == "expired_redirect" and reply.file is not None:
        return Reply(403, DENIED, {"Content-Type": "application/xml"})
    elif fault.kind == "replaced":
        other = f"{fault.random.getrandbits(160):040x}"
        for name in ("X-Repo-Commit", "ETag", "X-Linked-Etag"):
            if name in headers:
                headers[name] = other if name == "X-Repo-Commit" else f'"{other}"'
    elif fault.kind == "range_ignored" and reply.status == 206 and reply.file is not None:
        headers.pop("Content-Range")
        return Reply(200, headers=headers, file=reply.file, length=reply.file.size)
    elif fault.kind == "wrong_range" and reply.status == 206 and reply.file is not None:
        start = fault.random.randrange(reply.file.size)
        length = min(reply.size, reply.file.size - start)
        headers["Content-Range"] = f"bytes {start}-{start + length - 1}/{reply.file.size}"
        return Reply(206, headers=headers, file=reply.file, start=start, length=length)
    elif fault.kind == NAME_FAULT and reply.file is not None:
        return Reply(reply.status, _with_a_wrong_name(reply.read(), fault), headers)
    elif fault.kind == "wrong_length" and reply.size and reply.status in (200, 206):
        return Reply(reply.status, reply.read()[: fault.random.randrange(reply.size)], headers)
    return Reply(reply.status, reply.body, headers, reply.file, reply.start, reply.length)
