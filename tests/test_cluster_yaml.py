"""cluster.yaml is what Ray's cluster launcher takes, and opens and tells nothing it should not."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import jsonschema
import pytest
import yaml
from moto import mock_aws
from ray.autoscaler._private.aws.config import bootstrap_aws
from ray.autoscaler._private.aws.node_provider import AWSNodeProvider
from ray.autoscaler._private.util import prepare_config, validate_config

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "cluster.yaml").read_text()
RAY_ROLE = "ray-autoscaler-v1"


def config() -> dict[str, Any]:
    return yaml.safe_load(TEXT)


def gpu(raw: dict[str, Any]) -> dict[str, Any]:
    """The workers' node type."""
    return raw["available_node_types"]["gpu"]


def validated(raw: dict[str, Any]) -> dict[str, Any]:
    prepared = prepare_config(copy.deepcopy(raw))
    validate_config(prepared)
    return prepared


def test_ray_takes_the_config() -> None:
    nodes = validated(config())["available_node_types"]
    assert nodes["head"]["max_workers"] == 0
    assert (nodes["gpu"]["min_workers"], nodes["gpu"]["max_workers"]) == (0, 8)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda raw: raw.update(max_worker=3), "max_worker"),
        (lambda raw: raw.update(idle_timeout_minutes="5 min"), "not of type 'number'"),
        (
            lambda raw: raw["available_node_types"]["gpu"].pop("resources"),
            "'resources' is a required property",
        ),
        (
            lambda raw: raw["available_node_types"]["gpu"]["resources"].update(GPU="1"),
            "not of type 'integer'",
        ),
        (lambda raw: raw["auth"].update(ssh_password="x"), "ssh_password"),
        (lambda raw: raw.update(head_node_type="heads"), "head_node_type"),
        (lambda raw: gpu(raw).update(min_workers=9), "smaller than the sum"),
        (lambda raw: raw["setup_commands"].append({"run": "x"}), "not of type 'string'"),
    ],
)
def test_ray_takes_no_other_config(change: Callable[[dict[str, Any]], Any], says: str) -> None:
    raw = config()
    change(raw)
    with pytest.raises((jsonschema.ValidationError, ValueError), match=re.escape(says)):
        validated(raw)


def test_no_token_stands_in_the_config_or_in_a_command() -> None:
    commands = [line for name, lines in config().items() if name.endswith("_commands") for line in lines]
    assert not [line for line in commands if re.search(r"\b(RAY_AUTH_TOKEN|HF_TOKEN)=", line)]
    assert not re.search(r"hf_[A-Za-z0-9]{10,}", TEXT)
    assert "runtime_env" not in TEXT


def test_every_start_command_asks_for_the_token_and_no_dashboard_listens_to_the_world() -> None:
    starts = [
        line
        for name in ("head_start_ray_commands", "worker_start_ray_commands")
        for line in config()[name]
        if "ray start" in line
    ]
    assert len(starts) == 2
    assert all("RAY_AUTH_MODE=token" in line and "HF_TOKEN_PATH=" in line for line in starts)
    assert "--dashboard-host=127.0.0.1" in starts[0]
    assert "--num-cpus=0" in starts[0]


def test_a_worker_whose_torch_finds_no_gpu_is_refused_while_it_is_set_up() -> None:
    import torch

    (check,) = config()["worker_setup_commands"]
    here = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", check], env=here, text=True, capture_output=True, check=False)
    finds_one = torch.cuda.is_available()
    assert (done.returncode == 0) is finds_one
    assert (f"torch {torch.__version__} finds no GPU" in done.stderr) is not finds_one


def test_every_file_of_the_package_is_copied_to_the_nodes() -> None:
    mounted = set(config()["file_mounts"].values())
    assert {"zoo", "catalog", "jobs", "pyproject.toml", "README.md", "constraints.txt"} <= mounted
    assert all((ROOT / path).exists() for path in mounted if not path.startswith("~"))


def test_the_images_bring_the_tested_ray_and_python() -> None:
    ray_version = re.search(r"(?m)^ray==(.*)$", (ROOT / "constraints.txt").read_text())
    assert ray_version is not None
    docker = config()["docker"]
    images = [docker["head_image"], docker["worker_image"]]
    assert all(image.startswith(f"rayproject/ray:{ray_version[1]}-py311-") for image in images)


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """An AWS in this process that holds Ray's role and the workers', as an account that ran Ray before."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("HOME", str(tmp_path))  # Ray keeps the key pair that it makes in ~/.ssh
    (tmp_path / ".ssh").mkdir()
    with mock_aws(config={"iam": {"load_aws_managed_policies": True}}):
        iam = boto3.client("iam", config()["provider"]["region"])
        for name in (RAY_ROLE, "zoo-worker"):
            iam.create_role(RoleName=name, AssumeRolePolicyDocument="{}")
            iam.create_instance_profile(InstanceProfileName=name)
            iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)
        yield


@pytest.mark.usefixtures("aws")
def test_aws_starts_a_spot_worker_that_the_world_reaches_by_ssh_alone() -> None:
    ready = bootstrap_aws(validated(config()))
    region = ready["provider"]["region"]
    worker = ready["available_node_types"]["gpu"]
    provider = AWSNodeProvider(ready["provider"], ready["cluster_name"])
    provider.create_node(worker["node_config"], {"ray-node-type": "worker"}, 1)

    (instance,) = boto3.resource("ec2", region).instances.all()
    assert instance.instance_type == worker["node_config"]["InstanceType"]
    assert instance.instance_lifecycle == "spot"
    groups = [
        boto3.resource("ec2", region).SecurityGroup(each["GroupId"]) for each in instance.security_groups
    ]
    open_to_the_world = [
        (rule["FromPort"], rule["ToPort"])
        for group in groups
        for rule in group.ip_permissions
        if rule["IpRanges"] or rule["Ipv6Ranges"]
    ]
    assert open_to_the_world == [(22, 22)]


@pytest.mark.usefixtures("aws")
def test_the_workers_resources_are_those_of_their_instance_type() -> None:
    worker = config()["available_node_types"]["gpu"]
    ec2 = boto3.client("ec2", config()["provider"]["region"])
    kind = ec2.describe_instance_types(InstanceTypes=[worker["node_config"]["InstanceType"]])[
        "InstanceTypes"
    ][0]
    gpus = sum(each["Count"] for each in kind["GpuInfo"]["Gpus"])
    assert worker["resources"] == {"CPU": kind["VCpuInfo"]["DefaultVCpus"], "GPU": gpus}
