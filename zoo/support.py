"""Which model types zoo measures, and why it refuses the others."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from transformers import PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from zoo.errors import ModelError

MEASURED = frozenset(
    line
    for line in (Path(__file__).parent / "measured_types.txt").read_text(encoding="utf-8").split()
    if not line.startswith("#")
)
"""Model types whose head masses were compared with stock eager attention (tests/test_conformance.py)."""

REFUSED: dict[str, tuple[str, str]] = {
    **dict.fromkeys(
        ("falcon_mamba", "mamba", "mamba2"),
        ("no_attention", "is a state space model without softmax attention, so it has no sink to measure"),
    ),
    "rwkv": ("no_attention", "mixes tokens by a recurrence without softmax over keys, so it has no sink"),
    "xlstm": ("no_attention", "is a recurrent network without softmax attention, so it has no sink"),
    "blt": (
        "attention_not_observable",
        "attends to patches of bytes that an entropy model cuts, so its keys are no tokens to compare",
    ),
    "reformer": (
        "attention_not_observable",
        "attends within hash buckets or chunks, so no row runs over all earlier tokens",
    ),
    "prophetnet": (
        "attention_not_observable",
        "runs n-gram attention with several softmaxes a layer, so no single map says where it attends",
    ),
    "cpmant": ("not_causal", "lets every token attend to later ones, so its first token is no causal sink"),
    "xlnet": ("not_causal", "is trained on permuted orders and sees later tokens, so it has no causal sink"),
    **dict.fromkeys(
        ("gemma4_assistant", "gemma4_unified_assistant"),
        ("not_causal_lm", "drafts tokens from another model's keys and cannot run alone; screen that model"),
    ),
    **dict.fromkeys(
        ("musicgen", "musicgen_melody"),
        ("encoder_decoder", "makes music from an encoder's states, so it is no language model to build on"),
    ),
    **dict.fromkeys(
        ("florence2", "pix2struct", "pp_formulanet", "t5gemma2", "udop", "vision-encoder-decoder"),
        ("encoder_decoder", "is an encoder-decoder, and Sink Strength is defined for decoder-only models"),
    ),
    **dict.fromkeys(
        ("blip", "blip-2", "idefics", "instructblip", "instructblipvideo", "kosmos-2", "kosmos-2.5"),
        ("needs_image", "does not run on text alone; screen the language model it was built from"),
    ),
    "diffusion_gemma": ("not_causal", "fills blocks of text in any order, so it has no causal sink"),
    "evolla": ("needs_image", "does not run on text alone: its language model reads a protein"),
    "pi0": ("needs_image", "predicts a robot's actions and does not run on text alone"),
    **dict.fromkeys(
        ("fast_vlm", "perception_lm"),
        (
            "missing_library",
            "needs timm for its vision tower, which zoo does not install; screen a copy of "
            "its language model",
        ),
    ),
}
"""Model types that are refused whatever their config says: reason code and what is true of them."""

CAUSAL_ON_TEXT = frozenset({"paligemma"})
"""Types that let an image and its prompt attend both ways and run causally on text alone."""

NOTES: dict[str, str] = {
    "diffllama": "differential attention: each head's own softmax map, before two heads' maps are subtracted",
    "deepseek_v4": "keys are tokens and, in compressed layers, summaries of blocks of them",
    "paligemma": "run causally on text; in use an image and its prompt attend both ways",
    "dory": "looped layers: each pass counts as a layer",
    "hrm_text": "looped layers: each pass counts as a layer",
    "inkling2_loop_text": "looped layers: each pass counts as a layer",
}
"""What a type's measured attention means where that needs saying."""


def check_support(config: PreTrainedConfig) -> None:
    """Raise ``ModelError`` (stage ``plan``) unless zoo measures exactly what the config describes.

    Reasons: ``no_attention``, ``not_causal``, ``encoder_decoder``, ``not_causal_lm``,
    ``attention_not_observable``, ``unknown_architecture``. A text tower inside a multimodal model is
    checked as the model it is.
    """
    text_config = config.get_text_config(decoder=True)
    check_type(config.model_type)
    check_type(text_config.model_type)
    declared = config.architectures or []
    causal_class = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
    if config.is_encoder_decoder and causal_class not in declared:
        text = f"a {config.model_type} checkpoint holds an encoder and a decoder, and no decoder-only model"
        raise _refused("encoder_decoder", text)
    if not _is_causal(text_config) and config.model_type not in CAUSAL_ON_TEXT:
        text = (
            f"this {text_config.model_type} config lets tokens attend to later ones, so it has no causal sink"
        )
        raise _refused("not_causal", text)
    if config.model_type == "big_bird" and config.attention_type == "block_sparse":
        text = f"a {config.model_type} model with block-sparse attention sees random blocks of a long prompt"
        raise _refused("attention_not_observable", text)
    known = {config.model_type}
    if text_config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        known.add(text_config.model_type)
    if unknown := sorted(known - MEASURED):
        raise unknown_type(unknown[0])


def check_type(model_type: str) -> None:
    """Raise ``ModelError`` for a model type that is refused whatever its config says."""
    if model_type in REFUSED:
        reason, sentence = REFUSED[model_type]
        raise _refused(reason, f"a {model_type} model {sentence}")


def unknown_type(model_type: str) -> ModelError:
    """The refusal of a type that transformers knows and zoo was never compared with."""
    text = f"zoo was not checked against model type {model_type!r}; a newer zoo may have been"
    return _refused("unknown_architecture", text)


def _is_causal(config: PreTrainedConfig) -> bool:
    """Whether the config's switches make its self-attention causal, as far as they tell."""
    declared = {field.name for field in dataclasses.fields(config)}
    switches = {"is_decoder"} if not type(config)().is_encoder_decoder else set()
    if config.model_type == "xlm":
        switches.add("causal")
    off = [name for name in switches & declared if not getattr(config, name)]
    both_ways = getattr(config, "use_bidirectional_attention", None) in (True, "all")
    return not off and not both_ways and getattr(config, "is_causal", True) is not False


def _refused(reason: str, text: str) -> ModelError:
    return ModelError(text, stage="plan", reason=reason)
