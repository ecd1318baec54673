"""Pictures of one model, of the ranking and of models side by side, as matplotlib figures.

They read without colour: lightness rises with the value, and kinds differ by marker too. The colours are
those of Okabe and Ito (2008), which colour-blind people tell apart. Shape letters: L layers, H heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from zoo.pictures import INK, STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KINDS = {
    "none": ("o", "#0072B2"),
    "per_head": ("s", "#E69F00"),
    "layerwise": ("^", "#CC79A7"),
    "other": ("D", "#009E73"),
}
"""Marker and colour of each QK-norm kind."""

_SHADE, _WINDOW = "#56B4E9", "#D55E00"
_NAMED = 60
"""The most models whose names fit beside a ranking."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelPicture:
    """What a picture of one model shows: log-odds in nats, and the cells of its sweep."""

    model_id: str
    sink_strength: float
    interval: tuple[float, float]
    window_layers: int
    log_odds_LH: np.ndarray
    cells: Sequence[Mapping[str, Any]]


def model_figure(model: ModelPicture) -> Figure:
    """Heads by layer, S against the number of prompts, and each layer's spread."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 6.2), layout="constrained")
        axes = figure.subplot_mosaic([["heads", "sizes"], ["heads", "layers"]], width_ratios=[1.15, 1])
        _heads(axes["heads"], model)
        _sizes(axes["sizes"], model)
        _layers(axes["layers"], model)
        low, high = model.interval
        figure.suptitle(
            f"{model.model_id}: Sink Strength {model.sink_strength:.2f} nats ({low:.2f} to {high:.2f})",
            x=0.01,
            horizontalalignment="left",
            fontweight="bold",
        )
    return figure


def ranking_figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """S with its interval of every model, the best first, marked by QK-norm kind."""
    with matplotlib.rc_context(STYLE):
        named = len(rows) <= _NAMED
        height = 1.3 + (0.24 * max(len(rows), 3) if named else 0.24 * _NAMED)
        figure = Figure(figsize=(9, height), layout="constrained")
        axes = figure.subplots()
        for kind, (marker, colour) in KINDS.items():
            mine = [(place, row) for place, row in enumerate(rows, 1) if row["qk_norm"] == kind]
            if mine:
                _intervals(axes, mine, marker=marker, colour=colour, label=kind, size=6 if named else 3)
        axes.axvline(0, color=INK, linewidth=0.8, linestyle="--")
        axes.set_ylim(len(rows) + 0.6, 0.4)
        if named:
            axes.set_yticks(range(1, len(rows) + 1), [short(row["model_id"], 48) for row in rows])
        else:
            axes.set_ylabel("rank")
        axes.set_xlabel("Sink Strength (nats) with its 95 % interval")
        axes.grid(axis="x", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.legend(title="QK-norm", frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        axes.set_title(f"{len(rows)} models by Sink Strength", fontweight="bold")
    return figure


def comparison_figure(models: Sequence[tuple[str, float, np.ndarray]], verdicts: Sequence[str]) -> Figure:
    """The heads of each (model, S, log-odds of the window's heads), and whether their order is certain."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9, 1.9 + 0.75 * len(models) + 0.2 * len(verdicts)), layout="constrained")
        axes = figure.subplots()
        colours = [colour for _, colour in KINDS.values()]
        for place, (_, strength, log_odds_H) in enumerate(models):
            finite = log_odds_H[np.isfinite(log_odds_H)]
            offsets = np.random.default_rng(0).uniform(-0.22, 0.22, len(finite))
            colour = colours[place % len(colours)]
            axes.scatter(finite, place + offsets, s=9, color=colour, alpha=0.55, linewidths=0)
            low, high = np.quantile(finite, [0.25, 0.75])
            axes.plot([low, high], [place, place], color=INK, linewidth=3, solid_capstyle="butt")
            axes.plot(strength, place, "D", color="white", markeredgecolor=INK, markersize=8)
            axes.annotate(
                f"S = {strength:.2f}",
                (strength, place - 0.3),
                ha="center",
                va="bottom",
                fontsize=9,
                color=INK,
            )
        axes.axvline(0, color=INK, linewidth=0.8, linestyle="--")
        axes.set_yticks(range(len(models)), [short(name, 36) for name, _, _ in models])
        axes.set_ylim(len(models) - 0.4, -0.7)
        axes.set_xlabel(
            "log-odds of the sink (nats), one dot a head of the window; bar: middle half, diamond: S"
        )
        figure.suptitle("\n".join(verdicts), x=0.01, horizontalalignment="left", fontsize=9)
    return figure


def _heads(axes: Axes, model: ModelPicture) -> None:
    layers, heads = model.log_odds_LH.shape
    low, high = np.nanquantile(model.log_odds_LH, [0.02, 0.98])
    image = axes.imshow(
        np.ma.masked_invalid(model.log_odds_LH),
        cmap="cividis",
        vmin=low,
        vmax=high,
        aspect="auto",
        interpolation="nearest",
        origin="lower",
    )
    weak_layer, weak_head = np.nonzero(model.log_odds_LH < 0)
    axes.scatter(
        weak_head,
        weak_layer,
        s=max(1.0, min(14.0, 900 / (layers * 1.0 + heads))),
        color="white",
        linewidths=0,
    )
    first = max(0, layers - model.window_layers) - 0.5
    axes.axhline(first, color=_WINDOW, linewidth=2)
    axes.annotate(
        "window ↑",
        (1.0, first),
        xycoords=("axes fraction", "data"),
        xytext=(-3, 3),
        textcoords="offset points",
        ha="right",
        va="bottom",
        color="white",
        fontweight="bold",
        bbox={"facecolor": _WINDOW, "edgecolor": "none", "pad": 1.5},
    )
    axes.set_xlabel("head")
    axes.set_ylabel("attention layer")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title("Log-odds of every head (nats); dot: below 0")
    axes.figure.colorbar(image, ax=axes, extend="both", fraction=0.05, pad=0.02)


def _sizes(axes: Axes, model: ModelPicture) -> None:
    markers = ("o", "s", "^", "D", "v")
    for seed in sorted({cell["seed"] for cell in model.cells}):
        mine = sorted((cell["size"], cell["sink_strength"]) for cell in model.cells if cell["seed"] == seed)
        sizes, strengths = zip(*mine, strict=True)
        marker = markers[seed % len(markers)]
        axes.plot(
            sizes,
            strengths,
            marker=marker,
            markersize=5,
            linewidth=1,
            color=_tone(seed),
            label=f"seed {seed}",
        )
    axes.axhspan(*model.interval, color=_SHADE, alpha=0.35, linewidth=0, label="interval")
    axes.axhline(model.sink_strength, color=INK, linewidth=1)
    axes.set_xscale("log")
    ticks = sorted({cell["size"] for cell in model.cells})
    axes.set_xticks(ticks, [str(size) for size in ticks])
    axes.minorticks_off()
    axes.set_xlabel("calibration prompts")
    axes.set_ylabel("S (nats)")
    axes.set_title("S of random subsets; line: all prompts")
    axes.legend(frameon=False, ncols=2, fontsize=8)


def _layers(axes: Axes, model: ModelPicture) -> None:
    places = np.arange(len(model.log_odds_LH))
    q10, q25, q50, q75, q90 = np.nanquantile(model.log_odds_LH, [0.1, 0.25, 0.5, 0.75, 0.9], axis=1)
    axes.fill_between(places, q10, q90, color=_SHADE, alpha=0.35, linewidth=0, label="10 to 90 % of heads")
    axes.fill_between(places, q25, q75, color="#0072B2", alpha=0.55, linewidth=0, label="25 to 75 %")
    axes.plot(places, q50, color=INK, linewidth=1.5, marker="o", markersize=3, label="median")
    axes.axhline(0, color=INK, linewidth=0.8, linestyle="--")
    axes.axvline(
        max(0, len(places) - model.window_layers) - 0.5, color=_WINDOW, linewidth=2, label="window →"
    )
    axes.set_xlim(-0.5, len(places) - 0.5)
    axes.set_xlabel("attention layer")
    axes.set_ylabel("log-odds (nats)")
    axes.set_title("Heads of each layer")
    axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=4)


def _intervals(
    axes: Axes,
    rows: Sequence[tuple[int, Mapping[str, Any]]],
    *,
    marker: str,
    colour: str,
    label: str,
    size: float,
) -> None:
    places = [place for place, _ in rows]
    strengths = np.array([row["sink_strength"] for _, row in rows])
    ends = np.abs(np.array([[row["low"], row["high"]] for _, row in rows]).T - strengths)
    axes.errorbar(
        strengths,
        places,
        xerr=ends,
        fmt=marker,
        color=colour,
        markersize=size,
        markeredgecolor=INK,
        markeredgewidth=0.5,
        elinewidth=1.5,
        capsize=2,
        label=label,
    )


def _tone(seed: int) -> str:
    return ("#0072B2", "#D55E00", "#222222", "#009E73", "#CC79A7")[seed % 5]


def short(text: str, limit: int) -> str:
    """The text, or its beginning and end where it is longer than ``limit``."""
    return text if len(text) <= limit else f"{text[: limit - limit // 3 - 1]}…{text[-(limit // 3) :]}"
