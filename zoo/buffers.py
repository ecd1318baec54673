"""Memory for byte ranges, and the tensors in it."""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

from zoo.spans import TORCH_DTYPES, Block

ALIGNMENT = 64


class BlockBuffer:
    """Memory for one block. Each byte lies as far from a 64-byte boundary as in a mapped file.

    A matrix product may depend in its last bit on how its operands are aligned; this way it does not
    depend on how they were read. The memory goes back with the last tensor in it: to the system, or pinned
    memory to torch, which keeps it for the next block (and rounds it up to a power of two).
    """

    def __init__(self, block: Block, *, pinned: bool = False) -> None:
        self.block = block
        self._offset = block.start % ALIGNMENT
        size = self._offset + block.size
        if pinned:
            self.bytes = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        else:
            self.bytes = torch.frombuffer(mmap.mmap(-1, max(size, 1)), dtype=torch.uint8)
        self._view = memoryview(self.bytes.numpy().data)

    def view(self, start: int, stop: int) -> memoryview:
        """The memory of bytes ``start <= i < stop`` of the file."""
        base = self._offset - self.block.start
        return self._view[base + start : base + stop]

    def tensors(self, memory: Tensor | None = None) -> dict[str, Tensor]:
        """The block's tensors by name: views of the buffer, or copies out of a copy on another device.

        There each gets memory of its own, and with it the alignment that a whole load gives it.
        """
        is_copied = memory is not None
        memory = self.bytes if memory is None else memory
        base = self._offset - self.block.start
        views = {
            span.name: memory[base + span.start : base + span.stop]
            .view(TORCH_DTYPES[span.dtype])
            .reshape(span.shape)
            for span in self.block.spans
        }
        return {name: view.clone() for name, view in views.items()} if is_copied else views
