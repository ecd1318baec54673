"""Which stored tensors make which parameters of a model, found out without reading a weight.

transformers' own conversions are run once on tensors without data. That yields the same loading report
that a whole load ends with, so a checkpoint is refused for the same reasons before a byte is fetched.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel, initialization
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    convert_and_load_state_dict_in_model,
    dot_natural_key,
    rename_source_key,
)
from transformers.modeling_utils import LoadStateDictConfig

from zoo.architecture import attention_choice, model_class
from zoo.errors import ModelError, first_line
from zoo.probe import IMPLEMENTATION
from zoo.spans import TORCH_DTYPES, TensorSpan


class CannotStreamError(Exception):
    """Streaming cannot serve this model, for the reason in the text; it can still be loaded whole."""


@dataclass(frozen=True, slots=True)
class Group:
    """Stored tensors that are converted together, and the parameters and buffers that come out."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LoadPlan:
    """A model without weights and how to fill it, group by group.

    ``empty`` holds every parameter and persistent buffer without data; non-persistent buffers are real.
    ``tied`` names the parameter that is loaded in place of one that has no stored tensor of its own.
    """

    model: PreTrainedModel
    groups: Mapping[str, Group]
    tied: Mapping[str, str]
    empty: Mapping[str, Tensor]
    load_config: LoadStateDictConfig

    def groups_for(self, names: Iterable[str]) -> list[Group]:
        """The distinct groups that fill the named parameters and buffers."""
        wanted = (self.groups.get(self.tied.get(name, name)) for name in names)
        return list({group: None for group in wanted if group is not None})

    def fill(self, tensors: dict[str, Tensor], names: Iterable[str], *, device: str) -> None:
        """Convert stored tensors into the named parameters; raises ``ModelError`` unless each is real.

        Parameters without data, NaN or infinities are what is looked for.
        """
        info = _convert(self.model, tensors, replace(self.load_config, device_map={"": device}))
        if info.conversion_errors or info.mismatched_keys or info.unexpected_keys:
            problems = [*info.conversion_errors, *map(str, info.mismatched_keys), *info.unexpected_keys]
            text = f"the stored tensors of {problems[0]} do not fit the model; fetch the checkpoint again"
            raise ModelError(text, stage="load", reason="unreadable_weights")
        for name in names:
            if (source := self.tied.get(name)) is not None:
                put(self.model, name, weight_of(self.model, source))
            check_real(name, weight_of(self.model, name))

    def empty_again(self, names: Iterable[str]) -> None:
        """Give back the memory of the named parameters and buffers."""
        for name in names:
            put(self.model, name, self.empty[name])


def weight_of(model: nn.Module, name: str) -> Tensor:
    """The parameter or buffer of that name."""
    path, _, leaf = name.rpartition(".")
    return getattr(model.get_submodule(path), leaf)


def put(model: nn.Module, name: str, tensor: Tensor) -> None:
    """Set the parameter or buffer of that name."""
    path, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(path), leaf, tensor)


def check_real(name: str, tensor: Tensor) -> None:
    """Raise ``ModelError`` for a weight without data, or with a NaN or an infinity in it."""
    if tensor.device.type == "meta":
        text = f"weight {name} was not filled; a number from such weights would be wrong, use --load whole"
        raise ModelError(text, stage="load", reason="missing_tensors")
    if not is_finite(tensor):
        text = f"weight {name} holds NaN or infinite values; the checkpoint is damaged, fetch it again"
        raise ModelError(text, stage="load", reason="non_finite_weights")


def is_finite(tensor: Tensor) -> bool:
    """Whether no NaN and no infinity is in it; the extremes tell, twenty times faster than each element."""
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return True
    return bool(torch.stack(tensor.aminmax()).isfinite().all())


def build_empty(
    config: PreTrainedConfig, *, dtype: torch.dtype, implementation: str = IMPLEMENTATION
) -> PreTrainedModel:
    """The model as ``from_pretrained`` builds it before any weight is read, on the meta device."""
    if getattr(config, "quantization_config", None) is not None:
        raise CannotStreamError("the checkpoint is quantised")
    contexts = initialization.no_tie_weights(), initialization.meta_device_safe_creation_ops()
    with torch.device("meta"), contexts[0], contexts[1]:
        model = model_class(config).from_config(
            copy.deepcopy(config),
            dtype=dtype,
            attn_implementation=attention_choice(config, implementation),
        )
    return model.eval()


