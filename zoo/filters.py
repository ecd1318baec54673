"""What ``--filter`` and ``--params`` select: words and size classes, as functions of names and counts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from difflib import SequenceMatcher

from zoo.errors import SourceError

UNITS = {"k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kmbt])", re.IGNORECASE)
_NOT_IN_A_TOKEN = re.compile(r"[^0-9A-Za-z.]+")
_DOT_BETWEEN_WORDS = re.compile(r"(?<!\d)\.|\.(?!\d)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeClass:
    """A size as people write it; ``low <= parameters < high`` are the counts that round to it."""

    parameters: int
    low: int
    high: int

    def takes(self, name: str, parameters: int | None) -> bool:
        """Whether the name carries this size as a token of its own, or the count rounds to it."""
        if parameters is not None and self.low <= parameters < self.high:
            return True
        return any(size.parameters == self.parameters for size in sizes_in(name))

    @property
    def spellings(self) -> tuple[str, ...]:
        """How repository names usually write this size: ``0.5B`` and ``500M``."""
        whole = [f"{self.parameters / 10**9:g}B"] if self.parameters >= 10**8 else []
        small = [f"{self.parameters / 10**6:g}M"] if self.parameters < 10**9 else []
        return tuple(whole + small)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFilter:
    """Words and size classes, all of which must hold."""

    words: tuple[str, ...] = ()
    sizes: tuple[SizeClass, ...] = ()

    def misses(self, model_id: str, parameters: int | None) -> int:
        """How many of the terms a repository does not meet; 0 means that the filter takes it."""
        lower, name = model_id.lower(), model_id.rpartition("/")[2]
        return sum(word not in lower for word in self.words) + sum(
            not size.takes(name, parameters) for size in self.sizes
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterRange:
    """Parameter counts between two bounds, both included; ``None`` is no bound."""

    low: int | None = None
    high: int | None = None

    def takes(self, parameters: int | None) -> bool:
        """Whether a count lies within; an unknown count lies only in the range without bounds."""
        if parameters is None:
            return self.low is None and self.high is None
        return (self.low or 0) <= parameters and (self.high is None or parameters <= self.high)


def parse_size(text: str) -> SizeClass | None:
    """The size class that a word like ``7B``, ``0.5b`` or ``500M`` names, ``None`` for any other word.

    A class is half a unit of the last written digit wide on each side. Trailing zeros of thousands and
    millions are no digits, so ``500M`` and ``0.5B`` are the same class.
    """
    match = _SIZE.fullmatch(text)
    if match is None or Decimal(match[1]) == 0:
        return None
    unit, number = UNITS[match[2].lower()], match[1]
    if "." in number:
        step = Decimal(unit).scaleb(-len(number.partition(".")[2]))
    else:
        zeros = len(number) - len(number.rstrip("0")) if match[2].lower() in "km" else 0
        step = Decimal(unit).scaleb(zeros)
    parameters = Decimal(number) * unit
    low, high = math.ceil(parameters - step / 2), math.ceil(parameters + step / 2)
    return SizeClass(parameters=int(parameters), low=max(low, 1), high=high)


def sizes_in(name: str) -> tuple[SizeClass, ...]:
    """The sizes that a repository name carries as tokens of their own (not ``8x7B``, ``A3B``, ``v1.7B``)."""
    return tuple(size for token in tokens(name) if (size := parse_size(token)) is not None)


def tokens(name: str) -> list[str]:
    """A name cut at everything but letters, digits and the dots inside of numbers."""
    parts = _NOT_IN_A_TOKEN.split(name)
    return [token for part in parts for token in _DOT_BETWEEN_WORDS.split(part) if token]


def parse_filter(text: str | None) -> ModelFilter:
    """The words and size classes of ``--filter``; ``7b-instruct`` is the size 7B and the word instruct."""
    words: list[str] = []
    sizes: list[SizeClass] = []
    for term in (text or "").split():
        parts = term.split("-") if any(map(parse_size, term.split("-"))) else [term]
        for part in parts:
            size = parse_size(part)
            if size is not None:
                sizes.append(size)
            elif part:
                words.append(part.lower())
    return ModelFilter(words=tuple(dict.fromkeys(words)), sizes=tuple(dict.fromkeys(sizes)))


def parse_count(text: str) -> int:
    """A parameter count such as ``6B``, ``1.5b``, ``500M`` or ``7240000000``.

    Raises:
        SourceError: the text is no count.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmbt]?)", text.strip(), re.IGNORECASE)
    if match is None:
        raise SourceError(f"'{text}' is not a parameter count; write it like 6B, 500M or 7240000000.")
    return int(Decimal(match[1]) * UNITS.get(match[2].lower(), 1))


def parse_parameter_range(text: str | None) -> ParameterRange:
    """The range that ``6B..9B``, ``6B..``, ``..9B`` or a size class like ``7B`` means.

    Raises:
        SourceError: the text is no range, or its ends are the wrong way round.
    """
    if not text:
        return ParameterRange()
    if ".." not in text:
        size = parse_size(text.strip())
        if size is None:
            raise SourceError(f"'{text}' is not a parameter range; write it like 6B..9B, 6B.. or ..9B")
        return ParameterRange(low=size.low, high=size.high - 1)
    first, _, last = text.partition("..")
    low = parse_count(first) if first.strip() else None
    high = parse_count(last) if last.strip() else None
    if low is not None and high is not None and low > high:
        raise SourceError(f"the parameter range '{text}' is empty: its first end is the larger one")
    return ParameterRange(low=low, high=high)


def closest(
    models: Iterable[tuple[str, int | None]], wanted: ModelFilter, *, count: int = 3
) -> tuple[str, ...]:
    """The ids that come nearest to a filter: fewest terms missed, then likeness of words and sizes."""

    def distance(model: tuple[str, int | None]) -> tuple[int, float]:
        model_id, parameters = model
        known = [size.parameters for size in sizes_in(model_id.rpartition("/")[2])]
        known += [parameters] if parameters else []
        apart = sum(
            min((abs(math.log(size.parameters / other)) for other in known), default=10.0)
            for size in wanted.sizes
        )
        unlike = sum(1 - _likeness(word, model_id.lower()) for word in wanted.words)
        return wanted.misses(model_id, parameters), apart + 4 * unlike

    ranked = sorted(models, key=distance)
    return tuple(dict.fromkeys(model_id for model_id, _ in ranked))[:count]


def _likeness(word: str, model_id: str) -> float:
    """How near the best token of an id comes to a word, 0 to 1."""
    if word in model_id:
        return 1.0
    parts = tokens(model_id)
    return max((SequenceMatcher(None, word, part).ratio() for part in parts), default=0.0)
