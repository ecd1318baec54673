"""Pairs of the panel together with what was measured on their reference LLMs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from zoo.panel import PanelPair
from zoo.predictors import Example
from zoo.records import Interval, Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a prediction needs of one measured model; S and its standard error in nats."""

    model_id: str
    revision: str
    spec_id: str
    sink_strength: float
    sink_strength_error: float
    weak_head_share: float
    qk_norm: str
    parameters: int
    learned_sink: bool = False
    hybrid: bool = False
    """Whether some layers are no softmax attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairPoint:
    """A pair of the panel with its reference LLM's measurement."""

    pair: PanelPair
    llm: Measured

    @property
    def example(self) -> Example:
        """What a predictor sees of this pair."""
        return Example(
            llm=self.llm.model_id,
            qk_norm=self.llm.qk_norm,
            sink_strength=self.llm.sink_strength,
            weak_head_share=self.llm.weak_head_share,
            delta_points=self.pair.delta_points,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A pair that did not enter a fit, and why."""

    pair: PanelPair
    reason: str


def standard_error(interval: Interval) -> float:
    """The standard error that a two-sided interval stands for, taken as normal; in its unit."""
    return (interval.high - interval.low) / 2 / NormalDist().inv_cdf((1 + interval.level) / 2)


def measured(measurement: Measurement) -> Measured:
    """The part of a measurement that predictions use."""
    architecture, strength = measurement.architecture, measurement.strength
    return Measured(
        model_id=measurement.candidate.model_id,
        revision=measurement.candidate.revision,
        spec_id=measurement.spec.spec_id,
        sink_strength=strength.sink_strength,
        sink_strength_error=standard_error(strength.interval),
        weak_head_share=strength.weak_head_share,
        qk_norm=architecture.qk_norm,
        parameters=architecture.parameters,
        learned_sink=architecture.learned_sink,
        hybrid=len(architecture.attention_layers) < architecture.model_layers,
    )


def pair_points(
    pairs: Sequence[PanelPair], llms: Mapping[str, Measured], reasons: Mapping[str, str] | None = None
) -> tuple[tuple[PairPoint, ...], tuple[LeftOut, ...]]:
    """The pairs whose reference LLM is measured, and the others by name with the reason.

    ``reasons`` says for a reference LLM why it could not be measured. A pair whose panel row gives
    another QK-norm kind than the measurement found is left out too: one of the two is wrong.
    """
    points, left_out = [], []
    for pair in pairs:
        llm = llms.get(pair.reference_llm)
        if llm is None:
            reason = (reasons or {}).get(pair.reference_llm, "its reference LLM is not measured")
        elif llm.qk_norm != pair.qk_norm:
            reason = f"the panel says QK-norm {pair.qk_norm}, the model has {llm.qk_norm}"
        else:
            points.append(PairPoint(pair=pair, llm=llm))
            continue
        left_out.append(LeftOut(pair=pair, reason=reason))
    return tuple(points), tuple(left_out)
