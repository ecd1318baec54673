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
from pathlib import Path

import numpy as np

from zoo.records import (
    Architecture,
    AttentionLayer,
    Candidate,
    Failure,
    HeadRow,
    Interval,
    Measurement,
    MeasurementSpec,
    Outcome,
    RenderedPrompts,
    RunFacts,
    RunOptions,
    Strength,
    SweepCell,
)
from zoo.tasks import ray

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

SPEC = MeasurementSpec(prompts_digest="0" * 64, prompt_count=2)


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
    layer = AttentionLayer(layer=0, model_layer=0, module_name="layers.0", heads=1, kv_heads=1)
    head = HeadRow(
        layer=0,
        model_layer=0,
        head=0,
        kv_head=0,
        in_window=True,
        sliding_window=None,
        log_odds=sink_strength,
        log_odds_content=None,
        mass=float(1 / (1 + np.exp(-sink_strength))),
        candidate_masses=(0.6, 0.1),
        prompt_log_odds=np.full(2, sink_strength, np.float32),
        prompt_log_odds_content=np.full(2, np.nan, np.float32),
    )
    strength = Strength(
        sink_strength=sink_strength,
        sink_strength_content=None,
        interval=Interval(low=sink_strength - 0.1, high=sink_strength + 0.1, level=0.95, method="bootstrap"),
        sink_position=0,
        sink_mass=0.6,
        runner_up_position=1,
        runner_up_mass=0.1,
        weak_head_share=0.0,
        sweep_spread=0.02,
        sign_stability=1.0,
        sweep=(SweepCell(size=10, seed=0, sink_strength=sink_strength, sink_strength_content=None),),
        heads=(head,),
    )
    return Measurement(
        candidate=candidate,
        spec=spec,
        architecture=Architecture(
            model_type="llama",
            architecture="LlamaForCausalLM",
            parameters=1000,
            model_layers=1,
            attention_layers=(layer,),
            qk_norm="none",
            position_encoding="rope",
        ),
        prompts=RenderedPrompts(
            format="plain",
            token_ids=((1, 2, 3), (1, 4, 5)),
            shared_prefix_tokens=1,
            prefix_tokens_text=("<s>", "a"),
        ),
        strength=strength,
        run=RunFacts(
            dtype="float32",
            device=device,
            load="whole",
            load_reason="test",
            verified="none",
            wall_seconds={"total": 0.1},
            peak_memory_bytes=1,
            bytes_fetched=None,
            versions={"torch": "2"},
            started_at="2026-01-01T00:00:00+00:00",
        ),
    )


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
    if name.startswith("slow"):
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
