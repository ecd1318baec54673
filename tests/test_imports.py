"""Each module imports what the table allows, and the README shows the same table."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

EVERYWHERE = {"zoo.errors", "zoo.records"}
"""What every module may import beyond the standard library."""

IMPORTS: dict[str, set[str]] = {
    "catalog/__init__.py": set(),
    "catalog/files.py": {"catalog.schemas", "pyarrow"},
    "catalog/lookup.py": {"catalog.query", "catalog.store"},
    "catalog/query.py": {"catalog.files", "catalog.store", "duckdb"},
    "catalog/rows.py": {"catalog.schemas", "numpy", "pyarrow"},
    "catalog/schemas.py": {"pyarrow"},
    "catalog/store.py": {"catalog.files", "catalog.rows", "catalog.verification", "pyarrow"},
    "catalog/verification.py": {"catalog.files", "catalog.schemas", "pyarrow"},
    "jobs/__init__.py": set(),
    "zoo/__init__.py": {"zoo.measure"},
    "zoo/architecture.py": {"torch", "transformers", "zoo.probe"},
    "zoo/backbone.py": {"torch", "transformers", "zoo.architecture", "zoo.checkpoints", "zoo.probe"},
    "zoo/checkpoints.py": set(),
    "zoo/cli.py": {"click", "zoo.cli_catalog", "zoo.cli_screen", "zoo.tables"},
    "zoo/cli_catalog.py": {
        "catalog.lookup",
        "catalog.query",
        "catalog.store",
        "click",
        "zoo.pages",
        "zoo.tables",
    },
    "zoo/cli_screen.py": {
        "catalog.lookup",
        "catalog.store",
        "click",
        "rich",
        "zoo.cli_catalog",
        "zoo.pages",
        "zoo.progress",
        "zoo.prompts",
        "zoo.reports",
        "zoo.screen",
        "zoo.sources",
        "zoo.tables",
    },
    "zoo/errors.py": set(),
    "zoo/measure.py": {
        "torch",
        "transformers",
        "zoo.backbone",
        "zoo.probe",
        "zoo.prompts",
        "zoo.sources",
        "zoo.strength",
        "zoo.tokenizer",
    },
    "zoo/pages.py": {"catalog.lookup", "catalog.query", "zoo.tables"},
    "zoo/probe.py": {"numpy", "torch", "transformers", "zoo.sinks"},
    "zoo/progress.py": {"rich", "zoo.reports", "zoo.tables"},
    "zoo/prompts.py": {"numpy", "zoo.templates", "zoo.tokenizer"},
    "zoo/records.py": {"numpy"},
    "zoo/reports.py": set(),
    "zoo/screen.py": {"catalog.store", "zoo.reports", "zoo.shares", "zoo.tasks"},
    "zoo/shares.py": set(),
    "zoo/sinks.py": {"torch"},
    "zoo/sources.py": set(),
    "zoo/strength.py": {"numpy", "scipy", "zoo.prompts"},
    "zoo/tables.py": {"rich"},
    "zoo/tasks.py": {"catalog.store", "ray", "zoo.measure", "zoo.reports"},
    "zoo/template_renderer.py": {"transformers"},
    "zoo/templates.py": set(),
    "zoo/tokenizer.py": {"transformers"},
}
"""What each module imports beyond the standard library and ``EVERYWHERE``."""

OWNERS = {
    "click": {"zoo/cli.py", "zoo/cli_catalog.py", "zoo/cli_screen.py"},
    "duckdb": {"catalog/query.py"},
    "ray": {"zoo/tasks.py"},
}
"""The only modules outside of jobs/ that may name a library."""

PACKAGES = ("catalog", "jobs", "zoo")
MODULES = sorted(str(path.relative_to(ROOT)) for name in PACKAGES for path in (ROOT / name).glob("*.py"))


def imported(path: str) -> set[str]:
    """Every module a file imports, anywhere in it: ours by their full name, others by their first."""
    names: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, f"{path} imports relatively"
            names |= {_module(node.module, alias.name) for alias in node.names}
    ours = {name for name in names if name.startswith(tuple(f"{package}." for package in PACKAGES))}
    others = {name.split(".")[0] for name in names - ours} - set(PACKAGES)
    return (ours | others) - set(sys.stdlib_module_names)


def _module(package: str, name: str) -> str:
    is_module = (ROOT / package.replace(".", "/") / f"{name}.py").exists()
    return f"{package}.{name}" if is_module else package


def test_the_table_names_every_module_and_no_other() -> None:
    assert sorted(IMPORTS) == MODULES


@pytest.mark.parametrize("path", MODULES)
def test_a_module_imports_what_the_table_says(path: str) -> None:
    assert imported(path) - EVERYWHERE == IMPORTS[path]


def test_a_library_is_named_only_by_its_owners() -> None:
    for library, owners in OWNERS.items():
        assert {path for path in MODULES if library in imported(path)} == owners


def test_the_readme_shows_the_same_table() -> None:
    rows = re.findall(
        r"^\| `((?:catalog|jobs|zoo)/\w+\.py)` \|.*\| ([^|]*) \|$",
        (ROOT / "README.md").read_text(),
        re.MULTILINE,
    )
    shown = {
        path: {name for name in re.split(r"[, ]+", cell.replace("`", "")) if name != "nothing"}
        for path, cell in rows
    }
    assert shown == {path: names for path, names in IMPORTS.items() if not path.endswith("__init__.py")}
