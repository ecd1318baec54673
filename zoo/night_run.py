"""Measures what a night found, and compares the ranking with the one before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic

from catalog.lookup import ranked_places
from catalog.store import Catalog
from zoo.nights import NightSummary, Place, RankingChanges, compare_rankings, places
from zoo.profiles import Settings
from zoo.records import Candidate, MeasurementSpec, Refusal, RunOptions
from zoo.reports import ScreenProgress, ScreenSummary
from zoo.rescan import Night


def measure_night(
    night: Night,
    *,
    catalog: Catalog,
    spec: MeasurementSpec,
    settings: Settings,
    address: str | None = None,
    started: float,
    progress: Callable[[ScreenProgress], None] = lambda _: None,
) -> NightSummary:
    """How the planned models of a night end; ``started`` is the ``monotonic`` second its hours count from.

    Without a planned model no Ray is started. Raises what ``zoo.screen.screen`` raises.
    """
    screened, changes = ScreenSummary(), RankingChanges.none()
    candidates = [model.candidate for model in night.plan.models]
    if candidates:
        before = _places(catalog, spec)
        screened = _screened(
            candidates,
            refusals=night.plan.refusals,
            catalog=catalog,
            spec=spec,
            settings=settings,
            address=address,
            spent_seconds=monotonic() - started,
            progress=progress,
        )
        changes = compare_rankings(before, _places(catalog, spec))
    return NightSummary(
        night=night,
        screened=screened,
        changes=changes,
        catalog_uri=catalog.uri,
        elapsed_seconds=monotonic() - started,
    )


def _screened(
    candidates: list[Candidate],
    *,
    refusals: Sequence[Refusal],
    catalog: Catalog,
    spec: MeasurementSpec,
    settings: Settings,
    address: str | None,
    spent_seconds: float,
    progress: Callable[[ScreenProgress], None],
) -> ScreenSummary:
    """The screen of the candidates: the most promising first where time is short, else the largest."""
    from zoo.screen import screen

    hours = settings.budget_hours
    seconds = hours * 3600 - spent_seconds if hours else None
    if seconds is not None and seconds <= 0:  # looking took all of them, so no Ray is started
        return ScreenSummary(not_ended=tuple(candidates), out_of_time=True)
    return screen(
        candidates,
        catalog=catalog,
        spec=spec,
        options=RunOptions(
            device=settings.device or "auto",
            dtype=settings.dtype or "auto",
            load=settings.load or "auto",
            verify=settings.verify or "parts",
        ),
        address=address,
        gpus_per_model=settings.gpus_per_model,
        stop_after_seconds=seconds,
        order="given" if hours else "largest",
        refusals=refusals,
        progress=progress,
    )


def _places(catalog: Catalog, spec: MeasurementSpec) -> tuple[Place, ...]:
    return places(ranked_places(catalog, spec.spec_id))
