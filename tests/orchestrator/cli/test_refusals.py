"""A refused command creates nothing: no runs folder, store, database, rendered video or output."""

import argparse
from collections.abc import Iterator

import pytest

from ctvr.orchestrator.cli.main import main, make_parser
from tests.orchestrator.cli.test_mistakes import MISTAKES

RUN = "run clip4clip shapes-5"
SWEEP = "sweep clip4clip shapes-5"
# With MISTAKES of test_main.py every command is refused
REFUSED = [
    "run umt_qa shapes-5",
    "run lwf shapes-5 method.base=nope",
    "run clip4clip shapes-5_blurry0",
    "run clip4clip shapes-5_chunks0",
    "run clip4clip shapes-5_drift65",
    "run clip4clip worlds-5_nope3",
    f"{RUN} method.lr=-1",
    f"{RUN} method.nope=1 --runs a/b",
    f"{RUN} data.num_frames=0 --store frames",
    f"{RUN} data.num_frames=0 --store file:///nosuch/frames",
    f"{RUN} tracking.mirror=nope",
    f"{RUN} evaluation.split=nope",
    f"{RUN} evaluation.also=nope",
    f"{RUN} evaluation.distractors=3 evaluation.distractors_from=shapes-images",
    f"{RUN} --preset nope",
    f"{RUN} --videos none",
    f"{RUN} --runs /proc/none",
    f"{RUN} --store gopher://x",
    f"{RUN} --trust nope",
    f"{RUN} --runs=~nosuchuser/runs",
    f"{RUN} --store s3:/bucket",
    f"{SWEEP} --storage s3:/bucket",
    f"{SWEEP} --address ray:/host",
    f"{SWEEP} --address local --accelerator-type 4090",
    "sweep --preset structalign-table3 --stream nope",
    f"{SWEEP} evaluation.also=nope",
    f"{SWEEP} --space method.lr=1,,2",
    f"{SWEEP} --vary method.lr=-1",
    f"{SWEEP} --vary evaluation.also=nope",
    "reproduce nope",
    "reproduce structalign/table3 --stream nope",
    "reproduce claims --only nope",
    "runs --stream nope",
    "runs show nope",
    "runs rm nope",
    "runs sync --rebuild",
    "runs publish nope",
    "runs verify nope",
    "runs compare nope nope",
    "search red --model ./none",
    "serve --model nope",
    "serve --model ./none --port 99999",
    "plot gates nope",
    "streams frames nope",
    "migrate nope none.npz",
    "migrate nope none.npz --sample 1",
    "report nope --html page.pdf",
    "report nope --figures slides",
    "plot gates nope --out gates.svg",
    "search red --model nope --html page",
    "export hf out --model nope",
    "streams import csv table=none.csv --videos . --name x",
    "streams import features table=none features=none --name x",
    "streams import nope x=y",
    "streams check shapes-5 --features nope",
    "streams canaries /dev/null",
    "streams export out nope",
    "streams export-script nope",
    "cache build nope",
    "cache build shapes-5 data.num_frames=0",
    "cache gc",
    "cache weights ViT-B-99",
    "demo --store gopher://x",
    "methods new 1x",
    "methods check nope",
    "doctor --store gopher://x",
    "runs sync",
]


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path, monkeypatch):
    for name in ("CTVR_RUNS", "CTVR_STORE", "CTVR_VIDEOS", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("line", REFUSED)
def test_a_refused_command_creates_nothing(tmp_path, capsys, line):
    try:
        status = main(line.split())
    except SystemExit as end:
        status = int(end.code or 0)
    assert status in (1, 2)
    assert "Traceback" not in capsys.readouterr().err
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == []


def _commands(parser: argparse.ArgumentParser, words: tuple[str, ...] = ()) -> Iterator[str]:
    nested = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not nested:
        yield " ".join(words)
    for action in nested:
        for name, choice in action.choices.items():
            yield from _commands(choice, (*words, name))


def test_every_command_is_refused_once():
    lines = [*REFUSED, *(" ".join(words) for words, _ in MISTAKES)]
    assert [
        name for name in _commands(make_parser()) if not any(f"{each} ".startswith(f"{name} ") for each in lines)
    ] == []
