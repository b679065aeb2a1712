"""Search space of methods/structalign.py.

A search begins with the defaults, which are the paper's for MSRVTT where it prints a value. Imported ACTNET streams
choose the preset `paper-actnet`, whose values are tried before them. `--space method.pseudo=inputs,shared,clip` also
searches the point at which pseudo features are sampled: preset `released` needs `clip`.
"""

from ray import tune

SPACE = {
    "method.lambda1": tune.loguniform(0.01, 1.0),  # eq. 18; paper 0.1, studied in fig. 6
    "method.lambda2": tune.loguniform(1.0, 100.0),  # eq. 18; paper 10
    "method.tau2": tune.loguniform(0.01, 1.0),  # eq. 17; unpublished, 2 sqrt(32) / 99.5 = 0.11 in the released code
    "method.text_rank": tune.choice([16, 32, 64]),  # 64: with vision_rank 32 the printed 33.9 M parameters
    "method.vision_rank": tune.choice([8, 16, 32]),
    "method.num_experts": tune.choice([5, 10]),  # released: 10 on MSRVTT, 5 on ACTNET
    "method.lr_first": tune.loguniform(2e-6, 2e-4),  # paper 2e-5
    "method.lr": tune.loguniform(3e-7, 3e-5),  # paper 3e-6 (MSRVTT), 6e-6 (ACTNET)
}
