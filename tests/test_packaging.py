"""The tested versions satisfy what the package asks for, and cover all of it."""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent


def requirements() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    return [
        Requirement(line)
        for line in [*project["dependencies"], *(line for extra in extras for line in extra)]
    ]


def pinned_versions() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pins}


def test_every_dependency_has_a_tested_version_at_or_above_its_floor() -> None:
    tested = pinned_versions()
    unmet = [str(each) for each in requirements() if not each.specifier.contains(tested.get(each.name, "0"))]
    assert unmet == []


def test_every_dependency_has_a_floor() -> None:
    assert [str(each) for each in requirements() if not str(each.specifier).startswith(">=")] == []
