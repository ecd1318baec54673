"""Laws of calibrations in the catalog: what SQL predicts is what Python predicts, and nothing is hidden."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checkpoints_on_disk import candidate, save_checkpoint
from factories import SPEC, make_failure, make_measurement

from catalog.panel_files import add_panel_file
from catalog.query import run_query
from catalog.store import Catalog, open_catalog
from zoo.calibration import fit_panel, measured_models, panel_of, unmeasured_llms
from zoo.errors import PanelError
from zoo.losses import predictions, ranked_losses
from zoo.pairs import Measured, measured
from zoo.prediction import Prediction, predict_loss
from zoo.predictors import PREDICTORS
from zoo.prompts import make_spec
from zoo.records import Interval, Measurement, RunOptions
from zoo.tasks import measure_and_commit

HEADER = "pair_id,reference_llm,vlm,qk_norm,task,protocol,delta_points,source\n"
LLMS = {
    "a": (0.1, "none", -16.0),
    "b": (0.4, "none", -12.0),
    "c": (0.9, "layerwise", -9.5),
    "d": (1.5, "none", -5.0),
    "e": (2.2, "per_head", -3.0),
    "f": (2.6, "per_head", -0.5),
    "g": (2.4, "per_head", -2.0),
}


def strong(name: str, s: float, qk_norm: str = "none", **changes: Any) -> Measurement:
    """A measurement of ``made-up/<name>`` with S = ``s``; no number in it belongs to a real model."""
    found = make_measurement(f"made-up/{name}", sink_strength=s)
    layers = len(found.architecture.attention_layers)
    architecture = replace(
        found.architecture, qk_norm=qk_norm, model_layers=layers, parameters=7_000_000_000, **changes
    )
    strength = replace(
        found.strength,
        weak_head_share=0.5 - s / 10,
        interval=Interval(low=s - 0.05, high=s + 0.05, level=0.95, method="bootstrap"),
    )
    return replace(found, architecture=architecture, strength=strength)


def panel_csv(*names: str, task: str = "ifeval", protocol: str = "instruct") -> str:
    """Own pairs of these LLMs, one VLM each."""
    rows = [
        f"{name}-vl,made-up/{name},made-up/{name}-vl,{qk_norm},{task},{protocol},{points},made up\n"
        for name, (_, qk_norm, points) in LLMS.items()
        if name in names
    ]
    return HEADER + "".join(rows)


@pytest.fixture(scope="module")
def measured_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven measured reference LLMs, their pairs, and two models to predict."""
    made = open_catalog(str(tmp_path_factory.mktemp("made") / "catalog"), create=True)
    for name, (s, qk_norm, _) in LLMS.items():
        made.commit(strong(name, s, qk_norm))
    made.commit(strong("new", 1.2))
    made.commit(strong("odd", 9.0, "other", learned_sink=True))
    add_panel_file(made, panel_csv(*LLMS), name="mine")
    return Path(made.root)


@pytest.fixture
def catalog(tmp_path: Path, measured_once: Path) -> Catalog:
    """A copy of ``measured_once`` to write to."""
    return open_catalog(str(shutil.copytree(measured_once, tmp_path / "catalog")))


def fit(catalog: Catalog, **changes: Any) -> Any:
    (found,) = fit_panel(
        catalog, **({"spec_id": SPEC.spec_id, "protocol": "instruct", "tasks": ["ifeval"]} | changes)
    )
    return found


def predicted_in_sql(catalog: Catalog, model: Measured) -> Prediction:
    key = {name: getattr(model, name) for name in ("model_id", "revision", "spec_id")}
    (found,) = predictions(catalog, **key)
    return found


