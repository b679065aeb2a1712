"""Creation of the resources that an AWS account needs before `ray up`, with their names in cluster/a100.yaml.

    python cluster/account.py create --ssh-from 203.0.113.7/32     once, and again if your address changes
    python cluster/account.py fill --into cluster/other.yaml       write the names of an existing stack into a file
    python cluster/account.py delete                               keeps the bucket and the file system with the results

Run it on your own machine with your AWS credentials. It needs `pip install boto3`, as `ray up` does. The template
account.yaml lists the created resources. Filled lines keep their comments; the rest of the file does not change.
"""

from __future__ import annotations

import argparse
import ipaddress
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
IMAGE = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"


def main(words: list[str] | None = None) -> int:
    arguments = _parser().parse_args(words)
    try:
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        return _fail("boto3 is not installed here, and `ray up` needs it too: pip install boto3")
    session = boto3.Session(region_name=arguments.region)
    try:
        if arguments.command == "delete":
            return _delete(session, arguments.stack)
        if arguments.command == "create":
            _create(session, arguments)
        names = _outputs(session, arguments.stack)
        names |= {"Region": arguments.region, "Image": _image(session)}
        arguments.into.write_text(fill(arguments.into.read_text(encoding="utf-8"), names), encoding="utf-8")
        print(f"{arguments.into} contains the names of stack {arguments.stack}. Next: ray up {arguments.into}")
    except (BotoCoreError, ClientError, ValueError, OSError) as error:
        return _fail(str(error))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="bucket, file system, security groups and profiles of the cluster")
    parser.add_argument("command", choices=("create", "fill", "delete"))
    parser.add_argument("--ssh-from", metavar="CIDR", help="addresses that may reach the machines, e.g. 203.0.113.7/32")
    parser.add_argument("--region", default="us-east-1", help="AWS region (default: %(default)s)")
    parser.add_argument("--worker-type", default="p4d.24xlarge", help="instance type of workers (default: %(default)s)")
    parser.add_argument("--vpc", help="ID of the VPC (default: the default VPC)")
    parser.add_argument("--stack", default="ctvr", help="name of the CloudFormation stack (default: %(default)s)")
    parser.add_argument("--into", type=Path, default=HERE / "a100.yaml", help="cluster file (default: %(default)s)")
    return parser


def _fail(reason: str) -> int:
    sys.stderr.write(f"account.py: {reason}\n")
    return 2


def _create(session: Any, arguments: argparse.Namespace) -> None:
    types = worker_types(arguments.into.read_text(encoding="utf-8"), arguments.worker_type)
    vpc, subnets = _network(session, arguments.vpc, types)
    parameters = {
        "SshFrom": _addresses(arguments.ssh_from),
        "Vpc": vpc,
        "Subnets": ",".join(subnets),
        "WorkerTypes": ",".join(types),
    }
    formation = session.client("cloudformation")
    request = {
        "StackName": arguments.stack,
        "TemplateBody": (HERE / "account.yaml").read_text(encoding="utf-8"),
        "Parameters": [{"ParameterKey": name, "ParameterValue": value} for name, value in parameters.items()],
        "Capabilities": ["CAPABILITY_NAMED_IAM"],
    }
    if _exists(formation, arguments.stack):
        try:
            formation.update_stack(**request)
        except formation.exceptions.ClientError as error:
            if "No updates are to be performed" not in str(error):
                raise
            return
        formation.get_waiter("stack_update_complete").wait(StackName=arguments.stack)
    else:
        print("CloudFormation creates the stack, which takes some minutes")
        formation.create_stack(**request)
        formation.get_waiter("stack_create_complete").wait(StackName=arguments.stack)


def _addresses(text: str | None) -> str:
    """Parse an address or a range of them as a CIDR block; ranges larger than a /8 are refused."""
    if not text:
        raise ValueError(
            "--ssh-from is missing. Pass the addresses that may reach the machines, e.g. 203.0.113.7/32 (your own)."
        )
    network = ipaddress.ip_network(text, strict=False)
    if network.version != 4 or network.prefixlen < 8:
        raise ValueError(
            f"--ssh-from {text}: is not a range of at most a /8 of IPv4 addresses. For one address, use /32."
        )
    return str(network)


def worker_types(text: str, first: str) -> list[str]:
    """List the kinds of GPU machines of a cluster file, beginning with the chosen one."""
    return list(dict.fromkeys([first, *re.findall(r"(?m)^\s.*?InstanceType: (p[^\s}]+)", text)]))


