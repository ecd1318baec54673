"""Laws of comparing a VLM with its backbone and of following a training run, from the catalog alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from factories import SPEC, make_candidate, make_failure, make_measurement

from catalog.store import Catalog, open_catalog
from zoo.degradation_pages import bars, change_text, track_text
from zoo.errors import CatalogError, PanelError
from zoo.pair import SinkChange, panel_range, sink_change
from zoo.records import Measurement
from zoo.track import find_checkpoints, in_training_order, tracked, training_step


def shifted(model_id: str, by: float, *, seed: int = 0) -> Measurement:
    """The measurement of ``seed`` under another name, every head's log-odds and S moved by ``by`` nats."""
    found = make_measurement(model_id, seed=seed)
    heads = tuple(
        replace(head, log_odds=None if head.log_odds is None else head.log_odds + by)
        for head in found.strength.heads
    )
    strength = found.strength
    interval = replace(strength.interval, low=strength.interval.low + by, high=strength.interval.high + by)
    return replace(
        found,
        strength=replace(strength, sink_strength=strength.sink_strength + by, interval=interval, heads=heads),
    )


def compared(catalog: Catalog, llm: str, vlm: str) -> SinkChange:
    keys = [(name, make_candidate(name).revision) for name in (llm, vlm)]
    return sink_change(catalog, llm=keys[0], vlm=keys[1], spec_id=SPEC.spec_id)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    made = open_catalog(str(tmp_path / "catalog"), create=True)
    made.commit(shifted("made-up/llm", 0.0))
    return made


def test_a_uniform_fall_changes_every_head_by_as_much_as_s(catalog: Catalog) -> None:
    catalog.commit(shifted("made-up/vlm", -0.6))
    found = compared(catalog, "made-up/llm", "made-up/vlm")
    assert found.change == pytest.approx(-0.6)
    assert [head.change for head in found.heads] == pytest.approx([-0.6] * len(found.heads))
    assert len(found.heads) == found.llm["heads"] == 24
    assert not found.overlap


def test_a_head_lost_its_sink_when_it_had_one_and_has_none(catalog: Catalog) -> None:
    catalog.commit(shifted("made-up/vlm", -0.6))
    found = compared(catalog, "made-up/llm", "made-up/vlm")
    before = [head.log_odds for head in make_measurement(seed=0).strength.heads]
    expected = sum(value is not None and 0 < value <= 0.6 for value in before)
    assert expected > 0
    assert sum(head.lost for head in found.heads) == expected
    text = change_text(found, panel=None)
    assert "Change -0.60 nats" in text
    assert f"n = {len(found.window)} heads" in text


def test_a_model_beside_itself_lost_nothing(catalog: Catalog) -> None:
    found = compared(catalog, "made-up/llm", "made-up/llm")
    assert found.change == 0
    assert not any(head.lost for head in found.heads)
    assert found.overlap


def test_two_revisions_of_one_model_are_told_apart(catalog: Catalog) -> None:
    later = make_measurement("made-up/llm", seed=1, revision="ab" * 20, sink_strength=0.25)
    catalog.commit(later)
    earlier = make_candidate("made-up/llm").revision
    keys = [("made-up/llm", revision) for revision in (earlier, later.candidate.revision)]
    found = sink_change(catalog, llm=keys[0], vlm=keys[1], spec_id=SPEC.spec_id)
    assert found.vlm["sink_strength"] == 0.25
    assert found.change == 0.25 - found.llm["sink_strength"]
    first, second, *_ = change_text(found, panel=None).splitlines()
    assert first.endswith(f"in made-up/llm@{earlier[:12]}")
    assert second.endswith("in made-up/llm@abababababab")


def test_models_of_other_shapes_are_no_pair(catalog: Catalog) -> None:
    catalog.commit(make_measurement("made-up/other", layers=5))
    with pytest.raises(PanelError, match="5 attention layers and 30 heads, made-up/llm has 4 and 24"):
        compared(catalog, "made-up/llm", "made-up/other")


def test_an_unmeasured_model_is_named(catalog: Catalog) -> None:
    with pytest.raises(CatalogError, match="no measurement of made-up/none"):
        compared(catalog, "made-up/llm", "made-up/none")


def test_the_panels_range_counts_measured_reference_llms_alone(catalog: Catalog) -> None:
    assert panel_range(catalog, SPEC.spec_id) is None
    catalog.commit(make_measurement("Qwen/Qwen3-8B", sink_strength=1.25))
    assert panel_range(catalog, SPEC.spec_id) == (1.25, 1.25, 1)


def test_checkpoints_are_ordered_by_step_and_not_by_spelling() -> None:
    names = ["run/checkpoint-1000", "run/final", "run/checkpoint-200", "run/step_30"]
    ordered = in_training_order([make_candidate(name) for name in names])
    assert [c.model_id for c in ordered] == [
        "run/step_30",
        "run/checkpoint-200",
        "run/checkpoint-1000",
        "run/final",
    ]
    assert training_step("global_step1500") == 1500
    assert training_step("step100-merged") == 100
    assert training_step("final") is None
    assert training_step("vlm-7b") is None
    assert training_step("v1.0") is training_step("v2") is None


def test_a_model_at_the_top_of_a_run_hides_no_checkpoint_and_comes_last(tmp_path: Path) -> None:
    for folder in ("run-2/checkpoint-9", "run-2/checkpoint-10", "run-2"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "config.json").write_text("{}")
    (tmp_path / "run-2" / "logs").mkdir()
    found = find_checkpoints(str(tmp_path / "run-2"))
    names = [its.model_id for its in in_training_order(found.candidates)]
    assert names == ["run-2/checkpoint-9", "run-2/checkpoint-10", "run-2/final"]
    assert Path(found.candidates[-1].location) == tmp_path / "run-2"


def test_s_falls_against_the_first_checkpoint_or_a_baseline(catalog: Catalog) -> None:
    steps = {"run/checkpoint-1": 1.0, "run/checkpoint-2": 0.95, "run/checkpoint-10": 0.5}
    for name, s in steps.items():
        catalog.commit(make_measurement(name, sink_strength=s))
    candidates = [make_candidate(name) for name in steps]
    found = tracked(catalog, candidates, spec_id=SPEC.spec_id, max_fall=0.2)
    assert [its.change for its in found] == pytest.approx([0, -0.05, -0.5])
    assert [its.fell for its in found] == [False, False, True]
    strict = tracked(catalog, candidates, spec_id=SPEC.spec_id, max_fall=0.2, baseline=1.5)
    assert [its.fell for its in strict] == [True, True, True]
    free = tracked(catalog, candidates, spec_id=SPEC.spec_id)
    assert not any(its.fell for its in free)


def test_a_checkpoint_that_failed_has_its_reason_and_no_number(catalog: Catalog) -> None:
    catalog.commit(make_failure("run/checkpoint-5"))
    candidates = [make_candidate("run/checkpoint-5"), make_candidate("run/checkpoint-6")]
    failed, waiting = tracked(catalog, candidates, spec_id=SPEC.spec_id, max_fall=0.0)
    assert failed.sink_strength is None
    assert failed.message == "model.safetensors is truncated"
    assert waiting.message == "not measured yet"
    assert "model.safetensors is truncated" in track_text([failed, waiting])


def test_bars_grow_with_their_values_from_none_to_full() -> None:
    drawn = bars([0.0, 0.5, None, 1.0], width=4)
    assert drawn == ("", "██", "", "████")
    assert bars([1.0, 1.0]) == ("", "")
    assert bars([]) == ()
