"""The folder that models are downloaded to: one task folder a download, its owner, and the space it needs.

Whose a task folder is, is decided here alone. The owner keeps a lock on the folder's marker while it lives,
and the system frees the lock when the owner ends, however it ends. Only a folder with such a marker whose
lock is free may be removed: nothing else in the work folder is zoo's, however old it is.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from huggingface_hub import constants

from zoo.errors import TransientModelError
from zoo.records import Candidate

MARKER_NAME = "zoo-task.json"
MARK = "task folder of zoo"
"""What a marker says of its folder, so that no other file of the same name is taken for one."""

SPARE_BYTES = 256 * 1024 * 1024
"""Disk that a download leaves free."""


def work_folder() -> Path:
    """Where models are downloaded to: ``ZOO_WORK``, else a folder under ``HF_HOME``."""
    return Path(os.environ.get("ZOO_WORK") or Path(constants.HF_HOME) / "zoo-work")


@contextmanager
def task_folder(root: Path, candidate: Candidate) -> Iterator[Path]:
    """A new folder for one download, gone afterwards, whatever happened.

    What killed owners left is removed first. Raises ``TransientModelError`` (stage ``fetch``):
    ``work_folder`` where it cannot be written, ``disk_full`` where the candidate does not fit.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        remove_abandoned(root)
        task = Path(tempfile.mkdtemp(prefix=f"{candidate.stem}-", dir=root))
        marker = mark(task, reserved_bytes=sum(file.size for file in candidate.files))
    except OSError as error:
        text = f"{root} cannot be written ({error.strerror}); set ZOO_WORK to a folder with space for models"
        raise TransientModelError(text, stage="fetch", reason="work_folder") from None
    with marker:
        try:
            check_space(root, candidate)
            yield task
        finally:
            shutil.rmtree(task, ignore_errors=True)


def mark(task: Path, *, reserved_bytes: int) -> IO[str]:
    """Make a folder this process's own for as long as the file that is returned stays open.

    The marker is locked before it says anything, so one that says whose it is and is not locked has lost
    its owner.
    """
    marker = (task / MARKER_NAME).open("x")
    with suppress(OSError):  # a filesystem without locks: such a folder is never taken for abandoned
        fcntl.flock(marker, fcntl.LOCK_EX)
    owner = {"this_is": MARK, "host": platform.node(), "pid": os.getpid(), "reserved_bytes": reserved_bytes}
    marker.write(json.dumps(owner))
    marker.flush()
    return marker


def remove_abandoned(root: Path) -> list[Path]:
    """Remove the marked folders whose owner on this machine is gone, and return them."""
    removed = []
    for task, owner in owners(root):
        if owner.get("host") == platform.node() and _remove_unowned(task):
            removed.append(task)
    return removed


def _remove_unowned(task: Path) -> bool:
    """Remove a marked folder while holding its lock, the marker last; ``False`` where its owner lives."""
    try:
        with (task / MARKER_NAME).open() as marker:
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for path in task.iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                elif path.name != MARKER_NAME:
                    path.unlink()
            (task / MARKER_NAME).unlink()
            task.rmdir()
    except OSError:  # locked, without locks, or not to be removed: the next start tries again
        return False
    return True


def owners(root: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The task folders that carry zoo's marker, and what it says of their owner."""
    for task in sorted(root.iterdir()):
        marker = task / MARKER_NAME
        if task.is_symlink() or marker.is_symlink() or not marker.is_file():
            continue
        with suppress(OSError, ValueError):
            owner = json.loads(marker.read_text())
            if isinstance(owner, dict) and owner.get("this_is") == MARK:
                yield task, owner


def check_space(root: Path, candidate: Candidate) -> None:
    """Raise ``TransientModelError`` (``disk_full``) unless it fits beside what others reserved."""
    promised = sum(max(0, owner["reserved_bytes"] - folder_bytes(task)) for task, owner in owners(root))
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
