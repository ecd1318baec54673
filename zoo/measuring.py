"""Measure what a command needs and the catalog lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from zoo.records import RunOptions

if TYPE_CHECKING:
    from catalog.store import Catalog
    from zoo.records import Candidate, MeasurementSpec
    from zoo.reports import ScreenSummary


def measure_missing(
    candidates: Sequence[Candidate], *, catalog: Catalog, spec: MeasurementSpec, address: str | None
) -> ScreenSummary:
    """Measure the candidates that the catalog lacks, with progress on the standard error.

    Raises ClusterError when Ray cannot be reached, CatalogError when the catalog cannot be written, and
    KeyboardInterrupt after Ctrl-C, when what was measured until then is kept.
    """
    from rich.console import Console

    from zoo.progress import shown_progress
    from zoo.screen import plan, screen

    todo, summary = plan(candidates, done=catalog.done(spec.spec_id))
    if not todo:
        return summary
    with shown_progress(Console(stderr=True, highlight=False)) as progress:
        summary = screen(
            candidates, catalog=catalog, spec=spec, options=RunOptions(), address=address, progress=progress
        )
    if summary.interrupted:
        raise KeyboardInterrupt
    return summary
