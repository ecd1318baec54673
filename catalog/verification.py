"""Reads a whole catalog and says what of it is damaged.

DuckDB ignores page checksums, and most single flipped bits give a silently different number there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import pyarrow as pa
import pyarrow.fs as pafs

from catalog import files
from catalog.remote import AT_ONCE
from catalog.schemas import SCHEMAS


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One damaged file, its path relative to the catalog, and what is wrong with it."""

    path: str
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """How many files were read, what is wrong, and how many belong to attempts never committed."""

    files: int
    problems: tuple[Problem, ...]
    uncommitted: int


def verify(filesystem: pafs.FileSystem, root: str) -> Verification:
    """Read every Parquet file under a catalog, checking each page against its checksum.

    A measured attempt must also have all its heads, and a sweep. ``uncommitted`` files come from writers
    that were killed or lost a race; they are harmless and no view shows them.
    """
    attempts: dict[str, tuple[str, int]] = {}
    details: dict[str, dict[str, int]] = {"heads": {}, "sweep": {}}
    paths = [(table, path) for table in SCHEMAS for path in files.list_files(filesystem, f"{root}/{table}")]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        read = list(pool.map(lambda each: _read(filesystem, root, *each), paths))
    for found in read:
        attempts |= found.attempts
        if found.table in details and found.problem is None:
            details[found.table][_attempt_id(found.path)] = found.rows
    problems = [Problem(path=found.path, problem=found.problem) for found in read if found.problem]
    problems += _missing_details(attempts, details, {problem.path for problem in problems})
    uncommitted = sum(len(found.keys() - attempts.keys()) for found in details.values())
    return Verification(files=len(paths), problems=tuple(problems), uncommitted=uncommitted)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """What is kept of one file; ``attempts`` as ``_measured_attempts`` says."""

    table: str
    path: str
    rows: int = 0
    attempts: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    problem: str | None = None


def _read(filesystem: pafs.FileSystem, root: str, table: str, path: str) -> _Read:
    relative = path.removeprefix(f"{root}/")
    try:
        rows = files.read_verified(filesystem, path, table=table)
        attempts = _measured_attempts(rows, relative) if table == "outcomes" else {}
    except (OSError, ValueError, KeyError) as error:
        return _Read(table=table, path=relative, problem=" ".join(str(error).split()) or type(error).__name__)
    return _Read(table=table, path=relative, rows=rows.num_rows, attempts=attempts)


def _measured_attempts(rows: pa.Table, path: str) -> dict[str, tuple[str, int]]:
    """Attempt id to (path, number of heads) of the measured rows."""
    records = rows.select(["attempt_id", "status", "heads"]).to_pylist()
    return {row["attempt_id"]: (path, row["heads"]) for row in records if row["status"] == "measured"}


def _attempt_id(path: str) -> str:
    return PurePosixPath(path).name.split(".")[-2]


def _missing_details(
    attempts: dict[str, tuple[str, int]], details: dict[str, dict[str, int]], damaged: Iterable[str]
) -> list[Problem]:
    reported = {_attempt_id(path) for path in damaged if not path.startswith("outcomes/")}
    missing = []
    for attempt_id, (path, heads) in attempts.items():
        if attempt_id in reported:
            continue
        found = details["heads"].get(attempt_id, 0)
        if found != heads:
            missing.append(Problem(path=path, problem=f"has {found} of its {heads} heads"))
        if not details["sweep"].get(attempt_id):
            missing.append(Problem(path=path, problem="has no sweep"))
    return missing
