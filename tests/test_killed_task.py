"""A task that is killed while its weights arrive leaves no outcome, and no file beyond the next fetch."""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from checkpoints_on_disk import CHAT_TEMPLATE, tiny_model, tiny_tokenizer

from catalog.store import Catalog, open_catalog
from tests.hub_client import candidate_of
from tests.hub_server import HubServer
from zoo.measure import make_spec, measure
from zoo.records import Measurement, RunOptions
from zoo.sources import folder_candidate

SPEC = make_spec(prompt_count=10)
OPTIONS = RunOptions(device="cpu", load="stream")

TASK = """
import pickle, sys
from pathlib import Path
from catalog.store import open_catalog
from zoo.tasks import measure_and_commit
candidate, spec, options = pickle.loads(Path(sys.argv[1]).read_bytes())
report = measure_and_commit(candidate, catalog=open_catalog(sys.argv[2]), spec=spec, options=options)
print(report.status, report.sink_strength, report.message)
"""


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if not path.is_dir()]


class Site:
    """One model on a slow Hub, and the folders of the machine that measures it."""

    def __init__(self, folder: Path, server: HubServer) -> None:
        self.folder, self.server = folder, server
        self.work, self.home = folder / "work", folder / "home"
        self.model = folder / "model"
        tiny_model("llama", num_hidden_layers=8).save_pretrained(self.model, max_shard_size="60KB")
        tiny_tokenizer(chat_template=CHAT_TEMPLATE).save_pretrained(self.model)
        server.add_repo("org/m", self.model)
        self.candidate = candidate_of(server)
        (folder / "task").write_bytes(pickle.dumps((self.candidate, SPEC, OPTIONS)))
        self.catalog: Catalog = open_catalog(str(folder / "catalog"), create=True)

    def start(self) -> subprocess.Popen[str]:
        """The task, in a process of its own; its weights have not been asked for yet."""
        self.server.sent_bytes["cdn"] = 0
        places = {"ZOO_WORK": str(self.work), "HF_HOME": str(self.home), "HF_ENDPOINT": self.server.url}
        arguments = [sys.executable, "-c", TASK, str(self.folder / "task"), self.catalog.uri]
        return subprocess.Popen(
            arguments, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": ".", **places}
        )

    def kill_at(self, fraction: float) -> None:
        """Kill a task once that part of the weights was sent."""
        with self.start() as task:
            while self.server.sent_bytes["cdn"] <= fraction * self.candidate.weight_bytes:
                assert task.poll() is None, "it ended before it was killed"
                time.sleep(0.005)
            task.send_signal(signal.SIGKILL)
        assert task.returncode == -signal.SIGKILL

    def measured_from_disk(self) -> float:
        """S of the same weights, loaded whole."""
        local = folder_candidate(self.model, model_id="org/m")
        outcome = measure(local, spec=SPEC, options=RunOptions(device="cpu", load="whole"))
        assert isinstance(outcome, Measurement)
        return outcome.sink_strength


def check_killed_tasks(folder: Path, fractions: list[float]) -> None:
    with HubServer(bytes_per_second=300_000) as server:
        site = Site(folder, server)
        for fraction in fractions:
            site.kill_at(fraction)
            assert len(list(site.work.iterdir())) == 1  # not of the tasks before it
            assert open_catalog(site.catalog.uri).done(SPEC.spec_id) == {}
            assert files_below(Path(site.catalog.root)) == []
        with site.start() as task:
            status, sink_strength = task.communicate()[0].split()[:2]
        assert (status, float(sink_strength)) == ("measured", site.measured_from_disk())
        assert files_below(site.work) == files_below(site.home) == []
        (recorded,) = site.catalog.done(SPEC.spec_id).values()
        assert (recorded.status, recorded.attempt) == ("measured", 1)
        verified = site.catalog.verify()
        assert (verified.problems, verified.uncommitted) == ((), 0)


def test_a_task_killed_while_it_streams_leaves_nothing(tmp_path: Path) -> None:
    check_killed_tasks(tmp_path, [0.0, random.Random(0).uniform(0.1, 0.8)])


@pytest.mark.slow
def test_a_task_killed_at_any_byte_leaves_nothing(tmp_path: Path) -> None:
    chance = random.Random(1)
    check_killed_tasks(tmp_path, [chance.uniform(0.0, 0.85) for _ in range(10)])
