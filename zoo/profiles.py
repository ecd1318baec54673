"""Profiles of nightly rescans, kept under their names in a TOML file.

[profiles.small]
filter = "7B"
min_downloads = 100
prompts = 256
budget_bytes = "2TB"
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from zoo.errors import ProfileError
from zoo.records import PromptFormat
from zoo.searches import Search

DEFAULT_FILES = ("zoo.toml", "profiles.toml")

SEARCH_KEYS = tuple(each.name for each in fields(Search))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a night runs; ``None`` is the default of the command line."""

    prompts: int | None = None
    prompt_format: PromptFormat | None = None
    device: Literal["auto", "cpu", "cuda"] | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] | None = None
    load: Literal["auto", "stream", "whole"] | None = None
    verify: Literal["parts", "full"] | None = None
    gpus_per_model: float | None = None
    budget_bytes: str | None = None
    budget_hours: float | None = None
    bandwidth: str | None = None
    overlap_hours: float | None = None

    def overruled(self, given: Mapping[str, Any]) -> Settings:
        """These settings with what is given in their place; ``None`` gives nothing."""
        return replace(self, **{name: value for name, value in given.items() if value is not None})


CHOICES: dict[str, tuple[str, ...]] = {
    "prompt_format": get_args(PromptFormat),
    "device": ("auto", "cpu", "cuda"),
    "dtype": ("auto", "float32", "bfloat16", "float16"),
    "load": ("auto", "stream", "whole"),
    "verify": ("parts", "full"),
}
_WHOLE = ("min_downloads", "prompts")
_NUMBERS = ("gpus_per_model", "budget_hours", "overlap_hours")
KEYS = (*SEARCH_KEYS, *(each.name for each in fields(Settings)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a night looks for and how it runs, under a name."""

    name: str
    search: Search
    settings: Settings


def read_profile(name: str, *, path: Path | None = None) -> Profile:
    """The profile of this name in a file, by default the first there is of ``DEFAULT_FILES``.

    Raises ProfileError when there is no such file or profile, or it says what zoo does not know.
    """
    file = path or next((Path(each) for each in DEFAULT_FILES if Path(each).is_file()), None)
    if file is None:
        raise ProfileError(
            f"there is no {' or '.join(DEFAULT_FILES)} here to hold profile {name}: "
            "name the file with --profiles"
        )
    profiles = _tables(file)
    if name not in profiles:
        known = ", ".join(sorted(profiles)) or "none"
        raise ProfileError(f"{file} has no profile {name}; it has {known}")
    return _profile(name, profiles[name], file=file)


def _tables(file: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no UTF-8"
        raise ProfileError(f"{file} cannot be read ({reason}): name another file with --profiles") from None
    except tomllib.TOMLDecodeError as error:
        raise ProfileError(f"{file} is no TOML: {error}") from None
    tables = content.get("profiles")
    if not isinstance(tables, dict) or not tables:
        raise ProfileError(
            f'{file} holds no profiles; begin one with [profiles.NAME] and a line filter = "7B"'
        )
    return tables


def _profile(name: str, table: Any, *, file: Path) -> Profile:
    where = f"profile {name} in {file}"
    if not isinstance(table, dict):
        raise ProfileError(f"{where} is no table; begin it with [profiles.{name}]")
    if unknown := sorted(set(table) - set(KEYS)):
        raise ProfileError(f"{where} has an unknown key {unknown[0]}; known are {', '.join(KEYS)}")
    for key, value in table.items():
        if problem := _problem(key, value):
            raise ProfileError(f"{where}: {key} must be {problem}, not {value!r}")
    return Profile(
        name=name,
        search=Search(**{key: table[key] for key in SEARCH_KEYS if key in table}),
        settings=Settings(**{key: value for key, value in table.items() if key not in SEARCH_KEYS}),
    )


def _problem(key: str, value: Any) -> str | None:
    """What a value should have been, ``None`` where it is that."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if key in CHOICES:
        return None if value in CHOICES[key] else f"one of {', '.join(CHOICES[key])}"
    if key == "prompts":
        is_count = isinstance(value, int) and is_number and 10 <= value <= 256
        return None if is_count else "a whole number from 10 to 256"
    if key in _WHOLE:
        return None if isinstance(value, int) and is_number and value >= 0 else "a whole number"
    if key in _NUMBERS:
        return None if is_number and value >= 0 else "a number of 0 or more"
    return None if isinstance(value, str) and value.strip() else "text in quotes"
