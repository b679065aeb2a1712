"""Search space of methods/lwf_moco.py. BMU-MoCo publishes no values for it; weight 1 weighs both losses equally."""

from ray import tune

from ctvr.search_spaces import MOCO, WRAPPED_MOCO

FIXED = {"method.base": "base_moco", **MOCO}
SPACE = {
    "method.alpha": tune.choice([0.1, 0.5, 1.0, 2.0, 5.0]),  # our default is 1
    "method.tau": tune.choice([0.07, 0.14]),  # the retriever's, and twice as much as T = 2 would
    "method.distill": tune.choice(["inbatch_kl", "queue_kl", "feature_l2"]),  # our default is inbatch_kl
    **WRAPPED_MOCO,
}
