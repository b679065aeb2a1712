"""One template creates all that an AWS account needs, here in moto; Ray then finds all names of a100.yaml.

moto is not AWS: it shows that the template is complete and that the names arrive, not that AWS grants the requests.
"""

import copy
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

CLUSTER = Path(__file__).resolve().parents[2] / "cluster"
TEMPLATE = CLUSTER / "account.yaml"
pytestmark = pytest.mark.slow


def test_cloudformation_would_take_the_template() -> None:
    from cfnlint.api import lint_file

    assert lint_file(TEMPLATE) == []
    assert lint_file(TEMPLATE.with_name("a100.yaml"))  # which is none


@pytest.fixture(scope="module")
def account() -> ModuleType:
    spec = importlib.util.spec_from_file_location("account", CLUSTER / "account.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def made(account: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Return a100.yaml as `account.py create` leaves it in an empty account of moto, and a session of that account."""
    import boto3
    from moto import mock_aws

    folder = tmp_path_factory.mktemp("account")
    filled = folder / "a100.yaml"
    filled.write_text((CLUSTER / "a100.yaml").read_text())
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        patch.setenv("HOME", str(folder))
        patch.setattr(account, "_image", lambda session: "ami-0123456789abcdef0")  # moto has no public parameters of it
        of_stack = account._outputs
        near = {"PlacementGroup": "ctvr-near"}  # moto has no placement groups
        patch.setattr(account, "_outputs", lambda *given: near | of_stack(*given))
        with mock_aws():
            words = ["create", "--ssh-from", "203.0.113.7", "--into", str(filled)]
            assert account.main(words) == 0
            assert account.main(words) == 0  # again changes nothing
            yield {"file": filled, "session": boto3.Session(region_name="us-east-1"), "folder": folder}


def test_the_stack_fills_in_every_line_that_is_to_be_edited(made: dict[str, Any]) -> None:
    text = made["file"].read_text()
    assert not [line for line in text.splitlines() if "000000000" in line or "EDIT-bucket" in line]
    before, after = ((CLUSTER / "a100.yaml").read_text().splitlines(), text.splitlines())
    changed = [old for old, new in zip(before, after, strict=True) if old != new]
    assert all("EDIT" in line or "CTVR_STORE" in line for line in changed)
    store = made["session"].client("s3").list_buckets()["Buckets"][0]["Name"]
    assert f"CTVR_STORE=s3://{store}/ctvr" in text
    (system,) = made["session"].client("efs").describe_file_systems()["FileSystems"]
    assert f"setup.sh mount {system['FileSystemId']}.efs.us-east-1.amazonaws.com:/ /mnt/ctvr" in text


def test_the_head_may_start_every_kind_of_machine_of_the_cluster_file(
    made: dict[str, Any], account: ModuleType
) -> None:
    text = made["file"].read_text()
    types = {each["node_config"]["InstanceType"] for each in yaml.safe_load(text)["available_node_types"].values()}
    assert types - {"m6i.4xlarge"} == set(account.worker_types(text, "p4d.24xlarge"))
    template = yaml.safe_load(TEMPLATE.read_text())
    (policy,) = template["Resources"]["HeadRole"]["Properties"]["Policies"]
    (start,) = (each for each in policy["PolicyDocument"]["Statement"] if each["Sid"] == "StartWorkersOfThisCluster")
    assert start["Condition"]["StringEquals"]["ec2:InstanceType"] == {"Ref": "WorkerTypes"}
    permitted = template["Parameters"]["WorkerTypes"]["Default"].split(",")
    assert permitted == account.worker_types((CLUSTER / "a100.yaml").read_text(), "p4d.24xlarge")
    assert account.worker_types(text, "p5e.48xlarge")[0] == "p5e.48xlarge"


def test_subnets_lie_where_most_kinds_of_machines_are(account: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    class Region:
        def client(self, name: str) -> "Region":
            return self

        def describe_instance_type_offerings(self, **_: object) -> dict[str, Any]:
            had = {"a": ["p4d"], "b": ["p4d", "p5"], "c": ["p5", "p6"], "d": ["p4d", "p5"]}
            return {"InstanceTypeOfferings": [{"Location": z, "InstanceType": t} for z in had for t in had[z]]}

        def describe_subnets(self, **_: object) -> dict[str, Any]:
            of = [{"AvailabilityZone": z, "SubnetId": f"subnet-{z}", "MapPublicIpOnLaunch": True} for z in "abcd"]
            return {"Subnets": of}

    assert account._network(Region(), "vpc-1", ["p4d", "p5", "p6"]) == ("vpc-1", ["subnet-b", "subnet-d"])
    assert "p6" in capsys.readouterr().out


def test_stack_admits_only_the_given_addresses(made: dict[str, Any]) -> None:
    ec2 = made["session"].client("ec2")
    cluster = yaml.safe_load(made["file"].read_text())
    (group,) = cluster["available_node_types"]["a100"]["node_config"]["SecurityGroupIds"]
    by_id = {found["GroupId"]: found for found in ec2.describe_security_groups()["SecurityGroups"]}
    world = [rule["CidrIp"] for rules in by_id[group]["IpPermissions"] for rule in rules.get("IpRanges", [])]
    assert world == ["203.0.113.7/32"]
    efs = made["session"].client("efs")
    (system,) = efs.describe_file_systems()["FileSystems"]
    targets = efs.describe_mount_targets(FileSystemId=system["FileSystemId"])["MountTargets"]
    subnets = cluster["available_node_types"]["a100"]["node_config"]["SubnetIds"]
    assert sorted(target["SubnetId"] for target in targets) == sorted(subnets)  # one in each zone that has machines
    for target in targets:
        (server,) = efs.describe_mount_target_security_groups(MountTargetId=target["MountTargetId"])["SecurityGroups"]
        (rule,) = by_id[server]["IpPermissions"]
        assert (rule["FromPort"], rule["ToPort"], rule["IpRanges"]) == (2049, 2049, [])
        assert [pair["GroupId"] for pair in rule["UserIdGroupPairs"]] == [group]


def test_efa_stack_allows_traffic_within_its_placement_group(
    made: dict[str, Any],
) -> None:
    ec2 = made["session"].client("ec2")
    config = yaml.safe_load(made["file"].read_text())["available_node_types"]["a100-efa"]["node_config"]
    template = yaml.safe_load(TEMPLATE.read_text())
    assert template["Outputs"]["PlacementGroup"] == {"Value": {"Ref": "Near"}}
    assert template["Resources"]["Near"] == {
        "Type": "AWS::EC2::PlacementGroup",
        "Properties": {"Strategy": "cluster"},
    }
    assert config["Placement"]["GroupName"] == "ctvr-near"
    (group,) = config["NetworkInterfaces"][0]["Groups"]
    (found,) = ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"]
    assert group in [pair["GroupId"] for rule in found["IpPermissions"] for pair in rule["UserIdGroupPairs"]]
    assert "0.0.0.0/0" in [each["CidrIp"] for rule in found["IpPermissionsEgress"] for each in rule["IpRanges"]]
    own = {"Fn::GetAtt": ["Machines", "GroupId"]}
    sends = template["Resources"]["Outwards"]["Properties"]  # moto makes no rule of it
    assert (sends["GroupId"], sends["DestinationSecurityGroupId"], sends["IpProtocol"]) == (own, own, "-1")


def test_no_machine_may_do_more_than_it_needs() -> None:
    """Check the template itself: moto attaches no managed policy to a role that CloudFormation makes."""
    resources = yaml.safe_load(TEMPLATE.read_text())["Resources"]
    allowed: dict[str, list[dict[str, Any]]] = {}
    for kind in ("Head", "Worker"):
        role = resources[f"{kind}Role"]["Properties"]
        assert resources[f"{kind}Profile"]["Properties"]["Roles"] == [{"Ref": f"{kind}Role"}]
        documents = [policy["PolicyDocument"] for policy in role.get("Policies", [])]
        documents += [resources[arn["Ref"]]["Properties"]["PolicyDocument"] for arn in role["ManagedPolicyArns"]]
        statements = [statement for document in documents for statement in document["Statement"]]
        allowed[f"ctvr-{kind.lower()}"] = [
            {**each, "Action": [each["Action"]] if isinstance(each["Action"], str) else each["Action"]}
            for each in statements
        ]
    assert "*" not in json.dumps([statement["Action"] for each in allowed.values() for statement in each])
    everywhere = [s for each in allowed.values() for s in each if s["Resource"] == "*"]
    assert all(action.startswith("ec2:Describe") for s in everywhere for action in s["Action"])
    worker = {action for statement in allowed["ctvr-worker"] for action in statement["Action"]}
    assert {action.split(":")[0] for action in worker} == {"s3"}
    assert "s3:AbortMultipartUpload" in worker
    ends = next(s for s in allowed["ctvr-head"] if "ec2:TerminateInstances" in s["Action"])
    assert ends["Condition"]["StringEquals"] == {"aws:ResourceTag/ray-cluster-name": "ctvr"}


def test_ray_takes_the_file_as_it_is_and_opens_nothing(made: dict[str, Any]) -> None:
    """Ray's own bootstrap, as run by `ray up`, finds every named resource and creates none of its default groups."""
    from ray.autoscaler._private.aws.config import bootstrap_aws
    from ray.autoscaler._private.aws.node_provider import AWSNodeProvider
    from ray.autoscaler._private.util import prepare_config

    cluster = prepare_config(yaml.safe_load(made["file"].read_text()))
    before = copy.deepcopy(cluster["available_node_types"])
    cluster = AWSNodeProvider.fillout_available_node_types_resources(cluster)
    done = bootstrap_aws(cluster)
    for name, kind in done["available_node_types"].items():
        for key in ("SecurityGroupIds", "SubnetIds", "ImageId", "IamInstanceProfile", "NetworkInterfaces"):
            if key in before[name]["node_config"]:
                assert kind["node_config"][key] == before[name]["node_config"][key]
    near, plain = (done["available_node_types"][name]["node_config"] for name in ("a100-efa", "a100"))
    assert near["SecurityGroupIds"] == plain["SecurityGroupIds"]
    assert near["SubnetIds"] == plain["SubnetIds"][:1]
    resources = done["available_node_types"]["a100"]["resources"]  # known before the first machine exists
    assert (resources["CPU"], resources["GPU"]) == (96, 8)
    gpus = {
        kind["node_config"]["InstanceType"]: kind["resources"].get("GPU")
        for kind in done["available_node_types"].values()
    }
    assert gpus.pop("m6i.4xlarge") is None
    assert gpus == dict.fromkeys(gpus, 8)
    assert len(gpus) == 5
    groups = made["session"].client("ec2").describe_security_groups()["SecurityGroups"]
    assert not [group["GroupName"] for group in groups if "ray" in group["GroupName"]]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["create"], "--ssh-from is missing"),
        (["create", "--ssh-from", "0.0.0.0/0"], "--ssh-from 0.0.0.0/0: is not a range"),
        (["create", "--ssh-from", "203.0.113.7", "--worker-type", "p9z.huge"], "in 0 zones that have p9z.huge"),
        (["fill", "--stack", "none", "--ssh-from", "x"], "none"),
    ],
)
def test_a_mistake_is_one_line(made: dict[str, Any], account: ModuleType, capsys: Any, words: Any, reason: str) -> None:
    assert account.main([*words, "--into", str(made["file"])]) == 2
    said = capsys.readouterr().err
    assert reason in said
    assert said.count("\n") == 1


