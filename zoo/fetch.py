"""Downloads one pinned model into a folder of its own that is checked byte by byte and then removed."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from huggingface_hub import hf_hub_download
from huggingface_hub.utils import disable_progress_bars

from zoo import __version__
from zoo.errors import ModelError, SourceError, TransientModelError
from zoo.hub import Hub
from zoo.hub_errors import BadAnswerError, translate
from zoo.hub_limits import heeding_session
from zoo.records import Candidate, RepoFile
from zoo.work_folder import task_folder, work_folder

MODEL_NAME = "model"

CONNECTIONS = 4


@contextmanager
def fetch(candidate: Candidate, *, hub: Hub, work: Path | None = None) -> Iterator[Path]:
    """A folder with exactly the candidate's files, each equal to the digest that the plan pinned.

    It is gone afterwards, whatever happened; what a killed process left is removed by the next fetch.

    Raises:
        ModelError: stage ``fetch``, a reason of the Hub.
        TransientModelError: ``disk_full`` before or during the download, ``work_folder`` that cannot be
            written, ``hub_unavailable``, ``rate_limited``, ``network`` or ``corrupt_download``.
    """
    with task_folder(work or work_folder(), candidate) as task:
        yield _fill(task, candidate, hub=hub)


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
