"""Measuring functions that a test gives to ``screen`` in place of the real one, and what they return.

Ray's workers do not have this folder on their path, so the functions travel by value.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import factories

from zoo.records import Candidate, Failure, Measurement, MeasurementSpec, Outcome, RunOptions
from zoo.tasks import ray

for module in (factories, sys.modules[__name__]):
    ray.cloudpickle.register_pickle_by_value(module)

SPEC = factories.SPEC

FETCHED = 30_000_000
"""Bytes that a streamed model says it fetched of twice as many."""


def candidate(name: str, *, location: str = "/nowhere") -> Candidate:
    return Candidate(
        model_id=f"org/{name}",
        revision=hashlib.sha1(name.encode()).hexdigest(),
        location=location,
        format="folder",
        source="test",
        weight_bytes=1000,
    )


def measurement(
    candidate: Candidate, *, sink_strength: float = 0.5, spec: MeasurementSpec = SPEC, device: str = "cpu"
) -> Measurement:
    made = factories.make_measurement(candidate.model_id, sink_strength=sink_strength, spec=spec)
    return replace(made, candidate=candidate, run=replace(made.run, device=device))


def measure_by_name(
    candidate: Candidate,
    *,
    spec: MeasurementSpec,
    options: RunOptions,
    on_stage: Callable[..., None] = lambda *_: None,
) -> Outcome:
    """Does what the model's name says; leaves one file a call in ``candidate.location``."""
    mark = Path(candidate.location) / f"{candidate.stem.split('@')[0]}.{os.getpid()}"
    mark.write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "unset"))
    on_stage("probe")
    name = candidate.model_id.removeprefix("org/")
    if name.startswith("crash"):
        os.kill(os.getpid(), signal.SIGSEGV)
    if name.startswith("raise"):
        raise ZeroDivisionError("two\nlines")
    if name.startswith("nan"):
        return measurement(candidate, sink_strength=float("nan"), spec=spec)
    is_first = len(list(mark.parent.glob("org--*"))) == 1
    if name.startswith("needs-two") and os.environ.get("CUDA_VISIBLE_DEVICES", "").count(",") == 0:
        return Failure(
            candidate=candidate,
            spec=spec,
            stage="load",
            reason="gpu_memory",
            message="it takes two GPUs",
            transient=True,
            gpus_needed=2 if name == "needs-two" else 64,
        )
    if name.startswith("slow") or (name.startswith("first-slow") and is_first):
        time.sleep(120)
    if name.startswith(("bad", "flaky")):
        return Failure(
            candidate=candidate,
            spec=spec,
            stage="load",
            reason="missing_tensors",
            message="3 tensors are missing",
            transient=name.startswith("flaky"),
        )
    time.sleep(2 if name.startswith("steady") else 0)
    return measurement(candidate, sink_strength=float(len(name)), spec=spec, device=options.device)


def measure_streamed(
    candidate: Candidate, *, spec: MeasurementSpec, options: RunOptions, on_stage: Callable[..., None]
) -> Outcome:
    """As ``measure_by_name``; a streamed model fetches, and goes on once ``location`` holds a file ``go``."""
    if candidate.model_id.startswith("org/streamed"):
        on_stage("fetch")
        on_stage("fetch", FETCHED, 2 * FETCHED)
        give_up = time.monotonic() + 120
        while not (Path(candidate.location) / "go").exists() and time.monotonic() < give_up:
            time.sleep(0.05)
    return measure_by_name(candidate, spec=spec, options=options, on_stage=on_stage)
