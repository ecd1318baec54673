"""Workers that stream from one Hub share its rate limit: what one of them meets, all wait for."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from catalog.store import open_catalog
from tests.checkpoints_on_disk import save_checkpoint
from tests.hub_client import planned
from tests.hub_server import HubServer
from zoo.hub_limits import ASK_SECONDS
from zoo.prompts import make_spec
from zoo.records import Candidate, Outcome, RunOptions
from zoo.screen import screen
from zoo.tasks import measure_in_process, ray

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

CLOSED_SECONDS = 15.0


def measure_the_second_one_late(candidate: Candidate, **how: Any) -> Outcome:
    """The second model asks for its first file when the first has been told to wait for a while."""
    if candidate.model_id == "org/m1":
        time.sleep(ASK_SECONDS + 5)
    return measure_in_process(candidate, **how)


@pytest.mark.slow
def test_no_worker_asks_while_another_was_told_to_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_again() -> None:
        while not any(seen.status == 429 for seen in hub.log):
            time.sleep(0.05)
        time.sleep(CLOSED_SECONDS - 1)
        hub.limits.clear()

    with HubServer() as hub:
        for number in range(2):
            hub.add_repo(f"org/m{number}", save_checkpoint(tmp_path / f"m{number}", seed=number))
        plan = planned(hub, ["org/m0", "org/m1"])
        hub.limits["resolvers"] = (0, CLOSED_SECONDS)
        hub.log.clear()
        threading.Thread(target=open_again, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("ZOO_WORK", str(tmp_path / "work"))
        ray.init(num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False)
        try:
            summary = screen(
                [model.candidate for model in plan.models],
                catalog=open_catalog(str(tmp_path / "catalog"), create=True),
                spec=make_spec(prompt_count=10),
                options=RunOptions(load="stream"),
                measure=measure_the_second_one_late,
            )
        finally:
            ray.shutdown()
    assert len(summary.measured) == 2, summary.failed
    refused = [seen.at for seen in hub.log if seen.status == 429]
    assert max(refused) - min(refused) <= ASK_SECONDS + 1
