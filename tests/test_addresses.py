"""Every place in the sources that opens an address is listed here, with what decides about the address.

A new call that opens an address, or a new use of an address of a record, fails here until it is listed; a listed
function must call the decision that it names. SECURITY.md contains the list: `python -m tests.test_addresses` prints
it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache

import pytest

from tests.test_layers import FILES, ROOT

# Calls that open a connection, or pass an address to a library that does
OPENERS = frozenset(
    (
        *("MlflowClient", "new_client", "S3Store", "urlopen", "build_opener", "urlretrieve", "create_connection"),
        *("hf_hub_download", "snapshot_download", "load_dataset", "from_pretrained", "create_model", "get_tokenizer"),
        *("from_uri", "from_url", "HTTPConnection", "HTTPSConnection", "getaddrinfo", "sendto", "connect"),
    )
)
QUALIFIED = frozenset(
    (
        "os.execve",
        "cluster_address",
        "link_files",
        "ray.init",
        "Store.open",
        "requests.get",
        "requests.post",
        "requests.request",
        "os.link",
    )
)
OF_MLFLOW = (
    "download_artifacts",
    "list_artifacts",
    "log_artifact",
    "log_artifacts",
    "log_text",
    "create_model_version",
)
LOCAL = frozenset(("sqlite3.connect",))  # of a file
FIELDS = frozenset(("artifact_uri", "artifact_location", "storage", "tracking_uri", "address"))  # in records and plans

OPTION = "this command's options and variables"
OURS = "this process's own server, loopback"
CHECKED = "the plan of this process, after `own_places`"
# Function -> the address that it opens or reads, and what decides: a function that it calls, or where it is from
READERS: dict[str, tuple[str, str]] = {
    "orchestrator/tracking/artifacts.py:ArtifactAddresses._recorded": (
        "a run's artifacts (`runs.artifact_uri`)",
        "ArtifactAddresses.of: require",
    ),
    "orchestrator/tracking/mlflow_writer.py:Sender._search_by_client": ("a run's artifacts, unopened", OPTION),
    "orchestrator/tracking/mlflow_writer.py:Sender._log": ("artifacts written", "Sender.send: check_target"),
    "orchestrator/tracking/mlflow_writer.py:Sender.experiment": ("`experiments.artifact_location`", "require"),
    "orchestrator/tracking/mlflow_writer.py:Sender.register": ("source of a registered model", "of"),
    "orchestrator/cli/results.py:_ui": ("every address of a database that MLflow's pages open", "require_all"),
    "orchestrator/tracking/ui_ready.py:answers": ("MLflow's server of `ctvr ui`", OURS),
    "orchestrator/tracking/tracker.py:Tracker.download": ("artifacts read", "of"),
    "orchestrator/tracking/tracker.py:Tracker.has_artifacts": ("artifacts listed", "of"),
    "orchestrator/tracking/mlflow_writer.py:Sender.client": ("MLflow's server", OPTION),
    "orchestrator/tracking/server.py:check": ("MLflow's server", OPTION),
    "orchestrator/tracking/internals.py:connect_once": ("MLflow's database", OPTION),
    "orchestrator/tracking/server.py:create_database": ("a local database", OPTION),
    "orchestrator/tracking/server.py:new_client": ("MLflow's server; redirects are off", OPTION),
    "orchestrator/doctor/records.py:_sweeps": ("MLflow's server", OPTION),
    "orchestrator/doctor/records.py:mlflow": ("MLflow's server", OPTION),
    "orchestrator/doctor/network.py:ray_state": ("`ray_current_cluster`; sends nothing", OPTION),
    "orchestrator/doctor/records.py:open_server": ("MLflow's server, without the password", OPTION),
    "orchestrator/on_ray/callbacks.py:TrialMonitor._close_run": ("MLflow's server", CHECKED),
    "orchestrator/on_ray/callbacks.py:TrialMonitor._store_output": ("MLflow's server", CHECKED),
    "orchestrator/on_ray/worker.py:_Reports.__init__": ("MLflow's server", CHECKED),
    "orchestrator/sweeps/session.py:restore_execution": ("cluster, store, storage, videos of a plan", "require_given"),
    "orchestrator/sweeps/session.py:trial_plan": ("storage of a plan", CHECKED),
    "orchestrator/on_ray/tune.py:_fit": ("storage of a plan", CHECKED),
    "orchestrator/on_ray/tune.py:journal_path": ("storage of a plan", CHECKED),
    "orchestrator/on_ray/trial.py:run_distributed": ("storage of a plan", CHECKED),
    "orchestrator/jobs/rebuild_tracking.py:_store": ("store of a plan", "require_given"),
    "orchestrator/sweeps/committed_tasks.py:list_committed_tasks": ("store of a plan", "read_plan"),
    "orchestrator/on_ray/connection.py:connect": ("`ray_current_cluster` of the temporary folder", "require_own"),
    "orchestrator/on_ray/connection.py:cluster": ("Ray's cluster", "connect"),
    "orchestrator/on_ray/connection.py:_join": ("Ray's cluster", "connect: require_own"),
    "orchestrator/on_ray/connection.py:_start": ("Ray's cluster", OURS),
    "orchestrator/on_ray/connection.py:_await_dashboard": ("Ray's dashboard", OURS),
    "orchestrator/on_ray/ray_paths.py:is_listening": ("Ray's cluster; sends nothing", OPTION),
    "orchestrator/learning/training/pulse.py:Pulse._send": ("other workers of a trial", CHECKED),
    "orchestrator/learning/training/pulse.py:_socket_towards": ("other workers of a trial", CHECKED),
    "orchestrator/sweeps/session.py:check_machine": ("Ray's cluster", OPTION),
    "orchestrator/sweeps/session.py:ray_cluster": ("Ray's cluster", OPTION),
    "orchestrator/jobs/cache.py:build_cache": ("Ray's cluster", OPTION),
    "orchestrator/execution.py:ExecutionConfig.check": ("store", OPTION),
    "orchestrator/store/paths.py:RunPaths.open_store": ("store", OPTION),
    "orchestrator/doctor/run_checks.py:_store": ("store", OPTION),
    "orchestrator/jobs/gpu_probe.py:_temporary_store": ("store", OPTION),
    "orchestrator/jobs/gpu_probe.py:_store_rate": ("store", OPTION),
    "orchestrator/jobs/load_model.py:_make_model": ("a temporary store", OPTION),
    "orchestrator/jobs/step_timing.py:train_on_noise": ("a temporary store", OPTION),
    "orchestrator/store/remote.py:_connect": ("bucket; endpoint and keys of AWS_* variables", OPTION),
    "orchestrator/jobs/export_dataset.py:link_files": ("videos of a manifest", "export_dataset: without_others"),
    "orchestrator/jobs/export_dataset.py:export_dataset": ("videos of a manifest", "without_others"),
    "orchestrator/jobs/export.py:export_stream": ("videos of a manifest", "without_others"),
    "orchestrator/store/local.py:LocalFiles.discard": ("files of the store", OPTION),
    "orchestrator/store/local.py:_link": ("files of the store", OPTION),
    "orchestrator/serving/server.py:bind": ("the address to listen on", OPTION),
    "methods/backbone/load.py:_open_clip": (
        "weights by a tag of open_clip; no address",
        "load_backbone: check_backbone",
    ),
    **dict.fromkeys(
        [
            "orchestrator/exporters/huggingface.py:load_whole",
            "orchestrator/exporters/open_clip_model.py:OpenClip.__init__",
            "orchestrator/exporters/qwen3_vl.py:Qwen3VL.__init__",
            "orchestrator/exporters/transformers_clip.py:DualEncoder.__init__",
        ],
        ("`--model` of a script of `ctvr streams export-script`, which ctvr never runs", OPTION),
    ),
    **dict.fromkeys(
        [
            "methods/backbone/hub.py:_connect",
            "methods/backbone/hub.py:why_unreachable",
            "orchestrator/data/hub_repository.py:fetch_repository",
        ],
        ("the hub of Hugging Face, or the proxy in front of it", OPTION),
    ),
}


def dotted(node: ast.expr) -> str:
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def opens(node: ast.AST, has_records: bool) -> bool:
    """Return whether a node opens an address or reads one from a record."""
    if isinstance(node, ast.Call):
        name = dotted(node.func)
        is_of_mlflow = name.endswith(tuple(f"client.{each}" for each in OF_MLFLOW))
        return name not in LOCAL and (is_of_mlflow or name in QUALIFIED or name.rpartition(".")[2] in OPENERS)
    return has_records and isinstance(node, ast.Attribute) and node.attr in FIELDS and isinstance(node.ctx, ast.Load)


def functions(tree: ast.AST, name: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yield every outer function or method, and the module itself, with its qualified name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from functions(node, f"{name}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{name}{node.name}", node


@cache
def every() -> dict[str, tuple[bool, set[str]]]:
    """Map each function to whether it opens or reads an address, and to the names that it calls."""
    made: dict[str, tuple[bool, set[str]]] = {}
    for file in FILES:
        if file.relative_to(ROOT).parts[0] == "tools" or "sandbox" in file.parts:  # not installed; no network
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        inside = {id(node) for _, function in functions(tree) for node in ast.walk(function)}
        for name, function in [*functions(tree), ("", tree)]:
            nodes = [node for node in ast.walk(function) if name or id(node) not in inside]
            calls = {dotted(node.func).rpartition(".")[2] for node in nodes if isinstance(node, ast.Call)}
            found = any(opens(node, "orchestrator" in file.parts) for node in nodes)
            made[f"{file.relative_to(ROOT)}:{name}"] = found, calls
    return made


def decides(place: str, rule: str) -> bool:
    """Return whether the function at a place calls the decision `[CALLER: ]DECISION`, itself or in its caller."""
    caller, _, decision = rule.rpartition(": ")
    file = place.partition(":")[0]
    return decision in every()[f"{file}:{caller}" if caller else place][1]


def table() -> str:
    """Return the table of SECURITY.md."""
    rows: dict[tuple[str, str], list[str]] = {}
    for place, (address, rule) in READERS.items():
        shown = rule if rule in (OPTION, OURS, CHECKED) else f"`{rule}`"
        rows.setdefault((address, shown), []).append(place.removeprefix("orchestrator/"))
    lines = [
        f"| {address} | {', '.join(f'`{place}`' for place in places)} | {rule} |"
        for (address, rule), places in rows.items()
    ]
    return "\n".join(["| address | opened or read in | decided by |", "|---|---|---|", *lines])


@pytest.mark.slow
def test_every_reader_of_an_address_is_listed():
    assert {place for place, (is_reader, _) in every().items() if is_reader} == set(READERS)


@pytest.mark.parametrize("place", [p for p, (_, rule) in READERS.items() if rule not in (OPTION, OURS, CHECKED)])
def test_a_listed_reader_asks_for_the_decision(place):
    assert decides(place, READERS[place][1])


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("urllib.request.urlopen(saved['url'])", True),
        ("requests.get(manifest.url)", True),
        ("self.client.download_artifacts(run, name)", True),
        ("ray.init(address=plan.cluster)", True),
        ("run.info.artifact_uri", True),
        ("sqlite3.connect(file)", False),
        ("run.artifact_uri = 1", False),
        ("tracker.log_text(run, 'a', 'b')", False),
    ],
)
def test_a_new_reader_would_be_found(code, found):
    assert any(opens(node, True) for node in ast.walk(ast.parse(code))) is found


def test_the_page_on_security_has_the_table():
    assert table() in (ROOT / "SECURITY.md").read_text(encoding="utf-8"), "python -m tests.test_addresses prints it"


if __name__ == "__main__":
    sys.stdout.write(f"{table()}\n")
