"""One chaos run from its models to its verdict."""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
from chaos.driver import PROMPTS
from chaos.killer import Killer
from chaos.laws import attempts, broken_laws
from chaos.models import save_models
from chaos.nodes import Nodes, adopt_orphans, processes_left
from chaos.readers import Reader
from chaos.witness import log_folder, read_lines, trivial_strength

from catalog.store import Catalog, open_catalog
from zoo.prompts import make_spec
from zoo.records import Candidate, RunOptions
from zoo.sources import find_candidates

LOOK_SECONDS = 0.1
SAMPLE = 10
ENDED_WITHIN_SECONDS = 20.0


def run(folder: Path, arguments: argparse.Namespace) -> list[str]:
    """Every law that was broken, as a sentence; prints the summary."""
    started = time.monotonic()
    adopt_orphans()
    save_models(folder / "models", arguments.models, trivial=arguments.trivial)
    models = find_candidates(str(folder / "models")).candidates
    catalog = open_catalog(str(folder / "catalog"), create=True)
    nodes = Nodes(arguments.nodes)
    reader = Reader(catalog)
    reader.start()
    site = Site(folder, nodes, catalog, models, trivial=arguments.trivial)
    killer = Killer(
        nodes,
        seed=arguments.seed,
        wanted=arguments.kills,
        every=arguments.every,
        progress=site.progress,
        kill_driver=arguments.kill_driver,
    )
    try:
        broken = site.screen_under(killer)
        lost = site.failures()
        broken += site.screen_calmly() if lost else []
        broken += [f"the task {each.pid} outlived its driver" for each in site.tasks_left()]
    finally:
        reader.end()
        nodes.shutdown()
    broken += [f"process left: {each}" for each in processes_left(seconds=ENDED_WITHIN_SECONDS)]
    broken += [f"a reader failed: {each}" for each in reader.errors]
    broken += [] if reader.looks else ["no reader ever looked"]
    if killer.kills.total() < arguments.kills:
        broken.append(f"only {killer.kills.total()} of {arguments.kills} kills; ask for more models")
    broken += broken_laws(
        catalog,
        models=models,
        commits=read_lines(log_folder(catalog.root) / "commits.jsonl"),
        seen=reader.seen,
        expected=site.expected(random.Random(arguments.seed)),
    )
    print(summary(site, killer, reader, lost=lost, seconds=time.monotonic() - started))
    print("\n".join(f"BROKEN: {each}" for each in broken) or "Every law holds.")
    if broken:
        print(f"Everything is kept in {folder}.")
    return broken


class Site:
    """The cluster, the models and the catalog, and the drivers that were started on them."""

    def __init__(
        self, folder: Path, nodes: Nodes, catalog: Catalog, models: tuple[Candidate, ...], *, trivial: bool
    ) -> None:
        self.folder, self.nodes, self.catalog = folder, nodes, catalog
        self.models, self.trivial = models, trivial
        self.starts = 0

    def progress(self) -> float:
        """The share of the models that were committed so far, measured or failed."""
        return len(self.catalog.list_files("outcomes")) / len(self.models)

    def screen_under(self, killer: Killer) -> list[str]:
        """Starts the driver, again and again while it is killed, until it ends by itself."""
        while True:
            hit = killer.kills["driver"]
            code = self._drive(killer)
            if code == 0:
                return []
            if killer.kills["driver"] == hit:
                return [f"the driver ended with exit code {code}: {self._last_words()}"]

    def screen_calmly(self) -> list[str]:
        """What was lost too often is measured by one more run without faults."""
        code = self._drive(None)
        broken = [f"the run without faults ended with exit code {code}"] if code else []
        return broken + [f"{model_id} failed without faults: {why}" for model_id, why in self.failures()]

    def _drive(self, killer: Killer | None) -> int:
        self.starts += 1
        command = [sys.executable, "-m", "chaos.driver", str(self.folder / "models"), self.catalog.uri]
        command += [self.nodes.address, *["--trivial"] * self.trivial]
        with self._log().open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as driver:
            process = psutil.Process(driver.pid)
            while driver.poll() is None:
                if killer is not None:
                    killer.strike(process)
                time.sleep(LOOK_SECONDS)
            return driver.returncode

    def _log(self) -> Path:
        return self.folder / f"driver.{self.starts}.log"

    def _last_words(self) -> str:
        return self._log().read_text()[-500:]

    def tried_again(self) -> Counter[str]:
        """How often the drivers said that a model is tried again, by the reason they gave."""
        lines = [line for log in self.folder.glob("driver.*.log") for line in log.read_text().splitlines()]
        return Counter(
            line.rpartition(": ")[2].partition(",")[0] for line in lines if line.endswith("tried again")
        )

    def failures(self) -> list[tuple[str, str]]:
        """The models whose counting attempt is a failure, with its reason."""
        rows = attempts(self.catalog)
        return [
            (row["model_id"], row["reason"]) for row in rows if row["counts"] and row["status"] == "failed"
        ]

    def tasks_left(self) -> list[psutil.Process]:
        give_up = time.monotonic() + ENDED_WITHIN_SECONDS
        while (left := self.nodes.tasks()) and time.monotonic() < give_up:
            time.sleep(0.5)
        return left

    def expected(self, chance: random.Random) -> dict[str, float]:
        """S by model as it is without faults: all of the trivial ones, a sample of the others."""
        if self.trivial:
            return {each.model_id: trivial_strength(each) for each in self.models}
        import torch

        from zoo.measure import measure

        torch.set_num_threads(1)
        spec, options = make_spec(prompt_count=PROMPTS), RunOptions(device="cpu")
        sample = chance.sample(self.models, min(SAMPLE, len(self.models)))
        return {each.model_id: _strength(measure(each, spec=spec, options=options)) for each in sample}


def _strength(outcome: Any) -> float:
    return float(outcome.sink_strength)


def summary(
    site: Site, killer: Killer, reader: Reader, *, lost: list[tuple[str, str]], seconds: float
) -> str:
    rows = attempts(site.catalog)
    witness = log_folder(site.catalog.root)
    tries = len(read_lines(witness / "tries.jsonl"))
    commits = read_lines(witness / "commits.jsonl")
    staged = len(list(Path(site.catalog.root).glob(".staging/*")))
    by_reason = Counter(reason for _, reason in lost)
    return "\n".join(
        [
            f"{len(site.models)} models in {seconds / 60:.1f} min: "
            f"{sum(row['status'] == 'measured' for row in rows)} measured, {tries} tries begun, "
            f"{sum(each['written'] for each in commits)} acknowledged commits, {len(rows)} rows",
            f"{killer.kills.total()} kills: " + _counts(killer.kills),
            f"{killer.removed} nodes removed gracefully, {killer.added} added; {site.starts} drivers started",
            f"tried again by the driver: {_counts(site.tried_again())}",
            f"given up by the run with faults, measured by the next: {_counts(by_reason)}"
            + "".join(f"\n  {model_id}: {reason}" for model_id, reason in lost),
            f"left by killed writers, never seen: {site.catalog.verify().uncommitted} files, {staged} staged",
            f"readers: {reader.looks} looks, {len(reader.errors)} errors",
        ]
    )


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counter.items())) or "none"
