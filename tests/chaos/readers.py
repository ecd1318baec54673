"""Somebody who reads the catalog all the time while it is written."""

from __future__ import annotations

import threading

from catalog.query import run_query
from catalog.store import Catalog

QUERIES = (
    "select attempt_id from outcomes",
    "select model_id, sink_strength from ranking order by sink_strength",
    "select count(*), sum(mass) from heads",
    "select count(*), avg(sink_strength) from sweep",
)


class Reader(threading.Thread):
    """Queries the views once a second; keeps every attempt it ever saw, and every error."""

    def __init__(self, catalog: Catalog) -> None:
        super().__init__(daemon=True)
        self.catalog = catalog
        self.looks = 0
        self.seen: set[str] = set()
        self.errors: list[str] = []
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(1.0):
            try:
                for query in QUERIES:
                    rows = run_query(self.catalog, query).rows
                    if query == QUERIES[0]:
                        self.seen |= {row[0] for row in rows}
            except Exception as error:  # whatever it is, it is the finding
                self.errors.append(f"{type(error).__name__}: {error}")
            self.looks += 1

    def end(self) -> None:
        self._ended.set()
        self.join(timeout=60)
