"""The picture of a run shows every measured checkpoint, its interval and how far S may fall."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from zoo.errors import ZooError
from zoo.track import Checkpoint
from zoo.track_plot import save_track, track_figure


def checkpoint(name: str, step: int | None, s: float | None, *, fell: bool = False) -> Checkpoint:
    return Checkpoint(
        name=name,
        revision="0" * 40,
        step=step,
        sink_strength=s,
        low=None if s is None else s - 0.03,
        high=None if s is None else s + 0.02,
        change=None if s is None else s - 1.2,
        fell=fell,
        message=None,
    )


RUN = (
    checkpoint("step-100", 100, 1.1),
    checkpoint("step-200", 200, None),
    checkpoint("step-300", 300, 0.9, fell=True),
    checkpoint("final", None, 1.0, fell=True),
)


def test_the_line_is_s_over_steps_and_the_final_model_follows() -> None:
    (axes,) = track_figure(RUN, run="run", max_fall=0.25).axes
    line = axes.lines[0]
    np.testing.assert_allclose(line.get_xdata(), [100, 300, 500])
    np.testing.assert_allclose(line.get_ydata(), [1.1, 0.9, 1.0])
    assert [text.get_text() for text in axes.texts] == ["final"]


def test_the_intervals_end_where_the_measurement_says() -> None:
    (axes,) = track_figure(RUN, run="run").axes
    ends = [segment[:, 1] for bar in axes.containers for segment in bar.lines[2][0].get_segments()]
    np.testing.assert_allclose(sorted(ends, key=lambda ys: ys[0]), [[0.87, 0.92], [0.97, 1.02], [1.07, 1.12]])


def test_the_baseline_and_the_allowed_fall_are_marked_where_they_lie() -> None:
    (axes,) = track_figure(RUN, run="run", max_fall=0.25).axes
    levels = {line.get_label(): line.get_ydata()[0] for line in axes.lines}
    assert levels["baseline 1.20"] == pytest.approx(1.2)
    assert levels["allowed fall 0.25"] == pytest.approx(0.95)
    low, high = axes.get_ylim()
    assert low < 0.87
    assert high > 1.2
    (axes,) = track_figure(RUN, run="run").axes
    assert not any("allowed" in str(line.get_label()) for line in axes.lines)


def test_a_run_without_steps_is_drawn_by_name() -> None:
    (axes,) = track_figure([checkpoint("early", None, 1.2), checkpoint("late", None, 1.1)], run="run").axes
    assert [text.get_text() for text in axes.get_xticklabels()] == ["early", "late"]


@pytest.mark.parametrize(("name", "start"), [("run.png", b"\x89PNG"), ("run.SVG", b"<?xml")])
def test_a_picture_is_written_as_its_name_ends_and_twice_the_same(
    tmp_path: Path, name: str, start: bytes
) -> None:
    written = []
    for _ in range(2):
        save_track(RUN, tmp_path / name, run="org/run", max_fall=0.25)
        written.append((tmp_path / name).read_bytes())
    assert written[0].startswith(start)
    assert written[0] == written[1]


@pytest.mark.parametrize(
    ("run", "name", "text"),
    [
        (RUN, "run.gif", "ends in .png, .svg, .pdf"),
        (RUN, "none/run.png", "cannot be written"),
        (RUN[1:2], "run.png", "no checkpoint of org/run is measured"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(
    tmp_path: Path, run: tuple[Checkpoint, ...], name: str, text: str
) -> None:
    with pytest.raises(ZooError, match=text):
        save_track(run, tmp_path / name, run="org/run")
