"""The panel: reference LLMs and the VLMs built on them, with how many points each lost on a text task."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Literal

from zoo.errors import PanelError

TASKS = ("ifeval", "eq_bench", "gsm8k_cot", "gpqa_diamond_cot")
"""The tasks of the paper, in the order they are shown; a panel may hold others."""

TASK_NAMES = {
    "ifeval": "IFEval",
    "eq_bench": "EQ-Bench",
    "gsm8k_cot": "GSM8K-CoT",
    "gpqa_diamond_cot": "GPQA-Diamond-CoT",
    "mmlu": "MMLU",
    "boolq": "BoolQ",
}

DEFAULT_PROTOCOL = "instruct"
"""Zero-shot, chat template applied, whole test set; ``paper`` is what arXiv:2609.00746 reports."""

QK_NORMS = ("none", "per_head", "layerwise", "other")

REQUIRED = ("pair_id", "reference_llm", "vlm", "qk_norm", "task", "protocol", "delta_points", "source")
OPTIONAL = ("llm_score", "vlm_score", "stderr_points")
COLUMNS = (*REQUIRED[:6], "llm_score", "vlm_score", "delta_points", "stderr_points", "source")

MODEL_ID = re.compile(r"[\w.-]+/[\w.-]+")
NAME = re.compile(r"[a-z0-9][a-z0-9_.+-]*")
ROUNDING_POINTS = 0.011


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelPair:
    """One degradation: a VLM against its reference LLM on one task under one protocol.

    ``delta_points`` is the VLM's result minus the LLM's on a scale of 0 to 100, negative when text
    ability was lost; ``stderr_points`` is its standard error where the source gives one.
    """

    pair_id: str
    reference_llm: str
    vlm: str
    qk_norm: str
    task: str
    protocol: str
    llm_score: float | None = None
    vlm_score: float | None = None
    delta_points: float
    stderr_points: float | None = None
    source: str
    origin: Literal["shipped", "yours"] = "yours"
    place: str = ""
    """The file and line the row was read from."""
    replaces: str | None = None
    """The place of the shipped row that this one stands in for."""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What may occur once: reference LLM, VLM, task, protocol."""
        return self.reference_llm, self.vlm, self.task, self.protocol


def task_order(task: str) -> tuple[int, str]:
    """A sort key: the paper's tasks in their order, then others by name."""
    return (TASKS.index(task) if task in TASKS else len(TASKS), task)


def parse_pairs(
    text: str, *, name: str, origin: Literal["shipped", "yours"] = "yours"
) -> tuple[PanelPair, ...]:
    """The pairs of one CSV text; ``name`` is the file as the user knows it.

    Raises PanelError naming file, line and what is wrong, for the first malformed row.
    """
    reader = csv.DictReader(io.StringIO(text.removeprefix("\ufeff")), strict=True)
    try:
        header = tuple(reader.fieldnames or ())
        if missing := [column for column in REQUIRED if column not in header]:
            raise PanelError(
                f"{name}:1: the column {missing[0]} is missing; a panel file needs {', '.join(REQUIRED)}"
            )
        return tuple(_pair(row, f"{name}:{reader.line_num}", origin) for row in reader)
    except csv.Error as error:
        raise PanelError(
            f"{name}:{reader.line_num}: this is not CSV ({error}); save the panel as plain CSV"
        ) from None


def _pair(row: dict[str, str], place: str, origin: Literal["shipped", "yours"]) -> PanelPair:
    if None in row or None in row.values():
        raise PanelError(f"{place}: the row has more or fewer fields than the header; add what is missing")
    row = {column: value.strip() for column, value in row.items()}
    for column in ("reference_llm", "vlm"):
        if not MODEL_ID.fullmatch(row[column]):
            raise PanelError(f"{place}: {column} is {row[column]!r}; write it as org/name")
    for column in ("pair_id", "task", "protocol"):
        if not NAME.fullmatch(row[column]):
            raise PanelError(
                f"{place}: {column} is {row[column]!r}; use lower-case letters, digits, '_', '-', '.' or '+'"
            )
    if row["qk_norm"] not in QK_NORMS:
        raise PanelError(f"{place}: qk_norm is {row['qk_norm']!r}; it is one of {', '.join(QK_NORMS)}")
    if row["reference_llm"] == row["vlm"]:
        raise PanelError(f"{place}: reference_llm and vlm are both {row['vlm']}; name two models")
    if not row["source"]:
        raise PanelError(f"{place}: the source is empty; say where these points come from")
    numbers = {column: _number(row.get(column, ""), column, place) for column in ("delta_points", *OPTIONAL)}
    return PanelPair(
        **{column: row[column] for column in (*REQUIRED[:6], "source")},  # type: ignore[arg-type]
        delta_points=_checked_delta(numbers, place),
        **{column: numbers[column] for column in OPTIONAL},  # type: ignore[arg-type]
        origin=origin,
        place=place,
    )


