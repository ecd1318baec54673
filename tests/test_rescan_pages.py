"""The summary of a night says what is new, for people, for programs and as Markdown."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from catalog.lookup import ranked_places
from catalog.store import Catalog
from tests.factories import SPEC, make_architecture, make_candidate, make_failure, make_measurement
from zoo.nights import NightSummary, Place, RankingChanges, compare_rankings, places
from zoo.records import Listing, Plan, PlannedModel, Refusal
from zoo.reports import ScreenSummary, TaskReport
from zoo.rescan import Night, Work
from zoo.rescan_pages import night_markdown, night_text
from zoo.searches import Search

OLD, NEW = "a" * 40, "b" * 40


def place(model_id: str, rank: int, strength: float, revision: str = OLD) -> Place:
    return Place(
        model_id=model_id,
        revision=revision,
        rank=rank,
        sink_strength=strength,
        low=strength - 0.1,
        high=strength + 0.1,
        parameters=7_240_000_000,
    )


BEFORE = (
    place("org/top", 1, 1.5),
    place("org/fading", 2, 1.2),
    place("org/steady", 3, 0.9),
    place("org/gone", 4, 0.3),
)
AFTER = (
    place("org/top", 1, 1.5),
    place("org/new", 2, 1.3),
    place("org/steady", 3, 0.9),
    place("org/fading", 4, 0.4, NEW),
)


def planned(model_id: str) -> PlannedModel:
    return PlannedModel(
        candidate=make_candidate(model_id),
        listing=Listing(model_id=model_id),
        architecture=make_architecture(),
        parameters=7_240_000_000,
        fetch_bytes=14_000_000_000,
        api_requests=0,
        resolver_requests=3,
        identity=model_id,
    )


def refusal(model_id: str, reason: str, message: str, *, transient: bool = False) -> Refusal:
    return Refusal(model_id=model_id, revision=OLD, reason=reason, message=message, transient=transient)


def summary(**screened: Any) -> NightSummary:
    failed = TaskReport(
        model_id="org/bad",
        revision=OLD,
        status="failed",
        stage="load",
        reason="missing_tensors",
        message="3 tensors | are missing",
    )
    flaky = replace(failed, model_id="org/flaky", reason="worker_lost", message="gone", transient=True)
    plan = Plan(
        models=tuple(map(planned, ("org/new", "org/fading", "org/bad", "org/flaky", "org/late"))),
        refusals=(
            refusal("org/a_1", "gated", "org/a_1 is gated: accept its terms"),
            refusal("org/a_2", "gated", "org/a_2 is gated"),
            refusal("org/busy", "rate_limited", "org/busy: try again later", transient=True),
        ),
        listed=(),
        aliases={f"org/copy@{OLD}": "org/new"},
        left_out=("org/huge", "org/waits"),
    )
    night = Night(
        search=Search(filter="7B"),
        profile="small",
        spec_id=SPEC.spec_id,
        since=datetime(2026, 5, 1, 2, 0, tzinfo=UTC),
        watermark_before=datetime(2026, 5, 2, 2, 0, tzinfo=UTC),
        watermark_after=datetime(2026, 5, 3, 2, 4, tzinfo=UTC),
        work=Work(targets=(object(),) * 10, fresh=8, backlog=2, settled=31),  # type: ignore[arg-type]
        plan=plan,
        too_large={"org/huge": 810_000_000_000},
    )
    measured = tuple(
        TaskReport(model_id=one.model_id, revision=one.revision, status="measured", sink_strength=0.5)
        for one in AFTER[1::2]
    )
    ended = {"measured": measured, "failed": (failed, flaky), "not_ended": (make_candidate("org/late"),)}
    return NightSummary(
        night=night,
        screened=ScreenSummary(**(ended | screened)),
        changes=compare_rankings(BEFORE, AFTER),
        catalog_uri="./zoo-catalog",
        elapsed_seconds=725.0,
    )


TEXT = """\
Rescan of --filter "7B" (profile small) since 2026-05-01 02:00 UTC: 8 new or changed, 2 left by earlier \
nights, 31 known at their revision.

Refused: 3 of 9 looked at.
  gated (2): org/a_1, org/a_2
    org/a_1 is gated: accept its terms
  rate_limited (1): org/busy
    org/busy: try again later

Entered the ranking
  rank  model    S (nats)  95 % interval  params  revision
     2  org/new      1.30  1.20 to 1.40     7.2B  aaaaaaaaaaaa

Left the ranking: a later attempt on the same revision failed for good
  rank was  model     S (nats)  95 % interval  params  revision
         4  org/gone      0.30  0.20 to 0.40     7.2B  aaaaaaaaaaaa

Moved in the ranking
  rank    model       S (nats)      why
  2 -> 4  org/fading  1.20 -> 0.40  new revision bbbbbbbbbbbb instead of aaaaaaaaaaaa

Failed
  model      stage  reason           message
  org/bad    load   missing_tensors  3 tensors | are missing
  org/flaky  load   worker_lost      gone

Measured once with another, since weights, tokenizer and chat template are the same
  model     same as
  org/copy  org/new

Left for the next night: 5
  why                           models  which
  tonight's budget                   1  org/waits
  rate_limited                       1  org/busy
  tonight's time                     1  org/late
  larger than a night's budget       1  org/huge (810 GB)
  worker_lost                        1  org/flaky

