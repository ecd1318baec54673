"""Whatever is killed while models are screened, every model ends in the catalog once and none is lost."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from chaos.laws import broken_laws

from catalog.store import Catalog
from tests.factories import make_candidate, make_failure, make_measurement

TESTS = Path(__file__).parent


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="adopts orphans as only Linux can")
def test_killed_tasks_nodes_and_drivers_lose_no_model_and_measure_none_twice() -> None:
    """The small sister of ``make chaos``: real Ray nodes, a measurement without torch."""
    command = "-m chaos --models 10 --kills 6 --nodes 2 --every 3 --seed 7 --kill-driver --trivial"
    run = subprocess.Popen(
        [sys.executable, *command.split()],
        env={**os.environ, "PYTHONPATH": f"{TESTS.parent}:{TESTS}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        said = run.communicate(timeout=280)[0]
    finally:
        for left in psutil.Process(run.pid).children(recursive=True) if run.poll() is None else ():
            left.kill()
        run.kill()
    assert run.returncode == 0, said
    assert "Every law holds." in said
    assert int(re.search(r"(\d+) kills", said)[1]) >= 6, said
    assert all(re.search(rf"[1-9]\d* {victim}", said) for victim in ("driver", "raylet", "task")), said


class TestTheOracle:
    """It names every law that a catalog breaks; an oracle that never speaks would prove nothing."""

    def broken(self, catalog: Catalog, **changes: object) -> list[str]:
        rows = [make_candidate(f"org/m{number}") for number in range(3)] + [make_candidate("org/broken")]
        facts = {"models": rows, "commits": [], "seen": [], "expected": {"org/m1": 1.5}} | changes
        return broken_laws(catalog, **facts)

    def test_a_whole_catalog_breaks_no_law(self, catalog: Catalog) -> None:
        assert self.broken(catalog) == []

    def test_a_model_without_an_outcome_is_named(self, catalog: Catalog) -> None:
        models = [make_candidate(f"org/m{number}") for number in range(4)] + [make_candidate("org/broken")]
        assert self.broken(catalog, models=models) == ["org/m3 has 0 outcomes that count"]

    def test_an_acknowledged_attempt_that_is_not_there_is_named(self, catalog: Catalog) -> None:
        lost = make_candidate("org/m0")
        line = {"model_id": lost.model_id, "revision": lost.revision, "attempt": 1}
        (said,) = self.broken(catalog, commits=[{**line, "attempt_id": "0" * 12, "written": True}])
        assert "acknowledged attempt 000000000000 of org/m0 is lost" in said

    def test_an_attempt_that_a_reader_saw_and_is_gone_is_named(self, catalog: Catalog) -> None:
        (said,) = self.broken(catalog, seen=["1" * 12])
        assert "111111111111 was read during the run and is gone" in said

    def test_a_model_measured_twice_is_named(self, catalog: Catalog) -> None:
        catalog.commit(make_measurement("org/m1", sink_strength=1.5), force=True)
        assert "org/m1 was measured again after it was settled" in self.broken(catalog)

    def test_a_second_attempt_after_a_transient_failure_is_allowed(self, empty: Catalog) -> None:
        empty.commit(make_failure("org/m0", transient=True))
        empty.commit(make_measurement("org/m0"))
        assert self.broken(empty, models=[make_candidate("org/m0")]) == []

    def test_another_strength_than_without_faults_is_named(self, catalog: Catalog) -> None:
        (said,) = self.broken(catalog, expected={"org/m1": 1.4})
        assert said == "org/m1 has S 1.5, and 1.4 without faults"

    def test_a_damaged_file_and_missing_heads_are_named(self, catalog: Catalog) -> None:
        heads = next(Path(catalog.root).glob("heads/*/org--m1@*.parquet"))
        heads.unlink()
        assert any("has 0 of its 24 heads" in each for each in self.broken(catalog))
