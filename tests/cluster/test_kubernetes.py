"""cluster/kuberay.yaml has the structure that KubeRay and Kubernetes ask for, checked without either.

The fields of KubeRay's own objects are those of its reference (v1, read on 2026-11-22); those of pods are what a
training job uses. An unknown field is a mistake: the operator would drop it without a word.
"""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "cluster" / "kuberay.yaml"

STRING, NUMBER, FLAG = str, (int, float), bool
RESOURCES = {"requests": {None: (str, int)}, "limits": {None: (str, int)}}
SECRET_KEY = {"name": STRING, "key": STRING, "optional": FLAG}
ENV = {
    "name": STRING,
    "value": STRING,
    "valueFrom": {"secretKeyRef": SECRET_KEY, "fieldRef": {"fieldPath": STRING, "apiVersion": STRING}},
}
CONTAINER = {
    "name": STRING,
    "image": STRING,
    "imagePullPolicy": STRING,
    "command": [STRING],
    "args": [STRING],
    "workingDir": STRING,
    "ports": [{"containerPort": NUMBER, "name": STRING, "protocol": STRING}],
    "envFrom": [{"secretRef": {"name": STRING, "optional": FLAG}, "configMapRef": {"name": STRING, "optional": FLAG}}],
    "env": [ENV],
    "volumeMounts": [{"name": STRING, "mountPath": STRING, "subPath": STRING, "readOnly": FLAG}],
    "resources": RESOURCES,
    "securityContext": {"allowPrivilegeEscalation": FLAG, "capabilities": {"drop": [STRING]}, "runAsUser": NUMBER},
}
VOLUME = {
    "name": STRING,
    "persistentVolumeClaim": {"claimName": STRING, "readOnly": FLAG},
    "emptyDir": {"medium": STRING, "sizeLimit": STRING},
    "secret": {"secretName": STRING, "defaultMode": NUMBER},
}
POD = {
    "metadata": {"labels": {None: STRING}, "annotations": {None: STRING}},
    "spec": {
        "containers": [CONTAINER],
        "initContainers": [CONTAINER],
        "volumes": [VOLUME],
        "securityContext": {"runAsUser": NUMBER, "runAsGroup": NUMBER, "fsGroup": NUMBER, "runAsNonRoot": FLAG},
        "terminationGracePeriodSeconds": NUMBER,
        "tolerations": [{"key": STRING, "operator": STRING, "value": STRING, "effect": STRING}],
        "nodeSelector": {None: STRING},
        "serviceAccountName": STRING,
        "imagePullSecrets": [{"name": STRING}],
    },
}
RAY_CLUSTER = {
    "suspend": FLAG,
    "autoscalerOptions": {
        "resources": RESOURCES,
        "image": STRING,
        "idleTimeoutSeconds": NUMBER,
        "upscalingMode": STRING,
        "version": STRING,
        "env": [ENV],
    },
    "enableInTreeAutoscaling": FLAG,
    "gcsFaultToleranceOptions": {"redisAddress": STRING},
    "headGroupSpec": {"template": POD, "enableIngress": FLAG, "rayStartParams": {None: STRING}, "serviceType": STRING},
    "rayVersion": STRING,
    "workerGroupSpecs": [
        {
            "suspend": FLAG,
            "groupName": STRING,
            "replicas": NUMBER,
            "minReplicas": NUMBER,
            "maxReplicas": NUMBER,
            "idleTimeoutSeconds": NUMBER,
            "rayStartParams": {None: STRING},
            "template": POD,
            "numOfHosts": NUMBER,
        }
    ],
}
META = {"name": STRING, "namespace": STRING, "labels": {None: STRING}}
KINDS: dict[tuple[str, str], Any] = {
    ("v1", "PersistentVolumeClaim"): {
        "accessModes": [STRING],
        "storageClassName": STRING,
        "resources": {"requests": {None: STRING}},
    },
    ("ray.io/v1", "RayJob"): {
        "activeDeadlineSeconds": NUMBER,
        "backoffLimit": NUMBER,
        "rayClusterSpec": RAY_CLUSTER,
        "submitterPodTemplate": POD,
        "submitterConfig": {"backoffLimit": NUMBER},
        "entrypoint": STRING,
        "runtimeEnvYAML": STRING,
        "submissionMode": STRING,
        "entrypointNumCpus": NUMBER,
        "ttlSecondsAfterFinished": NUMBER,
        "shutdownAfterJobFinishes": FLAG,
        "suspend": FLAG,
    },
}
Objects = list[dict[str, Any]]


