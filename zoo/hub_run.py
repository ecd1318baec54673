"""A training run kept in a repository of the Hub: its branches and tags are the checkpoints."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from zoo.errors import SourceError, ZooError
from zoo.filters import ParameterRange
from zoo.hub import Hub, as_json, checked_id, is_commit
from zoo.hub_errors import BadAnswerError
from zoo.plan import verdicts
from zoo.preflight import Describe, Target
from zoo.records import Candidate, Refusal
from zoo.sources import Found
from zoo.track import training_step

if TYPE_CHECKING:
    import httpx2


def refs(hub: Hub, repo_id: str) -> dict[str, str]:
    """The commits of a repository's branches and tags by name, branches first.

    Raises:
        ModelError: there is no such repository, or it may not be seen.
        TransientModelError: the Hub could not be asked.
    """

    def parse(answer: httpx2.Response, body: bytes) -> dict[str, str]:
        found = as_json(answer, body)
        try:
            named = [
                (its["name"], its["targetCommit"]) for kind in ("tags", "branches") for its in found[kind]
            ]
        except (KeyError, TypeError):
            raise BadAnswerError("no list of branches and tags") from None
        if not all(isinstance(name, str) and is_commit(commit) for name, commit in named):
            raise BadAnswerError("a branch or tag without a commit")
        return dict(named)

    url = f"{hub.endpoint}/api/models/{checked_id(repo_id)}/refs"
    return hub.read(url, what=repo_id, bucket="api", parse=parse)


def hub_checkpoints(
    hub: Hub, repo_id: str, *, describe: Describe, settled: Collection[tuple[str, str]] = ()
) -> Found:
    """The checkpoints of a run in a repository, each named ``org/name@branch``, and those refused.

    A commit with several names goes by the one with a training step. ``settled`` holds the (model id,
    commit) that need no second look, so that a run is followed at one request a time.

    Raises SourceError when there is no checkpoint that can be measured, or the Hub cannot be asked.
    """
    try:
        named = _names_by_commit(refs(hub, repo_id))
    except ZooError as error:
        raise SourceError(f"{repo_id} is no folder here, and no run on the Hub: {error}") from None
    names = {commit: f"{repo_id}@{name}" for commit, name in named.items()}
    known = [
        Candidate(model_id=name, revision=commit, location=repo_id, format="hub", source="hub")
        for commit, name in names.items()
        if (name, commit) in settled
    ]
    targets = [
        Target(model_id=repo_id, revision=commit)
        for commit, name in names.items()
        if (name, commit) not in settled
    ]
    candidates, refusals = list(known), list[Refusal]()
    found = verdicts(hub, targets, describe=describe, params=ParameterRange(low=0))
    for target, verdict in zip(targets, found, strict=True):
        name = names[target.revision or ""]
        if isinstance(verdict, Refusal):
            refusals.append(replace(verdict, model_id=name))
        else:
            candidates.append(replace(verdict.candidate, model_id=name))
    if not candidates:
        reason = refusals[0].message if refusals else "it has neither branches nor tags"
        raise SourceError(f"{repo_id} holds no checkpoint that can be measured: {reason}")
    return Found(candidates=tuple(candidates), refusals=tuple(refusals))


def _names_by_commit(found: dict[str, str]) -> dict[str, str]:
    names: dict[str, str] = {}
    for name in sorted(found, key=lambda name: (training_step(name) is None, name != "main", name)):
        names.setdefault(found[name], name)
    return names
