"""A method is built from settings; a trained model can be loaded again."""

import pytest
import torch

from ctvr.orchestrator.learning.record.method_state import save_model
from ctvr.orchestrator.learning.run.execute import RunPaths, execute
from ctvr.orchestrator.learning.run.factory import load_trained
from ctvr.orchestrator.settings.resolve import resolve


@pytest.mark.slow
def test_a_trained_model_is_loaded_with_one_call(manifest, small_stream, runs, tmp_path):
    experiment = resolve({"method": "framefusion_moe", "stream": manifest}, small_stream.settings)
    result = execute(experiment, RunPaths(runs))
    save_model(result.method, experiment.settings, result.stream, tmp_path / "model")
    trained = load_trained(tmp_path / "model")
    assert trained.experiment.settings == experiment.settings
    frames = torch.randn(2, 4, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(trained.method.encode_video(frames), result.method.encode_video(frames))
