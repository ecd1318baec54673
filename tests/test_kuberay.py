"""The manifests for KubeRay are what KubeRay and Kubernetes take, and show no token and no port."""

from __future__ import annotations

import copy
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import kuberay_schema
import pytest
import yaml

from zoo.cli_rescan import rescan

ROOT = Path(__file__).parent.parent
FILES = ("raycluster.yaml", "raycronjob.yaml")


def manifest(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / "deploy" / name).read_text())


def cluster(raw: dict[str, Any]) -> dict[str, Any]:
    """The spec of the cluster in a manifest."""
    return raw["spec"] if raw["kind"] == "RayCluster" else raw["spec"]["jobTemplate"]["rayClusterSpec"]


def pods(raw: dict[str, Any]) -> list[dict[str, Any]]:
    spec = cluster(raw)
    return [group["template"]["spec"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]


def worker(raw: dict[str, Any]) -> dict[str, Any]:
    return cluster(raw)["workerGroupSpecs"][0]


@pytest.mark.parametrize("name", FILES)
def test_kuberay_and_kubernetes_take_the_manifest(name: str) -> None:
    kuberay_schema.validate(manifest(name))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda raw: raw.update(apiVersion="ray.io/v1alpha1"), "'ray.io/v1' was expected"),
        (lambda raw: cluster(raw).update(workerGroups=[]), "workerGroups"),
        (lambda raw: cluster(raw).pop("headGroupSpec"), "'headGroupSpec' is a required property"),
        (lambda raw: cluster(raw)["authOptions"].update(mode="tokens"), "'tokens' is not one of"),
        (lambda raw: cluster(raw)["autoscalerOptions"].update(version="v3"), "'v3' is not one of"),
        (lambda raw: worker(raw).update(minReplicas="0"), "'0' is not of type 'integer'"),
        (lambda raw: worker(raw)["rayStartParams"].update({"num-cpus": 0}), "0 is not of type 'string'"),
        (lambda raw: pods(raw)[1]["containers"][0].update(images="x"), "images"),
        (lambda raw: pods(raw)[1]["containers"][0].pop("name"), "'name' is a required property"),
        (lambda raw: pods(raw)[1]["volumes"][0]["secret"].update(secret="x"), "secret"),
        (lambda raw: pods(raw)[0].update(serviceAccount=3), "is not of type"),
    ],
)
@pytest.mark.parametrize("name", FILES)
def test_they_take_no_other_manifest(name: str, change: Callable[[dict[str, Any]], Any], says: str) -> None:
    raw = copy.deepcopy(manifest(name))
    change(raw)
    with pytest.raises(jsonschema.ValidationError, match=re.escape(says)):
        kuberay_schema.validate(raw)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda spec: spec.pop("schedule"), "'schedule' is a required property"),
        (lambda spec: spec.update(timeZone=""), "should be non-empty"),
        (lambda spec: spec["jobTemplate"].update(spec={}), "'spec' was unexpected"),
        (lambda spec: spec["jobTemplate"].update(preRunningDeadlineSeconds=0), "less than the minimum"),
    ],
)
def test_kuberay_takes_no_other_schedule(change: Callable[[dict[str, Any]], Any], says: str) -> None:
    raw = manifest("raycronjob.yaml")
    change(raw["spec"])
    with pytest.raises(jsonschema.ValidationError, match=re.escape(says)):
        kuberay_schema.validate(raw)


def test_the_nightly_cluster_is_the_standing_one() -> None:
    assert cluster(manifest("raycronjob.yaml")) == cluster(manifest("raycluster.yaml"))


@pytest.mark.parametrize("name", FILES)
def test_the_cluster_asks_for_its_token_runs_no_model_on_the_head_and_scales_from_zero(name: str) -> None:
    spec = cluster(manifest(name))
    assert spec["authOptions"] == {"mode": "token", "secretName": "zoo-ray-token"}
    assert spec["headGroupSpec"]["serviceType"] == "ClusterIP"
    assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert spec["autoscalerOptions"]["version"] == "v2"
    assert spec["enableInTreeAutoscaling"] is True
    assert worker(manifest(name))["minReplicas"] == 0
    limits = pods(manifest(name))[1]["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "1"


@pytest.mark.parametrize("name", FILES)
def test_the_hub_token_is_a_file_of_a_secret_in_every_pod(name: str) -> None:
    for pod in pods(manifest(name)):
        (container,) = pod["containers"]
        (mount,) = container["volumeMounts"]
        (volume,) = (each for each in pod["volumes"] if each["name"] == mount["name"])
        assert volume["secret"]["secretName"] == "zoo-hf-token"
        (variable,) = container["env"]
        assert variable == {"name": "HF_TOKEN_PATH", "value": f"{mount['mountPath']}/token"}
    assert "runtimeEnv" not in (ROOT / "deploy" / name).read_text()


@pytest.mark.parametrize("name", FILES)
def test_the_ray_version_is_the_tested_one(name: str) -> None:
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    version = cluster(manifest(name))["rayVersion"]
    assert f"ray=={version}" in pins
    assert f"FROM rayproject/ray:{version}-py311-gpu" in (ROOT / "deploy" / "Dockerfile").read_text()


def test_the_nightly_job_runs_a_module_of_jobs() -> None:
    words = shlex.split(manifest("raycronjob.yaml")["spec"]["jobTemplate"]["entrypoint"])
    assert words[:3] == ["python", "-m", "jobs.nightly"]
    assert rescan.make_context("rescan", words[3:]).params["budget_hours"]  # its options are taken
