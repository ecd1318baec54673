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

OTHER_TOWER = re.compile("vision|visual|multi_modal_projector|connector")


def cases() -> list[Any]:
    measured = sorted(set(COMPOSITES) - set(support.REFUSED) - TEXT_ALONE - UNCHECKED)
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
    language_model_bytes = 4 * backbone.architecture.parameters
    fetched = backbone.bytes_fetched()
    assert fetched is not None
    assert fetched <= language_model_bytes + header_bytes(folder)


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
