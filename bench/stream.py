"""Streaming a model from the Hub against downloading it, loading it, and eager attention.

A loopback Hub with limited bandwidth serves a random Llama of about 1 GB in shards. Each side runs in a
process of its own; the clock starts when its imports are done and ends with the sink masses. Usage:
python -m bench.stream [--megabytes-per-second 60 120] [--prompts 20]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

LAYER_COUNTS = (12, 16, 48)
WINDOW_BYTES = 128 << 20
FILES_NAME = "files.json"
SHAPE = {
    "vocab_size": 32_000,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
}


def make_checkpoint(folder: Path, *, layers: int) -> int:
    """A random float32 Llama in shards of 200 MB; returns the bytes of one layer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, num_hidden_layers=layers))
    model.save_pretrained(folder, max_shard_size="200MB")
    return sum(parameter.nbytes for parameter in model.model.layers[0].parameters())


def token_ids(prompts: int) -> list[list[int]]:
    """Prompts of 40 random tokens."""
    import numpy as np

    return np.random.default_rng(0).integers(3, 32_000, (prompts, 40)).tolist()


def todays_way(repo: str, revision: str, prompts: int, folder: Path) -> dict[str, Any]:
    """Download the snapshot, load it, and read eager attention's maps one prompt at a time."""
    import torch
    import transformers
    from huggingface_hub import snapshot_download

    def run() -> float:
        with tempfile.TemporaryDirectory() as cache:
            path = snapshot_download(repo, revision=revision, cache_dir=cache)
            load = transformers.AutoModelForCausalLM.from_pretrained
            model = load(path, dtype=torch.float32, attn_implementation="eager")
            masses = []
            for ids in token_ids(prompts):
                with torch.inference_mode():
                    maps = model(torch.tensor([ids]), output_attentions=True, use_cache=False).attentions
                masses.append(torch.stack([each[0, :, 8:, 0].mean(-1) for each in maps[-10:]]))
            return float(torch.stack(masses).mean(0).median())

    return clocked(run) | {"bytes": None}


def streamed(repo: str, revision: str, prompts: int, folder: Path) -> dict[str, Any]:
    """Stream the model and run all prompts at once."""
    import numpy as np
    from scipy.special import expit

    from zoo.backbone import open_backbone
    from zoo.probe import Probe, make_batches
    from zoo.records import Candidate, RenderedPrompts, RepoFile, RunOptions

    files = tuple(RepoFile(**file) for file in json.loads((folder / FILES_NAME).read_text()))
    one = Candidate(
        model_id=repo, revision=revision, location=repo, format="hub", source="bench", files=files
    )
    options = RunOptions(device="cpu", load="stream", prefetch_bytes=WINDOW_BYTES)
    rendered = RenderedPrompts(
        format="plain",
        token_ids=tuple(map(tuple, token_ids(prompts))),
        shared_prefix_tokens=0,
        prefix_tokens_text=(),
    )
    fetched: list[int] = []

    def run() -> float:
        backbone = open_backbone(one, options=options, folder=folder)
        probe = Probe(
            model=backbone.model,
            layers=backbone.architecture.attention_layers,
            prompt_count=prompts,
            candidates=8,
            first_query=8,
            content_query=8,
        )
        batches = make_batches(rendered, tokens_per_batch=options.tokens_per_batch, device="cpu")
        backbone.run([partial(probe.forward, batch) for batch in batches])
        fetched.append(backbone.bytes_fetched() or 0)
        return float(
            np.median([expit(layer.log_odds_RPHK[0, :, :, 0]).mean(0) for layer in probe.statistics()[-10:]])
        )

    return clocked(run) | {"bytes": fetched[0]}


def clocked(run: Any) -> dict[str, Any]:
    """The result, wall seconds, and by how many bytes resident memory peaked above its start."""
    from zoo.memory import peak_memory_bytes, reset_peak

    reset_peak()
    before, begun = peak_memory_bytes("cpu"), time.perf_counter()
    result = run()
    seconds = time.perf_counter() - begun
    return {"mass": result, "seconds": seconds, "start": before, "peak": peak_memory_bytes("cpu") - before}


def child(side: str, repo: str, revision: str, prompts: int, folder: Path) -> None:
    """Import everything, then run one side and print its numbers as JSON."""
    import transformers.models.llama.modeling_llama  # noqa: F401

    import zoo.measure  # noqa: F401

    print(json.dumps({"today": todays_way, "zoo": streamed}[side](repo, revision, prompts, folder)))


