"""The models of a chaos run: tiny random checkpoints, or empty ones for the trivial measurement."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

ORGANISATION = "tiny"


def save_models(folder: Path, count: int, *, trivial: bool) -> None:
    """``count`` checkpoints at ``folder``/tiny/m000 and so on; each has weights of its own."""
    save = _save_nothing if trivial else _checkpoint_saver()
    for number in range(count):
        save(folder / ORGANISATION / f"m{number:03d}", seed=number, num_hidden_layers=2)


def _save_nothing(model: Path, **_: Any) -> None:
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(hashlib.sha256(model.name.encode()).digest())


def _checkpoint_saver() -> Callable[..., Path]:
    """Imports torch, which a trivial run never does."""
    from checkpoints_on_disk import save_checkpoint
    from transformers.utils import logging

    logging.disable_progress_bar()
    return save_checkpoint
