"""Read result files of lm-evaluation-harness 0.4 and subtract two of them, when they can be compared.

A file is ``results_<time>.json`` (``results.json`` before 0.4.3): ``results`` holds
``task -> {"metric,filter": value, "metric_stderr,filter": value or "N/A"}``; groups stand among the
tasks, with ``group_subtasks`` naming what they pool.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo.errors import PanelError
from zoo.protocol import protocol_label, protocol_of, section


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessTask:
    """How the harness calls a task, which metric counts, and how many points one unit of it is."""

    names: tuple[str, ...]
    metric: str
    points_per_unit: float = 100.0


HARNESS_TASKS: Mapping[str, HarnessTask] = {
    "ifeval": HarnessTask(names=("ifeval", "leaderboard_ifeval"), metric="prompt_level_strict_acc,none"),
    "eq_bench": HarnessTask(names=("eq_bench",), metric="eqbench,none", points_per_unit=1.0),
    "gsm8k_cot": HarnessTask(
        names=("gsm8k_cot", "gsm8k_cot_zeroshot", "gsm8k_cot_llama"), metric="exact_match,flexible-extract"
    ),
    "gpqa_diamond_cot": HarnessTask(
        names=("gpqa_diamond_cot_zeroshot", "gpqa_diamond_cot_n_shot"), metric="exact_match,flexible-extract"
    ),
    "mmlu": HarnessTask(names=("mmlu",), metric="acc,none"),
    "boolq": HarnessTask(names=("boolq",), metric="acc,none"),
}
"""The panel's tasks; the metrics are those of the published pairs (EQ-Bench is already in points)."""

FRACTIONS = ("acc", "acc_norm", "exact_match", "prompt_level_", "inst_level_")
"""Beginnings of metric names whose values are shares, so that 100 points are one unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One task's result in one file, in points, with its protocol as name -> value."""

    task: str
    metric: str
    points: float
    stderr_points: float | None
    protocol: Mapping[str, str]
    label: str
    """The protocol's short name in the panel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Degradation:
    """What the VLM lost against the LLM on one task: points, negative = lost, and their standard error.

    The error takes the two results as independent. Both answered the same questions, so the true one
    is smaller; it is None when the harness gave none.
    """

    task: str
    protocol: str
    llm_points: float | None
    vlm_points: float | None
    delta_points: float
    stderr_points: float | None
    source: str


def read_results(path: Path) -> dict[str, Any]:
    """A result file, or the only one in a folder. Raises PanelError when it is no such file."""
    file = _only_file(path) if path.is_dir() else path
    try:
        content = file.read_bytes()
        found = json.loads(content)
    except OSError as error:
        raise PanelError(f"{path}: cannot be read ({error.strerror}); name a results_*.json file") from None
    except (ValueError, RecursionError):
        raise PanelError(
            f"{path}: is not JSON; name a results_*.json file of lm-evaluation-harness"
        ) from None
    if not isinstance(found, dict) or not isinstance(found.get("results"), dict):
        raise PanelError(f"{path}: holds no results; name a results_*.json file of lm-evaluation-harness")
    found["_file"], found["_sha"] = file.name, hashlib.sha256(content).hexdigest()[:12]
    return found


def _only_file(folder: Path) -> Path:
    found = sorted([*folder.rglob("results_*.json"), *folder.rglob("results.json")])
    if len(found) != 1:
        raise PanelError(
            f"{folder}: holds {len(found)} result files of lm-evaluation-harness; name the one that counts"
        )
    return found[0]


def tasks_in_both(llm: Mapping[str, Any], vlm: Mapping[str, Any]) -> tuple[str, ...]:
    """The panel's tasks that both files hold."""
    return tuple(
        task
        for task, its in HARNESS_TASKS.items()
        if all(any(name in found["results"] for name in its.names) for found in (llm, vlm))
    )