def test_only_the_first_kind_of_worker_is_replaced_by_another(account: ModuleType) -> None:
    text = (CLUSTER / "a100.yaml").read_text()
    names = dict.fromkeys(
        ("Region", "Bucket", "FileSystem", "SecurityGroup", "Subnets", "Image", "PlacementGroup"), "x"
    )
    before, after = (
        {name: kind["node_config"]["InstanceType"] for name, kind in yaml.safe_load(t)["available_node_types"].items()}
        for t in (text, account.fill(text, {**names, "WorkerType": "p5e.48xlarge"}))
    )
    assert after == {**before, "a100": "p5e.48xlarge"}


def test_no_further_kind_of_machine_starts_unless_its_limit_is_raised() -> None:
    types = yaml.safe_load((CLUSTER / "a100.yaml").read_text())["available_node_types"]
    assert {name for name, kind in types.items() if kind.get("max_workers", 1)} == {"head", "a100"}


def test_a_file_without_a_place_for_a_name_is_refused(account: ModuleType) -> None:
    keys = ("Region", "Bucket", "FileSystem", "SecurityGroup", "Subnets", "Image", "WorkerType", "PlacementGroup")
    names = dict.fromkeys(keys, "x")
    with pytest.raises(ValueError, match="no line for x"):
        account.fill("cluster_name: ctvr\n", names)
