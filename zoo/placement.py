"""Where a model that is loaded whole goes: the CPU, one GPU, or several GPUs of one machine."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from zoo.errors import GpuMemoryError

ACTIVATION_BYTES = 2 << 30
"""What every GPU keeps free for activations, attention logits and the CUDA context."""


def device_map(model_bytes: int, *, device: str) -> str | None:
    """transformers' ``device_map`` for a model of so many bytes: ``None`` for the CPU or one GPU.

    Raises ``GpuMemoryError``, with the number of GPUs that would do, when the visible ones do not hold it.
    """
    if not device.startswith("cuda"):
        return None
    memory = [torch.cuda.mem_get_info(index) for index in range(torch.cuda.device_count())]
    return spread(model_bytes, free=[free for free, _ in memory], total=max(total for _, total in memory))


def spread(model_bytes: int, *, free: Sequence[int], total: int) -> str | None:
    """The same for GPUs with so many free bytes each, of ``total`` bytes each."""
    room = [max(0, each - ACTIVATION_BYTES) for each in free]
    if model_bytes <= room[0]:
        return None
    if model_bytes <= sum(room) * 0.9:  # layers are not divided, so GPUs do not fill evenly
        return "balanced"
    needed = max(1, math.ceil(model_bytes / (0.9 * max(1, total - ACTIVATION_BYTES))))
    gpus = f"{len(free)} GPU{'s' * (len(free) > 1)}"
    text = (
        f"the model takes {model_bytes / 1e9:.0f} GB whole, and {sum(free) / 1e9:.0f} GB are free on the "
        f"{gpus} it was given; give it {needed} with --gpus-per-model {needed}"
    )
    raise GpuMemoryError(text, gpus_needed=needed)
