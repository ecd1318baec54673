"""Chat templates, rendered where they can do no harm: in a short-lived process with limits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zoo.errors import ModelError, TransientModelError

TEMPLATE_SECONDS = 20.0
TEMPLATE_MEMORY_BYTES = 512 << 20
TEMPLATE_CHARACTERS = 32_768
"""The longest rendering of one prompt; the longest system prompts in use have about 10,000 characters."""

START_SECONDS = 120.0
RENDERER = Path(__file__).with_name("template_renderer.py")
REMEDY = "render without it (prompt format 'plain') or report it to the model's authors"


def render_chats(
    template: str,
    texts: Sequence[str],
    *,
    variables: Mapping[str, str],
    seconds: float = TEMPLATE_SECONDS,
    memory_bytes: int = TEMPLATE_MEMORY_BYTES,
) -> list[str]:
    """Each text as a conversation of one user message, with a generation prompt, as the template spells it.

    The strings are those of ``tokenizer.apply_chat_template(..., tokenize=False,
    add_generation_prompt=True)``, made by the same function of transformers, except that
    ``strftime_now`` stands at 26 July 2024 noon and ``random`` starts from the same seed for every text.
    ``variables`` are the tokenizer's special tokens by name.

    The template runs in a fresh interpreter, never a fork, so it may be called from any thread and beside
    running torch threads. ``seconds`` count from the first rendering, not from the interpreter's start.

    Raises ``ModelError`` (stage "render") with reason "template_failed", "template_timeout",
    "template_memory" or "template_output", and ``TransientModelError`` with "renderer_failed" when the
    process itself could not run.
    """
    request = {
        "sys_path": [str(entry) for entry in sys.path],
        "template": template,
        "texts": list(texts),
        "variables": dict(variables),
        "seconds": seconds,
        "memory_bytes": memory_bytes,
        "characters": TEMPLATE_CHARACTERS,
    }
    process = _run_renderer(request, timeout=START_SECONDS + seconds)
    if process.returncode:
        raise _crash(process, seconds=seconds)
    answer = json.loads(process.stdout)
    if "texts" not in answer:
        raise _refusal(answer["reason"], detail=answer["message"], memory_bytes=memory_bytes)
    return answer["texts"]


def _run_renderer(request: Mapping[str, Any], *, timeout: float) -> subprocess.CompletedProcess[bytes]:
    # Neither tokens nor keys of the caller's environment are within a template's reach.
    environment = {
        name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH") if name in os.environ
    }
    environment |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "TRANSFORMERS_VERBOSITY": "error"}
    try:
        return subprocess.run(
            [sys.executable, "-I", str(RENDERER)],
            input=json.dumps(request).encode(),
            capture_output=True,
            timeout=timeout,
            env=environment,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _renderer_failed(str(error)) from error


def _crash(process: subprocess.CompletedProcess[bytes], *, seconds: float) -> ModelError:
    if process.returncode == -signal.SIGALRM:
        return _error("template_timeout", f"did not finish within {seconds:g} seconds")
    if process.returncode == -signal.SIGKILL:
        return _error("template_memory", "was killed by the system, most likely for its memory")
    if process.returncode < 0:
        return _error("template_failed", f"crashed the interpreter (signal {-process.returncode})")
    lines = process.stderr.decode(errors="replace").strip().splitlines()
    return _renderer_failed(lines[-1] if lines else f"exit status {process.returncode}")


def _refusal(reason: str, *, detail: str, memory_bytes: int) -> ModelError:
    if reason == "template_memory":
        return _error(reason, f"wanted more than {memory_bytes >> 20:,} MiB of memory")
    if reason == "template_output":
        return _error(reason, f"made {detail} of one prompt (at most {TEMPLATE_CHARACTERS:,} are taken)")
    return _error(reason, f"failed: {detail[:200]}")


def _error(reason: str, what: str) -> ModelError:
    return ModelError(f"The chat template {what}; {REMEDY}.", stage="render", reason=reason)


def _renderer_failed(detail: str) -> TransientModelError:
    return TransientModelError(
        f"The process that renders chat templates did not run ({detail[:200]}); check that "
        f"{sys.executable} can import transformers and jinja2, then try again.",
        stage="render",
        reason="renderer_failed",
    )
