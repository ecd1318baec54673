"""How a night ended: what is new in the ranking, what failed, and what comes back the next night."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zoo.exits import INTERRUPTED, SOME_FAILED
from zoo.reports import ScreenSummary

if TYPE_CHECKING:
    from catalog.query import QueryResult
    from zoo.rescan import Night


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One model in the ranking of a spec. S and its interval in nats."""

    model_id: str
    revision: str
    rank: int
    sink_strength: float
    low: float
    high: float
    parameters: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingChanges:
    """The ranking before and after. A model is its name: a new revision takes the older one's place."""

    entered: tuple[Place, ...]
    left: tuple[Place, ...]
    moved: tuple[tuple[Place, Place], ...]
    """Before and after, where the rank, the revision or S is another; those measured anew first."""
    models: int | None
    """How many models are ranked now; ``None`` where nobody looked."""

    @classmethod
    def none(cls) -> RankingChanges:
        """The changes of a night that measured nothing."""
        return cls(entered=(), left=(), moved=(), models=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class NightSummary:
    """A night from its listing to its ranking."""

    night: Night
    screened: ScreenSummary
    changes: RankingChanges
    catalog_uri: str
    elapsed_seconds: float

    @property
    def exit_code(self) -> int:
        """0, 3 where a model failed or could not be looked at, 130 after Ctrl-C."""
        if self.screened.interrupted:
            return INTERRUPTED
        unseen = any(refusal.transient for refusal in self.night.plan.refusals)
        return SOME_FAILED if self.screened.failed or unseen else 0

    @property
    def next_night(self) -> Mapping[str, str]:
        """Why each model that is not settled comes back, by its id: a reason code.

        ``budget`` and ``time`` are tonight's, ``stopped`` is Ctrl-C, ``too_large`` more than any night may
        fetch; the others are those of refusals and failures of the moment.
        """
        plan = self.night.plan
        ended_by = "stopped" if self.screened.interrupted else "time"
        return {
            **dict.fromkeys(plan.left_out, "budget"),
            **dict.fromkeys(self.night.too_large, "too_large"),
            **{one.model_id: one.reason for one in plan.refusals if one.transient},
            **{one.model_id: ended_by for one in self.screened.not_ended},
            **{one.model_id: one.reason for one in self.screened.failed if one.transient},
        }


def places(ranking: QueryResult) -> tuple[Place, ...]:
    """The rows of the view ``ranking`` for one spec."""
    return tuple(
        Place(**{name: row[name] for name in Place.__dataclass_fields__}) for row in ranking.records()
    )


def compare_rankings(before: tuple[Place, ...], after: tuple[Place, ...]) -> RankingChanges:
    """What is another in the ranking of one spec than it was."""
    old, new = ({place.model_id: place for place in table} for table in (before, after))
    pairs = [(old[place.model_id], place) for place in after if place.model_id in old]
    changed = [(was, now) for was, now in pairs if was != now]
    return RankingChanges(
        entered=tuple(place for place in after if place.model_id not in old),
        left=tuple(place for place in before if place.model_id not in new),
        moved=tuple(sorted(changed, key=lambda pair: (not is_new_number(*pair), pair[1].rank))),
        models=len(after),
    )


def is_new_number(was: Place, now: Place) -> bool:
    """Whether a model moved by a measurement of its own, not because others did."""
    return (was.revision, was.sink_strength) != (now.revision, now.sink_strength)


def why_moved(was: Place, now: Place) -> str:
    """Why a model is at another place or has another number, in words."""
    if was.revision != now.revision:
        return f"new revision {now.revision[:12]} instead of {was.revision[:12]}"
    return "measured again" if is_new_number(was, now) else "others moved"
