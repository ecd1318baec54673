"""A measurement's peak memory is its own, not that of whatever its process did before."""

from __future__ import annotations

import sys

import pytest

from zoo.memory import peak_memory_bytes, reset_peak


@pytest.mark.skipif(sys.platform != "linux", reason="the peak can be reset on Linux alone")
def test_what_was_used_before_does_not_count() -> None:
    large = bytearray(b"x") * 300_000_000
    high = peak_memory_bytes("cpu")
    del large
    reset_peak()
    assert peak_memory_bytes("cpu") < high - 200_000_000
