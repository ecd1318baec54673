"""Frozen records that cross module boundaries: what is measured, how, and what came out.

Shape letters: R query regions, P prompts, H query heads of a layer, K candidate sink positions,
Z slices, T sums of a slice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np

DEFINITION_VERSION = 1
"""Version of the measurement's definition; a change of any number it yields raises it."""

SCHEMA_VERSION = 3
"""Version of the catalog's tables; a new column raises it."""

REGIONS = ("all", "content")
"""Query regions in the order of every R axis: all used queries, and those past the shared prefix."""

BANDS = ((8, 16), (16, 32), (32, 64), (64, None))
"""Query bands: half-open ranges of query positions, counted from 0."""

SLICES = ("all", "content", "8-16", "16-32", "32-64", "64+", "short", "middle", "long")
"""Parts of the queries that S can be taken over, in the order of every Z axis: the regions, the bands,
and the used queries of the shortest, middle and longest third of the prompts in tokens."""

SWEEP_SIZES = (10, 15, 20, 30, 50, 100)
SWEEP_SEEDS = (0, 1, 2)

PromptFormat = Literal["auto", "chat", "plain"]
Stage = Literal["plan", "fetch", "load", "render", "probe", "summarise", "commit", "task"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementSpec:
    """What a measurement depends on; results of different specs are never ranked together."""

    prompts_digest: str
    prompt_count: int = 256
    prompt_format: PromptFormat = "auto"
    candidate_positions: int = 8
    window_layers: int = 10
    query_rule: str = "q>=K"
    definition: int = DEFINITION_VERSION

    @property
    def spec_id(self) -> str:
        """The first 12 hex digits of the SHA-256 of the fields as canonical JSON."""
        canonical = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How a measurement is run; recorded beside the result, not part of its identity."""

    device: str = "auto"
    dtype: str = "auto"
    load: Literal["auto", "stream", "whole"] = "auto"
    verify: Literal["parts", "full"] = "parts"
    tokens_per_batch: int = 512
    prefetch_bytes: int = 1 << 30
    """Bytes of weights that may be held for layers that have not run yet."""

    def halved(self) -> RunOptions | None:
        """The options for less memory: half the batch, ``None`` when that would be under 64 tokens."""
        tokens = self.tokens_per_batch // 2
        return replace(self, tokens_per_batch=tokens) if tokens >= 64 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RepoFile:
    """One file of a Hub repository at a commit, with the digests that the Hub states for it."""

    path: str
    size: int
    blob_id: str
    """The git SHA-1 of the file, or of its pointer where it is kept in LFS."""
    sha256: str | None = None
    """The SHA-256 of the content, for files kept in LFS."""
    header_sha256: str | None = None
    """The SHA-256 of a safetensors file's header with its length, as the plan read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One model that can be measured, pinned to one revision.

    ``location`` is what the loader opens: a checkpoint folder, a GGUF file or a Hub repository.
    ``revision`` is the 40-hex commit, or for local files 40 hex digits of their content's SHA-256.
    """

    model_id: str
    revision: str
    location: str
    format: Literal["folder", "gguf", "hub"]
    source: str
    weight_bytes: int | None = None
    files: tuple[RepoFile, ...] = ()
    """What a Hub model needs of its repository; empty for local files."""
    aliases: tuple[str, ...] = ()
    """Repositories (``id@commit``) that hold the same weights and tokenizer and are not measured again."""

    @property
    def stem(self) -> str:
        """The name of this candidate's files: ``org--name@sha12``."""
        return f"{self.model_id.replace('/', '--')}@{self.revision[:12]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A model that was seen and will not be measured, with a reason code and a sentence."""

    model_id: str
    revision: str | None
    reason: str
    message: str
    transient: bool = False
    """Whether the moment is to blame, so that the next run may find otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What the Hub says of a repository without its files being read; ``None`` where it is silent."""

    model_id: str
    revision: str | None = None
    created_at: str | None = None
    """UTC, ISO 8601."""
    last_modified: str | None = None
    downloads: int | None = None
    likes: int | None = None
    gated: str | None = None
    """``auto`` or ``manual`` where access must be asked for."""
    disabled: bool = False
    pipeline_tag: str | None = None
    library: str | None = None
    license: str | None = None
    base_model: str | None = None
    base_model_relation: str | None = None
    """``finetune``, ``adapter``, ``merge`` or ``quantized``."""
    parameters: int | None = None
    """The Hub's own count, which packed and duplicated tensors make wrong."""
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionLayer:
    """One softmax self-attention layer; ``layer`` counts these alone, ``model_layer`` counts all."""

    layer: int
    model_layer: int
    module_name: str
    heads: int
    kv_heads: int
    sliding_window: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """What the built module says of itself, without weights."""

    model_type: str
    architecture: str
    parameters: int
    model_layers: int
    attention_layers: tuple[AttentionLayer, ...]
    qk_norm: Literal["none", "per_head", "layerwise", "other"]
    learned_sink: bool = False
    softcap: float | None = None
    position_encoding: str | None = None
    qk_norm_modules: tuple[str, ...] = ()
    """The norms' names inside an attention module, as the QK-norm kind was read from them."""
    qk_norm_position: Literal["before_rotary", "after_rotary", "no_rotary"] | None = None
    qk_norm_weighted: bool | None = None
    attention_route: Literal["interface", "softmax"] = "interface"
    """How logits are read: from transformers' attention interface, or at the module's own softmax."""
    text_tower: str = ""
    """The part of a multimodal model that was measured, as a module name; empty for a language model."""
    note: str | None = None
    """What the measured attention means where it is no plain softmax of queries and keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    """A Hub model that will be measured, and what that takes.

    ``parameters`` is summed from the tensors' shapes; ``identity`` is equal for repositories that
    cannot differ in the measurement; requests are counted by the Hub's rate-limit buckets.
    """

    candidate: Candidate
    listing: Listing
    architecture: Architecture
    parameters: int
    fetch_bytes: int
    api_requests: int
    resolver_requests: int
    identity: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a search of the Hub came to: every repository seen is planned, an alias, refused or left out.

    ``listed`` holds all that the listing returned, in order; ``left_out`` the ids that a limit cut off.
    """

    models: tuple[PlannedModel, ...]
    refusals: tuple[Refusal, ...]
    listed: tuple[Listing, ...]
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Repository (``id@commit``) to the id of the planned model that stands for it."""
    left_out: tuple[str, ...] = ()
    has_token: bool = False
    """Whether the Hub was asked as somebody."""

    @property
    def fetch_bytes(self) -> int:
        """Bytes that measuring all planned models fetches."""
        return sum(model.fetch_bytes for model in self.models)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedPrompts:
    """The calibration prompts as token ids of one tokenizer.

    ``format`` is the one really used; ``shared_prefix_tokens`` counts the leading tokens that all
    prompts have in common.
    """

    format: Literal["chat", "plain"]
    token_ids: tuple[tuple[int, ...], ...]
    shared_prefix_tokens: int
    prefix_tokens_text: tuple[str, ...]
    """The first ``candidate_positions`` tokens of the first prompt, as the tokenizer spells them."""

    @property
    def median_tokens(self) -> float:
        """The median prompt length in tokens."""
        lengths = sorted(map(len, self.token_ids))
        middle = len(lengths) // 2
        return float(lengths[middle] if len(lengths) % 2 else (lengths[middle - 1] + lengths[middle]) / 2)

    @property
    def length_thirds(self) -> tuple[int, ...]:
        """Of every prompt the third that its length in tokens falls into: 0 short, 1 middle, 2 long."""
        order = sorted(range(len(self.token_ids)), key=lambda prompt: len(self.token_ids[prompt]))
        rank = {prompt: place for place, prompt in enumerate(order)}
        return tuple(3 * rank[prompt] // len(order) for prompt in range(len(order)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerStatistics:
    """What the probe keeps of one attention layer.

    ``log_odds_RPHK`` (float32, nats) is the logit of the prompt mass: of the mean, over the used
    queries of a region, of the softmax weight at each candidate position. NaN where no used query
    can see the position. ``slice_sums_TZHK`` (float64) sums over prompts, for each slice, what
    ``zoo.sinks.slice_sums`` says.
    """

    layer: AttentionLayer
    log_odds_RPHK: np.ndarray
    slice_sums_TZHK: np.ndarray | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A two-sided interval, in the unit of the number it belongs to."""

    low: float
    high: float
    level: float
    method: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepCell:
    """Sink Strength (nats) of one random subset of the calibration prompts."""

    size: int
    seed: int
    sink_strength: float
    sink_strength_content: float | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeadRow:
    """One query head. Log-odds in nats, masses unitless in 0..1; ``None`` where undefined."""

    layer: int
    model_layer: int
    head: int
    kv_head: int
    in_window: bool
    sliding_window: int | None
    log_odds: float | None
    log_odds_content: float | None
    mass: float | None
    candidate_masses: tuple[float | None, ...]
    prompt_log_odds: np.ndarray
    prompt_log_odds_content: np.ndarray
    slice_log_odds: tuple[float | None, ...] = ()
    """By slice, in the order of ``SLICES``, the logit of the mean mass, as ``log_odds`` is."""
    slice_mean_log_odds: tuple[float | None, ...] = ()
    """By slice, the mean over queries and prompts of the log-odds themselves."""
    slice_lift: tuple[float | None, ...] = ()
    """By slice, that mean + ln(other visible keys): how far the sink is above an average other key."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Strength:
    """Sink Strength of one model and what qualifies it. Nats unless said otherwise."""

    sink_strength: float
    sink_strength_content: float | None
    interval: Interval
    sink_position: int
    sink_mass: float
    runner_up_position: int | None
    runner_up_mass: float | None
    weak_head_share: float
    sweep_spread: float
    sign_stability: float
    sweep: tuple[SweepCell, ...]
    heads: tuple[HeadRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Where and how a measurement ran."""

    dtype: str
    device: str
    load: str
    load_reason: str
    verified: str
    wall_seconds: Mapping[str, float]
    tokens_per_batch: int
    """As asked for, or less where memory ran out."""
    gpus: int
    """GPUs that held a part of the model; 0 on a CPU."""
    accelerator: str | None
    """The name of the GPU, as its driver gives it."""
    peak_memory_bytes: int
    bytes_fetched: int | None
    versions: Mapping[str, str]
    started_at: str
    """UTC, ISO 8601."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measurement:
    """One model measured from start to end."""

    candidate: Candidate
    spec: MeasurementSpec
    architecture: Architecture
    prompts: RenderedPrompts
    strength: Strength
    run: RunFacts

    @property
    def sink_strength(self) -> float:
        """Sink Strength S in nats; above 0 the typical head gives the sink over half its attention."""
        return self.strength.sink_strength

    @property
    def sink_token(self) -> str | None:
        """The token at the sink position; ``None`` where it differs between prompts."""
        position = self.strength.sink_position
        if position >= self.prompts.shared_prefix_tokens:
            return None
        return self.prompts.prefix_tokens_text[position]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One model that was attempted and not measured."""

    candidate: Candidate
    spec: MeasurementSpec
    stage: str
    reason: str
    message: str
    transient: bool = False
    started_at: str = ""
    wall_seconds: Mapping[str, float] = field(default_factory=dict)
    architecture: Architecture | None = None
    gpus_needed: int = 0
    """How many GPUs like the ones it had the model would fit, where it failed for their memory."""


Outcome = Measurement | Failure
