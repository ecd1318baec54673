"""Measures one model from start to end; no Ray and no command line.

A candidate becomes rendered prompts, the prompts run through the backbone under the probe, and the
probe's statistics become Sink Strength. ``zoo.measure`` itself can be called with a path.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import ModuleType

import torch
import transformers

from zoo import __version__, strength
from zoo.backbone import Backbone, open_backbone
from zoo.errors import GpuMemoryError, ModelError, SourceError, TransientModelError, first_line
from zoo.fallback import with_fallback
from zoo.fetch import beside_weights
from zoo.memory import peak_memory_bytes, reset_peak
from zoo.probe import Probe, make_batches
from zoo.prompts import load_prompts, make_spec, render
from zoo.records import (
    Candidate,
    Failure,
    LayerStatistics,
    Measurement,
    MeasurementSpec,
    Outcome,
    RenderedPrompts,
    RunFacts,
    RunOptions,
)
from zoo.sources import find_candidates
from zoo.tokenizer import load_tokenizer

OnStage = Callable[..., None]

LOOK_SECONDS = 0.5
"""How long at least between two reports of the bytes fetched."""


def measure(
    candidate: Candidate,
    *,
    spec: MeasurementSpec | None = None,
    options: RunOptions | None = None,
    on_stage: OnStage | None = None,
) -> Outcome:
    """Measure one pinned candidate. A model's fault is returned as a ``Failure``, never raised.

    It is tried again as ``zoo.fallback`` says: in smaller batches where memory runs out, loaded whole
    where it turns out not to be streamable.

    ``on_stage`` is told the stage that begins: fetch (from the Hub), load, render, probe, summarise.
    While weights are streamed it is told the running stage twice a second or so, with the bytes fetched
    so far and those planned, from any thread.
    """
    spec, clock = spec or make_spec(), _Clock(on_stage=on_stage)
    reset_peak()
    try:
        found, load_reason = with_fallback(
            lambda options: _measure(candidate, spec=spec, options=options, clock=clock),
            options or RunOptions(),
            stage=lambda: clock.stage,
        )
    except ModelError as error:
        return _refused(error, candidate, spec=spec, clock=clock)
    except Exception as error:
        text = f"an error zoo did not foresee ({first_line(error, limit=400)}); please report it"
        failed = partial(Failure, stage=clock.stage, reason="unexpected_error", message=text)
        return clock.failure(failed, candidate, spec, transient=False)
    return replace(found, run=replace(found.run, load_reason=load_reason or found.run.load_reason))


def _refused(error: ModelError, candidate: Candidate, *, spec: MeasurementSpec, clock: _Clock) -> Failure:
    failed = partial(Failure, stage=error.stage, reason=error.reason, message=str(error))
    if isinstance(error, GpuMemoryError):
        failed = partial(failed, gpus_needed=error.gpus_needed)
    return clock.failure(failed, candidate, spec, transient=isinstance(error, TransientModelError))


def _measure(
    candidate: Candidate, *, spec: MeasurementSpec, options: RunOptions, clock: _Clock
) -> Measurement:
    with ExitStack() as stack:
        with clock("fetch") if candidate.format == "hub" else nullcontext():
            local = stack.enter_context(beside_weights(candidate))
        with clock("load"):
            folder = Path(local.location)
            backbone = open_backbone(candidate, options=options, folder=folder, on_bytes=clock.on_bytes)
        with closing(backbone):
            with clock("render"):
                prompts = render_for(local, backbone, spec=spec)
            with clock("probe"):
                layers = probe_layers(backbone, prompts, spec=spec, options=options)
    with clock("summarise"):
        summary = strength.summarise(layers, spec=spec)
    return Measurement(
        candidate=candidate,
        spec=spec,
        architecture=backbone.architecture,
        prompts=prompts,
        strength=summary,
        run=_run_facts(backbone, clock, options=options),
    )


def render_for(candidate: Candidate, backbone: Backbone, *, spec: MeasurementSpec) -> RenderedPrompts:
    """The spec's prompts as token ids; raises ``ModelError`` when one is outside the vocabulary.

    ``candidate`` is one of files on disk, as ``beside_weights`` gives it.
    """
    prompts = render(
        load_tokenizer(candidate),
        load_prompts(spec.prompt_count).texts,
        format=spec.prompt_format,
        minimum_tokens=spec.candidate_positions + 1,
        candidate_positions=spec.candidate_positions,
    )
    rows = backbone.model.get_input_embeddings().weight.shape[0]
    largest = max(max(ids) for ids in prompts.token_ids)
    if largest >= rows:
        text = (
            f"the tokenizer yields token {largest} and the model embeds {rows}; they do not belong together"
        )
        raise ModelError(text, stage="render", reason="tokenizer_mismatch")
    return prompts


def probe_layers(
    backbone: Backbone, prompts: RenderedPrompts, *, spec: MeasurementSpec, options: RunOptions
) -> tuple[LayerStatistics, ...]:
    """Run every prompt once and return the statistics of every attention layer."""
    probe = Probe(
        model=backbone.model,
        layers=backbone.architecture.attention_layers,
        prompt_count=len(prompts.token_ids),
        candidates=spec.candidate_positions,
        first_query=spec.candidate_positions,
        content_query=prompts.shared_prefix_tokens,
        thirds_P=prompts.length_thirds,
    )
    batches = make_batches(prompts, tokens_per_batch=options.tokens_per_batch, device=backbone.device)
    backbone.run([partial(probe.forward, batch) for batch in batches])
    return probe.statistics()


@dataclass(slots=True, kw_only=True)
class _Clock:
    """The running stage, and the wall seconds of those done."""

    on_stage: OnStage | None
    stage: str = "plan"
    wall_seconds: dict[str, float] = field(default_factory=dict)
    _looked_at: float = field(default_factory=time.monotonic)
    started_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))

    def on_bytes(self, fetched: int, planned: int) -> None:
        """Pass on how far the weights are, but not for each piece."""
        now = time.monotonic()
        if self.on_stage is not None and now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            self.on_stage(self.stage, fetched, planned)

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        self.stage, begun = stage, time.perf_counter()
        if self.on_stage is not None:
            self.on_stage(stage)
        try:
            yield
        finally:
            self.wall_seconds[stage] = self.wall_seconds.get(stage, 0.0) + time.perf_counter() - begun

    def failure(
        self, failed: Callable[..., Failure], candidate: Candidate, spec: MeasurementSpec, *, transient: bool
    ) -> Failure:
        return failed(
            candidate=candidate,
            spec=spec,
            transient=transient,
            started_at=self.started_at,
            wall_seconds=self.wall_seconds,
        )


def _run_facts(backbone: Backbone, clock: _Clock, *, options: RunOptions) -> RunFacts:
    return RunFacts(
        dtype=str(backbone.dtype).removeprefix("torch."),
        device=backbone.device,
        load=backbone.load,
        load_reason=backbone.load_reason,
        verified=backbone.verified,
        wall_seconds=dict(clock.wall_seconds),
        tokens_per_batch=options.tokens_per_batch,
        gpus=_gpus(backbone),
        accelerator=torch.cuda.get_device_name() if backbone.device.startswith("cuda") else None,
        peak_memory_bytes=peak_memory_bytes(backbone.device),
        bytes_fetched=backbone.bytes_fetched(),
        versions={
            "zoo": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        started_at=clock.started_at,
    )


def _gpus(backbone: Backbone) -> int:
    """How many GPUs held a part of the model; a streamed one has left its own by now."""
    held = {each.device for each in backbone.model.parameters() if each.device.type == "cuda"}
    return max(len(held), int(backbone.device.startswith("cuda")))


def measure_path(
    path: str | Path, *, prompt_count: int = 256, options: RunOptions | None = None
) -> Measurement:
    """Measure the one model at ``path``: a checkpoint folder or a GGUF file. No Ray is started.

    Returns the ``Measurement``; its ``sink_strength`` is S in nats. Raises ``SourceError`` when there
    is no single model at the path and ``ModelError`` when it cannot be measured.
    """
    found = find_candidates(str(path))
    if len(found.candidates) != 1:
        raise SourceError(f"{path} holds {len(found.candidates)} models; name the folder of one of them")
    spec = make_spec(prompt_count=prompt_count)
    outcome = measure(found.candidates[0], spec=spec, options=options)
    if isinstance(outcome, Failure):
        raise ModelError(outcome.message, stage=outcome.stage, reason=outcome.reason)
    return outcome


class _CallableModule(ModuleType):
    """Lets ``zoo.measure(path)`` be the documented call although a module bears the same name."""

    __call__ = staticmethod(measure_path)


sys.modules[__name__].__class__ = _CallableModule
