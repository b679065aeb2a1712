"""Log records of libraries reach the user only if no error of ours has their text."""

import subprocess
import sys

import pytest

from ctvr.orchestrator.interpreter import child_environment, run_module

CODE = """
import logging
from ctvr.orchestrator.cli.logs import set_up_logging
set_up_logging()
set_up_logging()
import huggingface_hub
logging.error("of open_clip")
for name in ("open_clip.factory", "huggingface_hub.file_download", "urllib3.connectionpool", "transformers.x", "other"):
    logging.getLogger(name).error("of %s", name)
logging.getLogger("ctvr.x").info("ours")
"""


def test_only_unexplained_records_of_libraries_are_shown():
    done = subprocess.run([sys.executable, "-c", CODE], env=child_environment(), capture_output=True, text=True)
    assert done.stderr == "ERROR other: of other\nours\n"


@pytest.mark.slow
def test_weights_that_cannot_be_fetched_are_one_line(few, tmp_path):
    words = ("backbone.name=ViT-B-32", "backbone.weights=laion400m_e32", "--runs", str(tmp_path / "runs"))
    environment = {**child_environment(), "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    command = run_module("ctvr", "run", "clip4clip", few, *words)
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "laion400m_e32" in done.stderr
