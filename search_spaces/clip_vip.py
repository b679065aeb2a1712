"""Search space of methods/clip_vip.py. CTVR publishes the number of proxies; the other values are CLIP-ViP's."""

from ray import tune

SPACE = {
    "method.lr": tune.loguniform(1e-7, 1e-5),  # the paper uses 1e-6
    "method.num_proxies": tune.choice([1, 3, 4, 8]),  # CTVR uses 4, the original 3 in addition to the class token
    # Both codes use normal; the others are ours, since CTVR omits the post-pre-training that trained proxies
    "method.proxy_init": tune.choice(["normal", "copy_cls"]),
    "optim.weight_decay": tune.choice([0.0, 0.01, 0.2]),  # the paper uses 0.2
}