def _network(session: Any, vpc: str | None, types: Sequence[str]) -> tuple[str, list[str]]:
    """Find a VPC and two of its public subnets, in zones that have the first type and as many others as possible."""
    ec2 = session.client("ec2")
    if vpc is None:
        found = ec2.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
        if not found:
            raise ValueError("--vpc: this region has no default VPC. Pass one with two public subnets.")
        vpc = str(found[0]["VpcId"])
    offered = ec2.describe_instance_type_offerings(
        LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": list(types)}]
    )["InstanceTypeOfferings"]
    zones = {offer["Location"] for offer in offered if offer["InstanceType"] == types[0]}
    kinds = Counter(offer["Location"] for offer in offered)
    subnets = ec2.describe_subnets(Filters=[{"Name": "vpc-id", "Values": [vpc]}])["Subnets"]
    by_zone = {
        subnet["AvailabilityZone"]: str(subnet["SubnetId"])
        for subnet in sorted(subnets, key=lambda each: each["SubnetId"], reverse=True)
        if subnet["AvailabilityZone"] in zones and subnet["MapPublicIpOnLaunch"]
    }
    if len(by_zone) < 2:
        raise ValueError(
            f"{vpc} has public subnets in {len(by_zone)} zones that have {types[0]} ({', '.join(sorted(zones))}); "
            "two are needed. Choose another --region or --vpc, or add a subnet."
        )
    chosen = sorted(by_zone, key=lambda zone: (-kinds[zone], zone))[:2]
    for kind in types[1:]:
        if not any(offer["InstanceType"] == kind and offer["Location"] in chosen for offer in offered):
            print(f"instance type {kind} is not offered in {' or '.join(chosen)}: leave its max_workers at 0")
    return vpc, [by_zone[zone] for zone in chosen]


def _exists(formation: Any, stack: str) -> bool:
    try:
        (found,) = formation.describe_stacks(StackName=stack)["Stacks"]
    except formation.exceptions.ClientError:
        return False
    if found["StackStatus"] in ("ROLLBACK_COMPLETE", "ROLLBACK_FAILED"):  # such a stack can only be deleted
        raise ValueError(f"stack {stack} failed before ({found['StackStatus']}). Run: python cluster/account.py delete")
    return True


def _outputs(session: Any, stack: str) -> dict[str, str]:
    (found,) = session.client("cloudformation").describe_stacks(StackName=stack)["Stacks"]
    return {output["OutputKey"]: output["OutputValue"] for output in found.get("Outputs", [])}


def _image(session: Any) -> str:
    """Return the ID of the current image, because with `latest` machines of a cluster could get different drivers."""
    return str(session.client("ssm").get_parameter(Name=IMAGE)["Parameter"]["Value"])


def _delete(session: Any, stack: str) -> int:
    formation = session.client("cloudformation")
    kept = _outputs(session, stack)
    formation.delete_stack(StackName=stack)
    formation.get_waiter("stack_delete_complete").wait(StackName=stack)
    print(f"stack {stack} is deleted. Kept with their content: {kept.get('Bucket')}, {kept.get('FileSystem')}")
    return 0


def fill(text: str, names: Mapping[str, str]) -> str:
    """Write the names of a stack into a cluster file.

    Raises:
        ValueError: if the file lacks a line for one of them.
    """
    subnets = ", ".join(names["Subnets"].split(","))
    for pattern, value in (
        (r"(?m)^(  region: )\S+", names["Region"]),
        (r"(AWS_REGION=)\S+", names["Region"]),
        (r"(CTVR_STORE=s3://)[^/\s]+", names["Bucket"]),
        (r"(setup\.sh mount )\S+", f"{names['FileSystem']}.efs.{names['Region']}.amazonaws.com:/"),
        (r"(SecurityGroupIds: )\[[^\]]*\]", f"[{names['SecurityGroup']}]"),
        (r"(SubnetIds: )\[[^\]]*\]", f"[{subnets}]"),
        (r"( Groups: )\[[^\]]*\]", f"[{names['SecurityGroup']}]"),
        (r"(SubnetId: )\S+", names["Subnets"].split(",")[0]),
        (r"(GroupName: )[^}\s]+", names["PlacementGroup"]),
        (r"(ImageId: )\S+", names["Image"]),
        (r"(InstanceType: )p\S+(?= # EDIT)", names["WorkerType"]),
    ):
        text, found = re.subn(pattern, lambda match, value=value: match[1] + value, text)
        if not found:
            raise ValueError(f"the cluster file has no line for {value}: {pattern} is not found in it.")
    return text


if __name__ == "__main__":
    sys.exit(main())