2 measured, 2 failed in 12 min 05 s; 4 models ranked in ./zoo-catalog.
The budget of a night is smaller than some models (810.0 GB): raise --budget-bytes or --budget-hours, or \
name them to zoo screen.
The next rescan goes on from 2026-05-03 02:04 UTC, less the overlap."""


def test_the_text_reads_from_what_was_looked_at_to_what_is_left() -> None:
    assert night_text(summary(), format="table") == TEXT


def test_the_markdown_renders_as_tables_with_every_row() -> None:
    page = night_markdown(summary())
    assert page.startswith("# Rescan of 2026-05-03 02:04 UTC\n\nRescan of --filter")
    blocks = [block.splitlines() for block in page.split("\n\n") if block.startswith("|")]
    assert len(blocks) == 7
    for header, rule, *rows in blocks:
        cells = {len(line.replace(r"\|", "").split("|")) for line in (header, rule, *rows)}
        assert len(cells) == 1
        assert set(rule) <= set("|-: ")
    assert r"| org/bad | load | missing\_tensors | 3 tensors \| are missing |" in page
    assert r"| gated | 2 | org/a\_1, org/a\_2 | org/a\_1 is gated: accept its terms |" in page
    assert "| 2 -> 4 | org/fading | 1.20 -> 0.40 |" in page


def test_json_has_every_key_and_every_digit() -> None:
    record = json.loads(night_text(summary(), format="json"))
    assert record["watermark"] == {
        "before": "2026-05-02T02:00:00+00:00",
        "after": "2026-05-03T02:04:00+00:00",
    }
    assert [one["model_id"] for one in record["entered"]] == ["org/new"]
    assert [one["model_id"] for one in record["left"]] == ["org/gone"]
    assert record["moved"] == [
        {
            "model_id": "org/fading",
            "old_rank": 2,
            "new_rank": 4,
            "old_sink_strength": 1.2,
            "new_sink_strength": 0.4,
            "old_revision": OLD,
            "new_revision": NEW,
            "why": "new revision bbbbbbbbbbbb instead of aaaaaaaaaaaa",
        }
    ]
    assert {one["model_id"]: one["reason"] for one in record["next_night"]} == {
        "org/waits": "budget",
        "org/huge": "too_large",
        "org/busy": "rate_limited",
        "org/late": "time",
        "org/flaky": "worker_lost",
    }
    assert record["exit_code"] == 3
    quiet = replace(summary(), screened=ScreenSummary(), changes=RankingChanges.none())
    assert json.loads(night_text(quiet, format="json")).keys() == record.keys()


def test_csv_has_a_row_a_model_and_change() -> None:
    rows = list(csv.DictReader(io.StringIO(night_text(summary(), format="csv"))))
    assert [row["change"] for row in rows].count("refused") == 3
    assert {row["change"] for row in rows} == {"entered", "left", "moved", "failed", "refused", "next_night"}


@pytest.mark.parametrize(
    ("screened", "code"),
    [
        ({}, 3),
        ({"failed": ()}, 3),  # one repository could not be looked at
        ({"interrupted": True}, 130),
    ],
)
def test_the_exit_code_says_how_it_ended(screened: dict[str, Any], code: int) -> None:
    assert summary(**screened).exit_code == code


def test_a_night_that_only_waits_for_the_next_one_is_done() -> None:
    made = summary(failed=())
    plan = replace(made.night.plan, refusals=made.night.plan.refusals[:2])
    assert replace(made, night=replace(made.night, plan=plan)).exit_code == 0


def test_nothing_new_is_one_line() -> None:
    made = summary()
    night = replace(made.night, work=replace(made.night.work, targets=()))
    (line,) = night_text(replace(made, night=night), format="table").splitlines()
    assert line.startswith('Nothing new for --filter "7B" since 2026-05-01 02:00 UTC')


def test_a_budget_below_the_smallest_model_is_said() -> None:
    made = summary(measured=(), failed=())
    night = replace(made.night, plan=replace(made.night.plan, models=()))
    said = night_text(replace(made, night=night), format="table")
    assert "smaller than the smallest model (810.0 GB): raise --budget-bytes or" in said


def test_a_model_keeps_its_place_in_the_ranking_while_its_new_revision_fails(catalog: Catalog) -> None:
    before = places(ranked_places(catalog, SPEC.spec_id))
    failure = make_failure("org/m0")
    catalog.commit(replace(failure, candidate=replace(failure.candidate, revision=NEW)))
    assert compare_rankings(before, places(ranked_places(catalog, SPEC.spec_id))).moved == ()
    # A new revision takes the place of the older one, although that stays in the catalog.
    later = make_measurement(
        "org/m0", revision="c" * 40, sink_strength=9.0, started_at="2026-04-01T00:00:00+00:00"
    )
    catalog.commit(later)
    changes = compare_rankings(before, places(ranked_places(catalog, SPEC.spec_id)))
    assert (changes.entered, changes.left, changes.models) == ((), (), 3)
    assert [(now.model_id, was.rank, now.rank) for was, now in changes.moved] == [
        ("org/m0", 2, 1),
        ("org/m1", 1, 2),
    ]
    # A later attempt that fails for good takes a model out.
    catalog.commit(make_failure("org/m2"), force=True)
    gone = compare_rankings(before, places(ranked_places(catalog, SPEC.spec_id)))
    assert [one.model_id for one in gone.left] == ["org/m2"]
