"""What an object store's errors mean: which pass by themselves, and one line with the remedy for the rest."""

from __future__ import annotations

import errno

import botocore.exceptions as raised

from zoo.errors import CatalogError, first_line

_RENEW = "the credentials have expired: renew them (aws sso login, or new AWS_* variables) and run it again"
_KEYS = (
    "the store does not accept the credentials: check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or AWS_PROFILE"
)
_REGION = "it is in another region: name it with ?region= behind the URI, or AWS_DEFAULT_REGION"
_FULL = "the store is full or over its quota: make room, or name another catalog with --catalog"
_MEANINGS = {
    "NoSuchBucket": "there is no such bucket: make it, or check its name and the endpoint",
    "AccessDenied": "access is denied: the credentials need s3:ListBucket, GetObject and PutObject on it",
    "ExpiredToken": _RENEW,
    "ExpiredTokenException": _RENEW,
    "TokenRefreshRequired": _RENEW,
    "RequestExpired": _RENEW,
    "InvalidToken": _KEYS,
    "InvalidAccessKeyId": _KEYS,
    "SignatureDoesNotMatch": _KEYS,
    "RequestTimeTooSkewed": "this machine's clock is wrong: set it",
    "AuthorizationHeaderMalformed": _REGION,
    "PermanentRedirect": _REGION,
    "NotImplemented": "the store has no conditional writes (If-None-Match): use another, or a folder",
    "QuotaExceeded": _FULL,
    "InsufficientStorage": _FULL,
    "XMinioStorageFull": _FULL,
}
_BUSY = {"SlowDown", "RequestLimitExceeded", "Throttling", "ConditionalRequestConflict", "OperationAborted"}
_BROKEN_OFF = (
    raised.HTTPClientError,
    raised.ConnectionError,
    raised.IncompleteReadError,
    raised.FlexibleChecksumError,
)
_SIGNED_OUT = (
    raised.SSOError,
    raised.LoginError,
    raised.TokenRetrievalError,
    raised.CredentialRetrievalError,
)


def is_transient(error: Exception) -> bool:
    """Whether the same request may be answered in a moment."""
    if isinstance(error, raised.ClientError):
        return _code(error) in _BUSY or (_status(error) in (500, 502, 503, 504) and not _is_full(error))
    return isinstance(error, _BROKEN_OFF) and not isinstance(error, raised.SSLError)


def store_error(error: Exception, *, place: str, path: str) -> Exception:
    """The error as zoo raises it: FileExistsError or FileNotFoundError for an object, else CatalogError."""
    if isinstance(error, raised.ClientError):
        if _code(error) == "PreconditionFailed" or _status(error) == 412:
            return FileExistsError(errno.EEXIST, "there is an object already", path)
        if _code(error) == "NoSuchKey":
            return FileNotFoundError(errno.ENOENT, "there is no such object", path)
    return CatalogError(f"{place} cannot be used: {_meaning(error)}")


def _meaning(error: Exception) -> str:
    if isinstance(error, raised.ClientError):
        known = _FULL if _is_full(error) else _MEANINGS.get(_code(error))
        return (
            known or f"it answers {_code(error)} ({first_line(error)}): try again, or ask who runs the store"
        )
    if isinstance(error, raised.NoCredentialsError | raised.PartialCredentialsError):
        return (
            "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE, or "
            "give the machine a role"
        )
    if isinstance(error, _SIGNED_OUT):
        return (
            f"the credentials cannot be had ({first_line(error)}): sign in again, or name another AWS_PROFILE"
        )
    if isinstance(error, raised.ProfileNotFound):
        return f"{first_line(error)}: name one of ~/.aws/config with AWS_PROFILE"
    if isinstance(error, raised.SSLError):
        return f"the connection is not secure ({first_line(error)}): set AWS_CA_BUNDLE, or scheme=http"
    if isinstance(error, _BROKEN_OFF):
        return (
            f"it does not answer ({first_line(error)}): check the network and the endpoint "
            "(?endpoint_override= behind the URI, or AWS_ENDPOINT_URL), and run it again"
        )
    text = " ".join(str(error).split())[:200] or type(error).__name__
    return f"{text}: check the URI and AWS_ENDPOINT_URL"


def _code(error: raised.ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", "nothing"))


def _status(error: raised.ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _is_full(error: raised.ClientError) -> bool:
    return _status(error) == 507 or _MEANINGS.get(_code(error)) == _FULL
