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
def test_what_the_process_used_that_started_this_one_does_not_count() -> None:
    large = bytearray(b"x") * 1_000_000_000
    code = "from zoo.memory import peak_memory_bytes; print(peak_memory_bytes('cpu'))"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(said.stdout) < len(large)
