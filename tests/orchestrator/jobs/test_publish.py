"""`ctvr runs publish` writes what the commits contain; `ctvr runs verify` reproduces it, and finds forgeries."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from ctvr.orchestrator.bundles.bundle import Bundle, read_bundle, to_bytes
from ctvr.orchestrator.bundles.check import seal
from ctvr.orchestrator.bundles.signature import sign, signature_of, signer_of
from ctvr.orchestrator.cli.main import main
from ctvr.orchestrator.errors import UntrustedCode
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs.load_model import load_task
from ctvr.orchestrator.jobs.publish import publish
from ctvr.orchestrator.jobs.run import run
from ctvr.orchestrator.jobs.verify import CONFIRMED, INCONSISTENT, ONLY_CONSISTENT, verify
from ctvr.orchestrator.output_dir import runs_option
from ctvr.orchestrator.sweeps.table import made_tables
from tests.orchestrator.bundles.plantings import FORGED, OPEN, drawn, plant
from tests.orchestrator.bundles.small_bundle import copy_of, make_bundle
from tests.refusing import missing_from, refuses
from tests.small_stream import write_stream

ALL = 10**6  # more queries than there are, so that each is drawn


@pytest.fixture(scope="module")
def execution(tmp_path_factory: pytest.TempPathFactory) -> ExecutionConfig:
    """Return a runs folder with two seeds of a method that learns."""
    root = tmp_path_factory.mktemp("published")
    found, manifest = ExecutionConfig(runs=root / "runs"), write_stream(root / "small")
    for seed in ("0", "1"):
        settings = {"method": "clip4clip", "stream": str(manifest), "seed": seed, "method.lr": "1e-4"}
        run(settings, (), found)
    return found


@pytest.fixture(scope="module")
def bundle(execution: ExecutionConfig) -> Bundle:
    publish("small", execution)
    return read_bundle(execution.runs / "bundles" / "small.zip")


def check(bundle: Bundle, execution: ExecutionConfig, folder: Path, queries: int) -> tuple[str, int]:
    (folder / "b.zip").write_bytes(to_bytes(bundle))
    return verify(folder / "b.zip", execution, queries)


@pytest.mark.slow
def test_a_bundle_has_the_values_of_the_table_and_no_path_user_or_video_file(execution, bundle):
    (row,) = made_tables(execution, stream="small")[0].rows
    (stated,) = bundle.about["table"]
    for key, (mean, _) in stated["cells"].items():
        assert mean == pytest.approx(row.values[key].mean)
    assert {"r1", "r5", "r10", "medr", "meanr", "bwf", "params_m"} <= set(stated["cells"])
    for one, record in zip(bundle.about["runs"], execution.existing_tracker().find_runs()):
        assert one["id"] == record.run_id
        assert one["made_of"]["stream"] == record.tags["ctvr.stream_digest"]
        assert re.fullmatch(r"small\.json#[0-9a-f]{6}", one["settings"]["stream"])
    text = str(dict(bundle.about))
    assert str(execution.runs.parent) not in text
    assert "mp4" not in text
    assert "captions" not in bundle.about
    first = (execution.runs / "bundles" / "small.zip").read_bytes()
    publish("small", execution)
    assert (execution.runs / "bundles" / "small.zip").read_bytes() == first


@pytest.mark.slow
def test_own_ranks_are_those_among_the_videos_of_a_task(bundle):
    tasks = bundle.tasks_of(0)
    assert np.array_equal(bundle.ranks["own"][:, :, 0], bundle.ranks["all"][:, :, 0])  # one task: the same gallery
    assert (bundle.ranks["own"] <= bundle.ranks["all"]).all()
    assert bundle.ranks["own"][:, 0, -1].max() < 3 <= bundle.ranks["all"][:, 0, -1].max()
    assert [int((tasks == task).sum()) for task in range(3)] == [3, 3, 3]


@pytest.mark.slow
def test_a_refused_key_or_parquet_file_leaves_no_bundle(execution, bundle, tmp_path):
    name = bundle.about["runs"][0]["name"]
    with refuses(where=f"--sign {tmp_path / 'gone'}", remedy=True):
        publish(name, execution, tmp_path / "b.zip", key=tmp_path / "gone")
    with refuses(str(tmp_path)):
        publish(name, execution, tmp_path / "b.zip", parquet=tmp_path)
    assert not list(tmp_path.glob("b.zip*"))


def test_a_run_is_published_by_name_with_captions_and_as_parquet(execution, bundle, tmp_path):
    name = bundle.about["runs"][1]["name"]
    text = publish(name, execution, tmp_path / "b.zip", captions=True, parquet=tmp_path / "r.parquet")
    one = read_bundle(tmp_path / "b.zip")
    assert [each["name"] for each in one.about["runs"]] == [name]
    assert one.about["captions"][one.about["queries"].index("red_test_0#0")] == "a red circle on the test"
    assert not missing_from(text, "r.parquet", "b.zip", one.about["digest"][:12])
    assert verify(tmp_path / "b.zip", execution, ALL)[1] == CONFIRMED


@pytest.mark.slow
def test_all_ranks_are_reproduced_where_weights_are_kept(execution, bundle, tmp_path):
    text, status = check(bundle, execution, tmp_path, ALL)
    assert status == CONFIRMED
    assert not missing_from(text, "30 of 30", "2 of 2 runs", "after task 1")  # 6 and 9 queries of two runs


@pytest.mark.slow
@pytest.mark.parametrize("name", drawn(FORGED))
def test_a_drawn_forgery_is_consistent_and_found_by_reproduction(execution, bundle, name, tmp_path):
    forged = plant(bundle, name)
    text, status = check(forged, execution, tmp_path, 0)
    assert status == CONFIRMED
    assert "Invented ranks can be consistent" in text
    text, status = check(forged, execution, tmp_path, ALL)
    assert (status, "reproduced: no" in text) == (ONLY_CONSISTENT, True), text


@pytest.mark.slow
def test_the_other_forgeries_of_the_list_are_found_too(execution, bundle, tmp_path):
    others = [name for name in FORGED if name not in drawn(FORGED)]
    found = {name: check(plant(bundle, name), execution, tmp_path, ALL)[1] for name in others}
    assert found == dict.fromkeys(others, ONLY_CONSISTENT)


@pytest.mark.slow
def test_a_bundle_of_other_runs_is_not_reproduced_and_says_why(execution, bundle, tmp_path):
    about, ranks = copy_of(bundle)
    for each in about["runs"]:
        each.update(id=each["id"][::-1], key="")
    text, status = check(seal(about, ranks), execution, tmp_path, 5)
    assert status == ONLY_CONSISTENT
    assert not missing_from(text.splitlines()[1], about["runs"][0]["name"])


@pytest.mark.slow
def test_a_run_repeated_elsewhere_reproduces_a_bundle_by_its_key(execution, bundle, tmp_path):
    about, ranks = copy_of(bundle)
    for each in about["runs"]:
        each.update(id=each["id"][::-1])
    assert check(seal(about, ranks), execution, tmp_path, ALL)[1] == CONFIRMED


@pytest.mark.slow
def test_a_run_that_cannot_be_loaded_is_not_tried_and_the_bundle_is_consistent(
    execution, bundle, tmp_path, monkeypatch
):
    def load(run, *arguments):
        if run.name in refused:
            raise UntrustedCode("mine:Mine", f"run {run.name}")
        return load_task(run, *arguments)

    monkeypatch.setattr("ctvr.orchestrator.jobs.load_model.load_task", load)
    names, refused = [run["name"] for run in bundle.about["runs"]], list[str]()
    for name, said in zip(names, ("15 of 15", "not tried")):
        refused.append(name)
        text, status = check(bundle, execution, tmp_path, ALL)
        assert status == ONLY_CONSISTENT
        assert "consistent: yes" in text
        assert not missing_from(text, said, "--trust mine:Mine", names[0])


@pytest.mark.slow
def test_the_printed_check_has_the_folders_and_trusted_classes(execution, tmp_path, monkeypatch):
    monkeypatch.setattr("ctvr.orchestrator.jobs.publish.trust_text", lambda: " --trust mine:Mine")
    store = str(execution.runs / "store")
    elsewhere = ExecutionConfig(runs=execution.runs, store=store)
    following = publish("small", elsewhere, tmp_path / "b.zip").splitlines()[-1]
    assert not missing_from(following, f"--runs {execution.runs}", f"--store {store}", "--trust mine:Mine")

    assert runs_option(Path("my runs")) == " --runs 'my runs'"


@pytest.mark.slow
def test_more_ranks_than_a_bundle_may_have_are_not_published(execution, tmp_path, monkeypatch):
    monkeypatch.setattr("ctvr.orchestrator.bundles.bundle.MOST_LAST", 17)  # two runs of nine queries
    with refuses("9 queries", where="bundle small", remedy=True):
        publish("small", execution, tmp_path / "b.zip")


@pytest.mark.slow
def test_without_the_commits_nothing_is_published(execution, tmp_path):
    shutil.copytree(execution.runs, tmp_path / "runs")
    shutil.rmtree(tmp_path / "runs" / "store" / "commits")
    (tmp_path / "runs" / "store" / "commits").mkdir()
    with refuses(where="small", remedy=True):
        publish("small", ExecutionConfig(runs=tmp_path / "runs"))


def test_the_status_of_the_command_tells_the_verdicts_apart(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, made in (("good", make_bundle()), ("bad", plant(make_bundle(), next(iter(OPEN))))):
        (tmp_path / f"{name}.zip").write_bytes(to_bytes(made))
    (tmp_path / "damaged.zip").write_bytes(b"PK")
    assert main(["runs", "verify", "good.zip", "--queries", "0"]) == CONFIRMED == 0
    assert main(["runs", "verify", "good.zip"]) == ONLY_CONSISTENT == 1
    assert not missing_from(capsys.readouterr().out.splitlines()[-1], "runs", "has no runs")
    assert main(["runs", "verify", "bad.zip"]) == INCONSISTENT == 2
    assert "consistent: no" in capsys.readouterr().out
    assert main(["runs", "verify", "damaged.zip"]) == INCONSISTENT
    assert main(["runs", "verify", "good.zip", "--queries", "-1"]) == 2
    assert "--queries -1" in capsys.readouterr().err


def sign_as(file: Path, key: Path) -> None:
    signature_of(file).write_bytes(sign(file.read_bytes(), file.name, key))


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="ssh-keygen is not installed")
def test_a_signature_names_its_signer_and_is_of_one_file_only(tmp_path):
    for name in ("mine", "other"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)]
        subprocess.run(words, check=True)
    file, signers = tmp_path / "b.zip", tmp_path / "signers"
    file.write_bytes(to_bytes(make_bundle()))
    signers.write_text(f"me@example.org {(tmp_path / 'mine.pub').read_text()}")
    with refuses(where=f"--signers {signers}", remedy=True):  # not signed yet
        signer_of(file, signers)
    sign_as(file, tmp_path / "mine")
    sign_as(file, tmp_path / "mine")  # again, without a question
    assert signer_of(file, signers) == "me@example.org"
    text, status = verify(file, ExecutionConfig(runs=tmp_path), 0, signers)
    assert (text.splitlines()[0], status) == ("signed: yes, by me@example.org", CONFIRMED)
    file.write_bytes(file.read_bytes() + b"x")
    with refuses(where=f"--signers {signers}", remedy=True):
        signer_of(file, signers)
    sign_as(file, tmp_path / "other")
    with refuses(where=f"--signers {signers}", remedy=True):
        signer_of(file, signers)


def test_a_missing_ssh_keygen_is_reported_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with refuses("ssh-keygen", where=f"--sign {tmp_path / 'key'}", remedy=True):
        sign(b"", "b.zip", tmp_path / "key")
