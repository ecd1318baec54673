"""The user's own panel pairs: CSV files in ``panel/`` of the catalog, and all pairs as a table for SQL."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import PurePosixPath

import pyarrow as pa
import pyarrow.fs as pafs

from catalog.calibrations import publish
from catalog.store import Catalog
from zoo.errors import CatalogError, PanelError
from zoo.panel import load_panel

_TEXTS = "pair_id reference_llm vlm qk_norm task protocol source origin place replaces problem"
_NUMBERS = "llm_score vlm_score delta_points stderr_points"

PANEL = pa.schema(
    [(name, pa.string()) for name in _TEXTS.split()] + [(name, pa.float64()) for name in _NUMBERS.split()]
)


def add_panel_file(catalog: Catalog, text: str, *, name: str) -> str:
    """Keep own pairs as a new CSV file beside the catalog; returns its path.

    The path ends in the content's digest, so that adding the same pairs twice keeps one file. Raises
    CatalogError when the catalog cannot be written.
    """
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    path = f"{catalog.folder('panel')}/{name}--{digest}.csv"
    publish(catalog, path, text.encode())
    return path


def own_panel_files(catalog: Catalog) -> dict[str, str]:
    """The user's panel files: path -> CSV text, in the order of their paths.

    Raises CatalogError when one cannot be read.
    """
    selector = pafs.FileSelector(catalog.folder("panel"), allow_not_found=True)
    try:
        infos = catalog.filesystem.get_file_info(selector)
        return {path: _text(catalog, path) for path in sorted(info.path for info in infos if _is_csv(info))}
    except OSError as error:
        raise CatalogError(
            f"a panel file of the catalog {catalog.uri} cannot be read ({error}): repair or remove it"
        ) from error


def panel_table(catalog: Catalog) -> pa.Table:
    """Shipped and own pairs for the view ``panel``.

    A file that cannot be used has one row, which says why in ``problem``: a typing error in a panel
    file must not stop a query about something else.
    """
    usable: dict[str, str] = {}
    problems = []
    panel = load_panel()
    for path, text in own_panel_files(catalog).items():
        try:
            panel = load_panel(usable | {path: text})
            usable[path] = text
        except PanelError as error:
            problems.append({"place": path, "origin": "yours", "problem": str(error)})
    return pa.Table.from_pylist([asdict(pair) for pair in panel] + problems, schema=PANEL)


def _is_csv(info: pafs.FileInfo) -> bool:
    name = PurePosixPath(info.path).name
    return info.type == pafs.FileType.File and name.endswith(".csv") and not name.startswith(".")


def _text(catalog: Catalog, path: str) -> str:
    with catalog.filesystem.open_input_stream(path) as stream:
        return bytes(stream.read()).decode("utf-8", errors="replace")
