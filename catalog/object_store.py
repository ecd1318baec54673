"""Objects of an S3-compatible store as the files of a catalog: listed, read whole, put where there was none.

Arrow has an S3 client of its own, which cannot put-if-absent and looks for endpoints, profiles and
credentials in its own way. So one client, botocore's, does the reading too, and both agree by
construction: the standard chain (environment, profiles, single sign-on, web identity, container and
instance roles), renewed before it expires. Nothing of it is pickled: another process finds its own.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import botocore.config
import botocore.exceptions
import botocore.session
import pyarrow as pa
import pyarrow.fs as pafs

from catalog.object_errors import is_transient, store_error
from catalog.remote import AT_ONCE
from zoo.errors import CatalogError

ATTEMPTS = 5
"""How often the client sends one request, within about a second."""

WAITS = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds between rounds of such attempts: a store that is away for half a minute loses no measurement."""

_PARAMETERS = {"endpoint_override", "scheme", "region"}
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Where a bucket is; what is ``None`` the environment or the profile says."""

    bucket: str
    endpoint: str | None = None
    region: str | None = None


def parse_uri(uri: str) -> tuple[Location, str]:
    """The location and ``bucket/prefix`` of ``s3://bucket/prefix?endpoint_override=...&scheme=...&region=...``.

    Raises ValueError, also for keys in the URI: it is printed, logged and sent to workers.
    """
    parts = urlsplit(uri)
    if "@" in parts.netloc:
        raise ValueError("keys do not belong in a URI: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    if not parts.netloc or parts.fragment:
        raise ValueError("it names no bucket" if not parts.netloc else "it has a #")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted(query.keys() - _PARAMETERS):
        raise ValueError(f"{unknown[0]} is none of its parameters, {', '.join(sorted(_PARAMETERS))}")
    endpoint = query.get("endpoint_override")
    if endpoint and "://" not in endpoint:
        endpoint = f"{query.get('scheme', 'https')}://{endpoint}"
    location = Location(bucket=parts.netloc, endpoint=endpoint or None, region=query.get("region") or None)
    return location, f"{parts.netloc}/{unquote(parts.path).strip('/')}".rstrip("/")


def open_store(uri: str) -> tuple[pafs.PyFileSystem, str]:
    """The store as an Arrow filesystem, and ``bucket/prefix`` in it.

    Raises ValueError when the URI cannot be understood, and CatalogError when the store does not answer
    or refuses: at once, while later requests are patient.
    """
    location, root = parse_uri(uri)
    store = ObjectStore(location)
    store.list_page(root, patient=False, MaxKeys=1)
    return pafs.PyFileSystem(store), root


class ObjectStore(pafs.FileSystemHandler):
    """One bucket. Paths are ``bucket/key``, as Arrow has them; every method may be called from any thread.

    Raises FileNotFoundError where there is no object, and CatalogError, in one line with the remedy, when
    the store does not answer or refuses.
    """

    def __init__(self, location: Location) -> None:
        self.location = location
        self._client: Any = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectStore, (self.location,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectStore) and other.location == self.location

    def __hash__(self) -> int:
        return hash(self.location)

    def put_if_absent(self, path: str, content: bytes) -> bool:
        """Make the object unless there is one: True when this call made it.

        A request whose answer was lost is sent again and finds its own object, known by its content.
        """
        return self._put(path, content) or self.get(path) == content

    def prove_writable(self, path: str) -> None:
        """Make an object at a new path, see that it cannot be made twice, and remove it."""
        self._put(path, b"first")
        if self._put(path, b"second"):
            raise CatalogError(
                f"{self._place} replaces an object that was to be made only where there is none "
                "(If-None-Match), so that two runs could destroy each other's results: use a store that "
                "knows conditional writes, or a folder"
            )
        try:
            self._ask(lambda: self._s3.delete_object(Bucket=self.location.bucket, Key=_key(path)))
        except CatalogError:  # no right to remove is needed: a probe is a few bytes that no reader sees
            return

    def get(self, path: str) -> bytes:
        """The whole object, at one moment."""
        get = {"Bucket": self.location.bucket, "Key": _key(path)}
        content: bytes = self._ask(lambda: self._s3.get_object(**get)["Body"].read(), path=path)
        return content

    def list_page(self, folder: str, *, patient: bool = True, **parameters: Any) -> dict[str, Any]:
        """One page of the objects under a folder, or that begin with a path, as S3's API gives it."""
        listed = {"Bucket": self.location.bucket, "Prefix": _key(folder)} | parameters
        page: dict[str, Any] = self._ask(lambda: self._s3.list_objects_v2(**listed), patient=patient)
        return page

    def _put(self, path: str, content: bytes) -> bool:
        put = {"Bucket": self.location.bucket, "Key": _key(path), "Body": content, "IfNoneMatch": "*"}
        try:
            self._ask(lambda: self._s3.put_object(**put))
        except FileExistsError:
            return False
        return True

    def _ask(self, request: Callable[[], _T], *, path: str = "", patient: bool = True) -> _T:
        for wait in (*(WAITS if patient else ()), None):
            try:
                return request()
            except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError, ValueError) as error:
                if wait is None or not is_transient(error):
                    raise store_error(error, place=self._place, path=path) from error
                time.sleep(wait * random.uniform(0.5, 1.0))
        raise AssertionError("the last round returns or raises")

    @property
    def _place(self) -> str:
        endpoint = self.location.endpoint or (self._client and self._client.meta.endpoint_url)
        return f"s3://{self.location.bucket}" + (f" at {endpoint}" if endpoint else "")

    @property
    def _s3(self) -> Any:
        """The client, made once a process; its pool of connections is shared by all threads."""
        with self._lock:
            if self._client is None:
                self._client = botocore.session.get_session().create_client(
                    "s3",
                    endpoint_url=self.location.endpoint,
                    region_name=self.location.region,
                    config=botocore.config.Config(
                        connect_timeout=5,
                        read_timeout=30,
                        max_pool_connections=AT_ONCE,
                        retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
                    ),
                )
            return self._client

    # What Arrow asks of a filesystem.

    def get_type_name(self) -> str:
        return "s3"

    def normalize_path(self, path: str) -> str:
        return path

    def open_input_file(self, path: str) -> pa.NativeFile:
        return pa.BufferReader(self.get(path))

    open_input_stream = open_input_file

    def get_file_info(self, paths: Sequence[str]) -> list[pafs.FileInfo]:
        return [self._info(path) for path in paths]

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        """The objects under a folder; a folder without one is as good as none."""
        folder = selector.base_dir.rstrip("/") + "/"
        within = {} if selector.recursive else {"Delimiter": "/"}
        return [
            pafs.FileInfo(f"{self.location.bucket}/{each['Key']}", pafs.FileType.File, size=each["Size"])
            for each in self._objects(folder, **within)
            if not each["Key"].endswith("/")
        ]

    def _objects(self, folder: str, **parameters: Any) -> Iterator[dict[str, Any]]:
        page = self.list_page(folder, **parameters)
        yield from page.get("Contents", ())
        while page["IsTruncated"]:
            page = self.list_page(folder, ContinuationToken=page["NextContinuationToken"], **parameters)
            yield from page.get("Contents", ())

    def _info(self, path: str) -> pafs.FileInfo:
        found = self.list_page(path, MaxKeys=1).get("Contents", ())
        if found and found[0]["Key"] == _key(path):
            return pafs.FileInfo(path, pafs.FileType.File, size=found[0]["Size"])
        below = self.list_page(f"{path}/", MaxKeys=1).get("Contents")
        return pafs.FileInfo(path, pafs.FileType.Directory if below else pafs.FileType.NotFound)

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise NotImplementedError("objects of a catalog are made by put_if_absent and never changed")

    copy_file = create_dir = delete_dir = delete_dir_contents = delete_file = _refuse
    delete_root_dir_contents = move = open_append_stream = open_output_stream = _refuse


def _key(path: str) -> str:
    return path.partition("/")[2]
