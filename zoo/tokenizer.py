"""The tokenizer of a candidate, from local files alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zoo.errors import ModelError
from zoo.records import Candidate

PROBE = "Zoo: seven quick brown foxes, 1234567890."


def load_tokenizer(candidate: Candidate) -> Any:
    """The tokenizer of a checkpoint folder or a GGUF file; nothing is fetched and no remote code runs.

    Raises ``ModelError`` (stage "render", reason "no_tokenizer") where there is none, where it cannot be
    read, or where transformers made an empty one up: for several architectures it does so without a word
    when the vocabulary files are missing. Raises ``ValueError`` for a Hub candidate, whose files have to be
    fetched into a folder first.
    """
    if candidate.format == "hub":
        raise ValueError("the tokenizer files of a Hub candidate have to be fetched into a folder first")
    location = Path(candidate.location)
    if not location.exists():
        raise _no_tokenizer(candidate, "there is no such path")
    from transformers import AutoTokenizer

    folder, options = (
        (location.parent, {"gguf_file": location.name}) if candidate.format == "gguf" else (location, {})
    )
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True, **options
        )
        distinct = len(set(tokenizer(PROBE, add_special_tokens=False)["input_ids"]))
    except BaseException as error:
        if not _is_failure(error):
            raise
        raise _no_tokenizer(candidate, _first_sentence(error)) from error
    if distinct < 2:
        raise _no_tokenizer(candidate, "its vocabulary is missing or empty")
    return tokenizer


def tokenize(tokenizer: Any, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
    """Token ids of each text, neither padded nor truncated.

    Raises ``ModelError`` (stage "render", reason "tokenizer_failed") where the tokenizer raises.
    """
    try:
        encoded = tokenizer(list(texts), add_special_tokens=add_special_tokens, verbose=False)
    except BaseException as error:
        if not _is_failure(error):
            raise
        raise ModelError(
            f"The tokenizer fails on the calibration prompts ({_first_sentence(error)}); check that its "
            f"files fit together.",
            stage="render",
            reason="tokenizer_failed",
        ) from error
    return encoded["input_ids"]


def _is_failure(error: BaseException) -> bool:
    # A panic in the tokenizers library arrives as a BaseException of its own, which cannot be imported.
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def _first_sentence(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if text.startswith("Couldn't instantiate the backend tokenizer"):
        return "it has no vocabulary files that transformers can read"
    return f"{type(error).__name__}: {text.split('. ')[0][:200]}"


def _no_tokenizer(candidate: Candidate, detail: str) -> ModelError:
    return ModelError(
        f"No tokenizer can be loaded from {candidate.location} ({detail}), and without one there are no "
        f"prompts to measure with; put back the tokenizer files the model was published with.",
        stage="render",
        reason="no_tokenizer",
    )
