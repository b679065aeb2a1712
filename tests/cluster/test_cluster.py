"""The cluster files: Ray's own validator accepts them, strangers have no access, and all names exist.

Nothing here needs a cloud: node settings are checked against EC2's own description of them, which botocore carries.
"""

import copy
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
FILES = [REPOSITORY / "cluster" / f"{name}.yaml" for name in ("a100", "local", "onprem")]
PACKAGES = ("ctvr", "orchestrator", "methods", "search_spaces")
SETUP, SERVICES = (REPOSITORY / "cluster" / f"{name}.sh" for name in ("setup", "services"))

Cluster = dict[str, Any]


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def cluster(request: pytest.FixtureRequest) -> Cluster:
    return yaml.safe_load(request.param.read_text())


def text_of(cluster: Cluster) -> str:
    return next(path for path in FILES if yaml.safe_load(path.read_text()) == cluster).read_text()


def commands(cluster: Cluster, *kinds: str) -> list[str]:
    kinds = kinds or tuple(key for key in cluster if key.endswith("_commands"))
    return [command for kind in kinds for command in cluster.get(kind, [])]


def starts(cluster: Cluster) -> list[str]:
    found = commands(cluster, "head_start_ray_commands", "worker_start_ray_commands")
    return [command for command in found if "ray start" in command]


def validate(cluster: Cluster) -> Cluster:
    from ray.autoscaler._private.util import prepare_config, validate_config

    prepared = prepare_config(copy.deepcopy(cluster))
    validate_config(prepared)
    return prepared


def node_mistakes(cluster: Cluster) -> str:
    """Return the node settings that EC2 would refuse, by its own model of RunInstances; empty if none."""
    import botocore.session
    from botocore.validate import validate_parameters

    shape = botocore.session.get_session().get_service_model("ec2").operation_model("RunInstances").input_shape
    try:
        for kind in cluster["available_node_types"].values():
            given = dict(kind["node_config"])
            if "NetworkInterfaces" not in given:
                given["SubnetId"] = given.pop("SubnetIds")[0]  # Ray takes one after the other
            validate_parameters({**given, "MinCount": 1, "MaxCount": 1}, shape)
    except Exception as error:
        return str(error)
    return ""


def limit_mistakes(cluster: Cluster) -> list[str]:
    """Return node types that request more machines than the whole cluster may have."""
    types = cluster["available_node_types"]
    return [
        name
        for name, kind in types.items()
        if name != cluster["head_node_type"]
        and not kind["min_workers"] <= kind["max_workers"] <= cluster["max_workers"]
    ]


# ------------------------------------------------------------------------------------ is it well formed


def test_ray_accepts_the_file(cluster: Cluster) -> None:
    prepared = validate(cluster)
    assert prepared["head_node_type"] in prepared["available_node_types"]


@pytest.fixture
def a100() -> Cluster:
    return yaml.safe_load((REPOSITORY / "cluster" / "a100.yaml").read_text())


def test_ec2_accepts_every_setting_of_a_node(a100: Cluster) -> None:
    assert node_mistakes(a100) == ""


def test_efa_nodes_share_a_placement_group_and_have_a_public_ip(
    a100: Cluster,
) -> None:
    """AWS gives no public address to a machine with several interfaces, and installation needs the internet."""
    plain, near = (a100["available_node_types"][name] for name in ("a100", "a100-efa"))
    config = near["node_config"]
    assert config["Placement"].keys() == {"GroupName"}
    (interface,) = config["NetworkInterfaces"]
    assert interface["InterfaceType"] == "efa"
    assert interface["AssociatePublicIpAddress"] is True
    same = {"ImageId", "IamInstanceProfile", "MetadataOptions", "BlockDeviceMappings", "InstanceType"}
    assert all(config[key] == plain["node_config"][key] for key in same)
    assert not {"SubnetIds", "SecurityGroupIds"} & config.keys()  # Ray refuses them next to interfaces


