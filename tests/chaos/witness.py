"""What the chaos run knows apart from zoo: its own log of acknowledged commits and of tries.

The module travels to Ray's workers by value.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tasks import measurement

from catalog.store import Catalog, CommitResult
from zoo.records import Candidate, Outcome
from zoo.tasks import measure_in_process, ray

TRIVIAL_SECONDS = 1.0


class WitnessedCatalog(Catalog):
    """A catalog whose commits are written down, durably, once they were acknowledged."""

    __slots__ = ()

    def commit(self, outcome: Outcome, *, force: bool = False) -> CommitResult:
        result = super().commit(outcome, force=force)
        write_line(
            log_folder(self.root) / "commits.jsonl",
            model_id=outcome.candidate.model_id,
            revision=outcome.candidate.revision,
            attempt_id=result.attempt_id,
            attempt=result.attempt,
            written=result.written,
        )
        return result


def witnessed(catalog: Catalog) -> WitnessedCatalog:
    log_folder(catalog.root).mkdir(exist_ok=True)
    return WitnessedCatalog(uri=catalog.uri, filesystem=catalog.filesystem, root=catalog.root)


def log_folder(root: str) -> Path:
    return Path(root).parent / "witness"


def write_line(path: Path, **fields: Any) -> None:
    """Appends one JSON line in one write and syncs it, so that lines of many processes never mix."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, (json.dumps({"at": time.time(), **fields}) + "\n").encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def measure_for_real(candidate: Candidate, **how: Any) -> Outcome:
    """The real measurement, and a line for the try."""
    write_line(_tries(candidate), model_id=candidate.model_id)
    return measure_in_process(candidate, **how)


def measure_trivially(candidate: Candidate, *, spec: Any, on_stage: Callable[..., None], **_: Any) -> Outcome:
    """A made-up measurement whose S follows from the name; needs no torch."""
    write_line(_tries(candidate), model_id=candidate.model_id)
    on_stage("probe")
    time.sleep(TRIVIAL_SECONDS)
    return measurement(candidate, sink_strength=trivial_strength(candidate), spec=spec)


def trivial_strength(candidate: Candidate) -> float:
    return int(candidate.revision[:6], 16) / 1e6


def _tries(candidate: Candidate) -> Path:
    """Models lie at <run>/models/<org>/<name>."""
    return Path(candidate.location).parents[2] / "witness" / "tries.jsonl"


ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
