"""A search is read back as it was meant, from its JSON and from the options of older scans."""

from __future__ import annotations

import re
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zoo.cli_hub import HubChoice
from zoo.errors import CatalogError
from zoo.searches import Search, search_of_choice, search_of_key

words = st.text(st.characters(codec="ascii", categories=("L", "N", "P", "S")), min_size=1, max_size=8)
ids = st.from_regex(re.compile(r"[a-z][a-z0-9.-]{0,8}", re.ASCII), fullmatch=True)
searches = st.builds(
    Search,
    filter=st.none() | st.lists(words, min_size=1, max_size=3).map(" ".join),
    params=st.none() | st.sampled_from(["6B..9B", "..70B", "0..", "7b"]),
    author=st.none() | ids,
    license=st.none() | ids,
    min_downloads=st.integers(0, 10**6),
)


@given(searches)
def test_a_key_is_read_back_as_the_same_search(search: Search) -> None:
    back = search_of_key(search.key)
    assert back.key == search.key
    assert back.query.params == search.query.params
    assert set(back.query.filter.words) == set(search.query.filter.words)
    assert set(back.query.filter.sizes) == set(search.query.filter.sizes)


@given(searches, st.booleans(), st.sampled_from(["downloads", "modified"]))
def test_the_options_of_an_older_scan_are_read_back_exactly(search: Search, since: bool, sort: str) -> None:
    choice = HubChoice(
        filter_text=search.filter,
        params=search.params,
        author=search.author,
        since=datetime(2026, 1, 31) if since else None,
        min_downloads=search.min_downloads,
        license=search.license,
        sort=sort,
    )
    assert choice.search == search
    assert search_of_choice(choice.text) == search


@pytest.mark.parametrize(
    "choice", [HubChoice(model_ids=("org/a", "org/b")), HubChoice(model_ids=("org/a",), params="0..")]
)
def test_models_by_name_are_no_search(choice: HubChoice) -> None:
    assert choice.search is None
    assert search_of_choice(choice.text) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Search(filter="qwen 7b"), Search(filter="7B  Qwen")),
        (Search(params="6b..9b"), Search(params="6B..9B")),
        (Search(license="MIT"), Search(license="mit")),
        (Search(), Search(filter="", params=None)),
    ],
)
def test_the_same_search_in_other_words_has_the_same_key(one: Search, other: Search) -> None:
    assert one.key == other.key


def test_a_search_says_what_it_looks_for() -> None:
    assert Search(filter="7B", min_downloads=5).text == '--filter "7B" --min-downloads 5'
    assert Search().text == "all text-generation models"


def test_a_key_of_another_version_is_refused() -> None:
    with pytest.raises(CatalogError, match="another version"):
        search_of_key('{"colour": "blue"}')
