"""Search space of methods/lambda_orthogonality.py. The paper searched lambda; sharpness and weights are unknown."""

from ray import tune

FIXED = {"method.base": "clip4clip"}
SPACE = {
    # lambda / sqrt(width). The paper's is 0.53, of two models trained apart; the others act on the drift of a task
    "method.map.relative_threshold": tune.choice([0.0, 0.02, 0.05, 0.53]),
    "method.map.sharpness": tune.choice([1.0, 10.0]),  # alpha; unpublished
    "method.map.contrastive_weight": tune.choice([0.0, 0.01, 0.1, 1.0]),  # unpublished
    "base.lr": tune.loguniform(1e-7, 1e-5),  # 1e-6 is CTVR's released default for fine-tuning
}
