"""External artifacts are pinned by digest: actions of the workflows by commit, packages by their files."""

import re
from pathlib import Path

import pytest
import yaml

from tools.release_check import MAY, workflow_faults

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_a_workflow_names_actions_by_commit_and_has_least_permissions(file):
    assert list(workflow_faults(file.name, file.read_text())) == []


def test_every_job_that_may_write_exists():
    jobs = {(file.name, job) for file in WORKFLOWS for job in yaml.safe_load(file.read_text())["jobs"]}
    assert set(MAY) <= jobs


def test_every_pinned_package_has_the_digests_of_its_files_and_no_address():
    text = (ROOT / "constraints-hashes.txt").read_text()
    blocks = re.split(r"\n(?=\S)", text.strip())
    hashed = {block.split(" ", 1)[0]: re.findall(r"--hash=sha256:([0-9a-f]{64})\b", block) for block in blocks}
    pinned = {line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")}
    assert {_plain(name) for name in hashed} == {_plain(name) for name in pinned}, "write it anew: make hashes"
    assert all(hashed.values())
    assert "://" not in text


def _plain(requirement: str) -> str:
    name, _, version = requirement.partition("==")
    return f"{re.sub('[-_.]+', '-', name).lower()}=={version.strip()}"


def test_both_images_have_one_base_that_a_builder_can_fix_by_its_digest():
    docker, apptainer = (ROOT / "Dockerfile").read_text(), (ROOT / "cluster" / "apptainer.def").read_text()
    (base,) = re.findall(r"^ARG BASE=(\S+)$", docker, re.MULTILINE)
    assert "\nFROM ${BASE}\n" in docker
    assert "\nFrom: {{ BASE }}\n" in apptainer
    assert re.findall(r"^    BASE=(\S+)$", apptainer, re.MULTILINE) == [base]
