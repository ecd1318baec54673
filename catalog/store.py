"""The catalog of what was measured: immutable Parquet files in a folder or an object store.

How an outcome is committed (decided here, once):

1. An attempt draws an ``attempt_id`` of 12 random hex digits and writes its heads and sweep to
   ``heads/spec=<spec_id>/<stem>.<attempt_id>.parquet`` and ``sweep/...``. Nobody sees them yet.
2. It then publishes its one row as ``outcomes/spec=<spec_id>/<stem>.parquet``; attempt n > 1 is
   ``<stem>.<n>.parquet``. That file appears whole and only where there was none, and **its existence is
   the commit**. Views find heads and sweep through the ``attempt_id`` of a committed row, so what a
   killed writer left is never seen. (It is not removed either: a reader may have it open.)
3. Of two writers with the same attempt number one wins. The other looks again: unless it was forced
   and unless what won is a transient failure, its rows are dropped and ``CommitResult.written`` is
   False; otherwise it goes on with the next number.

Which attempt counts: the latest, except that a transient failure (the network, a preempted machine)
says nothing about the model. It counts only while no other attempt does, so it neither hides an
earlier measurement nor re-opens a model that was refused for good. A permanent failure of a later,
forced attempt does count: the model leaves the ranking, and its history shows why.
"""

from __future__ import annotations

import platform
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.fs as pafs

from catalog import files, verification
from catalog.rows import head_table, outcome_table, sweep_table
from catalog.schemas import SCHEMAS
from zoo.errors import CatalogError, NoCatalogError
from zoo.records import Candidate, Measurement, MeasurementSpec, Outcome

