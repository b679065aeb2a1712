"""Stored features change the time of a run and no result, except by the rounding of kernels for one video."""

import logging

import numpy as np
import pytest
import torch

from ctvr.methods.backbone.clip import Clip, VisionTower
from ctvr.methods.backbone.load import load_backbone
from ctvr.orchestrator.data.frozen_features import FrozenFeatures, frozen_features
from ctvr.orchestrator.errors import StoreError
from ctvr.orchestrator.learning.run.execute import Result, RunPaths, execute
from ctvr.orchestrator.learning.run.factory import load_clip, make_method
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.store.store import Store

CASES = {
    "frozen vision": {"method": "framefusion_moe", "method.use_ffa": False, "method.num_experts": 2},
    "last blocks": {
        "method": "framefusion_moe",
        "method.ffa_placement": "deepest",
        "method.ffa_layers": 1,
        "method.num_experts": 2,
    },
    "structalign": {
        "method": "structalign",
        "method.adapters": "task_aware",
        "method.fusion_layers": 2,
        "method.num_experts": 2,
    },
}


@pytest.fixture
def train(manifest, runs, small_stream):
    """Run a configuration of the small stream from scratch."""

    def run(**settings) -> Result:
        settings = {"optim.epochs": 1, "stream": manifest, **settings}
        return execute(resolve(settings, small_stream.settings), RunPaths(runs), fresh=True)

    return run


@pytest.fixture
def clip() -> Clip:
    return load_backbone("tiny-clip", "shipped")