@pytest.mark.parametrize("predictor", PREDICTORS)
def test_sql_predicts_what_python_predicts(catalog: Catalog, predictor: str) -> None:
    found = fit(catalog, predictor=predictor)
    if found.calibration is None:
        assert predictor == "isotonic"
        assert "needs at least" in found.refusal
        return
    models = [
        measured(strong(*row)) for row in (("new", 1.2), ("odd", 9.0, "other"), ("c", 0.9, "layerwise"))
    ]
    models[1] = replace(models[1], learned_sink=True)
    for model in models:
        (by_sql,) = predictions(
            catalog, model_id=model.model_id, revision=model.revision, spec_id=model.spec_id
        )
        by_python = predict_loss(found.calibration, model)
        assert by_sql.flags == by_python.flags
        assert (by_sql.pairs, by_sql.llms, by_sql.predictor) == (7, by_python.llms, predictor)
        for number in ("points", "low", "high"):
            expected = getattr(by_python, number)
            assert getattr(by_sql, number) == (
                None if expected is None else pytest.approx(expected, abs=1e-9)
            )


def test_isotonic_steps_predict_the_same_in_sql(catalog: Catalog) -> None:
    add_panel_file(
        catalog,
        HEADER
        + "".join(
            f"{name}-vl,made-up/{name},made-up/{name}-vl,{LLMS[name][1]},mmlu,instruct,{points},made up\n"
            for name, points in zip(LLMS, (-9, -8, -8.5, -2, -1, -1.5, -3), strict=True)
        ),
        name="mmlu",
    )
    found = fit(catalog, predictor="isotonic", tasks=["mmlu"])
    assert found.calibration is not None, found.refusal
    for model in (measured(strong("new", 1.2)), measured(strong("a", 0.1))):
        (by_sql,) = predictions(
            catalog, model_id=model.model_id, revision=model.revision, spec_id=model.spec_id
        )
        by_python = predict_loss(found.calibration, model)
        assert (by_sql.points, by_sql.low, by_sql.high) == pytest.approx(
            (by_python.points, by_python.low, by_python.high)
        )


def test_measured_models_come_back_as_they_were_measured(catalog: Catalog) -> None:
    back = measured_models(catalog, SPEC.spec_id)["made-up/c"]
    there = measured(strong("c", 0.9, "layerwise"))
    assert replace(back, sink_strength_error=0.0) == replace(there, sink_strength_error=0.0)
    assert back.sink_strength_error == pytest.approx(there.sink_strength_error)


def test_a_written_fit_holds_what_it_takes_to_audit_it(catalog: Catalog) -> None:
    fit(catalog)
    (row,) = run_query(catalog, "SELECT * FROM calibrations WHERE counts").records()
    assert (row["task"], row["protocol"], row["spec_id"]) == ("ifeval", "instruct", SPEC.spec_id)
    assert (row["pairs"], row["degrees_of_freedom"], row["level"]) == (7, 5, 0.9)
    assert {"numpy", "scipy", "python"} <= set(row["versions"])
    by_pair = {point["pair_id"]: point for point in row["points"]}
    assert by_pair["a-vl"]["sink_strength"] == 0.1
    assert len(by_pair["a-vl"]["revision"]) == 40
    assert sum(point["residual_points"] for point in row["points"]) == pytest.approx(0, abs=1e-9)
    # The six shipped IFEval pairs rest on LLMs that nobody measured here: each is named.
    assert len(row["left_out"]) == 6
    assert {its["reason"] for its in row["left_out"]} == {"its reference LLM is not measured"}
    compared = {its["predictor"]: its for its in row["comparisons"]}
    assert list(compared) == list(PREDICTORS)
    for agreement in compared["linear"]["agreements"]:
        assert "permutation test over 7" in agreement["test"]
        assert agreement["pairs"] == 7
    assert row["within_kind"]["all_comparisons"] == 21


def test_the_latest_fit_of_a_task_counts_and_the_earlier_stays(catalog: Catalog) -> None:
    fit(catalog)
    fit(catalog, predictor="constant")
    rows = run_query(catalog, "SELECT predictor, counts FROM calibrations ORDER BY fitted_at").rows
    assert rows == (("linear", False), ("constant", True))
    assert run_query(catalog, "SELECT DISTINCT predictor FROM predictions").rows == (("constant",),)


