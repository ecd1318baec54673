"""The views on how sure S is, against the same numbers computed from the records."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import kendalltau

from catalog.query import run_query
from catalog.store import Catalog, open_catalog
from tests.factories import make_measurement, shifted, without_slices
from zoo.records import SLICES, Measurement

MODELS = 5


@pytest.fixture(scope="module")
def measurements() -> list[Measurement]:
    return [make_measurement(f"org/m{seed}", seed=seed, layers=17) for seed in range(MODELS)]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory, measurements: list[Measurement]) -> Catalog:
    catalog = open_catalog(str(tmp_path_factory.mktemp("catalog")), create=True)
    for measurement in measurements:
        catalog.commit(measurement)
    return catalog


def records(catalog: Catalog, sql: str) -> list[dict[str, object]]:
    return run_query(catalog, sql).records()


def window_medians(measurement: Measurement, values: str, *, layers: int = 10) -> float:
    depth = len(measurement.architecture.attention_layers)
    return float(
        np.median([getattr(h, values) for h in measurement.strength.heads if h.layer >= depth - layers])
    )


def test_windows_are_medians_over_the_last_layers(catalog: Catalog, measurements: list[Measurement]) -> None:
    for row in records(catalog, "SELECT * FROM windows"):
        measurement = measurements[int(row["model_id"][-1])]
        layers = row["window_layers"] or 1000
        assert row["sink_strength"] == window_medians(measurement, "log_odds", layers=layers)
        assert row["sink_strength_content"] == window_medians(measurement, "log_odds_content", layers=layers)


def test_slices_are_medians_over_the_window_and_null_where_a_head_has_none(
    catalog: Catalog, measurements: list[Measurement]
) -> None:
    rows = records(catalog, "SELECT * FROM slices WHERE model_id = 'org/m0' ORDER BY place")
    assert [row["slice"] for row in rows] == list(SLICES)
    heads = [head for head in measurements[0].strength.heads if head.in_window]
    for place, row in enumerate(rows):
        values = [head.slice_log_odds[place] for head in heads]
        expected = None if None in values else pytest.approx(np.median(values), abs=1e-6)
        assert row["sink_strength"] == expected
    assert rows[0]["mean_log_odds"] == pytest.approx(
        np.median([head.slice_mean_log_odds[0] for head in heads]), abs=1e-6
    )
    assert (rows[5]["slice"], rows[5]["sink_strength"], rows[5]["lift"]) == ("64+", None, None)


def test_a_choice_that_keeps_the_definition_gives_s_itself(catalog: Catalog) -> None:
    own = records(
        catalog, "SELECT shift FROM sensitivity WHERE choice IN ('last 10 layers', 'all') AND plausible"
    )
    assert len(own) == 2 * MODELS
    assert max(abs(row["shift"]) for row in own) < 1e-6


def test_kendalls_tau_of_every_choice_equals_scipys(catalog: Catalog) -> None:
    own = {row["model_id"]: row["sink_strength"] for row in records(catalog, "FROM ranking")}
    rows = records(catalog, "FROM agreement")
    assert len(rows) == len(records(catalog, "SELECT DISTINCT factor, choice FROM sensitivity"))
    for row in rows[::7]:
        chosen = records(
            catalog,
            f"FROM sensitivity WHERE factor = '{row['factor']}' AND choice = '{row['choice']}'",
        )
        tau = kendalltau(
            [own[each["model_id"]] for each in chosen], [each["sink_strength"] for each in chosen]
        ).statistic
        assert row["kendall_tau"] == pytest.approx(tau)


def test_a_sweep_size_is_compared_with_what_drawing_from_a_finite_set_leaves(catalog: Catalog) -> None:
    for row in records(catalog, "FROM sweep_sizes WHERE size = 15"):
        cells = [
            cell["sink_strength"]
            for cell in records(catalog, f"FROM sweep WHERE model_id = '{row['model_id']}' AND size = 15")
        ]
        assert row["std"] == pytest.approx(np.std(cells, ddof=1))
        assert row["std_per_prompt"] == pytest.approx(row["std"] / np.sqrt(1 / 15 - 1 / 24))


def test_weak_heads_count_what_the_records_hold(catalog: Catalog, measurements: list[Measurement]) -> None:
    for row in records(catalog, "FROM weak_heads"):
        heads = [h for h in measurements[int(row["model_id"][-1])].strength.heads if h.in_window]
        log_odds = np.array([head.log_odds for head in heads])
        assert row["share_below_0"] == pytest.approx((log_odds < 0).mean())
        quantiles = [row[name] for name in ("q10", "q25", "q50", "q75", "q90")]
        np.testing.assert_allclose(quantiles, np.quantile(log_odds, [0.1, 0.25, 0.5, 0.75, 0.9]))
        groups = Counter((head.layer, head.kv_head) for head in heads)
        weak = Counter((head.layer, head.kv_head) for head in heads if head.log_odds < 0)
        assert row["kv_heads"] == len(groups)
        assert row["weak_kv_heads"] == sum(weak[group] == size for group, size in groups.items())


def test_a_layer_whose_sink_is_elsewhere_is_named(tmp_path: Path) -> None:
    made = make_measurement(layers=3)
    heads = tuple(
        replace(head, candidate_masses=(0.1, 0.2, 0.6, *head.candidate_masses[3:]))
        if head.layer == 1
        else head
        for head in made.strength.heads
    )
    catalog = open_catalog(str(tmp_path), create=True)
    catalog.commit(replace(made, strength=replace(made.strength, heads=heads)))
    rows = records(catalog, "FROM layer_sinks ORDER BY layer")
    assert [(row["sink_position"], row["agrees"]) for row in rows] == [(0, True), (2, False), (0, True)]
    assert (rows[1]["runner_up_position"], rows[1]["runner_up_mass"]) == (1, pytest.approx(0.2))
    assert records(catalog, "FROM weak_heads")[0]["disagreeing_layers"] == [1]


def doubts(tmp_path: Path, *shifts: float) -> list[dict[str, object]]:
    """The doubts of models that differ by a shift of every log-odds."""
    catalog = open_catalog(str(tmp_path), create=True)
    for number, shift in enumerate(shifts):
        catalog.commit(shifted(make_measurement(f"org/m{number}"), shift))
    return records(catalog, "FROM doubts ORDER BY rank")


def test_models_that_every_choice_moves_alike_are_beyond_doubt(tmp_path: Path) -> None:
    for row in doubts(tmp_path, 3.0, 2.0, 1.0):
        assert (row["sign_changes"], row["overtakes_in"], row["overtaken_in"]) == ([], [], [])
        assert row["complete"]


def test_a_sign_that_a_choice_changes_is_a_doubt_and_names_the_choice(tmp_path: Path) -> None:
    (row,) = doubts(tmp_path, -0.3)
    assert "queries: content" in row["sign_changes"]
    assert not any("band" in choice or "ln(keys)" in choice for choice in row["sign_changes"])


def test_neighbours_that_swap_are_both_in_doubt(tmp_path: Path) -> None:
    catalog = open_catalog(str(tmp_path), create=True)
    for seed in range(3):
        catalog.commit(make_measurement(f"org/m{seed}", seed=seed, sink_strength=9.0 - seed))
    first, second, third = records(catalog, "FROM doubts ORDER BY rank")
    swaps = {
        (row["factor"], row["choice"])
        for row in records(
            catalog,
            "SELECT a.factor, a.choice FROM sensitivity a JOIN sensitivity b USING (factor, choice) "
            "WHERE a.model_id = 'org/m0' AND b.model_id = 'org/m1' AND b.sink_strength > a.sink_strength "
            "AND a.plausible",
        )
    }
    named = {tuple(choice.split(": ")) for choice in first["overtaken_in"]}
    assert named == swaps
    assert swaps
    assert (first["overtaken_by"], second["overtakes"]) == ("org/m1", "org/m0")
    assert first["overtaken_in"] == second["overtakes_in"]
    assert third["overtaken_by"] is None


def test_a_measurement_without_slices_is_said_to_be_incomplete(tmp_path: Path) -> None:
    catalog = open_catalog(str(tmp_path), create=True)
    catalog.commit(without_slices(make_measurement()))
    (row,) = records(catalog, "FROM doubts")
    assert row["complete"] is False
    assert records(catalog, "FROM slices") == []
