"""The errors of the Hub client as reasons and sentences; no other module translates them."""

from __future__ import annotations

import errno

import httpx2
from huggingface_hub.errors import (
    DisabledRepoError,
    FileMetadataError,
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from zoo.errors import ModelError, SourceError, TransientModelError, ZooError
from zoo.hub_limits import asked_seconds

LOCAL_REMEDY = "screen local models with --source FOLDER"


class BadAnswerError(Exception):
    """The Hub, or something in between, answered with what cannot be right; asking again may help."""


_TELLING = (ZooError, BadAnswerError, FileMetadataError, HfHubHTTPError, httpx2.HTTPError)
"""Errors that say what happened; the client wraps some of them in ones that do not."""


def limit_seconds(error: Exception) -> float | None:
    """How long a rate-limited answer asks to wait, ``None`` for everything else."""
    return asked_seconds(error.response) if isinstance(error, HfHubHTTPError) else None


def translate(error: BaseException, *, what: str, stage: str = "plan") -> ZooError:
    """The reason and one sentence for an error of the Hub client; it never repeats the client's own text.

    What is no error of the Hub is raised again as it is.
    """
    root = error
    while root.__cause__ is not None and not isinstance(root, _TELLING):
        root = root.__cause__
    if isinstance(root, ZooError):
        return root
    if isinstance(root, OfflineModeIsEnabled):
        return SourceError(f"HF_HUB_OFFLINE is set, so the Hub is not asked; unset it, or {LOCAL_REMEDY}")
    if isinstance(root, httpx2.UnsupportedProtocol | httpx2.InvalidURL):
        return SourceError(f"HF_ENDPOINT is no web address; correct or unset it, or {LOCAL_REMEDY}")
    if isinstance(root, OSError) and root.errno in (errno.ENOSPC, errno.EDQUOT):
        text = (
            f"the disk filled up while {what} was fetched; free some space or set ZOO_WORK to another folder"
        )
        return TransientModelError(text, stage=stage, reason="disk_full")
    if isinstance(root, HfHubHTTPError):
        return _from_status(root, what=what, stage=stage)
    if isinstance(root, BadAnswerError | FileMetadataError):
        message = f"the Hub's answers about {what} were malformed or broke off; try again later"
        return TransientModelError(message, stage=stage, reason="hub_unavailable")
    if isinstance(root, httpx2.ConnectError):
        message = f"the Hub cannot be reached for {what}; check the network, or {LOCAL_REMEDY}"
        return TransientModelError(message, stage=stage, reason="network")
    if isinstance(root, httpx2.HTTPError):
        message = (
            f"the connection to the Hub broke or stalled every time {what} was asked for; try again later"
        )
        return TransientModelError(message, stage=stage, reason="hub_unavailable")
    raise error


def _from_status(error: HfHubHTTPError, *, what: str, stage: str) -> ZooError:
    """The narrow errors first: a gated repository is also a repository that was not found."""

    def refused(reason: str, message: str) -> ModelError:
        return ModelError(message, stage=stage, reason=reason)

    status = error.response.status_code
    if isinstance(error, GatedRepoError):
        return refused("gated", gated_sentence(what, as_somebody=status == 403))
    if isinstance(error, DisabledRepoError):
        return refused("disabled", f"{what} was disabled on the Hub and cannot be downloaded by anyone")
    if isinstance(error, RevisionNotFoundError):
        return refused("not_found", f"{what} has no such revision; it may have been deleted since")
    if isinstance(error, RemoteEntryNotFoundError):
        return refused("incomplete_repo", f"{what} lacks a file that it lists")
    if status == 401 and "credentials" in (error.server_message or ""):
        return SourceError(
            "the Hub refuses the access token in use; renew HF_TOKEN, or unset it to go without"
        )
    if isinstance(error, RepositoryNotFoundError) or status in (401, 404):
        return refused(
            "not_found",
            f"{what} does not exist, or is private; check the spelling, or set HF_TOKEN if it is yours",
        )
    if status == 429:
        message = f"the Hub's rate limit stayed used up while {what} was asked for; try again later"
        return TransientModelError(message, stage=stage, reason="rate_limited")
    is_from_the_cdn = "X-Error-Message" not in error.response.headers
    if status >= 500 or status in (408, 416) or (status == 403 and is_from_the_cdn):
        message = f"the Hub kept answering {status} for {what}; try again later"
        return TransientModelError(message, stage=stage, reason="hub_unavailable")
    return refused("hub_refused", f"the Hub refuses to serve {what} (status {status})")


def gated_sentence(model_id: str, *, as_somebody: bool) -> str:
    """Why a gated repository is closed and how to get in."""
    how = (
        "the account of your HF_TOKEN has not been granted it yet"
        if as_somebody
        else "then set HF_TOKEN to a token of that account"
    )
    return f"{model_id} is gated: accept its terms or ask for access on its Hub page while logged in; {how}"