def test_no_node_type_exceeds_the_clusters_limit(a100: Cluster) -> None:
    assert limit_mistakes(a100) == []
    a100["available_node_types"]["a100"]["max_workers"] = a100["max_workers"] + 1
    assert limit_mistakes(a100) == ["a100"]


def test_sweep_waits_for_listed_machines_and_keeps_the_cloud_limit(cluster: Cluster) -> None:
    given = dict(re.findall(r"(CTVR_\w+)=(\d+)", " ".join(commands(cluster))))
    if cluster["provider"]["type"] == "local":
        assert int(given["CTVR_NODES"]) == 1 + len(cluster["provider"]["worker_ips"])
        return
    assert 2 <= int(given["CTVR_NODES"]) <= int(given["CTVR_MAX_NODES"]) <= 1 + cluster["max_workers"]
    assert float(given["CTVR_BUDGET_HOURS"]) > 0
    types = cluster["available_node_types"]  # no machine runs unless a sweep requests it
    assert not any(kind.get("min_workers", 0) for name, kind in types.items() if name != cluster["head_node_type"])


# ------------------------------------------------------------------------------- does the project arrive


def test_every_package_is_mounted_where_it_shadows_nothing(cluster: Cluster) -> None:
    mounts = cluster["file_mounts"]
    for package in PACKAGES:
        assert f"~/ctvr_src/{package}" in mounts
        assert not {f"~/{package}", f"/home/{package}"} & {target.rstrip("/") for target in mounts}


def test_every_mounted_file_of_the_project_exists(cluster: Cluster) -> None:
    sources = [source for source in cluster["file_mounts"].values() if not source.startswith("~")]
    missing = [source for source in sources if not (REPOSITORY / source).exists() and source != "README.md"]
    assert sources
    assert not missing


def test_everything_that_the_installation_reads_is_mounted(cluster: Cluster) -> None:
    mounted = {target.removeprefix("~/ctvr_src/") for target in cluster["file_mounts"]}
    assert {*PACKAGES, "pyproject.toml", "constraints.txt", "README.md", "LICENSE", "cluster"} <= mounted


def test_no_mount_carries_results_or_an_environment(cluster: Cluster) -> None:
    assert not {".", "./", "runs", ".venv"} & set(cluster["file_mounts"].values())


def test_every_script_that_is_called_exists_and_parses(cluster: Cluster) -> None:
    called = set(re.findall(r"~/ctvr_src/(\S+\.sh)", " ".join(commands(cluster))))
    assert called == {"cluster/setup.sh", "cluster/services.sh"}
    for script in called:
        assert subprocess.run(["bash", "-n", str(REPOSITORY / script)], check=False).returncode == 0


def test_every_setting_given_to_a_node_is_known_to_the_setup(cluster: Cluster) -> None:
    known = re.search(r'SETTINGS="([^"]+)"', SETUP.read_text())
    assert known
    words = shlex.split(next(command for command in commands(cluster, "setup_commands") if "setup.sh node" in command))
    names = {word.split("=")[0] for word in words if "=" in word}
    assert {"CTVR_STORE", "CTVR_RUNS", "CTVR_NODES", "CTVR_GPUS_PER_TRIAL"} <= names <= set(known[1].split())


def test_processes_do_not_take_all_cores_for_one_worker(cluster: Cluster) -> None:
    assert starts(cluster)
    assert all("OMP_NUM_THREADS=1" in command for command in starts(cluster))


# ------------------------------------------------------------------------------------ is it closed


def test_every_node_demands_and_has_the_token(cluster: Cluster) -> None:
    assert all("RAY_AUTH_MODE=token" in command for command in starts(cluster))
    assert cluster["file_mounts"]["~/.ray/auth_token"] == "~/.ctvr/ray_token"


def test_nothing_listens_on_every_interface(cluster: Cluster) -> None:
    head = next(command for command in starts(cluster) if "--head" in command)
    assert "--dashboard-host=127.0.0.1" in head
    for text in (text_of(cluster), SERVICES.read_text()):
        assert not re.search(r"0\.0\.0\.0|--host[= ]+(::|\*)|--allowed-hosts[= ]+\"?\*", text)