def mistakes(given: Any, asked: Any, where: str) -> list[str]:
    """Places at which `given` is not of the form `asked`: a dict of fields (None: any name), a list of one, types."""
    if isinstance(asked, dict):
        if not isinstance(given, dict):
            return [f"{where}: is no object"]
        found = [f"{where}.{name}: no such field" for name in given if name not in asked and None not in asked]
        known = {name: value for name, value in given.items() if name in asked or None in asked}
        return found + [m for n, v in known.items() for m in mistakes(v, asked.get(n, asked.get(None)), f"{where}.{n}")]
    if isinstance(asked, list):
        if not isinstance(given, list):
            return [f"{where}: is no list"]
        return [m for i, each in enumerate(given) for m in mistakes(each, asked[0], f"{where}[{i}]")]
    is_flag = isinstance(given, bool)
    return (
        []
        if isinstance(given, asked) and (asked is FLAG or not is_flag)
        else [f"{where}: {given!r} is of another type"]
    )


def check(objects: Objects) -> list[str]:
    found = []
    for each in objects:
        kind = (each["apiVersion"], each["kind"])
        asked = {"apiVersion": STRING, "kind": STRING, "metadata": META, "spec": KINDS.get(kind, {})}
        found += mistakes(each, asked, each["kind"])
    return found


@pytest.fixture
def objects() -> Objects:
    return list(yaml.safe_load_all(FILE.read_text()))


def job(objects: Objects) -> dict[str, Any]:
    return next(each["spec"] for each in objects if each["kind"] == "RayJob")


def pods(objects: Objects) -> list[dict[str, Any]]:
    cluster = job(objects)["rayClusterSpec"]
    return [group["template"]["spec"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]


def test_every_field_is_known_and_of_its_type(objects: Objects) -> None:
    assert check(objects) == []


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda spec: spec.update(shutdownAfterJobFinish=True), "RayJob.shutdownAfterJobFinish: no such field"),
        (
            lambda spec: spec["rayClusterSpec"]["workerGroupSpecs"][0].update(replicas="2"),
            "replicas: '2' is of another",
        ),
        (lambda spec: spec["rayClusterSpec"]["headGroupSpec"]["rayStartParams"].update({"num-cpus": 8}), "num-cpus: 8"),
        (lambda spec: spec["rayClusterSpec"]["headGroupSpec"]["template"].update(containers=[]), "template.containers"),
    ],
)
def test_a_mistake_is_found(objects: Objects, change: Any, where: str) -> None:
    objects = copy.deepcopy(objects)
    change(job(objects))
    assert [found for found in check(objects) if where.split(".", 1)[-1] in found]


def test_pods_hold_no_secret_share_what_they_mount_and_are_nobody_special(objects: Objects) -> None:
    claims = {each["metadata"]["name"] for each in objects if each["kind"] == "PersistentVolumeClaim"}
    for pod in pods(objects):
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert pod["securityContext"]["runAsNonRoot"]
        (container,) = pod["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} <= set(volumes)
        assert volumes["data"]["persistentVolumeClaim"]["claimName"] in claims
        assert not container["securityContext"]["allowPrivilegeEscalation"]
        assert container["resources"]["limits"].get("nvidia.com/gpu") == container["resources"]["requests"].get(
            "nvidia.com/gpu"
        )
        env = {each["name"]: each for each in container["env"]}
        assert env["RAY_AUTH_MODE"]["value"] == "token"
        assert "value" not in env["RAY_AUTH_TOKEN"]
        assert not [
            name for name, each in env.items() if "value" in each and re.search("(?i)key|secret|password", name)
        ]


def test_the_file_fits_the_project_and_its_own_limits(objects: Objects) -> None:
    spec = job(objects)
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    assert spec["rayClusterSpec"]["rayVersion"] == pinned["ray"]
    head, worker = (pod["containers"][0] for pod in pods(objects))
    assert head["image"] == worker["image"]
    env = {each["name"]: each.get("value") for each in head["env"]}
    (group,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    assert int(env["CTVR_NODES"]) <= int(env["CTVR_MAX_NODES"]) <= 1 + group["maxReplicas"]
    assert group["minReplicas"] == 0  # no GPU is held unless a sweep asks
    assert spec["activeDeadlineSeconds"] > 0
    for script in re.findall(r"cluster/\S+\.sh", spec["entrypoint"]):
        assert (ROOT / script).is_file()


@pytest.mark.parametrize("name", ["Dockerfile", "cluster/apptainer.def"])
def test_an_image_is_made_of_the_pinned_files_and_has_every_package(name: str) -> None:
    text = (ROOT / name).read_text()
    (listed,) = re.findall(r"(?m)^include = \[(.+)\]$", (ROOT / "pyproject.toml").read_text())
    packages = re.findall(r'"([^"]+)"', listed)
    for copied in (*(package.rstrip("*") for package in packages), "pyproject.toml", "constraints.txt", "cluster"):
        assert re.search(rf"(?m)^(COPY .*|\s+){re.escape(copied)}\b", text), copied
        assert (ROOT / copied).exists()
    assert "-c constraints.txt" in text
    assert "--torch-backend" in text
