"""A profile says what a night looks for, or is refused in one line that says how to write it."""

from __future__ import annotations

from pathlib import Path

import pytest

from zoo.errors import ProfileError
from zoo.profiles import KEYS, read_profile
from zoo.searches import Search

FILE = """
[profiles.small]
filter = "7B"
min_downloads = 100
budget_bytes = "2TB"
gpus_per_model = 0.25
load = "stream"

[profiles.qwen]
author = "Qwen"
prompts = 64
"""


def test_a_profile_is_a_search_and_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "profiles.toml").write_text(FILE)
    small = read_profile("small")
    assert small.search == Search(filter="7B", min_downloads=100)
    assert (small.settings.budget_bytes, small.settings.gpus_per_model) == ("2TB", 0.25)
    assert small.settings.overruled({"load": "whole", "prompts": None}).load == "whole"
    assert read_profile("qwen", path=tmp_path / "profiles.toml").settings.prompts == 64
    (tmp_path / "zoo.toml").write_text("[profiles.mine]\nfilter = '1B'\n")
    assert read_profile("mine").search.filter == "1B"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (FILE, "has no profile night; it has qwen, small"),
        ("", r"holds no profiles; begin one with \[profiles.NAME\]"),
        ("[profiles.night]\nfliter = '7B'", f"unknown key fliter; known are {', '.join(KEYS)}"),
        ("[profiles.night]\nprompts = 500", "prompts must be a whole number from 10 to 256, not 500"),
        ("[profiles.night]\nprompts = true", "prompts must be a whole number"),
        ("[profiles.night]\nload = 'fast'", "load must be one of auto, stream, whole"),
        ("[profiles.night]\nfilter = 7", "filter must be text in quotes, not 7"),
        ("[profiles.night]\nbudget_hours = '6'", "budget_hours must be a number"),
        ("[profiles]\nnight = 'x'", r"is no table; begin it with \[profiles.night\]"),
        ("[profiles.night", "is no TOML"),
    ],
)
def test_a_mistake_is_one_line_that_says_how_to_write_it(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "night.toml"
    file.write_text(text)
    with pytest.raises(ProfileError, match=said) as caught:
        read_profile("night", path=file)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ProfileError, match=r"no zoo.toml or profiles.toml here"):
        read_profile("night")
    with pytest.raises(ProfileError, match=r"gone.toml cannot be read"):
        read_profile("night", path=Path("gone.toml"))
