"""Features and losses of towers over vectors in float64, from a method's weights by no function of the project.

Captions have three vectors of width 20, videos three of width 12.
"""

import torch

from tests.methods.conftest import make_task
from tests.methods.vectors import PAIRS, TEXT, Pairs, batch, drawn, made

# ------------------------------------------------------------------------------------------ features


def unit(x):
    return x / x.norm(dim=-1, keepdim=True)


def values(method, prefix=""):
    """Return the weights of a method's retriever, or those below `prefix`, float64."""
    found = {name.removeprefix("base."): value for name, value in method.state_dict().items()}
    return {name.removeprefix(prefix): value.double().clone() for name, value in found.items() if prefix in name}


def tower(w, side, x, merged=lambda place, x: 0.0):
    """Compute one tower of single vectors x (..., d); `merged(place, x)` is an adapter's addition."""
    here = f"backbone.{side}.blocks.0."
    v = x @ w[here + "attn.in_weight"].chunk(3)[2].mT + w[here + "attn.in_bias"].chunk(3)[2] + merged("v", x)
    y = x + v @ w[here + "attn.out.weight"].mT + w[here + "attn.out.bias"] + merged("out", v)
    h = (y @ w[here + "mlp.c_fc.weight"].mT + w[here + "mlp.c_fc.bias"]).clamp(min=0)
    return (y + h @ w[here + "mlp.c_proj.weight"].mT + w[here + "mlp.c_proj.bias"]) @ w[f"backbone.{side}.proj"]


def captions_of(rows):
    return drawn(several=3)[1].rows.double().view(PAIRS, 3, TEXT)[list(rows)]


def videos_of(rows):
    return drawn(several=3)[0][list(rows), :, 0].double()


def encoded(w, rows):
    """Return unit features q and v (B, m) of captions and videos by the weights of either retriever."""
    if "maps.queries.start" not in w:
        pairs = ("text", captions_of(rows)), ("vision", videos_of(rows))
        return [unit(tower(w, side, x).mean(dim=1)) for side, x in pairs]
    found = []
    for side, x in (("queries", captions_of(rows)), ("videos", videos_of(rows))):
        x, here = unit(x.mean(dim=1)), f"maps.{side}."
        start = (x - w[here + "center"]) @ w[here + "start"]
        found.append(unit(start + x @ w[here + "weight"] + w[here + "bias"]))
    return found


def log_softmax(z):
    return z - z.exp().sum(dim=1, keepdim=True).log()


def info_nce(z):
    return -(log_softmax(z).diagonal().mean() + log_softmax(z.mT).diagonal().mean()) / 2


def scale(w):
    return w["backbone.logit_scale"].exp()


def kl(old, new):
    """Compute the mean over rows of KL(softmax old || softmax new)."""
    return (log_softmax(old).exp() * (log_softmax(old) - log_softmax(new))).sum(dim=1).mean()


# ------------------------------------------------------------------------------------------ streams


def shaken(method, seed=0, size=0.05):
    """Change the trained weights as a task would."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in (p for group in method.param_groups() for p in group["params"]):
            parameter += size * torch.randn(parameter.shape, generator=generator)


def in_second_task(name, rows, **settings):
    """Return a method within its second task, its frames, and its retriever's weights after the first and now."""
    torch.manual_seed(0)
    method, frames, _ = made(name, several=3, **settings)
    method.eval().set_pair_source(Pairs(frames))
    method.begin_task(make_task(0))
    shaken(method)
    old = values(method)
    method.end_task(make_task(0), [batch(frames, rows, 0)])
    method.begin_task(make_task(1))
    shaken(method, seed=1)
    return method, frames, old, values(method)


def same(found, expected, atol=1e-5):
    torch.testing.assert_close(torch.as_tensor(found).double(), expected, rtol=1e-5, atol=atol)
