"""An environment variable of a node is the default of its option."""

import argparse

import pytest

from ctvr.orchestrator.cli.main import main, make_parser
from ctvr.orchestrator.cli.options import add_execution_options, get_execution, split_commas
from tests.refusing import missing_from, refuses


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_execution_options(parser, resources=True)
    return parser.parse_args(list(words))


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch) -> None:
    for name in ("RUNS", "STORE", "VIDEOS", "NODES", "STORAGE", "GPUS_PER_TRIAL"):
        monkeypatch.delenv(f"CTVR_{name}", raising=False)


def test_nodes_and_gpus_of_a_cluster_file_are_defaults(monkeypatch):
    assert (parse().nodes, parse().gpus_per_trial) == (1, None)
    monkeypatch.setenv("CTVR_NODES", "3")
    monkeypatch.setenv("CTVR_GPUS_PER_TRIAL", "0.5")
    assert (parse().nodes, parse().gpus_per_trial) == (3, 0.5)
    assert parse("--gpus-per-trial", "0").gpus_per_trial == 0
    monkeypatch.setenv("CTVR_GPUS_PER_TRIAL", "0")
    assert parse().gpus_per_trial == 0  # trains on CPUs, which is not the same as to say nothing


@pytest.mark.parametrize(("variable", "text"), [("NODES", "2.5"), ("GPUS_PER_TRIAL", "all"), ("GPUS_PER_TRIAL", "-1")])
def test_a_variable_that_is_not_a_number_is_refused_by_its_name(monkeypatch, variable, text):
    monkeypatch.setenv(f"CTVR_{variable}", text)
    with refuses(f"CTVR_{variable}='{text}'"):
        parse()


def test_every_option_of_the_cluster_reaches_the_job():
    words = "--address auto --nodes 2 --local-cpus 3 --storage s3://b/x --workers 4 --cpus-per-worker 0.5"
    words += " --gpus-per-trial 2 --accelerator-type H100 --max-concurrent 5 --runs r --store s --videos v"
    execution = get_execution(parse(*words.split()))
    assert execution.accelerator_type == "H100"
    assert (execution.address, execution.nodes, execution.local_cpus, execution.ray_storage) == (
        "auto",
        2,
        3,
        "s3://b/x",
    )
    assert (execution.workers, execution.cpus_per_worker, execution.gpus_per_trial, execution.max_concurrent) == (
        4,
        0.5,
        2,
        5,
    )
    assert (str(execution.runs), execution.store, str(execution.videos)) == ("r", "s", "v")


def test_words_are_separated_by_commas():
    assert split_commas(" a, b ,,c") == ("a", "b", "c")
    assert split_commas("") == ()


@pytest.mark.parametrize(
    ("words", "folders"),
    [
        ("table", {"runs"}),
        ("runs", {"runs"}),
        ("ui", {"runs"}),
        ("streams", {"runs"}),
        ("runs explain 0123", {"runs", "store"}),
        ("runs sync --rebuild", {"runs", "store"}),
        ("runs publish small", {"runs", "store", "videos"}),
        ("runs verify small.zip", {"runs", "store", "videos"}),
        ("runs compare a b", {"runs"}),
        ("cache", {"runs", "store"}),
        ("cache gc", {"runs", "store"}),
        ("streams check mine", {"runs", "videos"}),
        ("doctor", {"runs", "store", "videos"}),
        ("run", {"runs", "store", "videos"}),
    ],
)
def test_a_command_offers_the_folders_that_it_reads(words, folders):
    given = vars(make_parser().parse_args(words.split()))
    assert {"runs", "store", "videos"} & set(given) == folders


def test_a_folder_that_a_command_does_not_read_is_refused(capsys):
    assert main(["table", "--store", "https://me:hunter2@host/bucket"]) == 2
    said = capsys.readouterr().err
    assert not missing_from(said, "--store", "sweep", "run", "reproduce")
    assert "hunter2" not in said
