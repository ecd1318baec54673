"""The calibration prompts: their text, their digest, their subsets, and their tokens under a tokenizer."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

import numpy as np

from zoo.errors import ModelError
from zoo.records import MeasurementSpec, PromptFormat, RenderedPrompts
from zoo.templates import TEMPLATE_SECONDS, render_chats
from zoo.tokenizer import tokenize

PROMPTS_FILE = Path(__file__).with_name("calibration_prompts.txt")
MINIMUM_PROMPTS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSet:
    """The first prompts of the calibration file, and the SHA-256 (hex) of the whole file."""

    texts: tuple[str, ...]
    digest: str


def load_prompts(count: int = 256) -> PromptSet:
    """The first ``count`` calibration prompts, 10 to 256.

    The digest is of the file's bytes and does not depend on ``count``, which stands in the spec on its own.
    Raises ``ValueError`` for any other count.
    """
    content = PROMPTS_FILE.read_bytes()
    texts = content.decode("utf-8").splitlines()
    if not MINIMUM_PROMPTS <= count <= len(texts):
        raise ValueError(
            f"{count} calibration prompts were asked for; zoo has {len(texts)} and a measurement needs at "
            f"least {MINIMUM_PROMPTS}: choose a number from {MINIMUM_PROMPTS} to {len(texts)}."
        )
    return PromptSet(texts=tuple(texts[:count]), digest=hashlib.sha256(content).hexdigest())


def make_spec(*, prompt_count: int = 256, prompt_format: PromptFormat = "auto") -> MeasurementSpec:
    """The spec of the shipped calibration prompts, or of the first ``prompt_count`` of them."""
    digest = load_prompts(prompt_count).digest
    return MeasurementSpec(prompts_digest=digest, prompt_count=prompt_count, prompt_format=prompt_format)


def draw_subsets(
    count: int, *, sizes: Iterable[int], seeds: Iterable[int]
) -> dict[tuple[int, int], np.ndarray]:
    """Indices into ``count`` prompts for every (size, seed), drawn without replacement.

    Subsets of one seed are nested: a smaller one is the beginning of a larger one. Sizes above ``count``
    are left out, so that the result has fewer cells for a short run. The order is that of the raw 64-bit
    outputs of PCG64, whose stream numpy keeps the same on every platform and in every version, which it
    does not promise for ``Generator.permutation``.
    """
    sizes = sorted(size for size in sizes if size <= count)
    orders = {seed: np.argsort(np.random.PCG64(seed).random_raw(count), kind="stable") for seed in seeds}
    return {(size, seed): order[:size] for size in sizes for seed, order in orders.items()}


def render(
    tokenizer: Any,
    texts: Sequence[str],
    *,
    format: PromptFormat = "auto",
    minimum_tokens: int = 9,
    candidate_positions: int = 8,
    template_seconds: float = TEMPLATE_SECONDS,
) -> RenderedPrompts:
    """The prompts as token ids of this tokenizer.

    "chat" renders the tokenizer's chat template (of several named ones the "default") with a generation
    prompt to text, then tokenizes that text as it is: the template has written its own BOS. "plain" lets the
    tokenizer add its own special tokens in front, and drops an EOS or SEP that it appends behind: the
    measurement looks at the beginning of an unfinished text. "auto" is "chat" where there is a template,
    else "plain"; a template that fails is a failure, not a reason for "plain".

    Raises ``ModelError`` (stage "render") with reason "no_chat_template", "prompt_too_short" (fewer than
    ``minimum_tokens``), "prompt_lost" (words of a prompt are missing in its rendering, or two prompts have
    the same tokens), or a reason of ``zoo.tokenizer.tokenize`` or ``zoo.templates.render_chats``.
    """
    template = None if format == "plain" else _chat_template(tokenizer)
    if format == "chat" and template is None:
        raise _error(
            "no_chat_template",
            "The tokenizer has no chat template; render with prompt format 'auto' or 'plain'.",
        )
    if template is None:
        used: Literal["chat", "plain"] = "plain"
        token_ids = _plain(tokenizer, texts)
    else:
        used = "chat"
        variables = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
        chats = render_chats(template, texts, variables=variables, seconds=template_seconds)
        _check_words(texts, chats)
        token_ids = tokenize(tokenizer, chats, add_special_tokens=False)
    _check_tokens(texts, token_ids, minimum_tokens=minimum_tokens)
    spelled = tokenizer.convert_ids_to_tokens(token_ids[0][:candidate_positions])
    return RenderedPrompts(
        format=used,
        token_ids=tuple(map(tuple, token_ids)),
        shared_prefix_tokens=shared_prefix(token_ids),
        prefix_tokens_text=tuple(map(str, spelled)),
    )


def shared_prefix(token_ids: Sequence[Sequence[int]]) -> int:
    """How many leading tokens all prompts have in common; all of them where there is one prompt."""
    columns = zip(*token_ids, strict=False)
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))


def _chat_template(tokenizer: Any) -> str | None:
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, Mapping) and template:
        if "default" not in template:
            names = ", ".join(sorted(map(str, template)))
            raise _error(
                "no_chat_template",
                f"The tokenizer has several chat templates and none named 'default' (it has {names}), so zoo "
                f"cannot know which one applies; render with prompt format 'plain'.",
            )
        template = template["default"]
    return template or None


def _plain(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Token ids with what the tokenizer puts in front, without the EOS or SEP it puts behind."""
    endings = {tokenizer.eos_token_id, tokenizer.sep_token_id} - {None}

    def behind(ids: Sequence[int]) -> int:
        return sum(1 for _ in takewhile(endings.__contains__, reversed(ids)))

    complete = tokenize(tokenizer, texts, add_special_tokens=True)
    bare = tokenize(tokenizer, texts, add_special_tokens=False)
    # A text may itself end in such a token (where it is also the unknown token): only the excess goes.
    return [
        ids[: len(ids) - max(0, behind(ids) - behind(own))] for ids, own in zip(complete, bare, strict=True)
    ]


def _check_words(texts: Sequence[str], chats: Sequence[str]) -> None:
    # Templates made for image models drop a message that is a string without any complaint.
    for number, (text, chat) in enumerate(zip(texts, chats, strict=True), start=1):
        lost = [word for word in re.findall(r"\w+", text) if word not in chat]
        if lost:
            raise _error(
                "prompt_lost",
                f"The chat template drops words of prompt {number} ({lost[0]!r}, {len(lost)} in all), so it "
                f"is not made for plain text; render with prompt format 'plain'.",
            )


def _check_tokens(texts: Sequence[str], token_ids: Sequence[Sequence[int]], *, minimum_tokens: int) -> None:
    for number, (text, ids) in enumerate(zip(texts, token_ids, strict=True), start=1):
        if len(ids) < minimum_tokens:
            raise _error(
                "prompt_too_short",
                f"Prompt {number} ({text[:40]!r}) has {len(ids)} tokens and the measurement needs "
                f"{minimum_tokens}; this tokenizer does not fit zoo's prompts, so check its files.",
            )
    if len(set(map(tuple, token_ids))) < len(set(texts)):
        raise _error(
            "prompt_lost",
            "The tokenizer gives different prompts the same tokens, so its vocabulary is damaged or empty; "
            "check its files.",
        )


def _error(reason: str, message: str) -> ModelError:
    return ModelError(message, stage="render", reason=reason)
