"""Which repositories the Hub has for a query: server-side filters first, the rest here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from zoo.errors import SourceError, TransientModelError
from zoo.filters import ModelFilter, ParameterRange, closest
from zoo.hub import Hub
from zoo.records import Listing

Sort = Literal["downloads", "likes", "created", "modified", "parameters"]

SERVER_SORTS = {
    "downloads": "downloads",
    "likes": "likes",
    "created": "createdAt",
    "modified": "lastModified",
}

EXPANDED = (
    "createdAt",
    "disabled",
    "downloads",
    "gated",
    "lastModified",
    "library_name",
    "likes",
    "pipeline_tag",
    "safetensors",
    "sha",
    "tags",
)

PAGE_LENGTH = 1000
CLOSE_CALLS = 200
"""How many repositories are looked at to name the closest ones when nothing matched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubQuery:
    """What is searched for on the Hub; every part that is set must hold."""

    filter: ModelFilter = field(default_factory=ModelFilter)
    params: ParameterRange = field(default_factory=ParameterRange)
    author: str | None = None
    since: str | None = None
    """ISO date; repositories changed on that day or later."""
    min_downloads: int = 0
    license: str | None = None
    sort: Sort = "downloads"
    pipeline_tag: str = "text-generation"

    def takes(self, listing: Listing) -> bool:
        """Whether a repository meets everything that a listing can tell."""
        wants_count = self.params != ParameterRange()
        return (
            self.filter.misses(listing.model_id, listing.parameters) == 0
            and (not wants_count or self.params.takes(listing.parameters))
            and (self.author is None or listing.model_id.lower().startswith(f"{self.author.lower()}/"))
            and (self.since is None or (listing.last_modified or listing.created_at or "") >= self.since)
            and (listing.downloads or 0) >= self.min_downloads
            and (self.license is None or (listing.license or "").lower() == self.license.lower())
        )


def list_models(
    hub: Hub, query: HubQuery, *, report: Callable[[str], None] = lambda line: None
) -> tuple[Listing, ...]:
    """Every repository that the query takes, in its order.

    Raises:
        SourceError: the listing broke off, so that it cannot be told from a shorter one, or nothing
            matched; then the closest repositories are named.
    """
    found: dict[str, Listing] = {}
    seen = 0
    try:
        for request in server_queries(query):
            for page in hub.pages(request):
                seen += len(page)
                listings = map(listing_from, page)
                found |= {one.model_id: one for one in listings if query.takes(one)}
                report(f"listing the Hub: {seen} repositories seen, {len(found)} match")
        if not found:
            raise nothing_matched(hub, query)
    except TransientModelError as error:
        raise listing_failed(error, seen=seen) from None
    return tuple(sorted(found.values(), key=_rank(query.sort)))


def server_queries(query: HubQuery) -> list[dict[str, Any]]:
    """The listing requests whose results together hold all that the query takes.

    A size is searched for by its spellings in names, and by the count; a word by itself.
    """
    common: dict[str, Any] = {"pipeline_tag": query.pipeline_tag, "expand": EXPANDED, "limit": PAGE_LENGTH}
    common["sort"] = SERVER_SORTS.get(query.sort, "downloads")
    if query.author:
        common["author"] = query.author
    if query.license:
        common["filter"] = [f"license:{query.license.lower()}"]
    if query.params != ParameterRange():
        common["num_parameters"] = _bounds(query.params.low, query.params.high)
    words, sizes = query.filter.words, query.filter.sizes
    if words or not sizes:
        longest = max(words, key=len, default=None)
        return [common | ({"search": longest} if longest else {})]
    size = sizes[0]
    searches = [common | {"search": spelling} for spelling in size.spellings]
    if "num_parameters" in common:
        return [*searches, common]
    return [*searches, common | {"num_parameters": _bounds(size.low, size.high)}]


def _bounds(low: int | None, high: int | None) -> str:
    """A range as the Hub's own pages write it, in whole millions or billions that include both ends."""

    def whole(count: int, *, up: bool) -> str:
        unit, letter = (10**9, "B") if count >= 10**9 else (10**6, "M")
        return f"{-(-count // unit) if up else count // unit}{letter}"

    ends = [f"min:{whole(low, up=False)}"] if low else []
    ends += [f"max:{whole(high, up=True)}"] if high is not None else []
    return ",".join(ends) or "min:0"


