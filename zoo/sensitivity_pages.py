"""What people read of how sure a Sink Strength is: one model's sensitivity, and the marks of the ranking."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from zoo.records import SWEEP_SIZES
from zoo.sensitivity import SUBSET_DRAWS, SizeSpread, shrink_exponent, size_spreads, stable_size
from zoo.tables import ABSENT, format_table

if TYPE_CHECKING:
    from catalog.query import QueryResult
    from catalog.robustness import Robustness

_BANDS = ("8-16", "16-32", "32-64", "64+")
_THIRDS = ("short", "middle", "long")
_STATISTICS = {
    "sink_strength": "log-odds of mean mass (S)",
    "mean_log_odds": "mean log-odds",
    "lift": "mean log-odds + ln(keys)",
}
MISSING = (
    "This measurement was made before zoo kept prompt lengths, query bands and other statistics:\n"
    "zoo screen --force measures the model again and keeps them."
)


def sensitivity_text(robustness: Robustness, *, tolerance: float) -> str:
    """Tables of at most 100 columns: prompts, other choices, and statistics over bands and lengths."""
    row = robustness.outcome
    parts = [
        f"{row['model_id']}: Sink Strength {row['sink_strength']:.2f} nats, and what it would be",
        "",
        _sizes_text(robustness, tolerance=tolerance),
        "",
        _choices_text(robustness),
        "",
        _slices_text(robustness.slices) if robustness.slices.rows else MISSING,
    ]
    return "\n".join(parts)


def sensitivity_record(robustness: Robustness, *, tolerance: float) -> dict[str, Any]:
    """The same with every digit."""
    spreads = size_spreads(robustness.log_odds_PH, sizes=SWEEP_SIZES)
    names = ("spec_id", "prompt_format", "dtype", "device", "sink_strength")
    return {
        "model_id": robustness.outcome["model_id"],
        "sink_strength": robustness.outcome["sink_strength"],
        "sizes": robustness.sizes.records(),
        "resampled": [
            {name: getattr(each, name) for name in ("size", "std", "within", "same_sign_share")}
            for each in spreads
        ],
        "shrink_exponent": shrink_exponent(spreads, prompts=len(robustness.log_odds_PH)),
        "tolerance": tolerance,
        "stable_size": stable_size(spreads, tolerance=tolerance),
        "choices": robustness.choices.records(),
        "slices": robustness.slices.records(),
        "others": [{name: other[name] for name in names} for other in robustness.others],
    }


def doubt_hint(table: QueryResult) -> str:
    """What the marks in the ranking's ``doubt`` mean; empty where there are none."""
    at = table.columns.index("doubt")
    marks = {mark for row in table.rows for mark in row[at]}
    meanings = {
        "sign": "sign: other plausible prompts, layers or queries change the sign of S",
        "order": "order: they swap the model with its neighbour",
        "partial": "partial: measured before zoo kept all of them, see zoo screen --force",
    }
    said = [meaning for mark, meaning in meanings.items() if mark in marks]
    return f"Doubts: {'; '.join(said)}. zoo show MODEL --sensitivity has the numbers." if said else ""


def _sizes_text(robustness: Robustness, *, tolerance: float) -> str:
    prompts = len(robustness.log_odds_PH)
    spreads = size_spreads(robustness.log_odds_PH, sizes=SWEEP_SIZES)
    content = {each.size: each for each in _content_spreads(robustness)}
    cells = {row["size"]: row for row in robustness.sizes.records()}
    rows = [
        [
            str(each.size),
            f"{cells[each.size]['low']:.2f} to {cells[each.size]['high']:.2f}"
            if each.size in cells
            else ABSENT,
            f"{each.std:.3f}",
            f"{each.within:.2f}",
            f"{each.same_sign_share:.0%}",
            f"{content[each.size].std:.3f}" if each.size in content else ABSENT,
        ]
        for each in spreads
    ]
    headers = ("prompts", "S over seeds", "std", "95 % within", "same sign", "std, content")
    numeric = (True, False, True, True, True, True)
    lines = [f"Random subsets of the {prompts} prompts (std: of {SUBSET_DRAWS} subsets)"]
    lines += [format_table(headers, rows, numeric=numeric), _shrink_text(spreads, prompts, tolerance)]
    return "\n".join(lines) if rows else f"There are only {prompts} prompts, too few for subsets."


def _content_spreads(robustness: Robustness) -> tuple[SizeSpread, ...]:
    if robustness.outcome["sink_strength_content"] is None:
        return ()
    return size_spreads(robustness.content_PH, sizes=SWEEP_SIZES)


def _shrink_text(spreads: tuple[SizeSpread, ...], prompts: int, tolerance: float) -> str:
    exponent = shrink_exponent(spreads, prompts=prompts)
    lines = (
        []
        if exponent is None
        else [f"The spread falls as N^{exponent:.2f}; that of independent prompts as N^-0.50."]
    )
    size = stable_size(spreads, tolerance=tolerance)
    if size is None:
        return "\n".join(
            [*lines, f"No subset this small keeps S within {tolerance:g} nats in 95 % of cases."]
        )
    return "\n".join([*lines, f"From {size} prompts on, 95 % of subsets keep S within {tolerance:g} nats."])


def _choices_text(robustness: Robustness) -> str:
    rows = [
        [row["factor"], row["choice"], f"{row['sink_strength']:.2f}", _shift(row["shift"]), _remark(row)]
        for row in robustness.choices.records()
        if not row["factor"].startswith("subset")
    ]
    own = robustness.outcome
    for other in robustness.others:
        changed = [
            str(other[name])
            for name in ("prompt_format", "dtype", "device")
            if other[name] != own[name] or name == "prompt_format"
        ]
        shift = other["sink_strength"] - own["sink_strength"]
        crosses = (other["sink_strength"] > 0) != (own["sink_strength"] > 0)
        remark = "changes the sign" if crosses else ""
        rows.append(["run", ", ".join(changed), f"{other['sink_strength']:.2f}", _shift(shift), remark])
    headers = ("what", "choice", "S (nats)", "shift", "")
    table = format_table(headers, rows, numeric=(False, False, True, True, False))
    return f"Other choices for the same prompts ({own['prompt_format']}, {own['dtype']})\n{table}"


def _shift(nats: float) -> str:
    return f"{round(nats, 2) + 0.0:+.2f}"  # no -0.00


def _remark(row: dict[str, Any]) -> str:
    if row["changes_sign"]:
        return "changes the sign"
    if not row["same_scale"]:
        return "0 is uniform attention: for order alone"
    return "" if row["plausible"] else "a part of the queries, no choice for S"


def _slices_text(slices: QueryResult) -> str:
    by_slice = {row["slice"]: row for row in slices.records()}
    rows = []
    for column, name in _STATISTICS.items():
        values = [by_slice[each][column] for each in (*_BANDS, *_THIRDS)]
        bands, thirds = values[: len(_BANDS)], values[len(_BANDS) :]
        cells = [ABSENT if value is None else f"{value:.2f}" for value in values]
        rows.append([name, *cells[:4], _range(bands), *cells[4:], _range(thirds)])
    headers = ("by query position and length", *_BANDS, "range", *_THIRDS, "range")
    return format_table(headers, rows, numeric=(False, *(True,) * 9))


def _range(values: list[float | None]) -> str:
    present = [value for value in values if value is not None]
    return f"{np.ptp(present):.2f}" if len(present) > 1 else ABSENT
