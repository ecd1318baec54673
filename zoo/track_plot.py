"""A picture of Sink Strength over a training run, as a matplotlib figure.

The colours are those of Okabe and Ito (2008); a checkpoint that fell has another marker too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from zoo.errors import ZooError
from zoo.pictures import INK, STYLE, check_ending, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from zoo.track import Checkpoint

_KEPT, _FELL = "#0072B2", "#D55E00"


def save_track(
    checkpoints: Sequence[Checkpoint], path: Path, *, run: str, max_fall: float | None = None
) -> None:
    """Write the picture of ``track_figure`` as the name ends.

    Raises ZooError for another ending, an unwritable path, or a run without any measured checkpoint.
    """
    check_ending(path)
    save(track_figure(checkpoints, run=run, max_fall=max_fall), path)


def track_figure(checkpoints: Sequence[Checkpoint], *, run: str, max_fall: float | None = None) -> Figure:
    """S (nats) over the training step with its interval, the baseline, and how far S may fall.

    Checkpoints without a step follow the last one at even distances, by name. Raises ZooError when none
    is measured.
    """
    measured = [its for its in checkpoints if its.sink_strength is not None]
    if not measured:
        raise ZooError(f"no checkpoint of {run} is measured, so there is nothing to draw")
    places = _places(measured)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8, 4.2), layout="constrained")
        axes = figure.subplots()
        axes.plot(places, [its.sink_strength or 0.0 for its in measured], color=INK, linewidth=1, alpha=0.6)
        for fell, marker, colour, label in (
            (False, "o", _KEPT, "S with its 95 % interval"),
            (True, "X", _FELL, "fell by more than allowed"),
        ):
            _points(
                axes,
                [pair for pair in zip(places, measured, strict=True) if pair[1].fell is fell],
                marker=marker,
                colour=colour,
                label=label,
            )
        _levels(axes, measured, max_fall=max_fall)
        _label_steps(axes, places, measured)
        axes.set_ylabel("Sink Strength (nats)")
        axes.set_title(run, fontweight="bold")
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _places(measured: Sequence[Checkpoint]) -> list[float]:
    """Where each checkpoint stands on the axis of steps."""
    steps = sorted({its.step for its in measured if its.step is not None})
    last = float(steps[-1]) if steps else 0.0
    gap = (steps[-1] - steps[0]) / (len(steps) - 1) if len(steps) > 1 else max(1.0, last)
    places = []
    for its in measured:
        if its.step is None:
            last += gap
        places.append(last if its.step is None else float(its.step))
    return places


def _points(
    axes: Axes, pairs: Sequence[tuple[float, Checkpoint]], *, marker: str, colour: str, label: str
) -> None:
    if not pairs:
        return
    bounds = np.array([[its.sink_strength, its.low, its.high] for _, its in pairs], dtype=float)
    strengths = bounds[:, 0]
    axes.errorbar(
        [place for place, _ in pairs],
        strengths,
        yerr=np.abs(bounds[:, 1:].T - strengths),
        fmt=marker,
        color=colour,
        markersize=7 if marker == "X" else 5,
        elinewidth=1.5,
        capsize=3,
        label=label,
    )


def _levels(axes: Axes, measured: Sequence[Checkpoint], *, max_fall: float | None) -> None:
    first = measured[0]
    if first.sink_strength is None or first.change is None:
        return
    baseline = first.sink_strength - first.change
    axes.axhline(baseline, color=INK, linewidth=1, linestyle="--", label=f"baseline {baseline:.2f}", zorder=0)
    if max_fall is not None:
        axes.axhline(
            baseline - max_fall,
            color=_FELL,
            linewidth=1,
            linestyle=":",
            label=f"allowed fall {max_fall:g}",
            zorder=0,
        )


def _label_steps(axes: Axes, places: Sequence[float], measured: Sequence[Checkpoint]) -> None:
    named = [(place, its) for place, its in zip(places, measured, strict=True) if its.step is None]
    if len(named) == len(measured):
        axes.set_xticks([place for place, _ in named], [its.name for _, its in named])
        axes.set_xlabel("checkpoint")
        return
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("training step")
    for place, its in named:
        axes.annotate(
            its.name,
            (place, its.high or 0.0),
            xytext=(0, 4),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