def test_mlflow_wants_a_password_and_answers_to_one_name() -> None:
    text = SERVICES.read_text()
    assert "--app-name basic-auth" in text
    assert '--host "${CTVR_MLFLOW_HOST:-$ADDRESS}"' in text
    assert "default_permission = NO_PERMISSIONS" in text
    assert re.search(r'--allowed-hosts "\$ADDRESS:\$PORT,localhost:\*,127\.0\.0\.1:\*"', text)


@pytest.mark.parametrize("path", [*FILES, SETUP, SERVICES], ids=lambda path: path.name)
def test_no_file_holds_a_secret(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"AKIA[0-9A-Z]{16}|BEGIN [A-Z ]*PRIVATE KEY|gh[pousr]_\w{20}|hf_\w{20}", text)
    assert not re.search(r"(?i)(secret_access_key|password|token|api_key)\s*[=:]\s*['\"]?[A-Za-z0-9+/]{12,}", text)
    assert "AWS_SECRET_ACCESS_KEY" not in text


def test_machines_answer_metadata_to_signed_requests_only(a100: Cluster) -> None:
    for kind in a100["available_node_types"].values():
        assert kind["node_config"]["MetadataOptions"]["HttpTokens"] == "required"


def test_every_start_of_ray_brings_the_node_back_first(cluster: Cluster) -> None:
    for kind in ("head_start_ray_commands", "worker_start_ray_commands"):
        given = cluster[kind]
        assert given[0] == "bash ~/ctvr_src/cluster/setup.sh again"
        assert "ray start" in given[-1]


# ------------------------------------------------------------------------------------ one cluster, two providers


PROVIDER = {  # what only a cloud has, or only a list of machines
    *("cluster_name", "provider", "auth", "max_workers", "head_node_type", "available_node_types"),
}
CLOUD_SETTINGS = {
    *("CTVR_S3_INSTANCE_ROLE", "AWS_REGION", "CTVR_CACHE"),  # keys by the machine's role, its own disk
    *("CTVR_MAX_NODES", "CTVR_BUDGET_HOURS"),  # machines on demand, by the hour
}


def settings_of(cluster: Cluster) -> tuple[str, set[str]]:
    """Return the setup command of a node without its settings, and the names of these."""
    (command,) = (command for command in cluster["setup_commands"] if "setup.sh node" in command)
    words = shlex.split(command)
    return " ".join(w for w in words if "=" not in w), {w.split("=")[0] for w in words if "=" in w}


@pytest.mark.parametrize("other", ["a100", "local"])
def test_clusters_differ_only_in_what_their_provider_demands(other: str) -> None:
    """onprem.yaml was run on several hosts (test_three_hosts.py); the other files equal it except in these lines."""
    run, read = (yaml.safe_load((REPOSITORY / "cluster" / f"{name}.yaml").read_text()) for name in ("onprem", other))
    cloud = other == "a100"
    assert set(run) - PROVIDER == set(read) - PROVIDER
    for key in set(run) - PROVIDER - {"setup_commands", "head_setup_commands"}:
        assert read[key] == run[key], key
    assert settings_of(read)[0] == settings_of(run)[0]
    assert settings_of(read)[1] - settings_of(run)[1] == (CLOUD_SETTINGS if cloud else set())
    assert settings_of(run)[1] <= settings_of(read)[1]
    before = [command for command in read["setup_commands"] if "setup.sh node" not in command]
    assert [" ".join(command.split()[:3]) for command in before] == ["bash ~/ctvr_src/cluster/setup.sh mount"] * cloud
    (installs,), (expected,) = read["head_setup_commands"], run["head_setup_commands"]
    assert installs.split()[:3] == expected.split()[:3]
    assert set(installs.split()[3:]) - set(expected.split()[3:]) == ({"boto3"} if cloud else set())  # starts machines
