"""Tiny tokenizers, trained on the calibration prompts, for tests that build tiny models."""

from __future__ import annotations

from functools import cache

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from zoo.prompts import load_prompts

TINY_VOCABULARY = 512
BOS, EOS, PAD = "<s>", "</s>", "<pad>"

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<{{ message['role'] }}>\n"
    "{{ message['content'] }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>\n{% endif %}"
)
"""A plain template in which the BOS is written by the template, as most are."""


def tiny_tokenizer(
    *, chat_template: str | dict[str, str] | None = None, bos: bool = True, eos: bool = False
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of 512 entries; ids 0, 1, 2 are BOS, EOS and padding.

    ``bos`` puts a BOS before every text and ``eos`` an EOS behind it, unless special tokens are off.
    ``save_pretrained(folder)`` writes files that ``AutoTokenizer`` reads back.
    """
    backend = Tokenizer.from_str(_trained())
    pattern = [*([BOS] if bos else []), "$A", *([EOS] if eos else [])]
    if len(pattern) > 1:
        backend.post_processor = processors.TemplateProcessing(
            single=" ".join(pattern), special_tokens=[(BOS, 0), (EOS, 1)]
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = chat_template
    return tokenizer


@cache
def _trained() -> str:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TINY_VOCABULARY,
        special_tokens=[BOS, EOS, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(load_prompts().texts, trainer)
    return backend.to_str()
