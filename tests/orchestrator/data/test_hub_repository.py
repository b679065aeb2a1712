"""Models and feature sets come back from the Hub as they were exported; hostile repositories are refused."""

import json
import logging
import socket
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.torch import save

import ctvr
from ctvr.orchestrator.cli.main import main
from ctvr.orchestrator.data.hub_repository import LARGEST, fetch_repository, is_repository
from ctvr.orchestrator.importers.features import import_features
from ctvr.orchestrator.streams.load import load_stream
from tests.feature_stream import write_features
from tests.hub_server import Hub, use_hub
from tests.refusing import refused, refuses


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Iterator[Hub]:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with Hub() as made:
        use_hub(made, tmp_path / "cache", monkeypatch)
        yield made
        made.shutdown()


def downloads(hub: Hub) -> list[str]:
    return [words for words in hub.asked if "/resolve/" in words]


MODEL = {"model.json": b"{}", "model.safetensors": save({})}


@pytest.mark.parametrize("name", ["owner/name@main", "o-1/a.b@v1.0", "o/n@refs/pr/1", "O/n@0123456789abcdef"])
def test_a_name_with_owner_and_revision_is_a_repository(name):
    assert is_repository(name)


@pytest.mark.parametrize("name", ["owner/name", "./owner/name@main", "/owner/name@main", "a/b/c@main", "o/n@../x", "@"])
def test_other_names_are_no_repository(name):
    assert not is_repository(name)


def test_a_branch_is_resolved_to_its_newest_commit_and_a_commit_stays(hub, caplog):
    caplog.set_level(logging.INFO)
    first = hub.upload(MODEL)
    second = hub.upload({**MODEL, "model.json": b"[]", "other.bin": b"a pickle"})
    newest, pinned = (fetch_repository(f"owner/name@{revision}", "model") for revision in ("main", first))
    assert (newest.name, pinned.name) == (second, first)
    assert [(each / "model.json").read_bytes() for each in (newest, pinned)] == [b"[]", b"{}"]
    assert second in caplog.text
    assert not [words for words in hub.asked if "other.bin" in words]


def test_the_cache_is_used_offline_and_a_missing_one_is_reported(hub, monkeypatch):
    commit = hub.upload(MODEL)
    online = fetch_repository("owner/name@main", "model")
    hub.asked.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetch_repository("owner/name@main", "model") == online
    assert fetch_repository(f"owner/name@{commit}", "model") == online
    refused(lambda: fetch_repository("owner/other@main", "model"), "HF_HUB_OFFLINE", where="owner/other@main")
    assert hub.asked == []


@pytest.mark.parametrize("file", list(MODEL))
def test_a_changed_or_missing_file_of_the_cache_is_refused_offline(hub, monkeypatch, file):
    hub.upload(MODEL)
    folder = fetch_repository("owner/name@main", "model")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (folder / file).resolve().write_bytes(b"changed")
    refused(lambda: fetch_repository("owner/name@main", "model"), f"{file} differs", where="owner/name@main")


def test_a_local_folder_takes_precedence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert is_repository("models/best@v1")
    (tmp_path / "models/best@v1").mkdir(parents=True)
    assert not is_repository("models/best@v1")


