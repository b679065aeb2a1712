"""The first command of a new user, on the whole embedded stream: rendered, trained, reported, searched."""

import json
import re
from pathlib import Path

import pytest

from ctvr.orchestrator.cli.main import main
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs.load_model import load
from ctvr.orchestrator.streams.stream import iter_items
from tests.test_commands import DOCUMENTS, ROOT

OF_DOCUMENTS = re.compile(r"""ctvr search (['"])([^'"]+)\1 --model clip4clip""")


def documented_queries() -> set[str]:
    texts = ((ROOT / name).read_text(encoding="utf-8") for name in DOCUMENTS)
    return {query for text in texts for _, query in OF_DOCUMENTS.findall(text)}


@pytest.mark.slow
def test_the_demo_renders_learns_and_reports_and_its_example_queries_have_answers(tmp_path: Path, capsys):
    runs = tmp_path / "runs"
    assert main(["demo", "--runs", str(runs)]) == 0
    shown = capsys.readouterr().out
    assert [float(found) for found in re.findall(r"R@1 (\S+)", shown)] == pytest.approx([19.17, 20.42], abs=1.5)
    (place,) = re.findall("^report: file://(.*)$", shown, re.MULTILINE)
    assert all(method in Path(place).read_text(encoding="utf-8") for method in ("clip4clip", "er_ring"))

    (digest,) = runs.rglob("shapes-v1-seed0/digest.json")
    assert json.loads(digest.read_text())["digest"][:16] == "d6c7363fb9b59833", "rendered as everywhere"
    execution = ExecutionConfig(runs=runs)
    (query,) = re.findall("ctvr search '(.*)' --model", shown)
    asked = [("er_ring", query), *(("clip4clip", text) for text in documented_queries())]
    assert len(asked) > 1
    for name, text in asked:
        model = load(name, execution)
        assert model.stream is not None
        owner = {caption: item.video for _, _, item in iter_items(model.stream) for caption in item.captions}
        assert owner[text] in [hit.video for hit in model.search(text, 3)], text
