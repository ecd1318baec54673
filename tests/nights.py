"""A Hub on the loopback whose clock a test sets, and nights that rescan it without Ray."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from catalog.store import Catalog
from catalog.watermarks import read_history
from tests.factories import SPEC, make_failure, make_measurement
from tests.hub_client import quick
from tests.hub_models import write_model
from tests.hub_server import HubServer
from zoo.architecture import describe_raw
from zoo.budget import Budget
from zoo.records import Candidate
from zoo.rescan import Night, keep, look
from zoo.searches import Search

FIRST = datetime(2026, 5, 1, tzinfo=UTC)
ANY_SIZE = Search(params="0..")

Fate = str
"""What becomes of a model that is tried: ``measured``, ``flaky`` (for the moment), ``broken`` or ``lost``."""


class World:
    """Repositories that come and change by the Hub's clock, and the log of what was measured."""

    def __init__(self, server: HubServer, catalog: Catalog, folder: Path) -> None:
        self.server, self.catalog, self.folder = server, catalog, folder
        self.clock = FIRST
        self.measured: Counter[tuple[str, str]] = Counter()
        self._contents = 0

    def pass_time(self, **time: float) -> None:
        self.clock += timedelta(**time)

    def release(self, name: str, *, seed: int | None = None, **facts: Any) -> str:
        """A new repository; the same seed is the same weights."""
        return self.server.add_repo(
            f"org/{name}", self._content(seed), **{"created_at": self.clock, "downloads": 10} | facts
        )

    def update(self, name: str, *, seed: int | None = None) -> str:
        return self.server.update_repo(f"org/{name}", self._content(seed), last_modified=self.clock)

    def heads(self) -> dict[str, str]:
        return {name: repo.head for name, repo in self.server.repos.items()}

    def look(self, search: Search = ANY_SIZE, **how: Any) -> Night:
        """What a night finds; ``keep`` and ``measure`` do the rest."""
        hub = quick(self.server, attempts=2)
        how = {"since": None, "budget": Budget(), "now": lambda: self.clock} | how
        return look(
            hub,
            catalog=self.catalog,
            history=read_history(self.catalog, spec_id=SPEC.spec_id),
            search=search,
            spec_id=SPEC.spec_id,
            describe=describe_raw,
            **how,
        )

    def night(
        self,
        search: Search = ANY_SIZE,
        *,
        fate: Callable[[Candidate], Fate] = lambda _: "measured",
        **how: Any,
    ) -> Night:
        """A whole night."""
        night = self.look(search, **how)
        keep(night, catalog=self.catalog)
        self.measure([model.candidate for model in night.plan.models], fate)
        return night

    def measure(self, candidates: Sequence[Candidate], fate: Callable[[Candidate], Fate]) -> None:
        done = self.catalog.done(SPEC.spec_id)
        for candidate in candidates:
            key = candidate.model_id, candidate.revision
            if key in done and not done[key].transient:
                continue
            what = fate(candidate)
            if what == "lost":
                continue
            failed = replace(make_failure(transient=what == "flaky", spec=SPEC), candidate=candidate)
            made = replace(make_measurement(heads=2, layers=1, spec=SPEC), candidate=candidate)
            assert self.catalog.commit(made if what == "measured" else failed).written
            self.measured[key] += what != "flaky"

    def _content(self, seed: int | None) -> Path:
        self._contents += 1
        number = self._contents if seed is None else 10_000 + seed
        folder = self.folder / str(number)
        return folder if folder.exists() else write_model(folder, seed=number)


def model_ids(night: Night) -> list[str]:
    """The names of the models that a night measures, in its order."""
    return [model.candidate.model_id.removeprefix("org/") for model in night.plan.models]


def reasons(night: Night) -> Mapping[str, str]:
    return {one.model_id.removeprefix("org/"): one.reason for one in night.plan.refusals}
