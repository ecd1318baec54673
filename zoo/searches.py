"""What a search of the Hub asks for, as the catalog keeps it and reads it back."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass

from zoo.errors import CatalogError
from zoo.filters import parse_filter, parse_parameter_range, parse_size
from zoo.listing import HubQuery

_CHOICE = re.compile(
    r'(?:--filter "(?P<filter>.*)")?(?: ?--params (?P<params>\S+))?(?: ?--author (?P<author>\S+))?'
    r"(?: ?--since \S+)?(?: ?--min-downloads (?P<min_downloads>\d+))?(?: ?--license (?P<license>\S+))?"
    r" ?--sort \S+"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Which models of the Hub are meant, in the words of the command line; order and limits are not kept."""

    filter: str | None = None
    params: str | None = None
    author: str | None = None
    license: str | None = None
    min_downloads: int = 0

    @property
    def key(self) -> str:
        """Canonical JSON: equal for searches that take the same models for the same words."""
        said = {
            "filter": " ".join(sorted(map(_term, (self.filter or "").split()))),
            "params": (self.params or "").replace(" ", "").upper(),
            "author": self.author,
            "license": (self.license or "").lower(),
            "min_downloads": self.min_downloads,
        }
        return json.dumps({name: value for name, value in said.items() if value}, sort_keys=True)

    @property
    def text(self) -> str:
        """The search as options, for people."""
        parts = [f'--filter "{self.filter}"' if self.filter else ""]
        parts += [
            f"--{name.replace('_', '-')} {value}"
            for name, value in asdict(self).items()
            if value and name != "filter"
        ]
        return " ".join(filter(None, parts)) or "all text-generation models"

    @property
    def query(self) -> HubQuery:
        """What is asked of the Hub. Raises SourceError for a range or count that is none."""
        return HubQuery(
            filter=parse_filter(self.filter),
            params=parse_parameter_range(self.params),
            author=self.author,
            license=self.license,
            min_downloads=self.min_downloads,
        )


def _term(term: str) -> str:
    """A word in small letters, a size in large ones."""
    return "-".join(part.upper() if parse_size(part) else part.lower() for part in term.split("-"))


def search_of_key(key: str) -> Search:
    """The search of its canonical JSON. Raises CatalogError when it holds more than this zoo knows."""
    try:
        return Search(**json.loads(key))
    except (TypeError, ValueError):
        raise CatalogError(
            f"the search {key} in the catalog was written by another version of zoo: "
            "use that, or name a profile"
        ) from None


def search_of_choice(text: str) -> Search | None:
    """The search of the options that scans without ``search`` kept; ``None`` when it named its models."""
    match = _CHOICE.fullmatch(text)
    if match is None:
        return None
    return Search(
        filter=match["filter"],
        params=match["params"],
        author=match["author"],
        license=match["license"],
        min_downloads=int(match["min_downloads"] or 0),
    )
