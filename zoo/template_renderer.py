"""Renders one chat template in a process of its own; zoo.templates starts this file as a script.

A template is a program from a stranger. transformers' sandbox keeps it away from Python's insides, but
lets it loop for hours or build strings of gigabytes, so the kernel holds this process to limits. They are
set after the imports, which are trusted and may be slow on a network file system.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
from datetime import datetime
from typing import Any

PINNED_DATE = datetime(2024, 7, 26, 12)
"""What a template sees as now: the date that Llama 3's own template falls back to without a clock."""


class PinnedDatetime(datetime):
    """A clock that stands still, so that the same prompt has the same tokens tomorrow."""

    @classmethod
    def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
        """Noon of the pinned date, in whichever time zone is asked for."""
        return PINNED_DATE.replace(tzinfo=tz)


def limit_process(*, seconds: float, memory_bytes: int) -> None:
    """From here on the kernel ends this process after ``seconds``, and ``memory_bytes`` more can be had.

    The alarm needs no parent: were the parent killed, a looping template would still end.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with open("/proc/self/statm") as statm:
            used_bytes = int(statm.read().split()[0]) * resource.getpagesize()
    except FileNotFoundError:
        used_bytes = 1 << 30
    _, ceiling = resource.getrlimit(resource.RLIMIT_AS)
    wanted = used_bytes + memory_bytes
    limit = wanted if ceiling == resource.RLIM_INFINITY else min(wanted, ceiling)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def render_texts(request: dict[str, Any], rendering: Any) -> dict[str, Any]:
    """Returns ``{"texts": [...]}``, or ``{"reason": ..., "message": ...}`` for a template that fails."""
    texts = []
    try:
        for text in request["texts"]:
            random.seed(0)
            (rendered,), _ = rendering.render_jinja_template(
                [[{"role": "user", "content": text}]],
                chat_template=request["template"],
                add_generation_prompt=True,
                **request["variables"],
            )
            if len(rendered) > request["characters"]:
                return {"reason": "template_output", "message": f"{len(rendered):,} characters"}
            texts.append(rendered)
    except ImportError:  # jinja2 is missing or too old: this machine's fault, not the template's
        raise
    except MemoryError:
        return {"reason": "template_memory", "message": ""}
    except Exception as error:
        return {"reason": "template_failed", "message": " ".join(str(error).split()) or type(error).__name__}
    return {"texts": texts}


def main() -> None:
    """Reads one request from standard input and answers it on standard output, both as JSON."""
    request = json.load(sys.stdin)
    sys.path[:] = request["sys_path"]
    # Rendering needs no torch, and importing it would cost seconds and most of the memory limit.
    sys.modules["torch"] = None  # type: ignore[assignment]
    answer, sys.stdout = sys.stdout, sys.stderr
    from transformers.utils import chat_template_utils

    chat_template_utils.datetime = PinnedDatetime
    limit_process(seconds=request["seconds"], memory_bytes=request["memory_bytes"])
    json.dump(render_texts(request, chat_template_utils), answer)
    answer.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
