"""A VLM beside its backbone after training: what became of the attention sink, head by head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from catalog.query import run_query
from zoo.errors import CatalogError, PanelError

if TYPE_CHECKING:
    from catalog.store import Catalog

_HEADS = """
    SELECT a.layer, a.head, a.in_window, a.log_odds AS before, b.log_odds AS after
    FROM heads AS a
    INNER JOIN heads AS b ON b.layer = a.layer AND b.head = a.head
    WHERE a.attempt_id = ? AND b.attempt_id = ?
    ORDER BY a.layer, a.head
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadChange:
    """One query head's log-odds (nats) in the LLM and in the VLM; None where undefined."""

    layer: int
    head: int
    in_window: bool
    before: float | None
    after: float | None

    @property
    def change(self) -> float | None:
        """After minus before, in nats."""
        return None if self.before is None or self.after is None else self.after - self.before

    @property
    def lost(self) -> bool:
        """Whether the head gave the sink more than half its attention before, and no longer does."""
        return self.before is not None and self.after is not None and self.before > 0 >= self.after


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkChange:
    """What fine-tuning did to a backbone's sink: both rows of ``measurements``, and every head."""

    llm: dict[str, Any]
    vlm: dict[str, Any]
    heads: tuple[HeadChange, ...]

    @property
    def change(self) -> float:
        """The VLM's S minus the LLM's, in nats."""
        return float(self.vlm["sink_strength"] - self.llm["sink_strength"])

    @property
    def window(self) -> tuple[HeadChange, ...]:
        """The heads that S is the median of."""
        return tuple(head for head in self.heads if head.in_window)

    @property
    def overlap(self) -> bool:
        """Whether the intervals of the two S overlap, so that the change may be none."""
        return bool(self.vlm["low"] <= self.llm["high"] and self.llm["low"] <= self.vlm["high"])


def sink_change(catalog: Catalog, *, llm: tuple[str, str], vlm: tuple[str, str], spec_id: str) -> SinkChange:
    """Compare two measured models of one spec, each a model id and a revision.

    The VLM is measured in its language model.

    Raises CatalogError when one is not measured, and PanelError when their layers or heads differ,
    so that the VLM cannot have been built on this LLM.
    """
    before, after = (_measured(catalog, *key, spec_id) for key in (llm, vlm))
    shapes = [(row["attention_layers"], row["heads"]) for row in (before, after)]
    if shapes[0] != shapes[1]:
        raise PanelError(
            f"{vlm[0]} has {shapes[1][0]} attention layers and {shapes[1][1]} heads, {llm[0]} has "
            f"{shapes[0][0]} and {shapes[0][1]}: it was not built on this LLM, name the one it was built on"
        )
    rows = run_query(catalog, _HEADS, parameters=[before["attempt_id"], after["attempt_id"]]).records()
    return SinkChange(llm=before, vlm=after, heads=tuple(HeadChange(**row) for row in rows))


def _measured(catalog: Catalog, model_id: str, revision: str, spec_id: str) -> dict[str, Any]:
    rows = run_query(
        catalog,
        "SELECT *, interval_low AS low, interval_high AS high FROM measurements "
        "WHERE model_id = ? AND revision = ? AND spec_id = ?",
        parameters=[model_id, revision, spec_id],
    ).records()
    if not rows:
        raise CatalogError(
            f"the catalog {catalog.uri} has no measurement of {model_id} under spec {spec_id}: "
            "screen it first"
        )
    return rows[0]


def panel_range(catalog: Catalog, spec_id: str) -> tuple[float, float, int] | None:
    """The lowest and highest S of the panel's measured reference LLMs and their number, if any."""
    sql = (
        "SELECT min(sink_strength), max(sink_strength), count(DISTINCT reference_llm) "
        "FROM panel WHERE spec_id = ?"
    )
    ((low, high, llms),) = run_query(catalog, sql, parameters=[spec_id]).rows
    return (low, high, llms) if llms else None
