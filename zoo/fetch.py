"""Downloads one pinned model into a folder of its own that is checked byte by byte and then removed."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from huggingface_hub import constants, hf_hub_download
from huggingface_hub.utils import disable_progress_bars

from zoo import __version__
from zoo.errors import ModelError, SourceError, TransientModelError
from zoo.hub import Hub
from zoo.hub_errors import BadAnswerError, translate
from zoo.hub_limits import heeding_session
from zoo.records import Candidate, RepoFile

OWNER_NAME = "owner.json"
MODEL_NAME = "model"
SPARE_BYTES = 256 * 1024 * 1024
"""Disk that a download leaves free."""

CONNECTIONS = 4


def work_folder() -> Path:
    """Where models are downloaded to: ``ZOO_WORK``, else a folder under ``HF_HOME``."""
    return Path(os.environ.get("ZOO_WORK") or Path(constants.HF_HOME) / "zoo-work")


@contextmanager
def fetch(candidate: Candidate, *, hub: Hub, work: Path | None = None) -> Iterator[Path]:
    """A folder with exactly the candidate's files, each equal to the digest that the plan pinned.

    It is gone afterwards, whatever happened; what a killed process left is removed by the next fetch.

    Raises:
        ModelError: stage ``fetch``, a reason of the Hub.
        TransientModelError: ``disk_full`` before or during the download, ``work_folder`` that cannot be
            written, ``hub_unavailable``, ``rate_limited``, ``network`` or ``corrupt_download``.
    """
    root = work or work_folder()
    try:
        root.mkdir(parents=True, exist_ok=True)
        remove_abandoned(root)
        task = Path(tempfile.mkdtemp(prefix=f"{candidate.stem}-", dir=root))
    except OSError as error:
        text = f"{root} cannot be written ({error.strerror}); set ZOO_WORK to a folder with space for models"
        raise TransientModelError(text, stage="fetch", reason="work_folder") from None
    try:
        yield _fill(task, candidate, hub=hub)
    finally:
        shutil.rmtree(task, ignore_errors=True)


@contextmanager
def beside_weights(candidate: Candidate) -> Iterator[Candidate]:
    """The candidate with what is beside its weights on disk; raises what ``fetch`` raises.

    The configuration and the tokenizer of a Hub model are fetched and stay for the block.
    """
    if candidate.format != "hub":
        yield candidate
        return
    small = tuple(file for file in candidate.files if not file.path.endswith(".safetensors"))
    with fetch(replace(candidate, files=small), hub=Hub()) as folder:
        yield replace(candidate, format="folder", location=str(folder))


def _fill(task: Path, candidate: Candidate, *, hub: Hub) -> Path:
    """The candidate's files in the task's folder."""
    try:
        write_owner(task, reserved_bytes=sum(file.size for file in candidate.files))
        check_space(task.parent, candidate)
        return _download(candidate, task / MODEL_NAME, hub=hub)
    except ModelError as error:
        raise type(error)(str(error), stage="fetch", reason=error.reason) from None
    except SourceError as error:
        raise TransientModelError(str(error), stage="fetch", reason="hub_refused") from None
    except OSError as error:
        raise translate(error, what=candidate.model_id, stage="fetch") from None


def _download(candidate: Candidate, folder: Path, *, hub: Hub) -> Path:
    """Download, compare with the digests, and fetch once more what differs."""
    if not candidate.files:
        raise ValueError(f"{candidate.model_id} has no list of files; plan it first")
    for _ in range(2):
        hub.ask(candidate.model_id, lambda: _snapshot(candidate, folder, hub=hub), bucket="resolvers")
        wrong = [file for file in candidate.files if not is_intact(folder / file.path, file)]
        if not wrong:
            shutil.rmtree(folder / ".cache", ignore_errors=True)
            return folder
        for file in wrong:
            (folder / file.path).unlink(missing_ok=True)
    names = ", ".join(file.path for file in wrong[:3])
    text = (
        f"{names} of {candidate.model_id} arrived with other bytes than the Hub lists, twice; try again later"
    )
    raise TransientModelError(text, stage="fetch", reason="corrupt_download")


def _snapshot(candidate: Candidate, folder: Path, *, hub: Hub) -> None:
    """One attempt of the Hub client for every file; those already there are kept.

    Not ``snapshot_download``: it lists the repository once more, in a request that cannot time out.
    """
    heeding_session()
    disable_progress_bars()
    if "HF_HUB_VERBOSITY" not in os.environ:
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its warnings show signed addresses

    def download(file: RepoFile) -> None:
        hf_hub_download(
            candidate.location,
            file.path,
            revision=candidate.revision,
            local_dir=folder,
            cache_dir=folder.parent / "cache",
            endpoint=hub.endpoint,
            etag_timeout=hub.timeout_seconds,
            library_name="zoo",
            library_version=__version__,
        )

    try:
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            list(pool.map(download, candidate.files))
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError) as error:
        raise BadAnswerError("malformed metadata") from error
    except OSError as error:
        if type(error) is OSError and error.errno is None:
            raise BadAnswerError("another length than stated") from error
        raise


def is_intact(path: Path, file: RepoFile) -> bool:
    """Whether a file on disk is the one that the Hub listed, to its last byte."""
    if not path.is_file() or path.is_symlink() or path.stat().st_size != file.size:
        return False
    digest = hashlib.sha256() if file.sha256 else hashlib.sha1(b"blob %d\0" % file.size)
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest() == (file.sha256 or file.blob_id)


def check_space(root: Path, candidate: Candidate) -> None:
    """Raise ``TransientModelError`` (``disk_full``) unless it fits beside what others reserved."""
    promised = sum(
        max(0, owner.get("reserved_bytes", 0) - folder_bytes(task)) for task, owner in owners(root) if owner
    )
    free = shutil.disk_usage(root).free
    if promised + SPARE_BYTES > free:
        need = sum(file.size for file in candidate.files)
        text = (
            f"{candidate.model_id} needs {need / 1e9:.1f} GB in {root}, which has {free / 1e9:.1f} GB left "
            "for this and other running downloads; free some space or choose another folder with ZOO_WORK"
        )
        raise TransientModelError(text, stage="fetch", reason="disk_full")


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below a folder, as far as they can be seen."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.lstat().st_size if not path.is_dir() else 0
    return total


def write_owner(task: Path, *, reserved_bytes: int) -> None:
    """Say whose folder this is, so that others can tell when its owner is gone."""
    pid = os.getpid()
    owner = {
        "host": socket.gethostname(),
        "pid": pid,
        "started": process_start(pid),
        "reserved_bytes": reserved_bytes,
    }
    (task / OWNER_NAME).write_text(json.dumps(owner))


def process_start(pid: int) -> str | None:
    """When a process began, in the kernel's ticks, ``None`` if there is none; tells a reused pid apart."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return text.rpartition(")")[2].split()[19]


def owners(root: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The task folders and what they say of their owner; an unreadable one is empty."""
    for task in sorted(root.iterdir()):
        try:
            owner = json.loads((task / OWNER_NAME).read_text())
            yield task, owner if isinstance(owner, dict) else {}
        except (OSError, ValueError):
            yield task, {}


def remove_abandoned(root: Path) -> list[Path]:
    """Remove the folders whose owner on this machine is gone, and return them.

    A folder without a readable owner is left for ten minutes: someone may be about to write it.
    """
    removed = []
    for task, owner in owners(root):
        if not owner:
            with suppress(OSError):
                if not task.is_dir() or time.time() - task.stat().st_mtime < 600:
                    continue
        elif owner.get("host") != socket.gethostname() or is_alive(owner):
            continue
        shutil.rmtree(task, ignore_errors=True)
        removed.append(task)
    return removed


def is_alive(owner: dict[str, Any]) -> bool:
    """Whether the process that made a folder still runs on this machine."""
    pid = owner.get("pid")
    if not isinstance(pid, int):
        return False
    if Path("/proc/self/stat").exists():
        return owner.get("started") is not None and process_start(pid) == owner.get("started")
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