def test_two_protocols_are_two_fits_and_one_prediction_is_the_latest(catalog: Catalog) -> None:
    add_panel_file(catalog, panel_csv(*LLMS, protocol="5-shot-plain"), name="plain")
    fit(catalog)
    fit(catalog, protocol="5-shot-plain")
    rows = run_query(
        catalog, "SELECT protocol, latest FROM predictions WHERE model_id = 'made-up/new' ORDER BY fitted_at"
    ).rows
    assert rows == (("instruct", False), ("5-shot-plain", True))


def test_without_a_calibration_there_is_no_prediction(catalog: Catalog) -> None:
    assert run_query(catalog, "SELECT * FROM predictions").rows == ()


def test_nothing_shipped_has_a_sink_strength_until_someone_measures_it(tmp_path: Path) -> None:
    empty = open_catalog(str(tmp_path / "empty"), create=True)
    rows = run_query(empty, "SELECT count(*), count(sink_strength), count(delta_points) FROM panel").rows
    assert rows == ((19, 0, 19),)
    (found,) = fit_panel(empty, spec_id=SPEC.spec_id, protocol="instruct", tasks=["ifeval"])
    assert found.calibration is None
    assert found.refusal.startswith("0 pairs on 0 reference LLMs cannot carry the linear fit")
    assert len(found.left_out) == 6


def test_a_reference_llm_that_failed_is_left_out_with_its_reason(catalog: Catalog) -> None:
    catalog.commit(make_failure("Qwen/Qwen3-8B"))
    found = fit(catalog, reasons={"Qwen/Qwen2-7B-Instruct": "the repository is gated"})
    reasons = {its.pair.reference_llm: its.reason for its in found.left_out}
    assert reasons["Qwen/Qwen3-8B"] == "model.safetensors is truncated (load: truncated_weights)"
    assert reasons["Qwen/Qwen2-7B-Instruct"] == "the repository is gated"


def test_the_llms_to_screen_are_those_the_catalog_lacks(catalog: Catalog) -> None:
    pairs = panel_of(catalog, protocol="instruct", tasks=["ifeval"])
    missing = unmeasured_llms(pairs, measured_models(catalog, SPEC.spec_id))
    assert missing == (
        "Qwen/Qwen2.5-7B-Instruct",
        "Qwen/Qwen3-8B",
        "meta-llama/Meta-Llama-3-8B-Instruct",
        "Qwen/Qwen2-7B-Instruct",
    )


def test_a_protocol_or_task_the_panel_lacks_is_refused_naming_what_it_has(catalog: Catalog) -> None:
    with pytest.raises(
        PanelError, match=r"no pair on any task under the protocol 3-shot; it has .*ifeval \(paper\)"
    ):
        panel_of(catalog, protocol="3-shot")
    with pytest.raises(PanelError, match=r"no pair on math under the protocol instruct"):
        panel_of(catalog, protocol="instruct", tasks=["math", "ifeval"])


def test_a_broken_own_file_shows_in_the_panel_and_stops_no_other_query(catalog: Catalog) -> None:
    add_panel_file(catalog, panel_csv("a").replace("-16.0", "lots"), name="broken")
    assert run_query(catalog, "SELECT count(*) FROM ranking").rows == ((9,),)
    ((problem,),) = run_query(catalog, "SELECT problem FROM panel WHERE problem IS NOT NULL").rows
    assert "delta_points is 'lots'" in problem
    with pytest.raises(PanelError, match="delta_points is 'lots'"):
        panel_of(catalog, protocol="instruct")


def test_adding_the_same_pairs_twice_keeps_one_file(catalog: Catalog) -> None:
    first = add_panel_file(catalog, panel_csv("a"), name="again")
    assert add_panel_file(catalog, panel_csv("a"), name="again") == first
    assert len(list((Path(catalog.root) / "panel").iterdir())) == 2


