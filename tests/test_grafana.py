"""The dashboard asks Prometheus for metrics that zoo has, and Grafana can load it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import promql_parser
import pytest

from zoo.metrics import METRICS, series_names

DASHBOARD = json.loads((Path(__file__).parent.parent / "deploy" / "grafana.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
LABELS_OF = {series: set(its.labels) for name, its in METRICS.items() for series in series_names(name)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The series that an expression reads, and the labels that it groups by."""

    series: set[str]
    labels: set[str]


def read(expression: str) -> Asked:
    asked = Asked(series=set(), labels=set())

    def visit(node: promql_parser.Expr) -> bool:
        if isinstance(node, promql_parser.VectorSelector):
            asked.series.add(node.name)
        if isinstance(node, promql_parser.MatrixSelector):
            asked.series.add(node.vector_selector.name)
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier:
            assert node.modifier.type == promql_parser.AggModifierType.By
            asked.labels.update(node.modifier.labels)
        return True

    promql_parser.walk(promql_parser.parse(expression.replace("$__rate_interval", "1m")), visit)
    return asked


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_asks_for_a_metric_and_groups_by_its_labels(expression: str) -> None:
    asked = read(expression)
    assert len(asked.series) == 1
    (series,) = asked.series
    buckets = {"le"} if series.endswith("_bucket") else set()
    assert asked.labels <= LABELS_OF[series] | buckets
    assert "_sum" not in series  # Ray's are made of the buckets' middles


def test_every_metric_has_a_panel() -> None:
    shown = set().union(*(read(expression).series for expression in EXPRESSIONS))
    assert [name for name in METRICS if not shown & set(series_names(name))] == []


def test_a_legend_names_labels_that_its_expression_keeps() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            named = {part.split("}}")[0] for part in target["legendFormat"].split("{{")[1:]}
            assert named <= read(target["expr"]).labels - {"le"}


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    cells = {
        panel["id"]: {
            (x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
        }
        for panel in PANELS
        if (at := panel["gridPos"])
    }
    assert all(0 <= x < 24 and y >= 0 for taken in cells.values() for x, y in taken)
    assert all(not one & other for one, other in combinations(cells.values(), 2))


def test_the_data_source_is_chosen_in_grafana() -> None:
    (variable,) = DASHBOARD["templating"]["list"]
    assert (variable["type"], variable["query"]) == ("datasource", "prometheus")
    asked = {"type": "prometheus", "uid": f"${{{variable['name']}}}"}
    assert all(each["datasource"] == asked for panel in PANELS for each in (panel, *panel["targets"]))
    assert isinstance(DASHBOARD["schemaVersion"], int)
    assert DASHBOARD["title"] == "zoo"
