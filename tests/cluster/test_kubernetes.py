"""cluster/kuberay.yaml fits the schema that KubeRay 1.7.0 ships for a RayJob, pods included.

`kuberay_rayjob_1.7.0.json.gz` is `spec` of version v1 in `ray.io_rayjobs.yaml` of the operator's release 1.7.0
(Apache-2.0), without descriptions. An unknown field is a mistake: the API server would drop it silently.
"""

import copy
import functools
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "cluster" / "kuberay.yaml"

SCHEMA = Path(__file__).with_name("kuberay_rayjob_1.7.0.json.gz")  # RayJob's spec (v1), without its descriptions
# the fields of the volume claim, which is not an object of KubeRay's
CLAIM = {
    "type": "object",
    "required": ["accessModes", "resources"],
    "properties": {
        "accessModes": {"type": "array", "items": {"enum": ["ReadWriteMany"]}},
        "storageClassName": {"type": "string"},
        "resources": {
            "type": "object",
            "properties": {"requests": {"type": "object", "additionalProperties": {"type": "string"}}},
        },
    },
}
Objects = list[dict[str, Any]]


def closed(schema: Any) -> Any:
    """Refuse fields that a structural schema does not name, since the API server would drop them silently."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    inner = {key: closed(value) for key, value in schema.items() if key != "format"}
    is_open = "additionalProperties" in schema or schema.get("x-kubernetes-preserve-unknown-fields")
    if schema.get("type") == "object" and "properties" in schema and not is_open:
        inner["additionalProperties"] = False
    return inner


@functools.cache
def validators() -> dict[tuple[str, str], Draft202012Validator]:
    job = json.loads(gzip.decompress(SCHEMA.read_bytes()))
    return {
        ("v1", "PersistentVolumeClaim"): Draft202012Validator(closed(CLAIM)),
        ("ray.io/v1", "RayJob"): Draft202012Validator(closed(job)),
    }


def check(objects: Objects) -> list[str]:
    """Return the mistakes of all objects, each with its place."""
    return [
        f"{each['kind']}.{'.'.join(map(str, error.absolute_path))}: {error.message}"
        for each in objects
        for error in validators()[each["apiVersion"], each["kind"]].iter_errors(each["spec"])
    ]


@pytest.fixture
def objects() -> Objects:
    return list(yaml.safe_load_all(FILE.read_text()))


def job(objects: Objects) -> dict[str, Any]:
    return next(each["spec"] for each in objects if each["kind"] == "RayJob")


def pod_of(spec: dict[str, Any]) -> dict[str, Any]:
    return spec["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]


def pods(objects: Objects) -> list[dict[str, Any]]:
    cluster = job(objects)["rayClusterSpec"]
    return [group["template"]["spec"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]


def test_every_field_is_known_and_of_its_type(objects: Objects) -> None:
    assert check(objects) == []


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda spec: spec.update(shutdownAfterJobFinish=True), "shutdownAfterJobFinish"),
        (
            lambda spec: spec["rayClusterSpec"]["workerGroupSpecs"][0].update(replicas="2"),
            "workerGroupSpecs.0.replicas",
        ),
        (
            lambda spec: spec["rayClusterSpec"]["headGroupSpec"]["rayStartParams"].update({"num-cpus": 8}),
            "rayStartParams.num-cpus",
        ),
        (lambda spec: spec["rayClusterSpec"]["headGroupSpec"]["template"].update(containers=[]), "containers"),
        (lambda spec: spec["rayClusterSpec"]["authOptions"].update(mode="tokens"), "authOptions.mode"),
        (lambda spec: pod_of(spec)["containers"][0]["env"][0].update(valueform={}), "valueform"),
        (lambda spec: pod_of(spec)["containers"][0].pop("name"), "'name' is a required property"),
    ],
)
def test_a_mistake_is_found(objects: Objects, change: Any, where: str) -> None:
    objects = copy.deepcopy(objects)
    change(job(objects))
    (found,) = check(objects)
    assert where in found


def test_every_part_of_the_cluster_has_the_token(objects: Objects) -> None:
    """The operator passes it to the autoscaler and the submitter only if `authOptions` is set (KubeRay 1.6)."""
    cluster = job(objects)["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token", "secretName": "ctvr"}
    assert "--from-file=auth_token=" in FILE.read_text()  # the key that the operator looks for
    for pod in pods(objects):  # nothing that would win over the operator's own
        assert not [each for each in pod["containers"][0]["env"] if each["name"].startswith("RAY_AUTH_")]


def test_pods_have_no_secret_share_mounts_and_run_unprivileged(objects: Objects) -> None:
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
    assert env["CTVR_MLFLOW_HOST"] == "0.0.0.0"  # a forwarded port ends at the loopback of the pod
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


def test_only_a_lost_cluster_is_replaced(objects: Objects) -> None:
    spec = job(objects)
    assert spec["backoffLimit"] > 0
    assert "cluster/resume.sh" in spec["entrypoint"]
    env = {each["name"]: each.get("value") for each in pod_of(spec)["containers"][0]["env"]}
    assert env["CTVR_REFUSED_STATUS"] == "0"
