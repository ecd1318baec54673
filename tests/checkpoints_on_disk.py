"""Tiny checkpoints on disk, as save_pretrained writes them, and ways to damage them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tiny import CHAT_TEMPLATE, tiny_tokenizer
from tiny_models import tiny_model

from zoo.records import Candidate
from zoo.sources import folder_candidate


def save_checkpoint(folder: Path, *, model_type: str = "llama", chat: bool = True, **overrides: Any) -> Path:
    """A tiny random model with its tokenizer in ``folder``."""
    tiny_model(model_type, **overrides).save_pretrained(folder)
    tiny_tokenizer(chat_template=CHAT_TEMPLATE if chat else None).save_pretrained(folder)
    return folder


def candidate(folder: Path) -> Candidate:
    return folder_candidate(folder, model_id=f"tiny/{folder.name}")


def edit_json(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
