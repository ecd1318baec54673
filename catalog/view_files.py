"""The views of the catalog, as their SQL files have them, and the tables they stand on."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files as package_files

VIEWS = (
    "outcomes",
    "measurements",
    "ranking",
    "heads",
    "layers",
    "sweep",
    "sweep_sizes",
    "windows",
    "slices",
    "sensitivity",
    "agreement",
    "doubts",
    "kv_heads",
    "layer_sinks",
    "weak_heads",
    "specs",
    "models",
    "scans",
    "panel",
    "calibrations",
    "predictions",
)
"""The views in the order in which they stand on each other."""

# Outcomes and scans first: whatever they name was written before them, so that it is in the later listings.
BASE_TABLES = {
    "outcomes": "outcome_files",
    "heads": "head_files",
    "sweep": "sweep_files",
    "scans": "scan_files",
    "models": "model_files",
    "calibrations": "calibration_files",
}
"""The names under which the tables stand below the views."""


def list_views() -> tuple[tuple[str, str], ...]:
    """Every view with its description, the first comment of its SQL file."""
    return tuple((view, view_sql(view).partition("\n")[0].removeprefix("-- ")) for view in VIEWS)


@cache
def view_sql(view: str) -> str:
    """The statement that makes a view."""
    return (package_files("catalog") / "views" / f"{view}.sql").read_text(encoding="utf-8")


def tables_named(sql: str) -> set[str]:
    """The tables that a query reads as far as its words tell, views followed to the ground.

    It may miss one, such as the second of a list or a name that the query puts together from parts.
    """
    seen: set[str] = set()
    names = _read_by(sql)
    while new := (names & {*VIEWS}) - seen:
        seen |= new
        names |= {name for view in new for name in _read_by(view_sql(view))}
    return {table for table, name in BASE_TABLES.items() if name in names}


def _read_by(sql: str) -> set[str]:
    return set(re.findall(r"\b(?:from|join)\s+\"?(\w+)", re.sub(r"--.*", "", sql).lower()))
