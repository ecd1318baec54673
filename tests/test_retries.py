"""A lost model is tried again as long as that can help, and then given up for a reason."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tasks import candidate

from zoo.records import RunOptions
from zoo.retries import TRIES, Loss, Try

FIRST = Try(candidate=candidate("one"), gpus=1, cpus=2, options=RunOptions())


def tries(*losses: Loss) -> list[Try]:
    """The tries that follow one another until a model is given up or no loss is left."""
    run, last = [FIRST], FIRST
    for loss in losses:
        if (following := last.after(loss)) is None:
            break
        last = following
        run.append(last)
    return run


@given(losses=st.lists(st.sampled_from(["worker_lost", "node_lost", "out_of_memory"]), max_size=60))
def test_every_model_is_given_up_in_the_end_and_keeps_what_it_asks_for(losses: list[Loss]) -> None:
    run = tries(*losses)
    assert len(run) <= sum(TRIES.values()) + 3
    assert {each.candidate for each in run} == {FIRST.candidate}
    assert all(each.losses == tuple(losses[: len(each.losses)]) for each in run)


def test_a_crash_is_tried_twice_more_and_a_preempted_node_nine_times() -> None:
    assert len(tries(*["worker_lost"] * 20)) == 3
    assert len(tries(*["node_lost"] * 20)) == 10
    assert len(tries("worker_lost", *["node_lost"] * 8, "worker_lost")) == 11


def test_memory_that_ran_out_halves_the_batch_down_to_64_tokens() -> None:
    run = tries(*["out_of_memory"] * 20)
    assert [each.options.tokens_per_batch for each in run] == [512, 256, 128, 64]


def test_more_gpus_are_given_only_where_a_node_has_them() -> None:
    assert FIRST.with_gpus(4, most=8) is not None
    assert FIRST.with_gpus(4, most=2) is None
    assert FIRST.with_gpus(1, most=8) is None
