"""How long SQL takes to say how sure every model of a catalog is, on a synthetic catalog.

Each view is queried in a fresh connection, with the files in the page cache, in turn with a plain count
of the heads, whose time is the unit of the last column. Usage: python bench/sensitivity.py [--models 1000]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from catalog.query import run_query
from catalog.store import Catalog, open_catalog
from tests.factories import make_candidate, make_measurement

TEMPLATES = 8
QUESTIONS = {
    "heads": "SELECT count(log_odds) FROM heads",
    "sweep_sizes": "SELECT * FROM sweep_sizes",
    "windows": "SELECT * FROM windows",
    "slices": "SELECT * FROM slices",
    "sensitivity": "SELECT * FROM sensitivity",
    "doubts": "SELECT * FROM doubts",
    "weak_heads": "SELECT * FROM weak_heads",
    "agreement": "SELECT * FROM agreement",
}


def fill(catalog: Catalog, *, models: int, layers: int, heads: int) -> None:
    """Commit models whose heads are those of a few templates and whose S differ."""
    templates = [make_measurement(seed=seed, layers=layers, heads=heads) for seed in range(TEMPLATES)]
    shifts = np.random.default_rng(0).normal(0.5, 0.6, models)
    for number, shift in enumerate(shifts):
        made = templates[number % TEMPLATES]
        moved = replace(made.strength, sink_strength=made.sink_strength + float(shift))
        catalog.commit(replace(made, candidate=make_candidate(f"org/m{number}"), strength=moved))


def main() -> None:
    """Print one row a view: rows, median seconds, and the ratio to counting the heads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        catalog = open_catalog(folder, create=True)
        fill(catalog, models=options.models, layers=options.layers, heads=options.heads)
        print(
            f"{options.models} models of {options.layers} layers with {options.heads} heads, "
            f"{options.rounds} rounds, {os.cpu_count()} cores"
        )
        print(f"{'view':<14}{'rows':>10}{'seconds':>10}{'x heads':>10}")
        seconds: dict[str, list[float]] = {name: [] for name in QUESTIONS}
        rows = {}
        for _ in range(options.rounds):
            for name, query in QUESTIONS.items():
                begun = time.perf_counter()
                rows[name] = len(run_query(catalog, query, timeout_seconds=600).rows)
                seconds[name].append(time.perf_counter() - begun)
        for name, times in seconds.items():
            median = float(np.median(times))
            ratio = median / float(np.median(seconds["heads"]))
            print(f"{name:<14}{rows[name]:>10}{median:>10.2f}{ratio:>10.1f}")


if __name__ == "__main__":
    main()