def test_a_hub_that_cannot_be_reached_is_one_line(hub, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    refused(lambda: fetch_repository("owner/name@main", "model"), "127.0.0.1", where="owner/name@main", remedy=True)


def test_an_unknown_repository_or_revision_is_one_line(hub):
    refused(lambda: fetch_repository("owner/name@main", "model"), "404", where="owner/name@main", remedy=True)


def test_a_repository_above_the_limit_is_refused_before_a_download(hub):
    hub.upload(MODEL)
    hub.sizes["model.safetensors"] = LARGEST + 1
    refused(lambda: fetch_repository("owner/name@main", "model"), "GB", where="owner/name@main", remedy=True)
    assert not downloads(hub)


@pytest.mark.slow
def test_a_model_from_the_hub_has_the_scores_of_the_exported_run(hub, learned, tmp_path, capsys):
    runs = ["--runs", str(learned)]
    assert main(["export", "hf", str(tmp_path / "model"), "--model", "framefusion_moe", *runs]) == 0
    commit = hub.upload(tmp_path / "model")
    videos, texts = learned / "small" / "videos", ["a red star on the test", "the circle is green"]
    found = ctvr.load("owner/name@main", runs=tmp_path / "none")
    assert Path(found.name).name == commit
    ours = ctvr.load("framefusion_moe", runs=learned)
    hits = [
        [(hit.video, hit.score) for each in model.search(texts, 5, videos) for hit in each] for model in (ours, found)
    ]
    assert hits[0] == hits[1]
    capsys.readouterr()
    words = ["--model", f"owner/name@{commit}", "--gallery", str(videos), "--runs", str(tmp_path / "runs")]
    assert main(["search", texts[0], *words]) == 0
    assert hits[0][0][0] in capsys.readouterr().out


@pytest.mark.parametrize(("text", "dtype"), [(48, np.float32), (20, np.float16)])
def test_a_feature_set_from_the_hub_is_the_exported_stream(hub, tmp_path, capsys, caplog, text, dtype):
    write_features(tmp_path, text=text)
    np.savez(
        tmp_path / "typed.npz", **{key: each.astype(dtype) for key, each in np.load(tmp_path / "videos.npz").items()}
    )
    parts = (tmp_path / "table.csv", tmp_path / "typed.npz", tmp_path / "texts.npy")
    import_features(*parts, tmp_path / "runs/streams/mine.json", "mine")
    stream = load_stream("mine", tmp_path / "runs")
    folder = Path(stream.tasks[0].train[0].path).parent
    (folder / "features.yaml").write_text("embedder: org/a\nnormalisation: none\n")
    out, runs = tmp_path / "out", ["--runs", str(tmp_path / "runs")]
    assert main(["streams", "export", "mine", str(out), "--features", "--form", "parquet", *runs]) == 0
    commit = hub.upload(out)
    capsys.readouterr()
    elsewhere = ["--name", "mine", "--runs", str(tmp_path / "other")]
    assert main(["streams", "import", "features", "owner/name@main", *elsewhere]) == 0
    assert commit in caplog.text
    assert "org/a" in capsys.readouterr().out
    again = load_stream("mine", tmp_path / "other")
    assert again.digest == stream.digest
    assert main(["streams", "import", "features", str(out), "--name", "local", *elsewhere[2:]]) == 0
    assert load_stream("local", tmp_path / "other").digest == stream.digest


def parquet(rows: int = 1, groups: int = 1, **columns: object) -> bytes:
    """Return a file of `groups` equal groups of rows."""
    file, table = BytesIO(), pa.table({name: [value] * rows for name, value in columns.items()})
    with pq.ParquetWriter(file, table.schema) as writer:
        for _ in range(groups):
            writer.write_table(table)
    return file.getvalue()


TABLE = {"table.csv": b"video,caption,split,task\na,a cat,train,1\nb,a dog,test,1\n"}
WITH_CLASS = {"settings": {"method": "evil_on_the_hub:Method"}, "tasks": []}
LYING = b'{"a":{"dtype":"F32","shape":[1000000000],"data_offsets":[0,4000000000]}}'
AUTO_MAP = json.dumps({"auto_map": {"AutoModel": "evil_on_the_hub.Method"}}).encode()
# Kind of attack -> files of the repository, attributes of the stand-in, and what the error names
HOSTILE: dict[str, tuple[dict[str, bytes], dict[str, object], str]] = {
    "a pickle as weights": ({"model.json": b"{}", "pytorch_model.bin": b"\x80\x04."}, {}, "model.safetensors"),
    "a lying header": (
        {"model.json": b'{"settings": {}, "tasks": []}', "model.safetensors": len(LYING).to_bytes(8, "little") + LYING},
        {},
        "damaged",
    ),
    "a path outside": (MODEL, {"also": ["../../evil.json"]}, "../../evil.json"),
    "an absolute path": (MODEL, {"also": ["/tmp/evil.json"]}, "/tmp/evil.json"),
    "a link": ({**MODEL, "model.json": b"../../../../etc/passwd"}, {}, "model.json"),
    "a larger file": (MODEL, {"sizes": {"model.safetensors": 4}}, "model.safetensors"),
    "a class": ({**MODEL, "model.json": json.dumps(WITH_CLASS).encode()}, {}, "evil_on_the_hub:Method"),
    "remote code": (
        {"config.json": AUTO_MAP, "evil_on_the_hub.py": b"", "model.safetensors": save({})},
        {},
        "model.json",
    ),
    "a moving revision": (MODEL, {"moves": True}, "model.json"),
    "another schema": ({**TABLE, "features.parquet": parquet(id="a", vector=[0.0])}, {}, "name"),
    "many rows": (
        {**TABLE, "features.parquet": parquet(1000, 40, name="a", features=[0.0] * 1000)},
        {},
        "features.parquet",
    ),
}


@pytest.mark.parametrize("attack", HOSTILE)
def test_a_hostile_repository_is_refused_in_one_line(hub, tmp_path, monkeypatch, capsys, attack):
    files, attributes, named = HOSTILE[attack]
    (tmp_path / "evil_on_the_hub.py").write_text("raise SystemExit('executed')")
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"owner/name@{hub.upload(files)}"
    for key, value in attributes.items():
        setattr(hub, key, value)
    if attack == "a moving revision":
        hub.upload({**MODEL, "model.json": b"[1]"})
    if "table.csv" in files:
        words = ["streams", "import", "features", name, "--name", "evil", "--runs", str(tmp_path / "runs")]
        assert main(words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert named in line
        assert not list((tmp_path / "runs").rglob("*evil*"))
    else:
        with refuses(named):
            ctvr.load(name, runs=tmp_path / "runs")
    assert "evil_on_the_hub" not in sys.modules
    assert not list(tmp_path.rglob("evil.json"))
    assert not [words for words in hub.asked if "evil" in words or words.endswith(".bin")]
