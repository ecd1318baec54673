"""Memory of the machine and the GPU: whether it ran out, what was used at most, giving it back."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import resource
import sys
from pathlib import Path

import torch


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: of the GPU, of Python, of the system, or in torch's allocator on the CPU."""
    if isinstance(error, torch.cuda.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    text = str(error)
    return "DefaultCPUAllocator" in text or "Cannot allocate memory" in text


def free_memory() -> None:
    """Give back what a failed try still holds."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def reset_peak() -> None:
    """Let ``peak_memory_bytes`` begin anew; outside of Linux a CPU's peak is that of the whole process.

    What was freed before is given back to the system first: glibc keeps it resident, for a use to come.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library has no malloc_trim
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # see proc(5)
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(index)


def peak_memory_bytes(device: str) -> int:
    """The most memory in use since ``reset_peak``: allocated on all visible GPUs, or resident on a CPU."""
    if device.startswith("cuda"):
        return sum(map(torch.cuda.max_memory_allocated, range(torch.cuda.device_count())))
    if sys.platform == "linux":  # where ru_maxrss also holds the peak of the process that started this one
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.partition("VmHWM:")[2].split()[0])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
