"""What people and programs read of a night: text, Markdown, JSON and CSV."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from zoo.nights import NightSummary, Place, is_new_number, why_moved
from zoo.plan import refusals_by_reason
from zoo.plan_text import refusals_text
from zoo.rescan_records import CSV_COLUMNS, night_record, night_rows
from zoo.tables import Format, count_text, format_json, format_rows, format_table, printable, seconds_text

if TYPE_CHECKING:
    from zoo.rescan import Night

SHOWN = 20
"""Rows of a section and names of a list that the text shows; the report and JSON have all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One table of a page under its title."""

    title: str
    headers: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    numeric: tuple[bool, ...]


def night_text(summary: NightSummary, *, format: Format) -> str:
    """A night for the standard output, as text, JSON or CSV."""
    if format == "json":
        return format_json(night_record(summary))
    if format == "csv":
        return format_rows(CSV_COLUMNS, night_rows(summary), format="csv")
    if not summary.night.work.targets:
        return _nothing_new(summary)
    parts = [lead_text(summary.night)]
    if summary.night.plan.refusals:
        parts.append(refusals_text(summary.night.plan))
    for section in _sections(summary, most=SHOWN):
        shown = format_table(section.headers, section.rows[:SHOWN], numeric=section.numeric)
        more = len(section.rows) - SHOWN
        parts.append("\n".join([section.title, *(f"  {line}" for line in shown.splitlines())]))
        parts[-1] += f"\n  and {more} more, in --report and --format json" if more > 0 else ""
    return "\n\n".join([*parts, "\n".join(_closing(summary))])


def night_markdown(summary: NightSummary) -> str:
    """A night as a Markdown page with every row."""
    parts = [f"# Rescan of {_time(summary.night.watermark_after)}", _escaped(lead_text(summary.night))]
    for section in (*_sections(summary), *_refusals(summary.night)):
        rule = ["---:" if right else "---" for right in section.numeric]
        lines = [_line(section.headers), _line(rule), *map(_line, section.rows)]
        parts += [f"## {section.title}", "\n".join(lines)]
    return "\n\n".join([*parts, *map(_escaped, _closing(summary))]) + "\n"


def lead_text(night: Night) -> str:
    """What a night looks at and since when, in one line."""
    work = night.work
    name = f" (profile {night.profile})" if night.profile else ""
    return printable(
        f"Rescan of {night.search.text}{name} since {_time(night.since)}: {work.fresh} new or changed, "
        f"{work.backlog} left by earlier nights, {work.settled} known at their revision."
    )


def _sections(summary: NightSummary, *, most: int | None = None) -> list[Section]:
    """The sections that have rows; lists of names end after ``most``."""
    changes, night = summary.changes, summary.night
    returning: dict[str, list[str]] = {}
    for model_id, reason in summary.next_night.items():
        size = f" ({night.too_large[model_id] / 1e9:.0f} GB)" if reason == "too_large" else ""
        returning.setdefault(reason, []).append(model_id + size)
    sections = [
        Section(
            title="Entered the ranking",
            headers=("rank", "model", "S (nats)", "95 % interval", "params", "revision"),
            rows=[_place_row(place) for place in changes.entered],
            numeric=(True, False, True, False, True, False),
        ),
        Section(
            title="Left the ranking: a later attempt on the same revision failed for good",
            headers=("rank was", "model", "S (nats)", "95 % interval", "params", "revision"),
            rows=[_place_row(place) for place in changes.left],
            numeric=(True, False, True, False, True, False),
        ),
        Section(
            title="Moved in the ranking",
            headers=("rank", "model", "S (nats)", "why"),
            rows=[_moved_row(*pair) for pair in changes.moved],
            numeric=(False,) * 4,
        ),
        Section(
            title="Failed",
            headers=("model", "stage", "reason", "message"),
            rows=[(one.model_id, one.stage, one.reason, one.message) for one in summary.screened.failed],
            numeric=(False,) * 4,
        ),
        Section(
            title="Measured once with another, since weights, tokenizer and chat template are the same",
            headers=("model", "same as"),
            rows=[(alias.partition("@")[0], model_id) for alias, model_id in night.plan.aliases.items()],
            numeric=(False,) * 2,
        ),
        Section(
            title=f"Left for the next night: {len(summary.next_night)}",
            headers=("why", "models", "which"),
            rows=[
                (_WHY.get(why, why), str(len(ids)), _names(ids, most=most))
                for why, ids in sorted(returning.items())
            ],
            numeric=(False, True, False),
        ),
    ]
    return [section for section in sections if section.rows]


def _refusals(night: Night) -> list[Section]:
    rows = [
        (reason, str(len(group)), _names((one.model_id for one in group), most=None), group[0].message)
        for reason, group in refusals_by_reason(night.plan)
    ]
    headers = ("reason", "models", "which", "the first of them")
    numeric = (False, True, False, False)
    title = f"Refused: {len(night.plan.refusals)}"
    return [Section(title=title, headers=headers, rows=rows, numeric=numeric)] if rows else []


_WHY = {
    "budget": "tonight's budget",
    "time": "tonight's time",
    "too_large": "larger than a night's budget",
}


def _nothing_new(summary: NightSummary) -> str:
    night = summary.night
    return printable(
        f"Nothing new for {night.search.text} since {_time(night.since)} "
        f"({night.work.settled} known at their revision, {seconds_text(summary.elapsed_seconds)})."
    )


def _closing(summary: NightSummary) -> list[str]:
    screened, night = summary.screened, summary.night
    ended = f"{len(screened.measured)} measured, {len(screened.failed)} failed"
    if before := len(screened.already_measured) + len(screened.failed_before):
        ended += f", {before} already in the catalog"
    stopped = "Stopped: " if screened.interrupted else ""
    ranked = "" if summary.changes.models is None else f"; {summary.changes.models} models ranked"
    lines = [f"{stopped}{ended} in {seconds_text(summary.elapsed_seconds)}{ranked} in {summary.catalog_uri}."]
    if night.too_large:
        smallest = f"{min(night.too_large.values()) / 1e9:.1f} GB"
        what = "the smallest model" if not night.plan.models else "some models"
        lines.append(
            f"The budget of a night is smaller than {what} ({smallest}): raise --budget-bytes or "
            "--budget-hours, or name them to zoo screen."
        )
    return [*lines, f"The next rescan goes on from {_time(night.watermark_after)}, less the overlap."]


def _place_row(place: Place) -> tuple[str, ...]:
    return (
        str(place.rank),
        place.model_id,
        f"{place.sink_strength:.2f}",
        f"{place.low:.2f} to {place.high:.2f}",
        count_text(place.parameters),
        place.revision[:12],
    )


def _moved_row(was: Place, now: Place) -> tuple[str, ...]:
    strength = f"{was.sink_strength:.2f}"
    if is_new_number(was, now):
        strength += f" -> {now.sink_strength:.2f}"
    rank = f"{was.rank} -> {now.rank}" if was.rank != now.rank else f"{now.rank} as before"
    return rank, now.model_id, strength, why_moved(was, now)


def _names(ids: Iterable[str], *, most: int | None) -> str:
    names = list(ids)
    more = f" and {len(names) - most} more" if most is not None and len(names) > most else ""
    return ", ".join(names[:most]) + more


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_escaped(printable(cell)) for cell in cells)} |"


def _escaped(text: str) -> str:
    for letter in "\\|<*_`":
        text = text.replace(letter, f"\\{letter}")
    return text
