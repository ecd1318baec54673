"""How a run grows with the cluster, what its driver costs a model, and what a night without news costs.

A loopback Hub gives every model a link of its own, as if each worker had its own node; GPUs are logical,
and models run on the CPU. Beside them stands how busy the real cores are, and how long the imports of as
many processes take that start together: where these wait for each other, the machine is the limit.
Usage: python bench/cluster.py [--gpus 1 2 4 8] [--trivial 1000]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from catalog.store import open_catalog
from tests.hub_client import ANY_SIZE, quick
from tests.hub_server import HubServer
from zoo.architecture import describe_raw
from zoo.plan import parse_targets, verdicts
from zoo.prompts import make_spec
from zoo.records import Candidate, Outcome, PlannedModel, RunOptions
from zoo.screen import screen
from zoo.tasks import ray

SHAPE = {"vocab_size": 1000, "hidden_size": 512, "intermediate_size": 1408, "num_attention_heads": 8}
LINK_BYTES_PER_SECOND = 3e6
ROUNDS = 4
"""Models a GPU, of sizes spread from half the mean to one and a half: equal ones would all start together."""


def make_checkpoint(folder: Path, *, layers: int) -> Path:
    """A random float32 Llama with a tokenizer, 13 MB a layer."""
    from checkpoints_on_disk import save_checkpoint

    return save_checkpoint(folder, **{**SHAPE, "num_key_value_heads": 8}, num_hidden_layers=layers)


@contextmanager
def cluster(gpus: int) -> Iterator[None]:
    """A local Ray with logical GPUs and one CPU slot for each, or with none and one slot."""
    ray.init(num_cpus=max(1, gpus), num_gpus=gpus, include_dashboard=False, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


def busy_seconds() -> float:
    """CPU seconds that this machine has spent, all cores together."""
    times = psutil.cpu_times()
    return sum(times) - times.idle - times.iowait - times.guest - times.guest_nice


def timed(run: Any) -> tuple[Any, float, float]:
    """The result, the wall seconds, and the share of all cores that was busy."""
    begun, busy = time.perf_counter(), busy_seconds()
    result = run()
    seconds = time.perf_counter() - begun
    return result, seconds, (busy_seconds() - busy) / (seconds * (os.cpu_count() or 1))


def import_seconds(processes: int) -> float:
    """What a model's process needs for its imports while as many others have theirs; the median."""
    code = "import time; begun = time.perf_counter(); import zoo.measure; print(time.perf_counter() - begun)"
    command = [sys.executable, "-c", code]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    return statistics.median(float(each.communicate()[0]) for each in started)


def spread(layers: int, *, models: int) -> list[int]:
    """The layers of each model: evenly spread around ``layers``, which is their mean."""
    return [round(layers * (0.5 + number / (models - 1))) for number in range(models)]