def listing_from(item: Mapping[str, Any]) -> Listing:
    """A listing from the Hub's JSON; what has another type than documented counts as unsaid."""
    tags = tuple(tag for tag in _typed(item, "tags", list) or () if isinstance(tag, str))
    card = _typed(item, "cardData", dict) or {}
    relation, base = _base_model(tags)
    safetensors = _typed(item, "safetensors", dict) or {}
    return Listing(
        model_id=item["id"],
        revision=_typed(item, "sha", str),
        created_at=_typed(item, "createdAt", str),
        last_modified=_typed(item, "lastModified", str),
        downloads=_typed(item, "downloads", int),
        likes=_typed(item, "likes", int),
        gated=_typed(item, "gated", str),
        disabled=item.get("disabled") is True,
        pipeline_tag=_typed(item, "pipeline_tag", str),
        library=_typed(item, "library_name", str),
        license=_tagged(tags, "license:") or _typed(card, "license", str),
        base_model=base or _typed(card, "base_model", str),
        base_model_relation=relation,
        parameters=_typed(safetensors, "total", int),
        tags=tags,
    )


def _typed(item: Mapping[str, Any], key: str, kind: type) -> Any:
    value = item.get(key)
    return value if isinstance(value, kind) and not (kind is int and isinstance(value, bool)) else None


def _tagged(tags: Iterable[str], prefix: str) -> str | None:
    return next((tag.removeprefix(prefix) for tag in tags if tag.startswith(prefix)), None)


def _base_model(tags: Iterable[str]) -> tuple[str | None, str | None]:
    """Relation and base model from tags such as ``base_model:finetune:org/name``."""
    bases = [tag.removeprefix("base_model:").rpartition(":") for tag in tags if tag.startswith("base_model:")]
    relation, _, base = next((one for one in bases if one[0]), bases[0] if bases else ("", "", ""))
    return relation or None, base or None


def _rank(sort: Sort) -> Callable[[Listing], tuple[Any, ...]]:
    """Largest or newest first, ties by id, so that a plan does not depend on the server's order."""

    def key(one: Listing) -> tuple[Any, ...]:
        if sort in ("created", "modified"):
            stamp = (one.created_at if sort == "created" else one.last_modified) or ""
            return tuple(-ord(letter) for letter in stamp), one.model_id
        number = {"likes": one.likes, "parameters": one.parameters}.get(sort, one.downloads)
        return -(number or 0), one.model_id

    return key


def nothing_matched(hub: Hub, query: HubQuery) -> SourceError:
    """The error that names what came closest, from the most downloaded repositories of wider queries."""
    wider = [replaced_filter(query, words=()), replaced_filter(query, sizes=())]
    nearby: dict[str, Listing] = {}
    for request in {str(one): one for each in wider for one in server_queries(each)}.values():
        page = next(iter(hub.pages(request | {"limit": CLOSE_CALLS, "sort": "downloads"})), [])
        nearby |= {item["id"]: listing_from(item) for item in page}
    names = closest([(one.model_id, one.parameters) for one in nearby.values()], query.filter)
    hint = f"closest: {', '.join(names)}" if names else "the Hub lists nothing close to it"
    return SourceError(
        f"no text-generation model on the Hub matches; {hint}; loosen --filter or the other filters"
    )


def replaced_filter(
    query: HubQuery, *, words: tuple[str, ...] | None = None, sizes: tuple[Any, ...] | None = None
) -> HubQuery:
    """A wider query: without some words or sizes, bounds, license and author."""
    kept = ModelFilter(
        words=query.filter.words if words is None else words,
        sizes=query.filter.sizes if sizes is None else sizes,
    )
    return HubQuery(filter=kept, pipeline_tag=query.pipeline_tag)


def listing_failed(error: TransientModelError, *, seen: int) -> SourceError:
    """A listing that could not be had or broke off, which is never a shorter listing."""
    if error.reason == "network" and not seen:
        return SourceError(
            "the Hub cannot be reached; check the network and HF_ENDPOINT, "
            "or screen local models with --source FOLDER"
        )
    return SourceError(
        f"the Hub's listing broke off after {seen} repositories ({error.reason}), so nothing was screened; "
        "run the same command again later"
    )
