"""Rows as text: aligned tables with rounded numbers for people, exact JSON and CSV for programs."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Literal

from rich.cells import cell_len

Format = Literal["table", "json", "csv"]
FORMATS: tuple[Format, ...] = ("table", "json", "csv")
BLOCKS = "▁▂▃▄▅▆▇█"
ABSENT = "-"
"""What a table shows for a number or text that does not exist."""


def format_rows(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, format: Format) -> str:
    """The rows in one of ``FORMATS``, without a newline at the end.

    A table is as wide as its content whatever the terminal, floats with four significant digits.
    JSON is a list of objects; JSON and CSV hold every digit, and ``null`` or nothing for what does
    not exist or is not finite.
    """
    if format == "json":
        names = _unique(columns)
        return format_json([dict(zip(names, row, strict=True)) for row in rows])
    if format == "csv":
        return _csv(columns, rows)
    return format_table(columns, [[cell_text(value) for value in row] for row in rows], numeric=None)


def format_json(value: Any) -> str:
    """Records, lists and numbers as indented JSON."""
    return json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False)


def format_table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], *, numeric: Sequence[bool] | None
) -> str:
    """Columns of text two spaces apart; ``numeric`` ones are flush right, when ``None`` what looks it."""
    if numeric is None:
        numeric = [_looks_numeric(row[index] for row in rows) for index in range(len(headers))]
    table = [list(map(printable, row)) for row in [headers, *rows]]
    widths = [max(map(cell_len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(
            " " * (width - cell_len(cell)) + cell if right else cell + " " * (width - cell_len(cell))
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in table
    ]
    return "\n".join(lines)


def cell_text(value: Any) -> str:
    """One value as a table shows it."""
    if value is None:
        return ABSENT
    if isinstance(value, float | Decimal):
        return f"{value:.4g}"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    return value if isinstance(value, str) else json.dumps(_plain(value), ensure_ascii=False).strip('"')


def printable(text: str) -> str:
    """The text with control characters escaped: a token or a model's name must not steer a terminal."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape", "surrogatepass").decode()
        for each in text
    )


def count_text(number: float | None) -> str:
    """A large count with two or three digits, such as ``135M`` or ``7.2B``."""
    if number is None:
        return ABSENT
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * size:
            return f"{number / size:.{0 if number >= 9.95 * size else 1}f}{letter}"
    return f"{number:g}"


def sparkline(values: Sequence[float | None]) -> str:
    """One block a value, as high as it lies between the lowest and the highest; a space for ``None``."""
    present = [value for value in values if value is not None]
    if not present:
        return ""
    low, span = min(present), (max(present) - min(present)) or 1.0
    return "".join(
        " " if value is None else BLOCKS[round((value - low) / span * (len(BLOCKS) - 1))] for value in values
    )


def seconds_text(seconds: float) -> str:
    """A duration for people, such as ``0.4 s``, ``31 s``, ``2 min 05 s`` or ``3 h 10 min``."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        cells = map(_plain, row)
        writer.writerow(
            [
                json.dumps(cell, ensure_ascii=False) if isinstance(cell, list | dict) else cell
                for cell in cells
            ]
        )
    return out.getvalue().removesuffix("\n")


def _plain(value: Any) -> Any:
    """The value as JSON knows it, no digit lost."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _unique(names: Sequence[str]) -> list[str]:
    """The names with a number behind the second and later of the same."""
    return [
        name if (nth := names[:at].count(name) + 1) == 1 else f"{name}_{nth}" for at, name in enumerate(names)
    ]


def _looks_numeric(cells: Iterable[str]) -> bool:
    present = [cell for cell in cells if cell != ABSENT]
    return bool(present) and all(_is_number(cell) for cell in present)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
