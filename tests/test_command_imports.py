"""Interactive commands import none of the slow libraries that their answer does not need."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ctvr.orchestrator.digests import identity_of, is_settled
from tests.small_stream import write_stream

ROOT = Path(__file__).resolve().parent.parent
SLOW = ("torch", "torch._dynamo", "torchvision", "open_clip", "ray", "mlflow", "sqlalchemy", "pandas", "scipy")
SLOW += ("scipy.optimize", "av", "matplotlib", "optuna", "fastapi", "uvicorn")
# Command -> the libraries among SLOW that it may import when it is given for the second time
MAY = {
    "guide": "",
    "--help": "",
    "serve --help": "",
    "methods": "",
    "run": "",
    "table": "scipy",  # the intervals
    "report": "scipy",
    "runs": "",
    "runs show": "",
    "runs publish": "scipy",
    "runs verify": "scipy",  # without a reproduction
    "runs compare": "scipy",
    "streams check": "",
    "streams export-script": "",
    "runs explain": "torch",  # whether the key is the same today
    "search": "torch open_clip torchvision",
}
CODE = """
import json, sys
from ctvr.orchestrator.cli.main import main
sys.argv = ["ctvr", *json.loads(sys.argv[1])]
try:
    status = main()
except SystemExit as end:
    status = end.code
print("loaded:" + json.dumps([status or 0, [name for name in json.loads(sys.argv[-1]) if name in sys.modules]]))
"""


def given(folder: Path, words: list[str]) -> list[str]:
    """Give a command in `folder`; return the slow libraries that it imported."""
    code = CODE.replace("sys.argv[-1]", repr(json.dumps(SLOW)))
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(words)],
        cwd=folder,
        env={**os.environ, "CTVR_CACHE": str(folder / "cache"), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    last = [line for line in done.stdout.splitlines() if line.startswith("loaded:")]
    assert done.returncode == 0, done.stderr
    assert last, done.stderr
    status, loaded = json.loads(last[0].removeprefix("loaded:"))
    assert status == 0, done.stderr
    return list(loaded)


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Return the words of every command, in a folder where two of them were given before."""
    folder = tmp_path_factory.mktemp("commands")
    manifest = write_stream(folder / "small", num_tasks=2)
    # A run does not store its key for videos of the last two seconds, which may change without a change of their times
    while not all(is_settled(identity_of(file.stat())) for file in manifest.parent.rglob("*.mp4")):
        time.sleep(0.1)
    tiny = ["backbone.name=tiny-clip", "backbone.weights=shipped", "data.num_frames=2"]
    made = {
        "guide": [],
        "--help": ["--help"],
        "serve --help": ["serve", "--help"],
        "methods": ["methods"],
        "run": ["run", "--method", "zero_shot", "--stream", str(manifest), *tiny],
        "table": ["table", "--stream", "small"],
        "report": ["report", "small"],
        "search": ["search", "a red circle", "--model", "zero_shot"],
        "runs": ["runs"],
        "streams check": ["streams", "check", str(manifest)],
        "streams export-script": ["streams", "export-script", "open-clip"],
        "runs show": ["runs", "show", "zero_shot"],
        "runs publish": ["runs", "publish", "small"],
        "runs verify": ["runs", "verify", "runs/bundles/small.zip", "--queries", "0"],
        "runs compare": ["runs", "compare", "runs/bundles/small.zip", "zero_shot"],
    }
    first = {name: given(folder, made[name]) for name in ("run", "table", "report", "runs publish")}
    (key,) = (each.name for each in (folder / "runs" / "store" / "commits").iterdir() if not each.name.startswith("z"))
    return {
        **made,
        "runs explain": ["runs", "explain", key],
        "folder": [str(folder)],
        **{f"first {name}": first[name] for name in first},
    }


@pytest.mark.slow
@pytest.mark.parametrize("command", MAY)
def test_a_command_imports_only_what_it_needs(words, command):
    assert set(given(Path(words["folder"][0]), words[command])) <= set(MAY[command].split())


@pytest.mark.slow
def test_the_first_table_after_a_run_needs_no_torch_and_the_first_report_a_model_at_most(words):
    """A run computes the values for which a table needs torch, and figures are drawn when they are requested."""
    assert set(words["first table"]) <= {"scipy"}
    assert set(words["first report"]) <= {"scipy", *MAY["search"].split()}