_RECORDED_COLUMNS = (
    "model_id",
    "revision",
    "attempt",
    "attempt_id",
    "status",
    "stage",
    "reason",
    "transient",
    "sink_strength",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One attempt that the catalog holds."""

    attempt: int
    attempt_id: str
    status: str
    stage: str | None
    reason: str | None
    transient: bool
    sink_strength: float | None = None
    """Nats; ``None`` for a failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """What became of a commit: ``written``, or dropped because ``attempt`` counted already."""

    written: bool
    attempt: int
    attempt_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """A catalog that was opened; picklable, and safe to use from many processes at once."""

    uri: str
    filesystem: pafs.FileSystem
    root: str

    def folder(self, table: str, spec_id: str | None = None) -> str:
        """The folder of a table, or of one spec in it."""
        return f"{self.root}/{table}" + (f"/spec={spec_id}" if spec_id else "")

    def has(self, table: str) -> bool:
        """Whether there is anything of a table; an object store has no empty folders. Raises OSError."""
        return bool(self.filesystem.get_file_info(self.folder(table)).type == pafs.FileType.Directory)

    def list_files(self, table: str, *, spec_id: str | None = None, model_id: str | None = None) -> list[str]:
        """The paths of a table's files, of one spec or one model if given. Raises OSError."""
        paths = files.list_files(self.filesystem, self.folder(table, spec_id))
        if model_id is None:
            return paths
        prefix = f"{model_id.replace('/', '--')}@"  # as Candidate.stem begins
        return [path for path in paths if path.rpartition("/")[2].startswith(prefix)]

    def commit(self, outcome: Outcome, *, force: bool = False) -> CommitResult:
        """Record an outcome for good; see the module's text for who wins a race.

        Without ``force`` nothing is written where an attempt other than a transient failure counts.
        Raises ValueError when a number is NaN or infinite or the revision is no 40-hex commit, and
        CatalogError when the catalog cannot be written.
        """
        if not re.fullmatch(r"[0-9a-f]{40}", outcome.candidate.revision):
            raise ValueError(f"{outcome.candidate.revision!r} is not a revision of 40 hex digits")
        attempt_id = secrets.token_hex(6)
        details = _details(outcome, attempt_id)
        try:
            earlier = self._attempts(outcome.candidate, outcome.spec)
            while force or not _is_settled(earlier):
                attempt = len(earlier) + 1
                row = outcome_table(outcome, attempt=attempt, attempt_id=attempt_id)
                while details:
                    self._publish(*details.popitem(), outcome, f".{attempt_id}")
                if self._publish("outcomes", row, outcome, "" if attempt == 1 else f".{attempt}"):
                    return CommitResult(written=True, attempt=attempt, attempt_id=attempt_id)
                earlier = self._attempts(outcome.candidate, outcome.spec)
        except OSError as error:
            raise _unwritable(self.uri, error) from error
        winner = counting(earlier)
        return CommitResult(written=False, attempt=winner.attempt, attempt_id=winner.attempt_id)

    def done(self, spec_id: str) -> Mapping[tuple[str, str], Recorded]:
        """The attempt that counts of each (model_id, revision) tried under a spec.

        Raises CatalogError when a file cannot be read.
        """
        try:
            paths = self.list_files("outcomes", spec_id=spec_id)
            rows = files.dataset(self.filesystem, paths, "outcomes").to_table(columns=list(_RECORDED_COLUMNS))
        except (OSError, ValueError) as error:
            raise _unreadable(self.uri, error) from error
        attempts: dict[tuple[str, str], list[Recorded]] = {}
        for row in rows.to_pylist():
            attempts.setdefault((row.pop("model_id"), row.pop("revision")), []).append(Recorded(**row))
        return {key: counting(recorded) for key, recorded in attempts.items()}

    def settled(self, candidate: Candidate, spec: MeasurementSpec) -> Recorded | None:
        """The attempt that counts of one model, unless there is none or it is a transient failure.

        Raises CatalogError when it cannot be read.
        """
        try:
            attempts = self._attempts(candidate, spec)
        except OSError as error:
            raise _unreadable(self.uri, error) from error
        return counting(attempts) if _is_settled(attempts) else None

    def check_here(self) -> None:
        """Raises CatalogError where this machine does not see the folder that was opened on another."""
        if files.is_local(self.filesystem) and not self.has("outcomes"):
            raise CatalogError(
                f"{self.uri} is not on the node {platform.node()}: name a folder on a disk that all nodes "
                "share, or s3://bucket/prefix, with --catalog"
            )

    def verify(self) -> verification.Verification:
        """Read every byte of every file; see ``catalog.verification``."""
        try:
            return verification.verify(self.filesystem, self.root)
        except OSError as error:
            raise _unreadable(self.uri, error) from error

    def _publish(self, table: str, rows: pa.Table, outcome: Outcome, suffix: str) -> bool:
        path = f"{self.folder(table, outcome.spec.spec_id)}/{outcome.candidate.stem}{suffix}.parquet"
        return files.publish(self.filesystem, path, files.parquet_bytes(rows), root=self.root)

    def _attempts(self, candidate: Candidate, spec: MeasurementSpec) -> list[Recorded]:
        """The committed attempts of a model under a spec, in order."""
        stem = f"{self.folder('outcomes', spec.spec_id)}/{candidate.stem}"
        found: list[Recorded] = []
        while True:
            path = f"{stem}.{len(found) + 1}.parquet" if found else f"{stem}.parquet"
            try:
                table = files.read_verified(self.filesystem, path, table="outcomes").select(
                    list(_RECORDED_COLUMNS)
                )
            except FileNotFoundError:
                return found
            except (OSError, ValueError, KeyError) as error:
                raise _unreadable(path, error) from error
            row = table.to_pylist()[0]
            _check_same_model(candidate, row.pop("model_id"), row.pop("revision"))
            found.append(Recorded(**row))


def open_catalog(uri: str, *, create: bool = False) -> Catalog:
    """The catalog at a local path or URI.

    With ``create`` it is made where there is none, and proved writable. Raises CatalogError when there
    is none, when the path is a file, and when it cannot be read (or, with ``create``, written).
    """
    try:
        filesystem, root = files.resolve(uri)
        catalog = Catalog(uri=uri, filesystem=filesystem, root=root)
        is_file = filesystem.get_file_info(root).type == pafs.FileType.File
        exists = any(map(catalog.has, (*SCHEMAS, "panel")))
    except (OSError, ValueError) as error:
        raise CatalogError(
            f"{uri!r} cannot be opened as a catalog ({_reason(error)}): name a folder or s3://bucket/prefix "
            "with --catalog or ZOO_CATALOG"
        ) from error
    if is_file:
        raise CatalogError(f"{uri} is a file, and a catalog is a folder: name another with --catalog")
    if create:
        _make(catalog)
    elif not exists:
        raise NoCatalogError(
            f"there is no catalog at {uri}: make one with zoo screen --catalog {uri}, or name another with "
            "--catalog or ZOO_CATALOG"
        )
    return catalog


def counting(attempts: Iterable[Recorded]) -> Recorded:
    """The attempt that counts: the latest that is no transient failure, or else the latest."""
    return max(attempts, key=lambda recorded: (not recorded.transient, recorded.attempt))


def _make(catalog: Catalog) -> None:
    try:
        files.prove_writable(catalog.filesystem, catalog.root)
    except OSError as error:
        raise _unwritable(catalog.uri, error) from error


def _details(outcome: Outcome, attempt_id: str) -> dict[str, pa.Table]:
    """The tables that must lie in the catalog before the outcome's row does."""
    if not isinstance(outcome, Measurement):
        return {}
    return {
        "heads": head_table(outcome, attempt_id=attempt_id),
        "sweep": sweep_table(outcome, attempt_id=attempt_id),
    }


def _is_settled(attempts: list[Recorded]) -> bool:
    return bool(attempts) and not counting(attempts).transient


def _check_same_model(candidate: Candidate, model_id: str, revision: str) -> None:
    if (model_id, revision) != (candidate.model_id, candidate.revision):
        raise CatalogError(
            f"{candidate.model_id} and {model_id}, which is in the catalog, share the file name "
            f"{candidate.stem}: rename one of them"
        )


def _unwritable(uri: str, error: BaseException) -> CatalogError:
    return CatalogError(
        f"the catalog {uri} cannot be written ({_reason(error)}): name a folder you may write to, on a disk "
        "with free space and hard links, with --catalog"
    )


def _unreadable(uri: str, error: BaseException) -> CatalogError:
    return CatalogError(f"{uri} cannot be read ({_reason(error)}): zoo verify names all damaged files")


def _reason(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(text.split())
