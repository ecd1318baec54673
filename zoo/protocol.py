"""How an evaluation of lm-evaluation-harness was done, as far as its result file tells."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from zoo.errors import PanelError
from zoo.panel import DEFAULT_PROTOCOL

THINKING = ("chat_template_args", "enable_thinking", "think_end_token")
"""The model arguments that switch a reasoning mode."""


def section(found: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """The mapping at these keys, empty where there is none."""
    here: object = found
    for key in keys:
        here = here.get(key) if isinstance(here, Mapping) else None
    return here if isinstance(here, Mapping) else {}


def protocol_of(found: Mapping[str, Any], task: str) -> dict[str, str]:
    """What two evaluations of a task must share to be compared, as name -> value.

    The text of a chat template is not among it: a VLM's own template is part of what is judged.
    """
    leaves, config, shots = _leaves(found, task), section(found, "config"), shots_of(found, task)
    protocol = {
        "harness version": found.get("lm_eval_version") or "unknown",
        "harness task": task,
        "task version": section(found, "versions").get(task),
        "few-shot examples": shots,
        "chat template": "applied" if found.get("chat_template") else "not applied",
        "system instruction": found.get("system_instruction") or "none",
        "limit": "none" if config.get("limit") is None else config["limit"],
        "questions": [section(found, "n-samples", leaf).get("effective") for leaf in leaves],
        "generation settings": [section(found, "configs", leaf).get("generation_kwargs") for leaf in leaves],
        "thinking": _thinking(config.get("model_args")),
    }
    if shots:
        protocol["few-shot turns"] = "many" if found.get("fewshot_as_multiturn") else "one"
        protocol["few-shot seed"] = config.get("fewshot_seed")
    return {what: value if isinstance(value, str) else _short(value) for what, value in protocol.items()}


def protocol_label(found: Mapping[str, Any], task: str) -> str:
    """``instruct`` for what the published pairs used (zero-shot, chat template, whole set), or its parts."""
    shots, limit = shots_of(found, task), section(found, "config").get("limit")
    if not shots and found.get("chat_template") and limit is None:
        return DEFAULT_PROTOCOL
    parts = [f"{shots}-shot", "chat" if found.get("chat_template") else "plain"]
    return "-".join(parts if limit is None else [*parts, f"limit-{limit}"])


def shots_of(found: Mapping[str, Any], task: str) -> int:
    """The number of few-shot examples of a task or of all tasks of a group.

    Raises PanelError when the file does not say, or names several.
    """
    counts = {
        section(found, "n-shot").get(leaf, section(found, "configs", leaf).get("num_fewshot"))
        for leaf in _leaves(found, task)
    }
    if len(counts) != 1 or not isinstance(only := counts.pop(), int):
        raise PanelError(f"{found['_file']}: does not say one number of few-shot examples for {task}")
    return only


def _leaves(found: Mapping[str, Any], task: str) -> list[str]:
    """The single tasks of a task or group, sorted."""
    inside = section(found, "group_subtasks").get(task) or []
    return sorted({leaf for child in inside for leaf in _leaves(found, child)}) if inside else [task]


def _short(value: object) -> str:
    text = json.dumps(value, sort_keys=True)
    return (
        text if len(text) <= 60 else f"{text[:40]}... sha256:{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    )


def _thinking(model_args: object) -> str:
    """A reasoning mode as the model arguments give it; the harness keeps them as text or mapping."""
    if isinstance(model_args, str):
        model_args = dict(part.split("=", 1) for part in model_args.split(",") if "=" in part)
    args = model_args if isinstance(model_args, Mapping) else {}
    return ", ".join(f"{key}={args[key]}" for key in THINKING if key in args) or "default"
