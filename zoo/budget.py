"""How many bytes a run may fetch, and which models fit."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from zoo.errors import SourceError
from zoo.records import PlannedModel

_UNITS = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}


@dataclass(slots=True, kw_only=True)
class Budget:
    """Bytes that are given out model by model, in the order in which models are offered in batches.

    A model that does not fit in what is left is passed over, and smaller ones may still fit; when all
    models of a batch were passed over the budget counts as used up, so that no more are looked at in vain.
    """

    bytes: float = math.inf
    given: int = 0
    too_large: list[PlannedModel] = field(default_factory=list)
    """Models that the whole budget cannot hold."""
    passed_over: list[PlannedModel] = field(default_factory=list)
    """Models that what was left could not hold."""
    is_used_up: bool = False
    _fitted: int = 0
    _offered: int = 0

    @classmethod
    def of(cls, text: str | None, *, hours: float | None, bandwidth: float) -> Budget:
        """At most so many bytes, and what arrives in so many hours at ``bandwidth`` (bytes a second).

        Raises SourceError when the text is no number of bytes.
        """
        limits = [parse_bytes(text)] if text else []
        return cls(bytes=min([math.inf, *limits, *([hours * 3600 * bandwidth] if hours else [])]))

    def begin_batch(self) -> None:
        """Say that a batch begins."""
        self._fitted = self._offered = 0

    def takes(self, model: PlannedModel) -> bool:
        """Whether the model fits; its bytes are then given out."""
        if fits := model.fetch_bytes <= self.bytes - self.given:
            self.given += model.fetch_bytes
            self._fitted += 1
        elif model.fetch_bytes > self.bytes:
            self.too_large.append(model)
            return False  # what never fits says nothing about what is left
        else:
            self.passed_over.append(model)
        self._offered += 1
        self.is_used_up = self._fitted == 0
        return fits

    @property
    def left_out(self) -> tuple[str, ...]:
        """The ids of the models that were looked at and did not fit."""
        return tuple(model.candidate.model_id for model in (*self.too_large, *self.passed_over))


def parse_bytes(text: str) -> int:
    """The bytes of ``2TB``, ``500GB`` or ``1.5GB``, in powers of 1000. Raises SourceError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kKMGTP]?)B?", text.strip())
    if match is None or float(match[1]) == 0:
        raise SourceError(f"'{text}' is no number of bytes; write it like 2TB or 500GB")
    return int(float(match[1]) * _UNITS[match[2].upper()])
