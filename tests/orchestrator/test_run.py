"""Settings become an experiment; an experiment has one key; a trained model can be loaded again."""

from __future__ import annotations

import pytest
import torch

from orchestrator.config import ConfigError
from orchestrator.recorder import export_model
from orchestrator.run import Places, execute, load_model, presets_of, resolve

SMALL = {"backbone.name": "tiny-clip", "backbone.weights": "shipped"}


def test_later_settings_win_over_earlier_ones():
    recommended = {"data.num_frames": 8, "optim.epochs": 8, "preset": "shapes"}
    made = resolve({"method": "framefusion_moe", "stream": "s", "optim.epochs": "3"}, recommended, ["no-tame"])
    assert (made.data.num_frames, made.optim.epochs, made.method.use_tame) == (8, 3, False)
    assert made.settings["method.beta"] == 0.6
    assert made.settings["optim.epochs"] == 3


def test_complete_settings_resolve_to_themselves():
    made = resolve({"method": "upper_bound", "stream": "s", "base.lr": "3e-6", **SMALL})
    assert resolve(made.settings).settings == made.settings
    assert made.base.lr == 3e-6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stream": "s"}, "method: is required"),
        (
            {"method": "framefusoin_moe", "stream": "s"},
            "no method called 'framefusoin_moe'. Did you mean framefusion_moe",
        ),
        (
            {"method": "zero_shot", "stream": "s", "optim.epcohs": 1},
            "optim.epcohs: no such setting. Did you mean 'epochs'",
        ),
        (
            {"method": "zero_shot", "stream": "s", "optin.epochs": 1},
            "optin.epochs: no such setting. Did you mean 'optim'",
        ),
        ({"method": "zero_shot", "stream": "s", "seed": 2**63}, "seed must be a number of 64 bits"),
        ({"method": "zero_shot", "stream": "s", "sed": 1}, "sed: no such setting. Did you mean 'seed'"),
        ({"method": "zero_shot", "stream": "s", "base.lr": 1}, "base.lr: zero_shot wraps no other method"),
        ({"method": "zero_shot", "stream": "s", "workers": 3}, "data.batch_size: 8 pairs cannot be dealt to workers=3"),
        ({"method": "clip4clip", "stream": "s", "method.lr": -1}, "method: lr must be >= 0, got -1.0"),
        ({"method": "upper_bound", "stream": "s", "method.base": "x"}, "method: no method called 'x'"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_setting(settings, message):
    with pytest.raises(ConfigError, match=message) as error:
        resolve(settings)
    assert "\n" not in str(error.value)


def test_an_unknown_preset_lists_the_known_ones():
    with pytest.raises(ConfigError, match="framefusion_moe has none called 'relesed'. Did you mean 'released'"):
        resolve({"method": "framefusion_moe", "stream": "s"}, presets=["relesed"])
    assert "paper" in presets_of("zero_shot")


def test_the_key_changes_with_what_decides_and_with_nothing_else(small_stream):
    def key(**more):
        settings = {"method": "clip4clip", "stream": "s", **SMALL}
        return resolve({**settings, **{name.replace("__", "."): v for name, v in more.items()}}).key(small_stream)

    assert key() == key()
    assert key() == key(data__load_threads=2) == key(evaluation__chunk=7)
    assert len({key(), key(seed=1), key(method__lr=2e-6), key(optim__epochs=3), key(evaluation__split="val")}) == 5
    random = {"backbone__weights": "random"}
    assert key() != key(**random)


def test_an_unknown_backbone_is_reported_as_the_users(manifest, small_stream, runs):
    settings = {"method": "zero_shot", "stream": manifest, "backbone.name": "ViT-B-23"}
    with pytest.raises(ConfigError, match="backbone: no backbone called 'ViT-B-23'"):
        execute(resolve(settings, small_stream.settings), Places(runs))


def test_a_trained_model_is_loaded_with_one_call(manifest, small_stream, runs, tmp_path):
    experiment = resolve({"method": "framefusion_moe", "stream": manifest}, small_stream.settings)
    kept = {}
    result = execute(experiment, Places(runs), on_ready=lambda key, method, data, commits: kept.update(data=data))
    export_model(result.method, experiment, kept["data"], tmp_path / "model")
    method, settings = load_model(tmp_path / "model")
    assert settings == experiment.settings
    frames = torch.randn(2, 4, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(method.encode_video(frames), result.method.encode_video(frames))


def test_a_stream_without_validation_videos_refuses_val(manifest, runs, small_stream):
    from dataclasses import replace

    from orchestrator.run import splits_of

    experiment = resolve({"method": "zero_shot", "stream": manifest, "evaluation.split": "val"}, small_stream.settings)
    with pytest.raises(ConfigError, match="evaluation.split: stream small has no validation videos"):
        splits_of(experiment, replace(small_stream, has_val=False))
