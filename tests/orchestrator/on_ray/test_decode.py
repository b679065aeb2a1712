"""Decoding as a Ray Data job: the frames are those of a single machine, and every broken video is named."""

import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import ray

from ctvr.orchestrator.data.config import DataConfig
from ctvr.orchestrator.data.frames import FrameSource
from ctvr.orchestrator.errors import ConfigError, StoreError
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs.cache import build_cache
from ctvr.orchestrator.on_ray import decode
from ctvr.orchestrator.on_ray.decode import decode_on_cluster, decode_on_nodes
from ctvr.orchestrator.store.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("two_cpus")]


@pytest.fixture
def items(small_stream):
    return [item for task in range(3) for split in ("train", "val", "test") for item in small_stream.items(task, split)]


def source_in(folder: Path) -> FrameSource:
    return FrameSource(Store.open(folder), DataConfig(num_frames=3), 64)


def test_nodes_decode_the_same_frames_as_one_machine(items, tmp_path):
    here, there = source_in(tmp_path / "here"), source_in(tmp_path / "there")
    done: list[int] = []
    assert decode_on_nodes(there, items, progress=done.append) == (30, [])
    assert sum(done) == 30
    here.decode_missing(items[:4])
    for item in items[:4]:
        np.testing.assert_array_equal(there.store.get("frames", here.key(item))["frames"], here.load(item))
    assert there.store.list("frames") == sorted(there.key(item) for item in items)
    assert not there.store.list("uses")  # the check of the nodes left nothing


def test_a_build_on_the_cluster_names_broken_videos_and_resumes(runs, manifest, monkeypatch):
    video = Path(manifest).parent / "videos" / "red_train_0.mp4"
    kept = video.read_bytes()
    video.write_bytes(b"no video at all")
    execution = ExecutionConfig(runs=runs, address="local")
    with pytest.raises(ConfigError) as caught:
        build_cache(manifest, {"data.num_frames": "3"}, execution)
    first, broken = str(caught.value).splitlines()
    assert first == "stream small: 29 videos decoded, 0 were in the store, 1 cannot be used"
    assert broken.split(":")[0].strip() == "red_train_0"
    video.write_bytes(kept)
    again = build_cache(manifest, {"data.num_frames": "3"}, ExecutionConfig(runs=runs), on_cluster=True)
    assert again == "stream small: 1 video decoded, 29 were in the store"


def test_nothing_to_do_starts_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(decode, "check_nodes", None)
    assert decode_on_nodes(source_in(tmp_path), []) == (0, [])


def test_a_node_with_other_decoders_is_refused(items, tmp_path):
    source = source_in(tmp_path)
    source.version = "pyav-1"
    with pytest.raises(ConfigError, match=r"node .* decodes with .*pyav-.*, but this machine with pyav-1\."):
        decode_on_nodes(source, items)
    assert not source.store.list("frames")


def test_a_store_that_nodes_do_not_share_is_refused(items, tmp_path, monkeypatch):
    source = source_in(tmp_path / "here")
    monkeypatch.setattr(Store, "__reduce__", lambda self: (Store.open, (f"{tmp_path}/elsewhere",)))
    with pytest.raises(ConfigError, match=r"cannot access .* of this machine. Use a folder that all nodes share"):
        decode_on_nodes(source, items)


def test_a_store_that_refuses_is_one_line_and_no_broken_video(items, tmp_path):
    source = source_in(tmp_path / "store")
    items = items[:3]
    frames = tmp_path / "store" / "frames"
    frames.write_text("a file where a folder belongs")
    with pytest.raises(StoreError, match="cannot be written") as caught:
        decode_on_nodes(source, items)
    assert "\n" not in str(caught.value)


@pytest.fixture
def two_nodes(tmp_path_factory) -> Iterator[object]:
    """Start a cluster of two nodes with one CPU each, separate from that of the other tests."""
    from ray.cluster_utils import Cluster

    ray.shutdown()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 80 * 2**20})
    cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20)
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def test_lost_node_loses_no_decoded_video(items, tmp_path, two_nodes, monkeypatch, capsys):
    monkeypatch.setattr(decode, "HERE", 1)
    jobs: list[int] = []

    def job(source: FrameSource, items: list, *given: object) -> object:
        jobs.append(len(items))
        return decode_on_nodes(source, items, *given)

    monkeypatch.setattr(decode, "decode_on_nodes", job)
    shared = source_in(tmp_path / "shared")
    assert decode_on_cluster(shared, items[:3]) == (3, [])  # too few videos
    assert jobs == []
    monkeypatch.setattr(decode, "FEW", 3)
    assert decode_on_cluster(shared, items[3:9]) == (6, [])
    assert jobs == [6]
    until = time.monotonic() + 30
    while ray.available_resources().get("CPU", 0.0) < 2 and time.monotonic() < until:
        time.sleep(0.1)  # until the job has released its CPUs
    unseen = [replace(items[9], path="/no/such.mp4"), *items[10:13]]  # on a node with a separate disk
    done, broken = decode_on_cluster(shared, unseen)
    assert (done, [item.path for item, _ in broken]) == (3, ["/no/such.mp4"])
    told = capsys.readouterr().err
    assert "videos are decoded on this machine only: --videos: node " in told
    assert "cannot access /no/such.mp4. Put videos into a folder that all nodes share." in told
    assert jobs == [6]
    assert shared.store.list("frames") == sorted(shared.key(item) for item in [*items[:9], *items[10:13]])

    many = []
    for copy in range(3):  # more videos than a node decodes before it is killed
        folder = tmp_path / f"videos{copy}"
        shutil.copytree(Path(items[0].path).parent, folder)
        for file in folder.iterdir():
            with file.open("ab") as video:
                video.write(bytes([copy]))
        many += [type(i)(i.video, str(folder / Path(i.path).name), None, i.category, i.captions) for i in items]
    source = source_in(tmp_path / "store")
    lost: list[int] = []

    def lose_a_node(videos: int) -> None:
        if not lost:
            two_nodes.remove_node(two_nodes.list_all_nodes()[-1], allow_graceful=False)
        lost.append(videos)

    assert decode_on_nodes(source, many, progress=lose_a_node) == (90, [])
    assert len(source.store.list("frames")) == 90
    assert sum(node["Alive"] for node in ray.nodes()) == 1
    jobs.clear()
    assert decode_on_cluster(shared, items[13:18]) == (5, [])  # only this machine is left
    assert jobs == []
