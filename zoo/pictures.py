"""What all pictures have in common: their style, the files they are written to, and the errors of that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from zoo.errors import ZooError

ENDINGS = (".png", ".svg", ".pdf")
INK = "#222222"
STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "svg.hashsalt": "zoo",
    "savefig.dpi": 150,
}

_DATES: dict[str, dict[str, None]] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def check_ending(path: Path) -> None:
    """Raise ZooError for a name that does not end as a picture that zoo writes."""
    if path.suffix.lower() not in ENDINGS:
        raise ZooError(f"{path} is no picture that zoo writes: name a file that ends in {', '.join(ENDINGS)}")


def save(figure: Figure, path: Path) -> None:
    """Write the figure as its ending says, the same bytes every time.

    Raises ZooError for another ending or an unwritable path.
    """
    check_ending(path)
    try:
        with matplotlib.rc_context(STYLE):
            figure.savefig(path, metadata=_DATES[path.suffix.lower()])
    except OSError as error:
        raise ZooError(f"{path} cannot be written ({error.strerror}): name another file") from error