def _number(text: str, column: str, place: str) -> float | None:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise PanelError(f"{place}: {column} is {text!r}, which is no finite number; write points, 0 to 100")
    return value


def _checked_delta(numbers: Mapping[str, float | None], place: str) -> float:
    delta, llm, vlm = (numbers[column] for column in ("delta_points", "llm_score", "vlm_score"))
    if delta is None:
        raise PanelError(f"{place}: delta_points is empty; write the VLM's points minus the LLM's")
    if abs(delta) > 100:
        raise PanelError(f"{place}: delta_points is {delta:g}, more than a scale of 0 to 100 allows")
    error = numbers["stderr_points"]
    if error is not None and error <= 0:
        raise PanelError(f"{place}: stderr_points is {error:g}; leave it empty when it is not known")
    if (llm is None) != (vlm is None):
        raise PanelError(f"{place}: only one of llm_score and vlm_score is given; give both or neither")
    if llm is not None and vlm is not None and abs(vlm - llm - delta) > ROUNDING_POINTS:
        raise PanelError(
            f"{place}: delta_points is {delta:g} but vlm_score - llm_score is {vlm - llm:.2f}; "
            "correct one of them"
        )
    return delta


def merge_pairs(shipped: Iterable[PanelPair], yours: Iterable[PanelPair] = ()) -> tuple[PanelPair, ...]:
    """Shipped and own pairs as one panel, in reading order.

    Own rows stand in for shipped rows of the same LLM, VLM, task and protocol and say so in
    ``replaces``; equal repeats count once. Raises PanelError naming both places when two rows of one
    origin disagree, or one pair_id, VLM or LLM is described in two ways.
    """
    merged: dict[tuple[str, str, str, str], PanelPair] = {}
    for pair in (*shipped, *yours):
        earlier = merged.get(pair.key)
        if earlier is not None and earlier.origin == pair.origin:
            if earlier.delta_points != pair.delta_points:
                raise PanelError(
                    f"{pair.place}: {pair.vlm} on {pair.task} ({pair.protocol}) lost "
                    f"{pair.delta_points:g} here but {earlier.delta_points:g} at {earlier.place}; "
                    "keep one of the two rows"
                )
            continue
        merged[pair.key] = pair if earlier is None else replace(pair, replaces=earlier.place)
    panel = tuple(merged.values())
    _check_names_agree(panel)
    return panel


def _check_names_agree(panel: Iterable[PanelPair]) -> None:
    seen: dict[tuple[str, str], tuple[str, PanelPair]] = {}
    for pair in panel:
        models = f"{pair.reference_llm} and {pair.vlm}"
        for what, name, says in (
            ("pair_id", pair.pair_id, models),
            ("models", models, pair.pair_id),
            ("reference LLM", pair.reference_llm, f"the QK-norm kind {pair.qk_norm}"),
        ):
            earlier_says, earlier = seen.setdefault((what, name), (says, pair))
            if earlier_says != says:
                raise PanelError(
                    f"{pair.place}: the {what} {name} stands for {says} here but for {earlier_says} at "
                    f"{earlier.place}; make them agree"
                )


def shipped_pairs() -> tuple[PanelPair, ...]:
    """The published pairs that come with zoo; none of them has a Sink Strength until it is measured."""
    folder = files("catalog") / "panel"
    texts = {
        entry.name: entry.read_text("utf-8") for entry in folder.iterdir() if entry.name.endswith(".csv")
    }
    return tuple(
        pair for name in sorted(texts) for pair in parse_pairs(texts[name], name=name, origin="shipped")
    )


def load_panel(own_files: Mapping[str, str] | None = None) -> tuple[PanelPair, ...]:
    """The shipped pairs with the user's, given as file name -> CSV text. Raises PanelError."""
    own = [pair for name, text in (own_files or {}).items() for pair in parse_pairs(text, name=name)]
    return merge_pairs(shipped_pairs(), own)


def pairs_csv(pairs: Iterable[PanelPair]) -> str:
    """The pairs as CSV text that `parse_pairs` reads back unchanged."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for pair in pairs:
        values = {column: getattr(pair, column) for column in COLUMNS}
        writer.writerow({column: "" if value is None else value for column, value in values.items()})
    return out.getvalue()