def plan_loading(
    model: PreTrainedModel, spans: Mapping[str, TensorSpan], *, dtype: torch.dtype
) -> tuple[LoadPlan, dict[str, Any]]:
    """How to fill ``model`` from the stored tensors, and transformers' loading report.

    Raises ``CannotStreamError`` for what only a whole load can serve.
    """
    unknown = sorted({span.dtype for span in spans.values()} - set(TORCH_DTYPES))
    if unknown:
        raise CannotStreamError(f"tensors are stored as {unknown[0]}")
    groups = _groups(model, spans)
    load_config = LoadStateDictConfig(
        dtype=dtype,
        dtype_plan=model._get_dtype_plan(dtype),
        device_map={"": "meta"},
        weight_mapping=get_model_conversion_mapping(model),
    )
    without_data = {
        name: torch.empty(span.shape, dtype=TORCH_DTYPES[span.dtype], device="meta")
        for name, span in spans.items()
    }
    try:
        info = _convert(model, without_data, load_config)
    except Exception as error:
        raise CannotStreamError(f"its conversion needs whole tensors ({first_line(error)})") from None
    if info.conversion_errors:
        raise CannotStreamError(f"the conversion of {next(iter(info.conversion_errors))} needs whole tensors")
    model.mark_tied_weights_as_initialized(info)
    model.tie_weights(missing_keys=info.missing_keys, recompute_mapping=False)
    model._adjust_missing_and_unexpected_keys(info)
    _make_buffers_real(model)
    empty = model.state_dict(keep_vars=True)
    plan = LoadPlan(
        model=model, groups=groups, tied=_tied(empty, groups), empty=empty, load_config=load_config
    )
    return plan, info.to_dict()


def _convert(model: PreTrainedModel, tensors: dict[str, Tensor], load_config: LoadStateDictConfig) -> Any:
    return convert_and_load_state_dict_in_model(model, tensors, load_config)[0]


def _groups(model: PreTrainedModel, names: Iterable[str]) -> dict[str, Group]:
    """Every parameter's group; the names go the way they go in transformers' own loader."""
    mapping = get_model_conversion_mapping(model)
    renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
    by_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    prefix, state = model.base_model_prefix, model.state_dict()
    sources: dict[str, list[str]] = {}
    targets: dict[str, tuple[str, ...]] = {}
    for name in sorted(names, key=dot_natural_key):
        renamed, pattern = rename_source_key(name, renamings, converters, prefix, state)
        if renamed not in state and name in state:
            renamed, pattern = rename_source_key(
                name, [], [], base_model_prefix=prefix, meta_state_dict=state
            )
        if renamed not in state:
            continue
        sources.setdefault(renamed, []).append(name)
        patterns = by_pattern[pattern].target_patterns if pattern is not None else ()
        if patterns:
            targets[renamed] = tuple(renamed.replace(patterns[0], other) for other in patterns)
        else:
            targets.setdefault(renamed, (renamed,))
    groups = [Group(tuple(sources[first]), targets[first]) for first in sources]
    return {target: group for group in groups for target in group.targets}


def _tied(empty: Mapping[str, Tensor], groups: Mapping[str, Group]) -> dict[str, str]:
    loaded = {id(tensor): name for name, tensor in empty.items() if name in groups}
    return {
        name: loaded[id(tensor)]
        for name, tensor in empty.items()
        if name not in groups and id(tensor) in loaded
    }


def _make_buffers_real(model: PreTrainedModel) -> None:
    """Compute what no checkpoint stores: rotary tables, embedding scales, position indices.

    Each buffer is first filled with what its computation never yields, so one that is left out shows.
    """
    for tensor in model.state_dict(keep_vars=True).values():
        tensor._is_hf_initialized = True
    names = [name for name, _ in model.named_non_persistent_buffers()]
    for name in names:
        empty = weight_of(model, name)
        put(model, name, torch.full(empty.shape, _unset(empty.dtype), dtype=empty.dtype))
    with torch.no_grad():
        model.initialize_weights()
    for name in names:
        buffer = weight_of(model, name)
        has_nan = _has_nan(buffer.dtype)
        left = buffer.isnan() if has_nan else buffer == _unset(buffer.dtype)
        if buffer.numel() and bool(left.any() if has_nan else left.all()):
            raise CannotStreamError(f"the buffer {name} is neither stored nor computed")


def _unset(dtype: torch.dtype) -> float | int | bool:
    if dtype == torch.bool:
        return False
    return torch.nan if _has_nan(dtype) else torch.iinfo(dtype).min


def _has_nan(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex
