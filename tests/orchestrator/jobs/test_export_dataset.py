"""A stream becomes a folder that Hugging Face's `datasets` reads, and the same stream again from that folder."""

import json
import os
from pathlib import Path

import pytest
import yaml

from ctvr.orchestrator.cli.main import main
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs.export_dataset import export_dataset
from ctvr.orchestrator.streams.load import load_stream
from ctvr.orchestrator.streams.stream import iter_items
from tests.refusing import refuses


@pytest.fixture
def exported(small_stream, manifest, runs, tmp_path) -> Path:
    export_dataset(manifest, ExecutionConfig(runs=runs), tmp_path / "out")
    return tmp_path / "out"


def test_the_folder_has_the_form_of_a_video_folder(exported, small_stream):
    """Each split is a folder; its metadata has one line for each file of the folder."""
    head = yaml.safe_load((exported / "README.md").read_text().split("---")[1])
    for named in head["configs"][0]["data_files"]:
        folder = exported / named["path"].removesuffix("/**")
        rows = [json.loads(line) for line in (folder / "metadata.jsonl").read_text().splitlines()]
        assert sorted(row["file_name"] for row in rows) == sorted(
            {p.name for p in folder.iterdir()} - {"metadata.jsonl"}
        )
        assert all(not os.path.isabs(row["file_name"]) and row["captions"] and row["task"] for row in rows)
        assert len({frozenset(row) for row in rows}) == 1  # one schema
    assert small_stream.digest in (exported / "README.md").read_text()
    assert str(exported.parent) not in "".join(p.read_text() for p in exported.rglob("*.json*"))


def test_it_comes_back_as_the_stream_that_it_was(exported, small_stream, runs, capsys):
    assert main(["streams", "import", "hf", str(exported), "--name", "again", "--runs", str(runs)]) == 0
    again = load_stream("again", runs)
    assert (again.digest, again.settings, again.protocol) == (
        small_stream.digest,
        small_stream.settings,
        small_stream.protocol,
    )
    assert [task.name for task in again.tasks] == [task.name for task in small_stream.tasks]
    for (_, _, one), (_, _, other) in zip(iter_items(again), iter_items(small_stream)):
        assert Path(one.path).read_bytes() == Path(other.path).read_bytes()
    assert "written:" in capsys.readouterr().out


def test_segments_of_one_video_have_a_file_each(small_stream, manifest, runs, tmp_path):
    data = json.loads(Path(manifest).read_text())
    items = data["tasks"][0]["train"]
    items[1] |= {"path": items[0]["path"], "segment": [0.5, 1.0]}
    items[0] |= {"segment": [0, 0.5], "video": "a/b:c"}
    data["videos"] = str(Path(manifest).parent / data["videos"])
    (tmp_path / "cut.json").write_text(json.dumps(data))
    export_dataset(str(tmp_path / "cut.json"), ExecutionConfig(runs=runs), tmp_path / "out")
    rows = [json.loads(line) for line in (tmp_path / "out/train/metadata.jsonl").read_text().splitlines()][:2]
    assert [(row["start"], row["end"]) for row in rows] == [(0, 0.5), (0.5, 1.0)]
    assert rows[0]["file_name"] == "a_b_c.mp4" != rows[1]["file_name"]
    assert rows[0]["video_id"] == "a/b:c"


def test_relevant_videos_come_back(manifest, runs, tmp_path):
    data = json.loads(Path(manifest).read_text())
    first, second = data["tasks"][0]["test"][:2]
    first["relevant"] = [[second["video"], first["video"]] for _ in first["captions"]]
    data["videos"] = str(Path(manifest).parent / data["videos"])
    (tmp_path / "many.json").write_text(json.dumps(data))
    export_dataset(str(tmp_path / "many.json"), ExecutionConfig(runs=runs), tmp_path / "many")
    assert main(["streams", "import", "hf", str(tmp_path / "many"), "--name", "again", "--runs", str(runs)]) == 0
    again = {item.video: item for item in load_stream("again", runs).items(0, "test")}
    assert list(map(list, again[first["video"]].relevant)) == first["relevant"]
    assert again[second["video"]].relevant == ()


def test_an_export_that_cannot_be_written_is_one_line(manifest, runs, tmp_path, exported):
    execution = ExecutionConfig(runs=runs)
    with refuses(where="out"):
        export_dataset(manifest, execution, exported)
    data = json.loads(Path(manifest).read_text())
    data["tasks"][0]["train"][0]["path"] = "gone.mp4"
    data["videos"] = str(Path(manifest).parent / data["videos"])
    (tmp_path / "lacks.json").write_text(json.dumps(data))
    with refuses(1, "gone.mp4"):
        export_dataset(str(tmp_path / "lacks.json"), execution, tmp_path / "new")


def test_a_manifest_exports_no_file_but_videos_of_its_own_folder(manifest, runs, tmp_path, capsys):
    """A link, a path out of the folder, a text with a video's name and a video with another name are left out."""
    folder = Path(manifest).parent
    videos = folder / "videos"
    key, stray = tmp_path / "id_rsa", tmp_path / "stray.mp4"
    key.write_text("-----BEGIN OPENSSH PRIVATE KEY-----")
    data = json.loads(Path(manifest).read_text())
    items = [data["tasks"][task][split][0] for task in (0, 1) for split in ("train", "test")]
    stray.write_bytes((videos / items[0]["path"]).read_bytes())
    (videos / "link.mp4").symlink_to(key)
    (videos / "text.mp4").write_text("secret text")
    (videos / "video.txt").write_bytes(stray.read_bytes())
    (videos / "stray.mp4").symlink_to(stray)
    for item, name in zip(items, ("link.mp4", "text.mp4", "video.txt", "stray.mp4")):
        item["path"] = name
    Path(manifest).write_text(json.dumps(data))
    for number, form in enumerate(("--hf", "--files")):
        out = tmp_path / f"out{number}"
        assert main(["streams", "export", manifest, str(out), form, "--runs", str(runs)]) == 0
        said = capsys.readouterr().out
        assert "4 files are left out, for example " in said
        assert f"(outside {folder})" in said
        written = [path.read_bytes() for path in out.rglob("*") if path.is_file()]
        assert not [content for content in written if b"secret" in content or b"PRIVATE" in content]
        assert (
            sum(path.suffix == ".mp4" for path in out.rglob("*"))
            == sum(len(task.get(split, [])) for task in data["tasks"] for split in ("train", "val", "test")) - 4
        )
    (tmp_path / "else").mkdir()
    data["videos"] = str(videos)
    (tmp_path / "else" / "all.json").write_text(json.dumps(data))
    with refuses("--videos", "FOLDER", where="--hf"):
        export_dataset(str(tmp_path / "else" / "all.json"), ExecutionConfig(runs=runs), tmp_path / "new")
    execution = ExecutionConfig(runs=runs, videos=videos)
    said = export_dataset(str(tmp_path / "else" / "all.json"), execution, tmp_path / "named")
    assert "4 files are left out" in said
