"""Reads the stages of a model ahead of their use, within a window of bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import torch
from torch import Tensor

from zoo.spans import Block, pieces
from zoo.weights import BlockBuffer, Weights

BlocksOf = Callable[[int], Sequence[Block] | None]
"""A stage's blocks, or ``None`` while it is not known yet what the stage needs."""


@dataclass(slots=True, eq=False)
class _Stage:
    """One stage on its way: its buffers, pieces still to come, and bytes that count on the window."""

    pieces_left: int
    buffers: list[BlockBuffer] = field(default_factory=list)
    held_bytes: int = 0
    on_device: list[Tensor | None] = field(default_factory=list)
    arrived: torch.cuda.Event | None = None


class Prefetcher:
    """Reads stages 0, 1, 2, ... in the background; ``take`` hands each one over once.

    At most ``window_bytes`` are held for stages that were not taken yet, or one stage where that is
    more. On a GPU the bytes arrive in pinned memory and are copied on a stream of their own.
    """

    def __init__(
        self, weights: Weights, *, stages: int, blocks_of: BlocksOf, window_bytes: int, device: str
    ) -> None:
        self._weights, self._stages, self._blocks_of = weights, stages, blocks_of
        self._window_bytes, self._device = window_bytes, torch.device(device)
        self._held_bytes, self._next_taken = 0, 0
        self._fetched: dict[int, _Stage] = {}
        self._error: BaseException | None = None
        self._is_closed = False
        self._changed = threading.Condition()
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        self._pool = ThreadPoolExecutor(weights.connections, thread_name_prefix="zoo-fetch")
        self._dispatcher = threading.Thread(target=self._dispatch, name="zoo-prefetch", daemon=True)
        self._dispatcher.start()

    def take(self, stage: int) -> dict[str, Tensor]:
        """The tensors of a stage, waiting for them; raises what went wrong while they were read."""
        with self._changed:
            self._next_taken = max(self._next_taken, stage)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._error is not None or self._is_ready(stage))
            if self._error is not None:
                raise self._error
            fetched = self._fetched.pop(stage)
            self._held_bytes -= fetched.held_bytes
            self._next_taken = stage + 1
            self._changed.notify_all()
        return self._tensors(fetched)

    def look_again(self) -> None:
        """A stage whose blocks were not known may be known now."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Stop reading; what was not taken is dropped."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._dispatcher.join()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._fetched.clear()

    def _is_ready(self, stage: int) -> bool:
        return stage in self._fetched and self._fetched[stage].pieces_left == 0

    def _dispatch(self) -> None:
        try:
            for stage in range(self._stages):
                if not self._dispatch_stage(stage):
                    return
        except BaseException as error:
            self._fail(error)

    def _dispatch_stage(self, stage: int) -> bool:
        """Submit a stage's pieces as the window lets them; ``False`` once closed or failed."""
        blocks: Sequence[Block] | None = None
        with self._changed:
            while blocks is None and not self._is_over():
                blocks = self._blocks_of(stage)
                if blocks is None:
                    self._changed.wait()
        if blocks is None:
            return False
        piece_bytes = self._weights.piece_bytes
        cuts = [(block, pieces(block.start, block.stop, piece_bytes=piece_bytes)) for block in blocks]
        fetched = _Stage(pieces_left=sum(len(ranges) for _, ranges in cuts))
        with self._changed:
            self._fetched[stage] = fetched
            self._changed.notify_all()
        for block, ranges in cuts:
            for start, stop in ranges:
                if not self._admit(stage, fetched, stop - start):
                    return False
                if start == block.start:  # not before there is room: pinned memory is taken at once
                    fetched.buffers.append(BlockBuffer(block, pinned=self._stream is not None))
                self._pool.submit(self._read, fetched, fetched.buffers[-1], start, stop)
        return True

    def _is_over(self) -> bool:
        return self._is_closed or self._error is not None

    def _admit(self, stage: int, fetched: _Stage, count: int) -> bool:
        """Wait until ``count`` more bytes fit the window, or the stage is the one that is waited for."""

        def fits() -> bool:
            return self._next_taken >= stage or self._held_bytes + count <= self._window_bytes

        with self._changed:
            self._changed.wait_for(lambda: self._is_over() or fits())
            if self._is_over():
                return False
            self._held_bytes += count
            fetched.held_bytes += count
        return True

    def _read(self, fetched: _Stage, buffer: BlockBuffer, start: int, stop: int) -> None:
        try:
            if self._is_over():
                return
            self._weights.read_piece(buffer, start, stop)
            with self._changed:
                fetched.pieces_left -= 1
                if fetched.pieces_left == 0:
                    self._copy_to_device(fetched)
                    self._changed.notify_all()
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def _copy_to_device(self, fetched: _Stage) -> None:
        if self._stream is None:
            return
        with torch.cuda.stream(self._stream):
            for buffer in fetched.buffers:
                copy = torch.empty_like(buffer.bytes, device=self._device)
                fetched.on_device.append(copy.copy_(buffer.bytes, non_blocking=True))
            fetched.arrived = torch.cuda.Event()
            fetched.arrived.record(self._stream)

    def _tensors(self, fetched: _Stage) -> dict[str, Tensor]:
        copies: Sequence[Tensor | None] = fetched.on_device or [None] * len(fetched.buffers)
        if fetched.arrived is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(fetched.arrived)
            for copy in fetched.on_device:
                assert copy is not None
                copy.record_stream(current)
        tensors: dict[str, Tensor] = {}
        for buffer, copy in zip(fetched.buffers, copies, strict=True):
            tensors |= buffer.tensors(copy)
        return tensors
