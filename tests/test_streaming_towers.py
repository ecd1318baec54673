"""A multimodal checkpoint is streamed as its language model alone: no byte of another tower is fetched."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from test_conformance import prompts
from test_streaming import assert_identical, ranges_read, saved, statistics
from test_text_towers import COMPOSITES, QUICK, TEXT_ALONE, UNCHECKED, tiny_composite

from zoo import support

LOOPED = frozenset({"inkling2_loop"})
"""Types that run layers twice, and read them each time."""

NOT_RELOADED = frozenset({"shieldgemma2"})
"""Types whose saved checkpoint transformers itself does not find again; zoo refuses it as incomplete."""

OTHER_TOWER = re.compile("vision|visual|multi_modal_projector|connector")


def cases() -> list[Any]:
    measured = sorted(set(COMPOSITES) - set(support.REFUSED) - TEXT_ALONE - UNCHECKED - NOT_RELOADED)
    return [t if t in QUICK else pytest.param(t, marks=pytest.mark.slow) for t in measured]


def header_bytes(folder: Path) -> int:
    starts = (path.read_bytes()[:8] for path in folder.glob("*.safetensors"))
    return sum(8 + int.from_bytes(start, "little") for start in starts)


def composite_at(folder: Path, model_type: str) -> Path:
    model = tiny_composite(model_type)
    model.config.architectures = [COMPOSITES[model_type]]
    return saved(model, folder, shard="200KB")


@pytest.mark.parametrize("model_type", cases())
def test_a_composite_is_streamed_to_the_bit_without_its_other_towers(model_type: str, tmp_path: Path) -> None:
    folder, several = composite_at(tmp_path, model_type), 2 * prompts()
    whole, _ = statistics(folder, several, load="whole")
    streamed, backbone = statistics(folder, several, load="stream")
    assert_identical(whole, streamed)
    fetched = backbone.bytes_fetched()
    assert fetched is not None
    times_read = 2 if model_type in LOOPED else 1
    assert fetched <= times_read * 4 * backbone.architecture.parameters + header_bytes(folder)


@pytest.mark.parametrize("model_type", ["deepseek_ocr2", "deepseek_vl_hybrid", "unlimited_ocr", "idefics3"])
def test_a_vision_tower_that_is_particular_does_not_keep_its_language_model_from_being_measured(
    model_type: str, tmp_path: Path
) -> None:
    """It knows no attention but its own, or the model takes its device from it."""
    whole, _ = statistics(composite_at(tmp_path, model_type), 2 * prompts(), load="whole")
    streamed, _ = statistics(tmp_path, 2 * prompts(), load="stream")
    assert_identical(whole, streamed)


@pytest.mark.parametrize("model_type", sorted(QUICK))
def test_no_tensor_of_a_vision_tower_is_read(
    model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = composite_at(tmp_path, model_type)
    stored = {name for path in folder.glob("*.safetensors") for name in load_file(path)}
    read = ranges_read(folder, 2 * prompts(), monkeypatch)
    assert any(map(OTHER_TOWER.search, stored))
    assert read
    assert [name for name in read if OTHER_TOWER.search(name)] == []
