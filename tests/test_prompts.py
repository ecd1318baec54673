"""Laws of the calibration prompts, their subsets and their tokens."""

from __future__ import annotations

import hashlib
from itertools import combinations

import numpy as np
import pytest
from tiny import BOS, CHAT_TEMPLATE, tiny_tokenizer
from transformers import BertTokenizer

from zoo import prompts
from zoo.errors import ModelError
from zoo.prompts import PROMPTS_FILE, draw_subsets, load_prompts, render, shared_prefix
from zoo.records import SWEEP_SEEDS, SWEEP_SIZES

TEXTS = load_prompts().texts[:12]
GOLDEN_SUBSETS = [
    [11, 196, 150, 92, 113, 3, 20, 111, 13, 108],
    [93, 61, 176, 184, 239, 75, 194, 9, 216, 251],
    [141, 97, 86, 215, 84, 187, 64, 49, 80, 196],
]


def refused(tokenizer, texts=TEXTS, **options) -> ModelError:
    with pytest.raises(ModelError) as caught:
        render(tokenizer, texts, **options)
    assert caught.value.stage == "render"
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")
    return caught.value


# The prompt set


def test_the_file_has_256_different_prompts_of_12_to_40_words_one_a_line():
    content = PROMPTS_FILE.read_bytes().decode("utf-8")
    lines = content.split("\n")
    assert lines.pop() == ""
    assert len(lines) == len(set(lines)) == 256
    for line in lines:
        assert line == " ".join(line.split())
        assert 12 <= len(line.split()) <= 40, line


def test_no_two_prompts_share_five_words_in_a_row():
    def runs(text):
        words = text.lower().split()
        return {tuple(words[start : start + 5]) for start in range(len(words) - 4)}

    for one, other in combinations(map(runs, load_prompts().texts), 2):
        assert not one & other


def test_the_first_ten_prompts_begin_with_different_words():
    assert len({text.split()[0] for text in load_prompts(10).texts}) == 10


def test_fewer_prompts_are_the_first_ones_under_the_same_digest():
    whole, some = load_prompts(), load_prompts(10)
    assert some.texts == whole.texts[:10]
    assert some.digest == whole.digest == hashlib.sha256(PROMPTS_FILE.read_bytes()).hexdigest()


@pytest.mark.parametrize("position", [0, 5000, -1])
def test_the_digest_changes_with_any_byte(tmp_path, monkeypatch, position):
    digest = load_prompts().digest
    content = bytearray(PROMPTS_FILE.read_bytes())
    content[position] = ord("\n") if content[position] != ord("\n") else ord("x")
    changed = tmp_path / "prompts.txt"
    changed.write_bytes(content)
    monkeypatch.setattr(prompts, "PROMPTS_FILE", changed)
    assert load_prompts(20).digest != digest


@pytest.mark.parametrize("count", [-1, 0, 9, 257])
def test_a_count_out_of_range_is_refused_with_the_range(count):
    with pytest.raises(ValueError, match=rf"{count} calibration prompts.* from 10 to 256"):
        load_prompts(count)


# Subsets


def test_subsets_are_drawn_without_replacement_and_nested_per_seed():
    subsets = draw_subsets(256, sizes=SWEEP_SIZES, seeds=SWEEP_SEEDS)
    assert set(subsets) == {(size, seed) for size in SWEEP_SIZES for seed in SWEEP_SEEDS}
    for (size, seed), indices in subsets.items():
        assert len(set(indices.tolist())) == size
        assert 0 <= indices.min() <= indices.max() < 256
        for larger in SWEEP_SIZES:
            if larger > size:
                assert set(indices) < set(subsets[larger, seed])
    for one, other in combinations(SWEEP_SEEDS, 2):
        assert set(subsets[10, one]) != set(subsets[10, other])


def test_subsets_are_the_same_on_every_machine():
    subsets = draw_subsets(256, sizes=[10], seeds=[0, 1, 2])
    assert [subsets[10, seed].tolist() for seed in range(3)] == GOLDEN_SUBSETS


