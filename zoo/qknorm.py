"""The kind of QK-norm, read from an attention module's own children and code, without weights.

The paper's distinction (arXiv:2609.00746): a norm over each head's query, a norm over the whole layer's
query, or none.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import Literal

from torch import nn

from zoo.attention import ROTARY

Kind = Literal["none", "per_head", "layerwise", "other"]

_QUERY_NORM = re.compile(r"^(q|query|qk|q_b)_?(layer)?norm$")
_KEY_NORM = re.compile(r"^(k|key|kv)_?(layer)?norm$")
_LATENT_NORM = re.compile(r"^(q_a|kv_a|k_rope_only)_?(layer)?norm$")

_PER_HEAD_CLASSES = frozenset(
    {"Llama4TextL2Norm", "NanoChatRMSNorm", "DoryL2Norm", "ZayaQKNorm", "DeepseekV4UnweightedRMSNorm"}
)
"""Norms without a weight to read the width from; each is applied to tensors split into heads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QKNorm:
    """How queries and keys are normalised: the kind, the norms' names, their place and whether they scale."""

    kind: Kind
    modules: tuple[str, ...] = ()
    position: Literal["before_rotary", "after_rotary", "no_rotary"] | None = None
    weighted: bool | None = None


def qk_norm(attention: nn.Module, *, heads: int, head_dim: int) -> QKNorm:
    """The QK-norm of one attention module with ``heads`` query heads of ``head_dim`` features.

    ``other`` is a norm over something else than a head's or a layer's query: the low-rank latent of
    multi-head latent attention, or a clipped length.
    """
    children = dict(attention.named_children())
    query = next((name for name in children if _QUERY_NORM.match(name)), None)
    latent = next((name for name in children if _LATENT_NORM.match(name)), None)
    name = query or latent
    if name is None:
        clips = _length_clips(attention)
        return QKNorm(kind="other" if clips else "none", modules=clips)
    kind = _kind(children[name], heads=heads, head_dim=head_dim) if query else "other"
    patterns = (_QUERY_NORM, _KEY_NORM, _LATENT_NORM)
    return QKNorm(
        kind=kind,
        modules=tuple(child for child in children if any(pattern.match(child) for pattern in patterns)),
        position=_position(attention, name),
        weighted=_weighted(children[name]),
    )


def _kind(norm: nn.Module, *, heads: int, head_dim: int) -> Kind:
    if type(norm).__name__ in _PER_HEAD_CLASSES:
        return "per_head"
    shapes = {tuple(parameter.shape) for parameter in norm.parameters()}
    if shapes and shapes <= {(head_dim,), (heads, head_dim)}:
        return "per_head"
    return "layerwise" if shapes == {(heads * head_dim,)} else "other"


def _weighted(norm: nn.Module) -> bool:
    return any(True for _ in norm.parameters())


def _length_clips(attention: nn.Module) -> tuple[str, ...]:
    """Modules that bound the length of queries and keys rather than fix it."""
    clips = (name for name, module in attention.named_modules() if "L2Clip" in type(module).__name__)
    return tuple(name for name in clips if "bias" not in name and "." in name)


def _position(attention: nn.Module, name: str) -> Literal["before_rotary", "after_rotary", "no_rotary"]:
    """Before or after rotary position encoding: which of the two the module's code names first."""
    used = inspect.unwrap(type(attention).forward).__code__.co_names
    rotary = next((i for i, other in enumerate(used) if ROTARY.fullmatch(other)), None)
    if rotary is None or name not in used:
        return "no_rotary"
    return "before_rotary" if used.index(name) < rotary else "after_rotary"
