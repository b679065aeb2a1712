"""External artifacts are pinned by digest: actions of the workflows by commit, packages by their files."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_a_workflow_names_actions_by_commit_reads_alone_and_keeps_no_token(file):
    workflow = yaml.safe_load(file.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    steps = [step for job in workflow["jobs"].values() for step in job["steps"] if "uses" in step]
    assert steps
    assert not any("permissions" in job for job in workflow["jobs"].values())
    for step in steps:
        assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", step["uses"]), step["uses"]
        if step["uses"].startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
    versions = re.findall(r"uses: \S+@[0-9a-f]{40}  # v\d+\.\d+\.\d+$", file.read_text(), re.MULTILINE)
    assert len(versions) == len(steps), "a commit without its version beside it"


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
