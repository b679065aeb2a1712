"""A run reads what its experiment says; a trained model can be loaded again."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from orchestrator.errors import ConfigError
from orchestrator.learning.experiment import resolve
from orchestrator.learning.loop import Workers
from orchestrator.learning.run import Places, execute, load_model, splits_of
from orchestrator.tracking.recorder import export_model


def test_an_unknown_backbone_is_reported_as_the_users(manifest, small_stream, runs):
    settings = {"method": "zero_shot", "stream": manifest, "backbone.name": "ViT-B-23"}
    with pytest.raises(ConfigError, match="backbone: no backbone called 'ViT-B-23'"):
        execute(resolve(settings, small_stream.settings), Places(runs))


@pytest.mark.parametrize("wrapped", [False, True])
def test_more_frames_than_a_method_has_positions_for_are_refused(manifest, small_stream, runs, wrapped):
    group = "base" if wrapped else "method"
    settings = {"method": "lwf" if wrapped else "clip4clip", f"{group}.sim_header": "seqTransf", "data.num_frames": 33}
    with pytest.raises(ConfigError, match=r"^data\.num_frames: 33 frames of a video are more than the 32 that"):
        execute(resolve({**settings, "stream": manifest}, small_stream.settings), Places(runs))


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
    experiment = resolve({"method": "zero_shot", "stream": manifest, "evaluation.split": "val"}, small_stream.settings)
    with pytest.raises(ConfigError, match="evaluation.split: stream small has no validation videos"):
        splits_of(experiment, replace(small_stream, has_val=False))


class Crowd(Workers):
    """Sixteen workers, of which this process is the first and the others agree."""

    def agree(self, value):
        return value


def test_more_workers_than_training_pairs_are_refused_once_the_stream_is_known(manifest, small_stream, runs):
    settings = {"stream": manifest, "workers": 16, "data.batch_size": 16}
    experiment = resolve({"method": "clip4clip", **settings}, small_stream.settings)
    with pytest.raises(ConfigError, match="workers: task_01 of stream small has 8 training pairs for 16 workers"):
        execute(experiment, Places(runs), Crowd(0, 16))


def test_a_run_reads_the_split_that_its_epochs_are_chosen_on(manifest, small_stream):
    def splits(stream, **evaluation):
        settings = {f"evaluation.{name}": value for name, value in evaluation.items()}
        return splits_of(resolve({"method": "zero_shot", "stream": manifest, **settings}, stream.settings), stream)

    without_val = replace(small_stream, has_val=False)
    assert splits(small_stream) == ("train", "test")
    assert splits(small_stream, select="best") == ("train", "test", "val")
    assert splits(small_stream, select="best", select_split="same") == ("train", "test")
    assert splits(small_stream, select="best", split="val") == ("train", "val")
    assert splits(without_val, select="best") == ("train", "test")
    with pytest.raises(ConfigError, match="evaluation.select_split: stream small has no validation videos"):
        splits(without_val, select="best", select_split="val")
