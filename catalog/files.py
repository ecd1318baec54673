"""The catalog's files: where they lie, how one is published whole or not at all, how they are read.

Nothing that a reader can see is ever replaced or removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import time
import uuid
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from catalog.remote import RemoteDataset
from catalog.schemas import SCHEMAS
from zoo.errors import CatalogError
from zoo.records import SCHEMA_VERSION

STAGING = ".staging"
STAGED_ENDING = ".partial"
STALE_SECONDS = 24 * 3600
"""How old a staged file must be to belong to a writer that died, wherever it ran."""

_VERSION_KEY = b"zoo.schema_version"
_SCAN_OPTIONS = pads.ParquetFragmentScanOptions(page_checksum_verification=True)
_FORMAT = pads.ParquetFileFormat(default_fragment_scan_options=_SCAN_OPTIONS)


def resolve(uri: str) -> tuple[pafs.FileSystem, str]:
    """The Arrow filesystem and root path of a local path or a URI (``s3://bucket/prefix``).

    Raises OSError or ValueError (pyarrow's ArrowInvalid is one) when the URI cannot be understood, and
    CatalogError when an object store does not answer or refuses.
    """
    if uri.startswith("s3://"):
        from catalog.object_store import open_store

        return open_store(uri)
    if "://" in uri:
        filesystem, root = pafs.FileSystem.from_uri(uri)
        return filesystem, root.rstrip("/")
    if not uri.strip():
        raise ValueError("its name is empty")
    return pafs.LocalFileSystem(), os.path.abspath(os.path.expanduser(uri))


def is_local(filesystem: pafs.FileSystem) -> bool:
    """Whether the paths of this filesystem are paths of this machine."""
    return isinstance(filesystem, pafs.LocalFileSystem)


def parquet_bytes(table: pa.Table) -> bytes:
    """The table as one Parquet file: zstd, a checksum on every page, its schema's version.

    A single row is left uncompressed, which is smaller and reads in two thirds of the time. Only
    ``model_id`` has statistics, which let a query skip the files of other models: no checksum covers
    statistics, and damaged ones would hide rows.
    """
    sink = pa.BufferOutputStream()
    text = [field.name for field in table.schema if pa.types.is_string(field.type)]
    single = table.num_rows == 1
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="none" if single else "zstd",
        write_page_checksum=True,
        use_dictionary=False if single else text,
        write_statistics=["model_id"],
        store_schema=False,  # halves the footer, which is what opening a file costs
    ) as writer:
        writer.add_key_value_metadata({_VERSION_KEY: str(SCHEMA_VERSION)})
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def publish(filesystem: pafs.FileSystem, path: str, content: bytes, *, root: str) -> bool:
    """Make the file exist with this content, unless it exists: True when this call made it.

    Raises OSError or CatalogError when the filesystem refuses.
    """
    if is_local(filesystem):
        return _publish_locally(Path(path), content, staging=Path(root) / STAGING)
    made: bool = _store(filesystem).put_if_absent(path, content)
    return made


def prove_writable(filesystem: pafs.FileSystem, root: str) -> None:
    """Make a first file and remove it, and what dead writers left. Raises as ``publish`` does."""
    probe = f"{root}/{STAGING}/probe-{uuid.uuid4().hex}"
    if not is_local(filesystem):
        _store(filesystem).prove_writable(probe)
        return
    Path(root, "outcomes").mkdir(parents=True, exist_ok=True)
    _publish_locally(Path(probe), b"probe", staging=Path(root) / STAGING)
    Path(probe).unlink()
    _remove_stale_staging(Path(root) / STAGING)


def _store(filesystem: pafs.FileSystem) -> Any:
    """The object store behind an Arrow filesystem; others have no put-if-absent, and are only read."""
    handler = getattr(filesystem, "handler", None)
    if not hasattr(handler, "put_if_absent"):
        raise CatalogError(
            f"a catalog in {filesystem.type_name} can only be read: zoo writes to a folder or to s3://, "
            "which can make a file only where there is none; name one with --catalog"
        )
    return handler


def _publish_locally(path: Path, content: bytes, *, staging: Path) -> bool:
    """Staged and synced, then hard-linked: unlike a rename, a link never replaces."""
    staging.mkdir(exist_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = staging / f"{uuid.uuid4().hex}{_staged_ending()}"
    try:
        with staged.open("xb") as file:
            _lock(file)  # held until it is linked: the lock says that its writer lives
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            os.link(staged, path)
    except FileExistsError:
        return os.path.samefile(staged, path)  # over NFS a link can be made and its answer lost
    finally:
        staged.unlink(missing_ok=True)
    _sync_folder(path.parent)
    return True


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _staged_ending() -> str:
    return f".{platform.node()}{STAGED_ENDING}"


def _lock(file: IO[bytes]) -> None:
    with contextlib.suppress(OSError):  # a filesystem without locks
        fcntl.flock(file, fcntl.LOCK_EX)


def _remove_stale_staging(staging: Path) -> None:
    for staged in staging.glob(f"*{STAGED_ENDING}"):
        with contextlib.suppress(OSError):  # its writer, or another cleaner, was faster
            if time.time() - staged.stat().st_mtime > STALE_SECONDS or _is_abandoned(staged):
                staged.unlink()


def _is_abandoned(staged: Path) -> bool:
    """Whether a writer of this machine left the file: the system frees a lock when its holder dies.

    An empty file may be one whose writer is about to lock it.
    """
    with staged.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return staged.name.endswith(_staged_ending()) and staged.stat().st_size > 0


def list_files(filesystem: pafs.FileSystem, folder: str) -> list[str]:
    """The Parquet files under a folder, sorted; none when there is no such folder.

    The ``._`` companions that macOS leaves on foreign disks are not taken for Parquet.
    """
    selector = pafs.FileSelector(folder, recursive=True, allow_not_found=True)
    return sorted(
        info.path
        for info in filesystem.get_file_info(selector)
        if info.type == pafs.FileType.File
        and info.path.endswith(".parquet")
        and not PurePosixPath(info.path).name.startswith("._")
    )


def dataset(filesystem: pafs.FileSystem, paths: Sequence[str], table: str) -> pads.FileSystemDataset:
    """The files as one lazily read dataset with the table's schema and page checksums verified.

    Opens no file: a column that a file lacks reads as NULL, and one the schema lacks is left aside.
    """
    fragments = [_FORMAT.make_fragment(path, filesystem) for path in paths]
    kind = pads.FileSystemDataset if is_local(filesystem) else RemoteDataset
    return kind(fragments, SCHEMAS[table], _FORMAT, filesystem)


def read_verified(filesystem: pafs.FileSystem, path: str, *, table: str) -> pa.Table:
    """The whole file, every page checked against its checksum and its columns against the schema.

    No checksum covers a column's name. Raises OSError or ValueError when the file is damaged.
    """
    with filesystem.open_input_file(path) as file:
        parquet = pq.ParquetFile(file, page_checksum_verification=True)
        version = int((parquet.metadata.metadata or {}).get(_VERSION_KEY, 0))
        if not version:
            raise ValueError("it was not written by zoo")
        rows = parquet.read()
    if version == SCHEMA_VERSION and rows.schema != SCHEMAS[table]:
        raise ValueError(f"its columns are not those of {table} version {version}")
    return rows
