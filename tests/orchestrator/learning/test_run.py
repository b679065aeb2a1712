"""A run reads what its experiment says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.errors import ConfigError
from orchestrator.learning.resolve import resolve
from orchestrator.learning.run import Places, execute, splits_of
from orchestrator.learning.workers import Workers


def test_an_unknown_backbone_is_reported_as_the_users(manifest, small_stream, runs):
    settings = {"method": "zero_shot", "stream": manifest, "backbone.name": "ViT-B-23"}
    with pytest.raises(ConfigError, match="backbone: no backbone called 'ViT-B-23'"):
        execute(resolve(settings, small_stream.settings), Places(runs))


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


def test_pairs_that_workers_would_leave_out_are_refused_where_they_are_many(manifest, small_stream, runs):
    settings = {"method": "clip4clip", "stream": manifest, "workers": 6, "data.batch_size": 6}
    experiment = resolve(settings, small_stream.settings)
    said = r"workers: 2 of 8 pairs of task_01 \(25%\) would be left out of an epoch, since .* 6 workers\. Use fewer"
    with pytest.raises(ConfigError, match=said):
        execute(experiment, Places(runs), Crowd(0, 6))


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
