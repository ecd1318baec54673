"""zoo as a client of the loopback Hub: the same code with short waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.hub_server import HubServer
from zoo.architecture import describe_raw
from zoo.errors import ModelError
from zoo.filters import ParameterRange
from zoo.hub import Hub
from zoo.plan import make_plan, parse_targets
from zoo.records import Candidate, Plan

ANY_SIZE = ParameterRange(low=0)


def quick(server: HubServer, **options: Any) -> Hub:
    """A client that waits hundredths of a second where others wait seconds."""
    return Hub(endpoint=server.url, first_wait_seconds=0.01, timeout_seconds=1.0, **options)


def planned(server: HubServer, ids: Sequence[str], **options: Any) -> Plan:
    """The plan for repositories of any size."""
    return make_plan(quick(server), parse_targets(ids), describe=describe_raw, params=ANY_SIZE, **options)


def candidate_of(server: HubServer, model_id: str = "org/m") -> Candidate:
    """The candidate that a repository is; raises its refusal."""
    plan = planned(server, [model_id])
    for refusal in plan.refusals:
        raise ModelError(refusal.message, stage="plan", reason=refusal.reason)
    return plan.models[0].candidate
