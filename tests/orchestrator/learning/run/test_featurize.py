"""Precomputed features are those that runs look up."""

from pathlib import Path

import pytest
import torch

from ctvr.methods.backbone.clip import VisionTower
from ctvr.orchestrator.errors import ConfigError, StoreError
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs.cache import build_cache
from ctvr.orchestrator.learning.run import featurize
from ctvr.orchestrator.learning.run.execute import RunPaths, execute
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.store import packer
from ctvr.orchestrator.store.store import Store
from tests.refusing import missing_from, refuses


@pytest.mark.slow
def test_a_run_finds_what_a_build_has_made(tmp_path, manifest, small_stream, monkeypatch):
    execution, prepared = ExecutionConfig(runs=tmp_path), []
    monkeypatch.setattr(featurize, "set_determinism", lambda *given: prepared.append(given))
    frames, features = build_cache(manifest, {}, execution, features=True).splitlines()
    assert frames == "stream small: 30 videos decoded, 0 were in the store"
    assert features == "stream small: computed features of 30 videos, 0 were already in the store"
    assert build_cache(manifest, {}, execution, features=True).splitlines()[1] == (
        "stream small: computed features of 0 videos, 30 were already in the store"
    )
    assert set(prepared) == {
        (torch.device("cuda" if torch.cuda.is_available() else "cpu"), True, "fp32")
    }  # as by a run
    monkeypatch.setattr(VisionTower, "prefix", None)  # nothing is computed again
    made = len(Store.open(tmp_path / "store").list("features"))
    settings = {"method": "framefusion_moe", "method.use_ffa": False, "method.num_experts": 2, "optim.epochs": 1}
    execute(resolve({**settings, "stream": manifest}, small_stream.settings), RunPaths(tmp_path))
    assert len(Store.open(tmp_path / "store").list("features")) == made == 30


@pytest.mark.slow
def test_features_that_are_made_together_lie_together(tmp_path, manifest, monkeypatch):
    settings = {"method": "framefusion_moe", "method.use_ffa": "false"}
    build_cache(manifest, settings, ExecutionConfig(runs=tmp_path / "alone"), features=True)
    monkeypatch.setattr(packer, "FULL", 5 * 4 * 96 * 4)  # bytes: those of five videos of four class tokens
    build_cache(manifest, settings, ExecutionConfig(runs=tmp_path / "together"), features=True)
    alone, together = (Store.open(tmp_path / name / "store") for name in ("alone", "together"))
    assert together.list("features") == alone.list("features")
    assert len([entry for entry in together.entries() if entry.name.startswith("packs/features")]) == 2 * 6
    for key in alone.list("features"):
        found, expected = together.get("features", key), alone.get("features", key)
        assert torch.equal(torch.from_numpy(found["tokens"].copy()), torch.from_numpy(expected["tokens"].copy()))
        assert found.meta == expected.meta


def test_the_first_blocks_of_a_method_have_features_of_their_own(tmp_path, manifest):
    settings = {"method": "framefusion_moe", "method.ffa_placement": "deepest", "method.ffa_layers": "1"}
    build_cache(manifest, settings, ExecutionConfig(runs=tmp_path), features=True)
    store = Store.open(tmp_path / "store")
    assert store.get("features", store.list("features")[0])["tokens"].shape == (4, 17, 96)


@pytest.mark.parametrize(
    ("settings", "values"),
    [
        ({"method": "clip4clip"}, "clip4clip 0 4 method=zero_shot"),
        ({"data.cache_features": "false"}, "data.cache_features=false"),
    ],
)
def test_a_build_that_could_make_no_features_is_refused_before_it_decodes(tmp_path, manifest, settings, values):
    with refuses("--features", *values.split()):
        build_cache(manifest, settings, ExecutionConfig(runs=tmp_path), features=True)
    assert not Store.open(tmp_path / "store").list("frames")


def test_videos_that_cannot_be_decoded_get_no_features_and_the_others_do(tmp_path, manifest):
    video = Path(manifest).parent / "videos" / "red_train_0.mp4"
    kept = video.read_bytes()
    video.write_bytes(b"no video at all")
    try:
        with pytest.raises(ConfigError) as caught:
            build_cache(manifest, {}, ExecutionConfig(runs=tmp_path), features=True)
    finally:
        video.write_bytes(kept)
    assert not missing_from(str(caught.value), "red_train_0.mp4", 29, 1)


@pytest.mark.slow
def test_a_store_that_takes_no_features_says_so(tmp_path, manifest, monkeypatch):
    put = Store.put

    def refuse(self, kind, *arguments, **named):
        if kind == "features":
            raise StoreError("disk full, 1 bytes needed.")
        return put(self, kind, *arguments, **named)

    monkeypatch.setattr(Store, "put", refuse)
    with pytest.raises(StoreError, match="disk full"):
        build_cache(manifest, {}, ExecutionConfig(runs=tmp_path), features=True)
