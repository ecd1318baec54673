"""Night by night every model is measured at its latest revision, once, whatever happens in between."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from catalog.query import run_query
from catalog.scans import record_scan, seen_until
from catalog.store import Catalog, open_catalog
from catalog.watermarks import Scan, read_history
from tests.factories import SPEC
from tests.hub_faults import FaultPlan
from tests.hub_models import write_model
from tests.hub_server import HubServer
from tests.nights import ANY_SIZE, FIRST, World, model_ids, reasons
from zoo.budget import Budget
from zoo.errors import SourceError
from zoo.records import Listing
from zoo.rescan import last_search, promise, watermark
from zoo.searches import Search


@pytest.fixture
def world(empty: Catalog, tmp_path: Path) -> Iterator[World]:
    with HubServer() as server:
        yield World(server, empty, tmp_path / "models")


def scans(world: World) -> tuple[Scan, ...]:
    return read_history(world.catalog, spec_id=SPEC.spec_id).scans


def mark(world: World, search: Search = ANY_SIZE) -> Any:
    return watermark(scans(world), search, spec_id=SPEC.spec_id)


def test_a_night_measures_what_is_new_and_what_changed_and_nothing_twice(world: World) -> None:
    world.release("old", created_at="2025-01-01")
    world.release("first")
    assert model_ids(world.night(since=FIRST)) == ["first"]
    world.pass_time(days=3)
    world.update("old")
    world.release("second")
    assert sorted(model_ids(world.night())) == ["old", "second"]
    quiet = world.night()
    assert (quiet.work.targets, quiet.work.settled) == ((), 2)
    world.update("second")
    assert model_ids(world.night()) == ["second"]
    assert set(world.measured.values()) == {1}


def test_both_orders_of_the_hub_are_read_and_only_as_far_as_needed(world: World) -> None:
    world.server.page_size = 2
    for number in range(20):
        world.release(f"old{number}", created_at="2025-01-01")
    # A repository whose modification time lies before its creation is only in the order of creation.
    world.release("moved-here", last_modified="2024-01-01")
    world.update("old7")
    assert sorted(model_ids(world.night(since=FIRST))) == ["moved-here", "old7"]
    assert world.server.requests["list"] == 4


def test_the_watermark_is_the_hubs_time_and_no_clock_of_this_machine_loses_a_model(world: World) -> None:
    for hours in (0, 400, -400):
        skewed = timedelta(hours=hours)
        world.pass_time(days=2)
        world.release(f"one{hours}")
        world.night(since=FIRST, now=lambda skewed=skewed: world.clock + skewed)
        assert mark(world) <= world.clock
        world.pass_time(minutes=1)
        world.release(f"two{hours}")
        assert f"two{hours}" in model_ids(world.night(now=lambda skewed=skewed: world.clock + skewed))


@given(
    took=st.floats(0, 1e5), shown=st.floats(-1e7, 1e5), skew=st.floats(-1e7, 1e7), before=st.floats(-1e7, 0)
)
def test_whatever_changes_after_a_listing_began_lies_after_its_watermark(
    took: float, shown: float, skew: float, before: float
) -> None:
    began, seconds = FIRST, lambda count: timedelta(seconds=count)  # by the Hub's clock
    mark = seen_until(
        began + seconds(min(shown, took)),
        started=began + seconds(skew),
        elapsed_seconds=took,
        before=began + seconds(before),
    )
    assert began + seconds(before) <= mark <= began


def test_a_repository_dated_in_the_future_does_not_end_all_later_nights(world: World) -> None:
    world.release("bogus", created_at="2099-01-01")
    world.night(since=FIRST)
    assert mark(world) == FIRST
    world.pass_time(days=5)
    world.release("next")
    assert model_ids(world.night()) == ["next"]


def test_a_change_that_the_hub_shows_late_is_found_within_the_overlap(world: World) -> None:
    world.pass_time(days=1)
    world.release("shown")
    world.night(since=FIRST)
    world.release("late", created_at=world.clock - timedelta(hours=20))
    world.release("too-late", created_at=world.clock - timedelta(hours=30))
    assert model_ids(world.night(overlap=timedelta(hours=1))) == []
    assert model_ids(world.night()) == ["late"]


def test_a_repository_that_changes_while_pages_are_turned_is_found_the_next_night(world: World) -> None:
    world.server.page_size = 2
    for number in range(8):
        world.release(f"m{number}", created_at=FIRST + timedelta(minutes=number))
        world.release(f"old{number}", created_at="2025-06-01")
    world.pass_time(minutes=30)
    asked = 0

    def jump_to_the_front(seen: Any) -> None:
        nonlocal asked
        asked += seen.where == "list"
        if seen.where == "list" and asked == 2:  # two pages of eight are out, m0 would come last
            world.clock += timedelta(minutes=1)
            world.update("m0")
            world.server.repos["org/m0"].facts["createdAt"] = "2025-01-01T00:00:00.000Z"

    record = world.server.record
    world.server.record = lambda seen: (record(seen), jump_to_the_front(seen))[0]  # type: ignore[method-assign]
    first = model_ids(world.night(since=FIRST, overlap=timedelta(0)))
    world.server.record = record  # type: ignore[method-assign]
    assert sorted(first) == [f"m{number}" for number in range(1, 8)]
    assert model_ids(world.night(overlap=timedelta(0))) == ["m0"]


@pytest.mark.parametrize("page", ["?", "?2"])
def test_a_failed_listing_moves_no_watermark_and_keeps_nothing(world: World, page: str) -> None:
    world.server.page_size = 2
    world.release("first")
    world.night(since=FIRST)
    before, kept = mark(world), world.catalog.list_files("models")
    world.pass_time(days=5)
    for number in range(5):
        world.release(f"m{number}")
    world.server.faults = FaultPlan(1, kinds=["500"], where=["list"], most=None, only=[page])
    with pytest.raises(SourceError, match=r"broke off|cannot be reached"):
        world.night()
    assert (mark(world), world.catalog.list_files("models")) == (before, kept)
    world.server.faults = None
    assert len(model_ids(world.night())) == 5


def test_what_could_not_be_looked_at_comes_back_although_the_watermark_moved_on(world: World) -> None:
    world.release("good")
    world.release("unlucky")
    world.server.faults = FaultPlan(1, kinds=["503"], where=["info"], most=None, only=["unlucky"])
    night = world.night(since=FIRST)
    assert (model_ids(night), reasons(night)) == (["good"], {"unlucky": "hub_unavailable"})
    assert [refusal.transient for refusal in night.plan.refusals] == [True]
    world.server.faults = None
    world.pass_time(days=10)
    world.release("later")
    world.night()
    world.pass_time(days=10)
    assert mark(world) > FIRST + timedelta(days=9)
    assert world.measured[("org/unlucky", world.heads()["org/unlucky"])] == 1


def test_a_model_that_failed_for_the_moment_comes_back_behind_the_others(world: World) -> None:
    world.release("flaky", downloads=9000)
    world.night(since=FIRST, fate=lambda _: "flaky")
    world.pass_time(days=10)
    world.release("fresh", downloads=1)
    assert model_ids(world.night()) == ["fresh", "flaky"]


def test_a_model_that_was_killed_with_its_driver_comes_back(world: World) -> None:
    world.release("m")
    world.night(since=FIRST, fate=lambda _: "lost")
    world.pass_time(days=10)
    night = world.night()
    assert (model_ids(night), night.work.fresh, night.work.backlog) == (["m"], 0, 1)


def test_the_backlog_is_measured_at_the_revision_it_has_now(world: World) -> None:
    world.release("m")
    world.night(since=FIRST, fate=lambda _: "lost")
    world.pass_time(days=10)
    # Its task was taken away, so no listing shows it any more; its latest revision still counts.
    world.server.repos["org/m"].facts["pipeline_tag"] = None
    latest = world.update("m")
    assert [model.candidate.revision for model in world.night().plan.models] == [latest]


def test_a_copy_of_a_model_is_settled_with_it_and_not_without(world: World) -> None:
    world.release("a", seed=1, downloads=500)
    world.release("b", seed=1)
    first = world.night(since=FIRST, fate=lambda _: "lost")
    assert model_ids(first) == ["a"]
    world.pass_time(days=10)
    world.update("a")  # now b alone has the old weights
    assert sorted(model_ids(world.night())) == ["a", "b"]
    assert world.night().work.targets == ()


def test_a_refusal_for_good_is_looked_at_again_only_when_the_repository_changes(world: World) -> None:
    world.release("adapter", base_model="org/x", base_model_relation="adapter")
    world.release("tiny")
    search = Search(filter="org")  # without --params nothing below 10M parameters is taken
    night = world.night(search, since=FIRST)
    assert reasons(night) == {"adapter": "adapter", "tiny": "too_small"}
    assert world.night(search).work.targets == ()
    world.update("tiny")
    assert reasons(world.night(search)) == {"tiny": "too_small"}


def test_a_budget_takes_the_most_promising_and_the_rest_comes_the_next_nights(world: World) -> None:
    for number, downloads in enumerate((5, 90_000, 700, 12)):
        world.release(f"m{number}", downloads=downloads)
    one = world.look(since=FIRST).plan.models[0].fetch_bytes
    world.pass_time(days=1)
    nights = [world.night(since=FIRST, budget=Budget(bytes=1.5 * one))]
    for _ in range(4):
        world.pass_time(days=7)
        nights.append(world.night(budget=Budget(bytes=1.5 * one)))
    assert list(map(model_ids, nights)) == [["m1"], ["m2"], ["m3"], ["m0"], []]
    assert [len(night.plan.left_out) for night in nights] == [3, 2, 1, 0, 0]


def test_a_model_that_does_not_fit_leaves_room_for_smaller_ones(world: World) -> None:
    world.release("large", downloads=900)
    world.server.add_repo(
        "org/small",
        write_model(world.folder / "small", config={"num_hidden_layers": 1}),
        downloads=8,
        created_at=world.clock,
    )
    sizes = {each.candidate.model_id: each.fetch_bytes for each in world.look(since=FIRST).plan.models}
    night = world.night(since=FIRST, budget=Budget(bytes=sizes["org/large"] - 1))
    assert model_ids(night) == ["small"]
    assert night.too_large == {"org/large": sizes["org/large"]}
    assert night.plan.left_out == ("org/large",)


def test_a_budget_that_is_used_up_spends_no_request_on_the_rest(world: World) -> None:
    for number in range(60):
        world.release(f"m{number:02}", seed=number)
    one = world.look(since=FIRST, budget=Budget()).plan.models[0].fetch_bytes
    world.server.requests.clear()
    night = world.night(since=FIRST, budget=Budget(bytes=2 * one))
    assert len(night.plan.models) == 2
    assert len(night.plan.left_out) == 58
    assert world.server.requests["info"] == 32  # the batch that used it up, and one in which nothing fitted


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (Listing(model_id="a/b", downloads=5000), Listing(model_id="a/a", downloads=500)),
        (
            Listing(model_id="a/b", downloads=200, parameters=10**9),
            Listing(model_id="a/a", downloads=900, parameters=7 * 10**9),
        ),
        (Listing(model_id="a/b-1B", downloads=200), Listing(model_id="a/a-7B", downloads=900)),
        (Listing(model_id="a/b-7B", downloads=900), Listing(model_id="a/a", downloads=900)),
        (Listing(model_id="a/b", downloads=900), Listing(model_id="a/a", downloads=800)),
        (Listing(model_id="a/a"), Listing(model_id="a/b", downloads=0)),
    ],
)
def test_the_promising_come_first(better: Listing, worse: Listing) -> None:
    assert promise(better) < promise(worse)
    assert promise(worse) < promise(better, attempts=1)


def test_a_search_without_a_scan_asks_where_to_begin(world: World) -> None:
    with pytest.raises(SourceError, match=r"--since 2026-01-31"):
        world.look()
    with pytest.raises(SourceError, match="zoo screen") as caught:
        last_search(scans(world))
    assert "--since" in str(caught.value)
    world.night(since=FIRST)
    with pytest.raises(SourceError, match="--since"):  # another search has seen nothing
        world.look(Search(filter="7B"))


def test_since_looks_further_back_and_never_leaves_a_gap(world: World) -> None:
    world.release("older", created_at=FIRST - timedelta(days=30))
    world.release("first")
    world.night(since=FIRST)
    world.release("between")
    world.pass_time(days=30)
    assert model_ids(world.look(since=world.clock)) == ["between"]
    assert model_ids(world.look(since=FIRST - timedelta(days=60))) == ["between", "older"]


def test_scans_from_before_watermarks_were_kept_count_with_their_own_times(world: World) -> None:
    rows = [{"model_id": "a/b", "verdict": "candidate", "last_modified": "2026-05-01T10:00:00.000Z"}]
    record_scan(world.catalog, rows, query='--filter "7B" --params 6B..9B --sort downloads')
    for scan in world.catalog.list_files("scans"):
        Path(scan).unlink()
    search = last_search(scans(world))
    assert search == Search(filter="7B", params="6B..9B")
    assert mark(world, search) == FIRST + timedelta(hours=10)


def test_a_night_that_died_before_its_commit_has_seen_nothing(world: World) -> None:
    world.release("first")
    world.night(since=FIRST)
    before = mark(world)
    world.pass_time(days=5)
    world.release("second")
    world.night(fate=lambda _: "lost")
    Path(world.catalog.list_files("scans")[-1]).unlink()
    assert mark(world) == before
    assert model_ids(world.night()) == ["second"]


names = st.integers(0, 5)
happenings = st.fixed_dictionaries(
    {
        "released": st.lists(st.tuples(names, st.integers(0, 3)), max_size=3),
        "updated": st.lists(st.tuples(names, st.integers(0, 3)), max_size=2),
        "days": st.sampled_from([0.01, 1.0, 9.0]),
        "skew_hours": st.sampled_from([0, -100, 100]),
        "budget_models": st.sampled_from([0.5, 1.5, 3.5, 100.0]),
        "trouble": st.sampled_from(["", "", "list", "info", "resolve"]),
        "fates": st.lists(st.sampled_from(["measured", "flaky", "broken", "lost"]), min_size=6, max_size=6),
    }
)


def check_nights(nights: list[dict[str, Any]]) -> None:
    """Runs the nights and then quiet ones, and checks what was measured."""
    with tempfile.TemporaryDirectory() as folder, HubServer(page_size=2) as server:
        world = World(server, open_catalog(f"{folder}/catalog", create=True), Path(folder) / "models")
        world.release("seed")
        one = world.look(since=FIRST).plan.models[0].fetch_bytes
        for number, night in enumerate(nights):
            world.pass_time(days=night["days"])
            for name, seed in night["released"]:
                if f"org/m{name}" not in server.repos:
                    world.release(f"m{name}", seed=seed)
            for name, seed in night["updated"]:
                if f"org/m{name}" in server.repos:
                    world.update(f"m{name}", seed=seed)
            trouble = night["trouble"]
            if trouble:
                server.faults = FaultPlan(number, kinds=["500"], where=[trouble], most=None, rate=0.5)
            before = mark(world)
            fates = iter(night["fates"] * 3)
            skew = timedelta(hours=night["skew_hours"])
            try:
                world.night(
                    since=FIRST,
                    budget=Budget(bytes=night["budget_models"] * one),
                    fate=lambda _, fates=fates: next(fates),
                    now=lambda skew=skew: world.clock + skew,
                )
            except SourceError:
                assert trouble == "list"
                assert mark(world) == before
            server.faults = None
        for _ in range(2):
            world.pass_time(days=9)
            world.night(since=None if mark(world) else FIRST)
        assert world.look().work.targets == ()
        check_measured(world)


def check_measured(world: World) -> None:
    """Every latest revision has an outcome, its own or that of a copy, and no revision has two."""
    assert max(world.measured.values()) == 1
    contents = {
        tuple(sorted((name, file.etag) for name, file in world.server.repos[model].revisions[commit].items()))
        for model, commit in world.measured
    }
    for model_id, head in world.heads().items():
        repo = world.server.repos[model_id]
        files = tuple(sorted((name, file.etag) for name, file in repo.revisions[head].items()))
        assert (model_id, head) in world.measured or files in contents, model_id
    settled = run_query(world.catalog, "SELECT count(*) FROM outcomes WHERE NOT transient").rows[0][0]
    assert settled == sum(world.measured.values())


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(st.lists(happenings, min_size=1, max_size=4))
def test_any_nights_measure_every_latest_revision_once(nights: list[dict[str, Any]]) -> None:
    check_nights(nights)


@pytest.mark.slow
@pytest.mark.timeout(900)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(happenings, min_size=1, max_size=7))
def test_many_nights_measure_every_latest_revision_once(nights: list[dict[str, Any]]) -> None:
    check_nights(nights)
