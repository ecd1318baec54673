"""What KubeRay 1.7 accepts: its fields, types and allowed values as JSON schemas.

The names and types are those of its API reference for ray.io/v1 (docs/reference/api.md at v1.7.0). The
pod templates and other parts of Kubernetes' own are checked with the schemas of kubernetes-validate.
Fields that zoo has no use for and that hold more fields are left out, so that they are refused here.
"""

from __future__ import annotations

import functools
import json
from importlib.resources import files
from typing import Any

import jsonschema
from referencing import Registry, Resource

KUBERNETES = "v1.37.0-local-strict"
CORE = "_definitions.json#/$defs/io.k8s.api.core.v1"
META = "_definitions.json#/$defs/io.k8s.apimachinery.pkg.apis.meta.v1"

BOOLEAN, STRING, NUMBER = {"type": "boolean"}, {"type": "string"}, {"type": "number"}
INTEGER = {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}
STRINGS = {"type": "array", "items": STRING}
STRING_MAP = {"type": "object", "additionalProperties": STRING}


def _object(required: str = "", **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": required.split(),
        "properties": properties,
    }


def _core(name: str) -> dict[str, str]:
    return {"$ref": f"{CORE}.{name}"}


def _array(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


GROUP = {
    "template": _core("PodTemplateSpec"),
    "rayStartParams": STRING_MAP,
    "resources": STRING_MAP,
    "labels": STRING_MAP,
}
CLUSTER = _object(
    "headGroupSpec",
    rayVersion=STRING,
    suspend=BOOLEAN,
    managedBy={"enum": ["ray.io/kuberay-operator", "kueue.x-k8s.io/multikueue"]},
    upgradeStrategy=_object(type={"enum": ["Recreate", "None"]}),
    authOptions=_object(enableK8sTokenAuth=BOOLEAN, secretName=STRING, mode={"enum": ["disabled", "token"]}),
    enableInTreeAutoscaling=BOOLEAN,
    autoscalerOptions=_object(
        resources=_core("ResourceRequirements"),
        image=STRING,
        imagePullPolicy=STRING,
        securityContext=_core("SecurityContext"),
        idleTimeoutSeconds=INTEGER,
        upscalingMode={"enum": ["Default", "Aggressive", "Conservative"]},
        version={"enum": ["v1", "v2"]},
        env=_array(_core("EnvVar")),
        envFrom=_array(_core("EnvFromSource")),
        volumeMounts=_array(_core("VolumeMount")),
        command=STRINGS,
        args=STRINGS,
    ),
    headServiceAnnotations=STRING_MAP,
    headGroupSpec=_object(
        "template",
        **GROUP,
        headService=_core("Service"),
        enableIngress=BOOLEAN,
        serviceType={"enum": ["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"]},
    ),
    workerGroupSpecs=_array(
        _object(
            "groupName template",
            **GROUP,
            groupName=STRING,
            suspend=BOOLEAN,
            replicas=INTEGER,
            minReplicas=INTEGER,
            maxReplicas=INTEGER,
            idleTimeoutSeconds=INTEGER,
            priority=INTEGER,
            numOfHosts=INTEGER,
            scaleStrategy=_object(workersToDelete=STRINGS),
        )
    ),
)
JOB = _object(
    activeDeadlineSeconds=INTEGER,
    backoffLimit=INTEGER,
    rayClusterSpec=CLUSTER,
    submitterPodTemplate=_core("PodTemplateSpec"),
    metadata=STRING_MAP,
    clusterSelector=STRING_MAP,
    submitterConfig=_object(backoffLimit=INTEGER),
    managedBy={"enum": ["ray.io/kuberay-operator", "kueue.x-k8s.io/multikueue"]},
    entrypoint=STRING,
    runtimeEnvYAML=STRING,
    jobId=STRING,
    submissionMode={"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"]},
    entrypointResources=STRING,
    entrypointNumCpus=NUMBER,
    entrypointNumGpus=NUMBER,
    ttlSecondsAfterFinished=INTEGER,
    preRunningDeadlineSeconds={**INTEGER, "minimum": 1},
    shutdownAfterJobFinishes=BOOLEAN,
    suspend=BOOLEAN,
)
CRON_JOB = _object(
    "schedule jobTemplate",
    jobTemplate=JOB,
    schedule=STRING,
    timeZone={**STRING, "minLength": 1},
    suspend=BOOLEAN,
)
SPECS = {"RayCluster": CLUSTER, "RayJob": JOB, "RayCronJob": CRON_JOB}


@functools.cache
def _kubernetes() -> Registry[Any]:
    folder = files("kubernetes_validate") / "kubernetes-json-schema" / KUBERNETES
    definitions = json.loads((folder / "_definitions.json").read_text())
    return Registry().with_resource("_definitions.json", Resource.from_contents(definitions))


def validate(manifest: dict[str, Any]) -> None:
    """Raises ``jsonschema.ValidationError`` for a manifest that KubeRay or Kubernetes would not take."""
    schema = _object(
        "apiVersion kind metadata spec",
        apiVersion={"const": "ray.io/v1"},
        kind={"const": manifest["kind"]},
        metadata={"$ref": f"{META}.ObjectMeta"},
        spec=SPECS[manifest["kind"]],
    )
    jsonschema.Draft202012Validator(schema, registry=_kubernetes()).validate(manifest)
