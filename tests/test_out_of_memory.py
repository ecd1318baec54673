"""A model that runs out of memory is run in smaller batches, and refused when that does not help."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoints_on_disk import save_checkpoint

SCRIPT = """
import gc, json, resource, sys
sys.path[:0] = sys.argv[2:]
import torch
torch.set_num_threads(1)
from checkpoints_on_disk import candidate
from pathlib import Path
from zoo.measure import measure
from zoo.prompts import make_spec
from zoo.records import RunOptions

one, spec = candidate(Path(sys.argv[1])), make_spec(prompt_count=20)
options = RunOptions(tokens_per_batch=1024, load="whole")

def measured():
    outcome = measure(one, spec=spec, options=options)
    gc.collect()
    names = ("reason", "message", "transient", "sink_strength")
    found = {name: getattr(outcome, name, None) for name in names}
    return found | {"tokens": outcome.run.tokens_per_batch if hasattr(outcome, "run") else None}

def measured_within(megabytes):
    pages = int(open("/proc/self/statm").read().split()[0])
    limit = pages * resource.getpagesize() + (megabytes << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    return measured()

print(json.dumps([measured(), measured_within(300), measured_within(20)]))
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc to know a process's size")
def test_memory_that_runs_out_halves_the_batch_and_then_refuses_the_model(tmp_path: Path) -> None:
    """Real allocations fail here: the process limits its own address space."""
    folder = save_checkpoint(tmp_path / "wide", intermediate_size=30_000)
    tests = Path(__file__).parent
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), str(tests), str(tests.parent)],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    enough, less, none = json.loads(run.stdout.splitlines()[-1])
    assert enough["tokens"] == 1024
    assert less["tokens"] in (64, 128, 256, 512)
    assert less["sink_strength"] == pytest.approx(enough["sink_strength"], abs=1e-5)
    assert none["reason"] == "out_of_memory", none
    assert none["transient"] is True
    assert "\n" not in none["message"]