def test_the_panel_shows_each_pair_beside_its_measured_llm(catalog: Catalog) -> None:
    rows = run_query(
        catalog,
        "SELECT sink_strength, delta_points, origin FROM panel WHERE pair_id = 'd-vl'",
    ).rows
    assert rows == ((1.5, -5.0, "yours"),)


def test_verify_reads_calibrations_too(catalog: Catalog) -> None:
    fit(catalog)
    found = catalog.verify()
    assert not found.problems
    calibrations = list((Path(catalog.root) / "calibrations").rglob("*.parquet"))
    assert len(calibrations) == 1
    content = bytearray(calibrations[0].read_bytes())
    content[200] ^= 0xFF
    calibrations[0].write_bytes(content)
    assert catalog.verify().problems


def test_the_ranking_by_loss_puts_the_smallest_predicted_loss_first(catalog: Catalog) -> None:
    fit(catalog)
    rows = ranked_losses(catalog, SPEC.spec_id, task="ifeval").records()
    points = [row["predicted_points"] for row in rows]
    assert points == sorted(points, reverse=True)
    assert len(rows) == 9
    assert all(row["predicted_low"] < row["predicted_points"] < row["predicted_high"] for row in rows)
    assert {row["predicted_from_pairs"] for row in rows} == {7}


def test_max_loss_keeps_what_is_predicted_to_lose_at_most_that(catalog: Catalog) -> None:
    fit(catalog)
    everything = ranked_losses(catalog, SPEC.spec_id, task="ifeval").records()
    kept = ranked_losses(catalog, SPEC.spec_id, task="ifeval", max_loss=5).records()
    assert kept == [row for row in everything if row["predicted_points"] >= -5]
    assert 0 < len(kept) < len(everything)


def test_without_a_calibration_the_ranking_is_by_s_and_max_loss_names_the_command(catalog: Catalog) -> None:
    rows = ranked_losses(catalog, SPEC.spec_id, task="gsm8k_cot").records()
    assert [row["rank"] for row in rows] == list(range(1, 10))
    assert {row["predicted_points"] for row in rows} == {None}
    with pytest.raises(PanelError, match="zoo calibrate --task gsm8k_cot"):
        ranked_losses(catalog, SPEC.spec_id, task="gsm8k_cot", max_loss=5)


def test_tiny_models_are_measured_fitted_and_predicted(tmp_path: Path) -> None:
    """From weights to a prediction, nothing replaced; the degradations are made up."""
    catalog = open_catalog(str(tmp_path / "catalog"), create=True)
    spec = make_spec(prompt_count=10)
    kinds = {"one": "llama", "two": "llama", "three": "qwen3", "four": "olmo2", "five": "llama"}
    for seed, (name, model_type) in enumerate(kinds.items()):
        folder = save_checkpoint(tmp_path / "tiny" / name, model_type=model_type, seed=seed)
        report = measure_and_commit(candidate(folder), catalog=catalog, spec=spec, options=RunOptions())
        assert report.status == "measured", report.message
    qk_norms = {"llama": "none", "qwen3": "per_head", "olmo2": "layerwise"}
    rows = [
        f"{name}-vl,tiny/{name},tiny/{name}-vl,{qk_norms[kinds[name]]},ifeval,instruct,{points},made up\n"
        for name, points in zip(kinds, (-3, -9, -1, -18), strict=False)
    ]
    add_panel_file(catalog, HEADER + "".join(rows), name="tiny")
    found = fit(catalog, spec_id=spec.spec_id)
    assert found.calibration is not None, found.refusal
    assert len(found.calibration.points) == 4
    new = measured_models(catalog, spec.spec_id)["tiny/five"]
    by_sql, by_python = predicted_in_sql(catalog, new), predict_loss(found.calibration, new)
    assert (by_sql.points, by_sql.low, by_sql.high) == pytest.approx(
        (by_python.points, by_python.low, by_python.high)
    )