def test_every_prompt_is_drawn_about_equally_often():
    subsets = draw_subsets(20, sizes=[10], seeds=range(2000))
    times = np.bincount(np.concatenate(list(subsets.values())), minlength=20)
    assert abs(times - 1000).max() < 5 * np.sqrt(2000 * 0.25)


def test_sizes_above_the_number_of_prompts_are_left_out():
    subsets = draw_subsets(20, sizes=SWEEP_SIZES, seeds=[0])
    assert set(subsets) == {(10, 0), (15, 0), (20, 0)}
    assert sorted(subsets[20, 0].tolist()) == list(range(20))


# Tokens


@pytest.mark.parametrize("format", ["auto", "chat"])
def test_chat_tokens_are_those_transformers_makes_itself(format):
    tokenizer = tiny_tokenizer(chat_template=CHAT_TEMPLATE)
    rendered = render(tokenizer, TEXTS, format=format)
    expected = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
        for text in TEXTS
    ]
    assert rendered.format == "chat"
    assert [list(ids) for ids in rendered.token_ids] == expected


@pytest.mark.parametrize("template", [None, CHAT_TEMPLATE])
def test_no_bos_is_doubled(template):
    tokenizer = tiny_tokenizer(chat_template=template)
    for ids in render(tokenizer, TEXTS).token_ids:
        assert ids[0] == tokenizer.bos_token_id
        assert ids.count(tokenizer.bos_token_id) == 1


def test_plain_ignores_the_template_and_keeps_the_tokenizers_own_special_tokens():
    tokenizer = tiny_tokenizer(chat_template=CHAT_TEMPLATE)
    rendered = render(tokenizer, TEXTS, format="plain")
    assert rendered.format == "plain"
    assert [list(ids) for ids in rendered.token_ids] == [tokenizer(text)["input_ids"] for text in TEXTS]
    assert render(tiny_tokenizer(bos=False), TEXTS).token_ids == tuple(ids[1:] for ids in rendered.token_ids)


def test_an_eos_that_the_tokenizer_appends_is_not_counted():
    with_eos, without = tiny_tokenizer(eos=True), tiny_tokenizer()
    assert with_eos(TEXTS[0])["input_ids"][-1] == with_eos.eos_token_id
    assert render(with_eos, TEXTS).token_ids == render(without, TEXTS).token_ids


def test_a_text_that_ends_in_the_eos_itself_keeps_it():
    texts = [f"{text}</s>" for text in TEXTS]
    tokenizer = tiny_tokenizer(eos=True)
    for ids in render(tokenizer, texts).token_ids:
        assert ids[-1] == tokenizer.eos_token_id
        assert ids.count(tokenizer.eos_token_id) == 1


def test_the_sep_of_a_bert_tokenizer_is_dropped_and_its_cls_kept(tmp_path):
    words = sorted({word for text in TEXTS for word in text.lower().replace(",", " ").split()})
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])}
    tokenizer = BertTokenizer(vocab=vocabulary)
    for ids in render(tokenizer, TEXTS).token_ids:
        assert ids[0] == tokenizer.cls_token_id
        assert tokenizer.sep_token_id not in ids


def test_truncation_and_padding_stored_with_a_tokenizer_do_not_reach_the_prompts():
    tokenizer = tiny_tokenizer()
    expected = render(tokenizer, TEXTS).token_ids
    tokenizer.backend_tokenizer.enable_truncation(12)
    tokenizer.backend_tokenizer.enable_padding(length=200)
    tokenizer.model_max_length = 12
    assert render(tokenizer, TEXTS).token_ids == expected


@pytest.mark.parametrize("template", [None, CHAT_TEMPLATE])
def test_the_shared_prefix_is_the_longest_that_all_prompts_begin_with(template):
    rendered = render(tiny_tokenizer(chat_template=template), load_prompts().texts)
    shared = rendered.shared_prefix_tokens
    assert len({ids[:shared] for ids in rendered.token_ids}) == 1
    assert len({ids[: shared + 1] for ids in rendered.token_ids}) > 1
    assert shared == 1 if template is None else shared > 1