def in_process(side: str, hub: Any, repo: str, *, prompts: int, folder: Path) -> dict[str, Any]:
    """One side in a fresh process, with the server's requests and bytes for it."""
    requests, sent = hub.requests.total(), hub.sent_bytes["cdn"]
    environment = os.environ | {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"}
    command = [sys.executable, "-W", "ignore", "-m", "bench.stream", "--child", side]
    command += ["--repo", repo, "--revision", hub.repos[repo].head, "--prompts", str(prompts)]
    command += ["--folder", str(folder)]
    begun = time.perf_counter()
    answer = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    numbers = json.loads(answer.splitlines()[-1])
    numbers["process"] = time.perf_counter() - begun
    numbers["requests"] = hub.requests.total() - requests
    return numbers | {"sent": hub.sent_bytes["cdn"] - sent}


def main() -> None:
    """Print the tables: time, bytes, requests and memory of both sides, and memory against depth."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes-per-second", type=float, nargs="*", default=[60, 120])
    parser.add_argument("--depth-rounds", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--child", choices=["today", "zoo"])
    parser.add_argument("--repo")
    parser.add_argument("--revision")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.repo, options.revision, options.prompts, options.folder)
        return
    with tempfile.TemporaryDirectory() as folder:
        report(
            Path(folder),
            bandwidths=[each * 1e6 for each in options.megabytes_per_second],
            prompts=options.prompts,
            depth_rounds=options.depth_rounds,
        )


def report(folder: Path, *, bandwidths: list[float], prompts: int, depth_rounds: int) -> None:
    """Serve the checkpoints and print what both sides need of them."""
    from tests.hub_server import HubServer

    with HubServer() as hub:
        layer_bytes = 0
        for layers in LAYER_COUNTS:
            layer_bytes = make_checkpoint(folder / str(layers), layers=layers)
            serve(hub, f"bench/llama-{layers}", folder / str(layers))
        stored = sum(path.stat().st_size for path in (folder / str(LAYER_COUNTS[1])).glob("*.safetensors"))
        print(f"{stored / 1e6:.0f} MB in shards, {prompts} prompts, {os.cpu_count()} cores")
        print(f"{'':<16}{'seconds':>9}{'process':>9}{'MB':>8}{'requests':>10}{'peak MB':>9}{'mass':>10}")

        def row(side: str, layers: int, name: str) -> dict[str, Any]:
            where, repo = folder / str(layers), f"bench/llama-{layers}"
            numbers = in_process(side, hub, repo, prompts=prompts, folder=where)
            print(_line(name, numbers), flush=True)
            return numbers

        times = []
        for bandwidth in bandwidths:
            hub.bucket.bytes_per_second = bandwidth
            speed = f"{bandwidth / 1e6:.0f} MB/s"
            times.append([row(side, LAYER_COUNTS[1], f"{speed} {side}") for side in ("today", "zoo")])
        hub.bucket.bytes_per_second = None
        shallow, deep = (
            [row("zoo", layers, f"{layers} layers") for _ in range(depth_rounds)]
            for layers in LAYER_COUNTS[::2]
        )
    if times:
        _print_times(times, bandwidths, stored_bytes=stored, layer_bytes=layer_bytes)
    if depth_rounds:
        medians = [statistics.median(one["peak"] for one in rows) for rows in (shallow, deep)]
        name = f"peak, {LAYER_COUNTS[2]} against {LAYER_COUNTS[0]} layers"
        print(f"{name:<40}{medians[1] / medians[0]:>10.2f}   (at most 1.05; medians of {depth_rounds})")


def _print_times(
    times: list[list[dict[str, Any]]], bandwidths: list[float], *, stored_bytes: int, layer_bytes: int
) -> None:
    limit = WINDOW_BYTES + 3 * layer_bytes + 400e6
    ideals = [zoo["sent"] / bandwidth for (_, zoo), bandwidth in zip(times, bandwidths, strict=True)]
    columns = {
        "MB/s": [bandwidth / 1e6 for bandwidth in bandwidths],
        "wall / (bytes needed / bandwidth)": [
            zoo["seconds"] / ideal for (_, zoo), ideal in zip(times, ideals, strict=True)
        ],
        "wall / today's": [zoo["seconds"] / today["seconds"] for today, zoo in times],
        "(bytes needed / bandwidth) / today's": [
            ideal / today["seconds"] for (today, _), ideal in zip(times, ideals, strict=True)
        ],
        "bytes fetched / checkpoint": [zoo["sent"] / stored_bytes for _, zoo in times],
        "peak memory / limit": [zoo["peak"] / limit for _, zoo in times],
    }
    aims = {
        "wall / (bytes needed / bandwidth)": "at most 1.15",
        "wall / today's": "at most 0.6",
        "peak memory / limit": f"{limit / 1e6:.0f} MB",
    }
    for name, values in columns.items():
        aim = f"   ({aims[name]})" if name in aims else ""
        print(f"{name:<40}{''.join(f'{value:>10.2f}' for value in values)}{aim}")
    apart = max(abs(zoo["mass"] - today["mass"]) for today, zoo in times)
    print(f"{'masses agree to':<40}{apart:>10.1e}")


def serve(hub: Any, repo: str, folder: Path) -> None:
    """Add the repository, and leave beside its files what a plan would say of them."""
    commit = hub.add_repo(repo, folder)
    facts = [
        {"path": name, "size": file.size, "blob_id": file.blob_id, "sha256": file.sha256}
        for name, file in hub.repos[repo].revisions[commit].items()
    ]
    (folder / FILES_NAME).write_text(json.dumps(facts))


def _line(name: str, row: dict[str, Any]) -> str:
    return (
        f"{name:<16}{row['seconds']:>9.1f}{row['process']:>9.1f}{row['sent'] / 1e6:>8.0f}"
        f"{row['requests']:>10}{row['peak'] / 1e6:>9.0f}{row['mass']:>10.4f}"
    )


if __name__ == "__main__":
    main()