def degradation(
    llm: Mapping[str, Any], vlm: Mapping[str, Any], *, task: str, metric: str | None = None
) -> Degradation:
    """The degradation of one task between two result files.

    ``task`` is one of the panel's or any of the harness's; ``metric`` (``name,filter``) replaces the
    panel's choice. Raises PanelError when a file lacks it or the protocols differ, naming how.
    """
    before, after = (_evaluation(found, task=task, metric=metric) for found in (llm, vlm))
    names = f"{llm['_file']} and {vlm['_file']}"
    if llm["_sha"] == vlm["_sha"]:
        raise PanelError(f"{names} are the same file; give the LLM's results first, then the VLM's")
    differing = [
        f"{what} ({value} against {after.protocol[what]})"
        for what, value in before.protocol.items()
        if value != after.protocol.get(what, value)
    ]
    if differing:
        raise PanelError(
            f"{names} cannot be compared on {task}, they differ in {', '.join(differing)}; "
            "evaluate both models the same way"
        )
    errors = (before.stderr_points, after.stderr_points)
    return Degradation(
        task=task,
        protocol=before.label,
        llm_points=round(before.points, 6),
        vlm_points=round(after.points, 6),
        delta_points=round(after.points - before.points, 6),
        stderr_points=None if None in errors else round(math.hypot(*errors), 6),  # type: ignore[arg-type]
        source=(
            f"lm-evaluation-harness {before.protocol['harness version']} {before.task} {before.metric}: "
            f"{llm['_file']} sha256:{llm['_sha']} and {vlm['_file']} sha256:{vlm['_sha']}"
        ),
    )


def _evaluation(found: Mapping[str, Any], *, task: str, metric: str | None) -> Evaluation:
    known = HARNESS_TASKS.get(task, HarnessTask(names=(task,), metric=metric or ""))
    file, results = found["_file"], found["results"]
    names = [name for name in known.names if name in results]
    if len(names) != 1:
        have = f"{', '.join(names)}: keep one" if names else f"only {', '.join(sorted(results)) or 'nothing'}"
        raise PanelError(f"{file}: task {task} must occur once, but the file has {have}")
    name, entry = names[0], section(results, names[0])
    key = _metric_key(entry, metric or known.metric, where=f"{file}: {name}")
    if section(found, "higher_is_better", name).get(key.split(",")[0]) is False:
        raise PanelError(f"{file}: less {key} is better on {name}; name a metric of which more is better")
    per_unit = known.points_per_unit
    if key != known.metric or task not in HARNESS_TASKS:
        if not key.startswith(FRACTIONS):
            raise PanelError(f"{file}: zoo does not know the scale of {key}; name an accuracy of {name}")
        per_unit = 100.0
    value = entry[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value * per_unit) <= 100:
        raise PanelError(f"{file}: {key} of {name} is {value!r}, which makes no points of 0 to 100")
    variant = [name] * (name != known.names[0]) + [key.replace(",", ".")] * (key != known.metric)
    return Evaluation(
        task=name,
        metric=key,
        points=value * per_unit,
        stderr_points=_stderr(entry, key, per_unit),
        protocol=protocol_of(found, name) | {"metric": key},
        label="-".join([protocol_label(found, name), *variant]),
    )


def _metric_key(entry: Mapping[str, Any], wanted: str, *, where: str) -> str:
    keys = [key for key in entry if "," in key and "_stderr," not in key]
    matching = [key for key in keys if key == wanted or key.startswith(f"{wanted},")]
    if len(matching) == 1:
        return matching[0]
    have = ", ".join(keys) or "none that zoo can read (it reads lm-evaluation-harness 0.4)"
    raise PanelError(
        f"{where} has no single metric {wanted or 'named with --metric'}; its metrics are {have}"
    )


def _stderr(entry: Mapping[str, Any], key: str, per_unit: float) -> float | None:
    name, _, filter_name = key.partition(",")
    error = entry.get(f"{name}_stderr,{filter_name}")
    if isinstance(error, int | float) and math.isfinite(error) and error > 0:
        return error * per_unit
    return None
