"""Another try for a model that cannot be run as it was to be: loaded whole, or in smaller batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from zoo.errors import ModelError, TransientModelError, first_line
from zoo.memory import free_memory, is_out_of_memory
from zoo.records import RunOptions

Result = TypeVar("Result")


def with_fallback(
    run: Callable[[RunOptions], Result], options: RunOptions, *, stage: Callable[[], str] = lambda: "probe"
) -> tuple[Result, str | None]:
    """What ``run`` returns, and why it had to load the model whole although it was to stream it.

    When memory runs out, it runs again with batches half as large, down to 64 tokens, and then raises
    ``TransientModelError`` (out_of_memory) of the ``stage`` that runs by then. When the model turns out not
    to be streamable while it runs, it is loaded whole, unless only streaming was asked for. Every other error
    is passed on.
    """
    load_reason = None
    while True:
        try:
            return run(options), load_reason
        except ModelError as error:
            if error.reason != "cannot_stream" or options.load != "auto":
                raise
            load_reason = f"cannot be streamed: {str(error).partition('; use --load')[0]}"
            options = replace(options, load="whole")
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if (smaller := options.halved()) is None:
                text = (
                    f"memory ran out in batches of {options.tokens_per_batch} tokens too "
                    f"({first_line(error)}); use a larger machine or fewer models on one"
                )
                raise TransientModelError(text, stage=stage(), reason="out_of_memory") from None
            options = smaller
        free_memory()  # out of the handlers, whose traceback holds the model
