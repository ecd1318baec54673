"""zoo tells which open LLM to build a vision-language model on.

``zoo.measure(path)`` measures one local model and returns a ``Measurement``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zoo.measure import measure_path as measure

__all__ = ["measure"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # Imported on first use: torch and transformers take seconds, and most commands need neither.
    if name == "measure":
        return import_module("zoo.measure")
    raise AttributeError(f"module 'zoo' has no attribute {name!r}")