def growth(gpu_counts: list[int], *, layers: int, folder: Path) -> None:
    """Network-bound streamed models on 1, 2, 4, ... GPUs; the efficiency is of bytes a second and GPU."""
    os.environ["OMP_NUM_THREADS"] = "1"
    checkpoint = cache(lambda size: make_checkpoint(folder / f"model-{size}", layers=size))
    spec, options = make_spec(prompt_count=10), RunOptions(load="stream", tokens_per_batch=256)
    with HubServer(link_bytes_per_second=LINK_BYTES_PER_SECOND) as hub:
        os.environ["HF_ENDPOINT"], os.environ["ZOO_WORK"] = hub.url, str(folder / "work")
        link = f"{LINK_BYTES_PER_SECOND / 1e6:.0f} MB/s each"
        print(f"models of {layers // 2} to {3 * layers // 2} layers at {link}")
        print("GPUs  models  seconds  models/min  MB/s a GPU  efficiency  cores busy  imports at once")
        first = 0.0
        for gpus in gpu_counts:
            names = [f"org/gpus{gpus}-m{place}" for place in range(ROUNDS * gpus)]
            for name, size in zip(names, spread(layers, models=len(names)), strict=True):
                hub.add_repo(name, checkpoint(size))
            found = verdicts(quick(hub), parse_targets(names), describe=describe_raw, params=ANY_SIZE)
            chosen = [each.candidate for each in found if isinstance(each, PlannedModel)]
            catalog = open_catalog(str(folder / f"catalog-{gpus}"), create=True)
            with cluster(gpus):
                how = {"catalog": catalog, "spec": spec, "options": options}
                summary, seconds, busy = timed(lambda how=how, chosen=chosen: screen(chosen, **how))
            assert len(summary.measured) == len(names), summary.failed
            speed = sum(each.weight_bytes or 0 for each in chosen) / seconds / gpus
            first = first or speed
            print(
                f"{gpus:4}  {len(chosen):6}  {seconds:7.1f}  {60 * len(chosen) / seconds:10.2f}"
                f"  {speed / 1e6:10.2f}  {speed / first:10.2f}  {busy:10.0%}"
                f"  {import_seconds(gpus):13.1f} s",
                flush=True,
            )


def overhead(models: int, *, gpus: int, folder: Path) -> None:
    """What a run spends on a model that takes no time: a process of its own with a GPU, else a shared one."""
    import factories
    import tasks

    catalog = open_catalog(str(folder / f"catalog-trivial-{gpus}"), create=True)
    candidates = [tasks.candidate(f"m{number}", location=str(folder)) for number in range(models)]
    made = factories.make_measurement(layers=4, heads=8)

    def measured(candidate: Candidate, **how: Any) -> Outcome:
        return replace(made, candidate=candidate)

    with cluster(gpus):
        cpu = time.process_time()
        how = {"catalog": catalog, "spec": tasks.SPEC, "options": RunOptions(), "measure": measured}
        summary, seconds, busy = timed(lambda: screen(candidates, **how))
        cpu = time.process_time() - cpu
    assert len(summary.measured) == models, summary.failed
    print(
        f"{models} trivial models, {max(1, gpus)} at a time, {'a process each' if gpus else '20 a process'}: "
        f"{1e3 * seconds / models:.0f} ms of wall time, {1e3 * cpu / models:.1f} ms of CPU in the driver, "
        f"cores {busy:.0%} busy",
        flush=True,
    )


def quiet_night(folder: Path, *, rounds: int = 3) -> None:
    """``zoo rescan`` when the Hub has nothing new, with the process's start."""
    with HubServer() as hub:
        hub.add_repo("org/tiny", make_checkpoint(folder / "tiny", layers=2), downloads=10)
        environment = os.environ | {"HF_ENDPOINT": hub.url, "ZOO_CATALOG": str(folder / "catalog-night")}
        zoo = [sys.executable, "-c", "from zoo.cli import main; main()"]
        subprocess.run(
            [*zoo, "screen", "--filter", "tiny", "--params", "0..", "--prompts", "10"],
            env=environment,
            check=True,
            capture_output=True,
        )
        seconds = []
        for _ in range(rounds):
            begun = time.perf_counter()
            subprocess.run(
                [*zoo, "rescan", "--prompts", "10"], env=environment, check=True, capture_output=True
            )
            seconds.append(time.perf_counter() - begun)
    print(
        f"zoo rescan with nothing new: {sorted(seconds)[rounds // 2]:.2f} s from its start to its exit "
        f"(median of {rounds})"
    )


def main() -> None:
    """Print the three measurements of one run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, nargs="*", default=[1, 2, 4, 8])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--trivial", type=int, default=1000)
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, no GPU")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.gpus:
            growth(options.gpus, layers=options.layers, folder=folder)
        if options.trivial:
            overhead(options.trivial, gpus=0, folder=folder)
            overhead(max(1, options.trivial // 10), gpus=2, folder=folder)
        quiet_night(folder)


if __name__ == "__main__":
    main()
