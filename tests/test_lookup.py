from __future__ import annotations

import pytest

from catalog.lookup import model_details, rank_rows
from catalog.query import run_query
from catalog.store import Catalog
from tests.factories import SPEC, make_candidate, make_failure, make_measurement
from zoo.errors import CatalogError
from zoo.records import MeasurementSpec

OTHER = MeasurementSpec(prompts_digest="1" * 64, prompt_count=12)


def test_specs_are_never_ranked_together(catalog: Catalog) -> None:
    catalog.commit(make_measurement("org/other", spec=OTHER, started_at="2026-05-01T00:00:00+00:00"))
    ranking = rank_rows(catalog)
    assert (ranking.spec_id, ranking.other_spec_ids) == (OTHER.spec_id, (SPEC.spec_id,))
    assert [row["model_id"] for row in ranking.table.records()] == ["org/other"]
    earlier = rank_rows(catalog, SPEC.spec_id)
    assert [row["rank"] for row in earlier.table.records()] == [1, 2, 3]
    assert [row[0] for row in run_query(catalog, "SELECT spec_id FROM specs").rows] == [
        OTHER.spec_id,
        SPEC.spec_id,
    ]
    with pytest.raises(CatalogError, match=SPEC.spec_id):
        rank_rows(catalog, "nope")


def test_models_with_one_strength_share_a_rank(catalog: Catalog) -> None:
    catalog.commit(make_measurement("org/a", sink_strength=1.5))
    rows = rank_rows(catalog).table.records()
    assert [(row["rank"], row["model_id"]) for row in rows[:3]] == [
        (1, "org/a"),
        (1, "org/m1"),
        (3, "org/m0"),
    ]


def test_an_empty_ranking_says_what_to_do(empty: Catalog) -> None:
    with pytest.raises(CatalogError, match="zoo screen"):
        rank_rows(empty)
    empty.commit(make_failure())
    with pytest.raises(CatalogError, match="1 failed"):
        rank_rows(empty)


def test_details_hold_every_layer_cell_and_attempt(catalog: Catalog) -> None:
    measurement = make_measurement("org/m1", seed=9, layers=12)
    catalog.commit(measurement, force=True)
    catalog.commit(make_failure("org/m1", transient=True), force=True)
    details = model_details(catalog, "org/m1")
    assert details.outcome["sink_strength"] == measurement.sink_strength
    assert [row["heads"] for row in details.layers.records()] == [6] * 12
    assert [row["in_window"] for row in details.layers.records()] == [False] * 2 + [True] * 10
    first_layer = sorted(row.log_odds or 0 for row in measurement.strength.heads if row.layer == 0)
    assert details.layers.records()[0]["log_odds"] == pytest.approx(sum(first_layer[2:4]) / 2)
    assert len(details.sweep.rows) == 18
    attempts = [(row["attempt"], row["status"], row["counts"]) for row in details.attempts.records()]
    assert attempts == [(3, "failed", False), (2, "measured", True), (1, "measured", False)]


def test_details_of_a_failure_have_its_message_and_no_layers(catalog: Catalog) -> None:
    details = model_details(catalog, "org/broken")
    assert details.outcome["message"] == "model.safetensors is truncated"
    assert (details.layers.rows, details.sweep.rows) == ((), ())


def test_details_follow_the_revision_that_was_asked_for(catalog: Catalog) -> None:
    revision = "c" * 40
    catalog.commit(make_measurement("org/m0", revision=revision, sink_strength=9.0))
    assert model_details(catalog, "org/m0", revision="cccc").outcome["sink_strength"] == 9.0
    first = make_candidate("org/m0").revision
    assert model_details(catalog, "org/m0", revision=first).outcome["sink_strength"] == 0.5
    with pytest.raises(CatalogError, match=first[:12]):
        model_details(catalog, "org/m0", revision="dddd")


@pytest.mark.parametrize(
    ("asked", "near"), [("org/m00", "org/m0"), ("BROKEN", "org/broken"), ("M2", "org/m2")]
)
def test_an_unknown_model_is_answered_with_near_names(catalog: Catalog, asked: str, near: str) -> None:
    with pytest.raises(CatalogError, match=f"no model {asked}: did you mean .*{near}"):
        model_details(catalog, asked)
    with pytest.raises(CatalogError, match="zoo rank lists"):
        model_details(catalog, "zzzzzzzzzz")
