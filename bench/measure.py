"""The measuring stage against stock eager attention one prompt at a time, on the two demo models.

Both sides run the same prompts through the same weights in one process, turn and turn about; what is
compared is time and the memory above the loaded model. Usage: python bench/measure.py [--prompts 64]
"""

from __future__ import annotations

import argparse
import gc
import os
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from scipy.special import logit

from zoo import strength
from zoo.backbone import Backbone, open_backbone
from zoo.measure import probe_layers, render_for
from zoo.memory import peak_memory_bytes, reset_peak
from zoo.probe import IMPLEMENTATION
from zoo.prompts import make_spec
from zoo.records import MeasurementSpec, RenderedPrompts, RunOptions
from zoo.sources import find_candidates


def eager(backbone: Backbone, prompts: RenderedPrompts, spec: MeasurementSpec) -> float:
    """S by the usual way: ``output_attentions=True``, one prompt at a time, position 0."""
    model, masses = backbone.model, []
    model.set_attn_implementation("eager")
    for token_ids in prompts.token_ids:
        with torch.inference_mode():
            output = model(torch.tensor([token_ids]), output_attentions=True, use_cache=False)
        first_LHQ = [weights[0, :, spec.candidate_positions :, 0] for weights in output.attentions]
        masses.append([weights_HQ.double().mean(-1).numpy() for weights_HQ in first_LHQ])
    model.set_attn_implementation(IMPLEMENTATION)
    return float(np.median(logit(np.mean(masses, axis=0)[-spec.window_layers :])))


def zoo(backbone: Backbone, prompts: RenderedPrompts, spec: MeasurementSpec) -> float:
    """S by zoo's measuring and summarising stages, sweep and interval included."""
    layers = probe_layers(backbone, prompts, spec=spec, options=RunOptions())
    return strength.summarise(layers, spec=spec).sink_strength


def measured(run: Callable[[], float]) -> tuple[float, float, int]:
    """The result, wall seconds and bytes by which the process's resident memory peaked above its start."""
    gc.collect()
    reset_peak()  # which also keeps the run from reusing what loading the model has freed
    before, begun = peak_memory_bytes("cpu"), time.perf_counter()
    result = run()
    return result, time.perf_counter() - begun, peak_memory_bytes("cpu") - before


def main() -> None:
    """Print one row a model and side: medians over the rounds, and zoo's ratio to eager."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    batch = f"{RunOptions().tokens_per_batch} tokens a batch"
    print(f"{options.prompts} prompts, {batch}, {options.rounds} rounds, {os.cpu_count()} cores, float32")
    print(f"{'model':<34}{'':>8}{'S':>9}{'seconds':>10}{'peak MB':>10}")
    for candidate in find_candidates("demo").candidates:
        spec = make_spec(prompt_count=options.prompts)
        backbone = open_backbone(candidate, options=RunOptions(device="cpu"))
        prompts = render_for(candidate, backbone, spec=spec)
        runs: dict[str, list[tuple[float, float, int]]] = {"eager": [], "zoo": []}
        for _ in range(options.rounds):
            for side in (eager, zoo):
                runs[side.__name__].append(measured(partial(side, backbone, prompts, spec)))
        medians = {name: np.median(np.array(results), axis=0) for name, results in runs.items()}
        for name, (value, seconds, peak) in medians.items():
            print(f"{candidate.model_id:<34}{name:>8}{value:>9.4f}{seconds:>10.2f}{peak / 1e6:>10.0f}")
        ratio = medians["zoo"] / medians["eager"]
        print(f"{'':<34}{'ratio':>8}{'':>9}{ratio[1]:>10.2f}{ratio[2]:>10.2f}", flush=True)


if __name__ == "__main__":
    main()
