"""A measurement's peak memory is its own, not that of whatever its process did before."""

from __future__ import annotations

import subprocess
import sys

import pytest

from zoo.memory import peak_memory_bytes, reset_peak

on_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux tells a process's own peak, and resets it"
)


@on_linux
def test_what_was_used_before_does_not_count() -> None:
    large = bytearray(b"x") * 300_000_000
    high = peak_memory_bytes("cpu")
    del large
    reset_peak()
    assert peak_memory_bytes("cpu") < high - 200_000_000


@on_linux
def test_freed_memory_that_the_c_library_keeps_does_not_count() -> None:
    bytearray(30_000_000)  # freed at once: from now on glibc takes blocks up to this size from its heap
    blocks = [bytearray(b"x") * 8_000_000 for _ in range(40)]
    above = bytearray(b"x") * 4_000_000  # the heap cannot shrink past it on its own
    high = peak_memory_bytes("cpu")
    blocks.clear()
    reset_peak()
    assert peak_memory_bytes("cpu") < high - 200_000_000
    assert above


@on_linux
def test_what_the_process_used_that_started_this_one_does_not_count() -> None:
    large = bytearray(b"x") * 1_000_000_000
    code = "from zoo.memory import peak_memory_bytes; print(peak_memory_bytes('cpu'))"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(said.stdout) < len(large)
