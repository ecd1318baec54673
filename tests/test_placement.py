"""A model loaded whole goes where it fits, or the number of GPUs that would do is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zoo.errors import GpuMemoryError
from zoo.placement import ACTIVATION_BYTES, device_map, spread

GB = 10**9


def test_a_model_on_the_cpu_is_not_spread() -> None:
    assert device_map(1000 * GB, device="cpu") is None


def test_a_model_that_fits_one_gpu_is_not_spread_over_two() -> None:
    assert spread(15 * GB, free=[79 * GB, 79 * GB], total=80 * GB) is None
    assert spread(130 * GB, free=[79 * GB, 79 * GB], total=80 * GB) == "balanced"


@given(model=st.integers(1, 3000), gpus=st.integers(1, 8), used=st.integers(0, 70))
def test_what_is_refused_did_not_fit_and_fits_on_as_many_gpus_as_are_named(
    model: int, gpus: int, used: int
) -> None:
    free = [(79 - used) * GB] * gpus
    refusal = None
    try:
        spread(model * GB, free=free, total=80 * GB)
    except GpuMemoryError as error:
        refusal = error
    fits = model * GB <= max(free[0] - ACTIVATION_BYTES, 0.9 * gpus * (free[0] - ACTIVATION_BYTES))
    assert fits == (refusal is None)
    if refusal is not None:
        assert spread(model * GB, free=[80 * GB] * refusal.gpus_needed, total=80 * GB) in (None, "balanced")


def test_a_refusal_says_what_there_is_and_what_would_do() -> None:
    with pytest.raises(GpuMemoryError) as caught:
        spread(140 * GB, free=[79 * GB], total=80 * GB)
    assert str(caught.value) == (
        "the model takes 140 GB whole, and 79 GB are free on the 1 GPU it was given; "
        "give it 2 with --gpus-per-model 2"
    )