@pytest.fixture
def frames() -> torch.Tensor:
    return torch.randn(1, 4, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def outcome(result: Result) -> dict:
    """Return all results of a run except its times."""
    record = result.record
    weights = {name: value.clone() for name, value in result.method.state_dict().items()}
    return {"metrics": record.metrics, "ranks": record.ranks, "training": record.training, "weights": weights}


def assert_equal(a: dict, b: dict) -> None:
    assert {k: v for k, v in a.items() if k != "weights"} == {k: v for k, v in b.items() if k != "weights"}
    assert all(torch.equal(value, b["weights"][name]) for name, value in a["weights"].items())


def assert_close(a: dict, b: dict) -> None:
    """Compare the trained weights: on some processors kernels round differently for one video and for a batch."""
    for name, value in a["weights"].items():
        torch.testing.assert_close(value, b["weights"][name], atol=1e-4, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_stored_features_give_a_bit_identical_run(train, runs, case, monkeypatch):
    store = Store.open(runs / "store")
    for key in store.list("features"):
        store.delete("features", key)
    new = outcome(train(**CASES[case]))
    made = len(store.list("features"))
    assert made == 3 * (4 + 3)  # training and test videos, each once
    with monkeypatch.context() as patch:
        patch.setattr(VisionTower, "prefix", None)  # nothing is computed again
        assert_equal(outcome(train(**CASES[case])), new)
    assert_close(outcome(train(**CASES[case], **{"data.cache_features": False})), new)
    assert len(store.list("features")) == made


def test_augmented_batches_stay_frames(train, runs):
    store = Store.open(runs / "store")
    for key in store.list("features"):
        store.delete("features", key)
    settings = {**CASES["frozen vision"], "data.augment": "crop_flip"}
    new = outcome(train(**settings))
    assert len(store.list("features")) == 3 * 3  # those of the test videos
    assert_close(outcome(train(**settings, **{"data.cache_features": False})), new)


def test_the_zero_shot_method_and_its_curve_share_features(manifest, runs, small_stream):
    store = Store.open(runs / "store")
    stored = store.list("features")  # by the curves of the fixture: validation and test videos
    assert len(stored) == 3 * (3 + 3)
    result = execute(
        resolve({"method": "zero_shot", "stream": manifest, "seed": 7}, small_stream.settings), RunPaths(runs)
    )
    assert store.list("features") == stored
    assert store.get("features", stored[0])["tokens"].shape == (4, 1, 96)  # class tokens alone
    assert [row["stream/t2v/r1_gain"] for row in result.record.metrics] == [0.0] * 3


@pytest.mark.parametrize(
    ("settings", "blocks"),
    [
        ({"method": "clip4clip"}, None),
        ({"method": "zero_shot"}, 4),
        ({**CASES["last blocks"], "method.ffa_layers": 2}, 2),
        ({**CASES["last blocks"], "method.ffa_layers": 3}, None),  # one of four blocks is not worth it
    ],
)
def test_only_a_method_that_leaves_enough_blocks_alone_gets_features(manifest, small_stream, runs, settings, blocks):
    experiment = resolve({**settings, "stream": manifest}, small_stream.settings)
    made = frozen_features(make_method(experiment, load_clip(experiment.backbone)), Store.open(runs), "fp32")
    assert (made.blocks if made else None) == blocks


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_features_come_back_as_they_were_made(clip, frames, tmp_path, precision):
    features = FrozenFeatures(Store.open(tmp_path), clip, 2, precision)
    made = features.load("a" * 64, lambda: frames)
    assert made.dtype == (torch.float32 if precision == "fp32" else torch.bfloat16)
    assert made.shape == (4, 17, 96)
    found = features.load("a" * 64, pytest.fail)
    assert found.dtype == made.dtype
    assert torch.equal(found, made)


def test_the_key_has_everything_that_decides_the_features(clip, tmp_path, monkeypatch):
    store, tower = Store.open(tmp_path), clip.vision

    def maker(blocks: int = 2, precision="fp32", code=None) -> str:
        return FrozenFeatures(store, clip, blocks, precision, code).maker

    makers = [maker(), maker(blocks=3), maker(precision="bf16"), *(maker(code={"code of backbone": of}) for of in "ab")]
    with torch.no_grad():
        tower.blocks[2].ln_1.weight[0] += 1  # takes no part in the first two blocks
        tower.proj[0, 0] += 1
        assert maker() == makers[0]
        for weight in (tower.blocks[1].mlp[0].weight, tower.class_embedding, tower.conv1.weight):
            weight.view(-1)[0] += 1
            makers.append(maker())
    monkeypatch.setattr(
        "ctvr.orchestrator.data.frozen_features.numerics_flags", lambda device: {"cudnn.allow_tf32": True}
    )
    makers.append(maker())  # another way of computing on a GPU
    assert len(set(makers)) == 9


@pytest.mark.parametrize("change", ["activation", "heads", "mean", "std", "name", "epsilon", "open_clip"])
def test_another_architecture_with_the_same_weights_has_other_features(change, clip, tmp_path, monkeypatch):
    def maker() -> str:
        return FrozenFeatures(Store.open(tmp_path), clip, 2, "fp32").maker

    before, block = maker(), clip.vision.blocks[0]
    assert maker() == before
    if change == "activation":
        block.mlp.gelu = torch.nn.GELU() if not isinstance(block.mlp.gelu, torch.nn.GELU) else torch.nn.ReLU()
    elif change == "heads":
        block.attn.heads *= 2
    elif change == "epsilon":
        block.ln_1.eps = 1e-6
    elif change == "open_clip":
        monkeypatch.setattr("ctvr.orchestrator.data.frozen_features.VERSION", "0")
    else:
        setattr(clip, change, "other" if change == "name" else (0.0, 0.0, 0.0))
    assert maker() != before


def test_damaged_features_are_made_again(clip, frames, tmp_path):
    features = FrozenFeatures(Store.open(tmp_path), clip, 2, "fp32")
    made = features.load("a" * 64, lambda: frames)
    file = next(path for path in tmp_path.rglob("*.safetensors"))
    data = bytearray(file.read_bytes())
    data[-9] ^= 4
    file.write_bytes(data)
    logging.disable(logging.WARNING)
    try:
        again = FrozenFeatures(Store.open(tmp_path), clip, 2, "fp32")
        assert torch.equal(again.load("a" * 64, lambda: frames), made)
        assert torch.equal(again.load("a" * 64, pytest.fail), made)
    finally:
        logging.disable(logging.NOTSET)


def test_a_store_that_is_full_costs_time_and_one_warning(clip, frames, tmp_path, monkeypatch, caplog):
    def full(*arguments) -> None:
        raise StoreError("disk full, 1 bytes needed.")

    features = FrozenFeatures(Store.open(tmp_path), clip, 2, "fp32")
    expected = features.load("a" * 64, lambda: frames)
    monkeypatch.setattr(Store, "put", full)
    for _ in range(2):
        np.testing.assert_array_equal(features.load("b" * 64, lambda: frames), expected)
    assert [record.getMessage() for record in caplog.records] == [
        "features are not cached and are computed each time: disk full, 1 bytes needed."
    ]
