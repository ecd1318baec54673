"""Laws of loading a tokenizer from a stranger's files."""

from __future__ import annotations

import json
import sys

import pytest
from tiny import CHAT_TEMPLATE, tiny_tokenizer

from zoo.errors import ModelError
from zoo.prompts import load_prompts, render
from zoo.records import Candidate
from zoo.tokenizer import load_tokenizer, tokenize


def candidate(location, *, format="folder") -> Candidate:
    return Candidate(
        model_id="test/model", revision="0" * 40, location=str(location), format=format, source="folder"
    )


def refused(location, *, format="folder") -> str:
    with pytest.raises(ModelError) as caught:
        load_tokenizer(candidate(location, format=format))
    assert (caught.value.stage, caught.value.reason) == ("render", "no_tokenizer")
    assert "\n" not in str(caught.value)
    assert str(location) in str(caught.value)
    return str(caught.value)


@pytest.fixture
def folder(tmp_path):
    tiny_tokenizer(chat_template=CHAT_TEMPLATE).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    return tmp_path


@pytest.fixture
def connections():
    """The addresses that this process tries to reach while the test runs."""
    seen, watching = [], [True]

    def watch(event, arguments):
        if watching and event in ("socket.connect", "socket.getaddrinfo"):
            seen.append(arguments)

    sys.addaudithook(watch)
    yield seen
    watching.clear()


def test_a_saved_tokenizer_comes_back_with_its_template_and_no_network(folder, connections):
    loaded = load_tokenizer(candidate(folder))
    texts = load_prompts(10).texts
    assert render(loaded, texts) == render(tiny_tokenizer(chat_template=CHAT_TEMPLATE), texts)
    assert connections == []


def test_a_gguf_file_brings_its_tokenizer_and_template(smollm2_tokenizer):
    assert smollm2_tokenizer.bos_token == "<|im_start|>"
    assert "SmolLM" in smollm2_tokenizer.chat_template


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "qwen2", "gemma", "gpt_neox"])
@pytest.mark.parametrize("name", [None, "tokenizer_config.json"])
def test_a_folder_without_vocabulary_is_refused_though_transformers_makes_one_up(
    tmp_path, connections, model_type, name
):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    if name:
        (tmp_path / name).write_text('{"bos_token": "<s>", "eos_token": "</s>"}')
    refused(tmp_path)
    assert connections == []


@pytest.mark.parametrize(
    "content",
    ["", "{", "{}", "[]", '{"version": "1.0", "model": {"type": "BPE"}}', "[" * 100_000, "\x00\xff"],
)
def test_a_corrupt_tokenizer_file_is_refused(folder, content):
    (folder / "tokenizer.json").write_text(content)
    refused(folder)


def test_a_truncated_tokenizer_file_is_refused(folder):
    path = folder / "tokenizer.json"
    content = path.read_bytes()
    for kept in (len(content) // 4, len(content) // 2, len(content) - 2):
        path.write_bytes(content[:kept])
        refused(folder)


def test_a_tokenizer_that_needs_remote_code_is_refused_and_not_run(tmp_path, connections):
    marker = tmp_path / "ran"
    (tmp_path / "config.json").write_text('{"model_type": "own"}')
    auto_map = {"AutoTokenizer": ["tokenization_own.OwnTokenizer", None]}
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "OwnTokenizer", "auto_map": auto_map})
    )
    (tmp_path / "tokenization_own.py").write_text(
        f"open({str(marker)!r}, 'w').close()\nclass OwnTokenizer: pass\n"
    )
    refused(tmp_path)
    assert not marker.exists()
    assert connections == []


def test_a_missing_path_is_named(tmp_path):
    assert "there is no such path" in refused(tmp_path / "nowhere")
    assert "there is no such path" in refused(tmp_path / "nowhere.gguf", format="gguf")


def test_a_file_that_is_no_gguf_is_refused(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"not a model")
    refused(path, format="gguf")


def test_a_truncated_gguf_file_is_refused(tmp_path, smollm2_path):
    path = tmp_path / "model.gguf"
    with open(smollm2_path, "rb") as whole:
        path.write_bytes(whole.read(100_000))
    refused(path, format="gguf")


def test_a_hub_candidate_has_to_be_fetched_first():
    with pytest.raises(ValueError, match="fetched into a folder"):
        load_tokenizer(candidate("org/name", format="hub"))


def test_a_tokenizer_that_fails_on_a_text_is_refused_in_one_line():
    with pytest.raises(ModelError) as caught:
        tokenize(tiny_tokenizer(), ["half of a surrogate pair: \ud83d"], add_special_tokens=False)
    assert (caught.value.stage, caught.value.reason) == ("render", "tokenizer_failed")
    assert "\n" not in str(caught.value)
