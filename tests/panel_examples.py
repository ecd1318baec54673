"""Made-up panels for the tests: no number in here belongs to a real model."""

from __future__ import annotations

from zoo.pairs import Measured, PairPoint
from zoo.panel import PanelPair

SPEC = "0123456789ab"


def model(name: str, s: float, **changes: object) -> Measured:
    """A measured model with S = ``s`` nats; its revision, size and the rest are made up."""
    fields: dict[str, object] = {
        "model_id": f"made-up/{name}",
        "revision": name.encode().hex().zfill(40)[-40:],
        "spec_id": SPEC,
        "sink_strength": s,
        "sink_strength_error": 0.0,
        "weak_head_share": min(1.0, max(0.0, 0.5 - s / 10)),
        "qk_norm": "none",
        "parameters": 7_000_000_000,
    }
    return Measured(**(fields | changes))  # type: ignore[arg-type]


def pair(llm: Measured, points: float, *, vlm: int = 1, **changes: object) -> PanelPair:
    """A pair of ``llm`` and its VLM number ``vlm`` that lost ``-points`` points of IFEval."""
    name = llm.model_id.split("/")[1]
    fields: dict[str, object] = {
        "pair_id": f"{name}-vl{vlm}",
        "reference_llm": llm.model_id,
        "vlm": f"{llm.model_id}-vl{vlm}",
        "qk_norm": llm.qk_norm,
        "task": "ifeval",
        "protocol": "instruct",
        "delta_points": points,
        "source": "made up",
    }
    return PanelPair(**(fields | changes))  # type: ignore[arg-type]


def point(llm: Measured, points: float, *, vlm: int = 1, **changes: object) -> PairPoint:
    """`pair` together with its LLM's measurement."""
    return PairPoint(pair=pair(llm, points, vlm=vlm, **changes), llm=llm)