def test_the_shared_prefix_of_ten_prompts_is_that_of_all():
    tokenizer = tiny_tokenizer(chat_template=CHAT_TEMPLATE)
    ten, every = (render(tokenizer, load_prompts(count).texts) for count in (10, 256))
    assert ten.shared_prefix_tokens == every.shared_prefix_tokens


def test_the_shared_prefix_ends_with_the_shortest_prompt():
    assert shared_prefix([[1, 2, 3], [1, 2]]) == 2
    assert shared_prefix([[1], [2]]) == 0
    assert shared_prefix([[4, 5]]) == 2


def test_the_first_candidate_tokens_are_spelled_as_the_tokenizer_does():
    rendered = render(tiny_tokenizer(), TEXTS, candidate_positions=5)
    assert len(rendered.prefix_tokens_text) == 5
    assert rendered.prefix_tokens_text[0] == BOS


# Refusals


def test_chat_without_a_template_is_refused():
    assert refused(tiny_tokenizer(), format="chat").reason == "no_chat_template"


def test_of_several_templates_the_default_is_taken():
    named = tiny_tokenizer(chat_template={"default": CHAT_TEMPLATE, "tool_use": "{{ nothing.at.all }}"})
    single = tiny_tokenizer(chat_template=CHAT_TEMPLATE)
    assert render(named, TEXTS).token_ids == render(single, TEXTS).token_ids


@pytest.mark.parametrize("format", ["auto", "chat"])
def test_several_templates_without_a_default_are_refused_by_name(format):
    error = refused(tiny_tokenizer(chat_template={"rag": "a", "tool_use": "b"}), format=format)
    assert error.reason == "no_chat_template"
    assert "rag, tool_use" in str(error)


def test_a_prompt_of_fewer_tokens_than_needed_is_named_with_its_count():
    error = refused(tiny_tokenizer(bos=False), [*TEXTS, "2+2="])
    assert error.reason == "prompt_too_short"
    assert "Prompt 13 ('2+2=') has 4 tokens" in str(error)


def test_nine_tokens_are_enough_and_eight_are_not():
    tokenizer = tiny_tokenizer(bos=False)
    render(tokenizer, ["012345678"])
    assert refused(tokenizer, ["01234567"]).reason == "prompt_too_short"


def test_a_template_that_drops_the_text_is_refused():
    blocks = "{% for block in messages[0]['content'] %}{{ block['text'] }}{% endfor %} and so on, and so on"
    assert refused(tiny_tokenizer(chat_template=blocks)).reason == "prompt_lost"


def test_a_failing_template_does_not_fall_back_to_plain():
    error = refused(tiny_tokenizer(chat_template="{{ raise_exception('only tools are served') }}"))
    assert error.reason == "template_failed"
    assert "only tools are served" in str(error)


def test_a_vocabulary_that_cannot_tell_prompts_apart_is_refused():
    tokenizer = BertTokenizer(vocab={"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "a": 5})
    assert refused(tokenizer, ["many words " * 9, "other words " * 9]).reason == "prompt_lost"


# The real tokenizers


def test_smollm2_renders_as_transformers_does(smollm2_tokenizer):
    rendered = render(smollm2_tokenizer, load_prompts().texts)
    assert rendered.format == "chat"
    assert rendered.prefix_tokens_text[:2] == ("<|im_start|>", "system")
    assert rendered.shared_prefix_tokens > 20
    for text, ids in zip(load_prompts().texts, rendered.token_ids, strict=True):
        chat = [{"role": "user", "content": text}]
        expected = smollm2_tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        assert list(ids) == expected


def test_gemma_has_no_template_and_one_bos(gemma_tokenizer):
    rendered = render(gemma_tokenizer, load_prompts().texts)
    assert rendered.format == "plain"
    assert rendered.shared_prefix_tokens == 1
    assert rendered.prefix_tokens_text[0] == "<bos>"
    for ids in rendered.token_ids:
        assert ids.count(gemma_tokenizer.bos_token_id) == 1
        assert gemma_tokenizer.eos_token_id not in ids
    assert refused(gemma_tokenizer, format="chat").reason == "no_chat_template"
