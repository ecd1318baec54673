"""Which repositories of a query the Hub created or changed since a moment, by its own clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from zoo.errors import TransientModelError
from zoo.hub import Hub
from zoo.listing import SERVER_SORTS, HubQuery, listing_failed, listing_from, server_queries
from zoo.records import Listing


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What of a query was created or changed since a moment."""

    listings: tuple[Listing, ...]
    seen: int
    """Repositories that were looked through, some more than once."""
    newest: datetime | None
    """The latest time among them, by the Hub's clock."""


def list_changed(
    hub: Hub, query: HubQuery, *, since: datetime, report: Callable[[str], None] = lambda line: None
) -> Changes:
    """Every repository that the query takes and that was created or changed at ``since`` or later.

    Both orders of the Hub are read from their newest end up to the first page that is all older. What
    changes while pages are turned may be missed: it is newer than the listing's beginning.

    Raises:
        SourceError: the listing broke off, so that it cannot be told from a shorter one.
    """
    found: dict[str, Listing] = {}
    seen = 0
    newest: datetime | None = None
    requests = [
        (request | {"sort": SERVER_SORTS[sort]}, sort)
        for request in server_queries(query)
        for sort in ("modified", "created")
    ]
    try:
        for request, sort in requests:
            for page in hub.pages(request):
                seen += len(page)
                listings = [listing_from(item) for item in page]
                newest = max(filter(None, (newest, newest_time(listings))), default=None)
                for one in listings:
                    if query.takes(one) and max(_times(one), default=since) >= since:
                        found[one.model_id] = _later(one, found.get(one.model_id))
                report(f"listing what changed: {seen} repositories seen, {len(found)} match")
                stamps = [one.last_modified if sort == "modified" else one.created_at for one in listings]
                known = [time for stamp in stamps if (time := hub_time(stamp))]
                if known and max(known) < since:
                    break
    except TransientModelError as error:
        raise listing_failed(error, seen=seen) from None
    return Changes(listings=tuple(found.values()), seen=seen, newest=newest)


def hub_time(stamp: str | None) -> datetime | None:
    """The moment of one of the Hub's times; ``None`` for what is no time."""
    try:
        moment = datetime.fromisoformat(stamp or "")
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def newest_time(listings: Iterable[Listing]) -> datetime | None:
    """The latest time at which one of them was created or changed, by the Hub's clock."""
    return max((time for one in listings for time in _times(one)), default=None)


def _times(listing: Listing) -> list[datetime]:
    return [time for stamp in (listing.created_at, listing.last_modified) if (time := hub_time(stamp))]


def _later(one: Listing, other: Listing | None) -> Listing:
    """Of two listings of a repository the one that shows its later state."""
    is_later = other is None or (one.last_modified or "") >= (other.last_modified or "")
    return one if is_later or other is None else other
