"""What is tried when a model cannot be run as it was to be, and when that ends."""

from __future__ import annotations

import pytest

from zoo.errors import ModelError, TransientModelError
from zoo.fallback import with_fallback
from zoo.records import RunOptions

NOT_STREAMABLE = ModelError("it looks ahead; use --load whole", stage="probe", reason="cannot_stream")


def test_memory_that_runs_out_halves_the_batch_until_it_fits() -> None:
    tried: list[int] = []

    def run(options: RunOptions) -> str:
        tried.append(options.tokens_per_batch)
        if options.tokens_per_batch > 128:
            raise MemoryError
        return "done"

    assert with_fallback(run, RunOptions(tokens_per_batch=512)) == ("done", None)
    assert tried == [512, 256, 128]


def test_memory_that_runs_out_in_the_smallest_batches_is_a_refusal_that_may_pass() -> None:
    def run(options: RunOptions) -> None:
        raise MemoryError(f"no room for {options.tokens_per_batch}")

    with pytest.raises(TransientModelError) as refused:
        with_fallback(run, RunOptions(tokens_per_batch=512))
    assert refused.value.reason == "out_of_memory"
    assert str(refused.value).startswith("memory ran out in batches of 64 tokens too (")
    assert "no room for 64" in str(refused.value)


def test_only_auto_loads_whole_what_cannot_be_streamed_and_keeps_the_smaller_batch() -> None:
    tried: list[tuple[str, int]] = []

    def run(options: RunOptions) -> int:
        tried.append((options.load, options.tokens_per_batch))
        if options.tokens_per_batch > 256:
            raise MemoryError
        if options.load != "whole":
            raise NOT_STREAMABLE
        return 1

    assert with_fallback(run, RunOptions(load="auto", tokens_per_batch=512)) == (
        1,
        "cannot be streamed: it looks ahead",
    )
    assert tried == [("auto", 512), ("auto", 256), ("whole", 256)]
    with pytest.raises(ModelError, match="looks ahead"):
        with_fallback(run, RunOptions(load="stream", tokens_per_batch=256))


@pytest.mark.parametrize("error", [ValueError("a defect"), ModelError("no", stage="load", reason="gated")])
def test_every_other_error_is_passed_on_at_once(error: Exception) -> None:
    tried: list[RunOptions] = []

    def run(options: RunOptions) -> None:
        tried.append(options)
        raise error

    with pytest.raises(type(error)) as raised:
        with_fallback(run, RunOptions())
    assert raised.value is error
    assert len(tried) == 1
