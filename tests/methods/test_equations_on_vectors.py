"""Losses, maps and weights on towers over vectors of two widths against the papers' equations, in float64.

Each expected value is computed from imported vectors and weights alone, by no function of the project
(tests/methods/vector_equations.py). Letters are those of each method's module.
"""

import pytest
import torch

from tests.methods.conftest import make_task
from tests.methods.vector_equations import (
    captions_of,
    encoded,
    in_second_task,
    info_nce,
    kl,
    log_softmax,
    same,
    scale,
    shaken,
    tower,
    unit,
    values,
    videos_of,
)
from tests.methods.vectors import PAIRS, batch, made

FORMER, NOW = range(8), range(20, 28)
SECOND, THIRD = range(20, 32), range(8, 20)  # pairs of later tasks to which maps are fitted
BASES = ["clip4clip", "head_linear"]


def strategy(name, base, **settings):
    both = {"base.side": "both"} if base == "head_linear" else {}
    return in_second_task(name, FORMER, **{"method.base": base, **both, **settings})


def losses(method, frames):
    return method.losses(batch(frames, NOW, 1))


def own_loss(w, rows):
    q, v = encoded(w, rows)
    return info_nce(scale(w) * q @ v.mT)


# ------------------------------------------------------------------------------------------ strategies


@pytest.mark.parametrize("base", BASES)
def test_ewc_is_eq_3_with_the_fisher_of_two_tasks(base):
    method, frames, old, new = strategy("ewc", base, **{"method.weight": 30.0, "method.decay": 0.5})
    trained = {name for name, p in method.base.named_parameters() if f"fisher-{name.replace('.', '-')}" in new}
    assert len(trained) == {"clip4clip": 19, "head_linear": 5}[base]

    def fisher(w, parts):
        squares = {name: torch.zeros_like(w[name]) for name in trained}
        for rows in parts:
            w = {name: value.detach().requires_grad_() for name, value in w.items()}
            gradients = torch.autograd.grad(own_loss(w, rows), [w[name] for name in trained])
            for name, gradient in zip(trained, gradients, strict=True):
                squares[name] += gradient**2 / len(parts)
        return squares

    first = fisher(old, [FORMER])
    moved = sum((first[name] * (new[name] - old[name]) ** 2).sum() for name in trained)
    terms = losses(method, frames)
    same(terms["contrastive"], own_loss(new, NOW))
    same(terms["consolidation"], 30 / 2 * moved)
    parts = [NOW[:5], NOW[5:]]
    method.end_task(make_task(1), [batch(frames, rows, 1) for rows in parts])
    second = fisher(new, parts)
    for name in trained:
        kept = name.replace(".", "-")
        same(method.get_buffer(f"fisher-{kept}"), 0.5 * first[name] + second[name])
        same(method.get_buffer(f"anchor-{kept}"), new[name])


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("student", ["video", "each", "pair"])
def test_lwf_is_eq_1_to_3_of_old_and_new_similarities(base, student):
    t = 1.5
    settings = {"method.student": student, "method.temperature": t, "method.weight": 0.3}
    method, frames, old, new = strategy("lwf", base, **settings)
    (q, v), (former_q, former_v) = encoded(new, NOW), encoded(old, NOW)
    z = scale(new) * former_q @ former_v.mT / t
    answers = {"video": [former_q @ v.mT], "each": [former_q @ v.mT, q @ former_v.mT], "pair": [q @ v.mT]}[student]
    found = [scale(new) * answer / t for answer in answers]
    terms = losses(method, frames)
    same(terms["contrastive"], own_loss(new, NOW))
    same(terms["distillation"], 0.3 * t**2 * sum(kl(z, each) + kl(z.mT, each.mT) for each in found))


@pytest.mark.parametrize("base", BASES)
def test_er_ring_is_the_loss_of_all_pairs_or_of_both_groups(base):
    settings = {"method.buffer_size": len(FORMER), "method.ratio": 1.0}
    method, frames, _, new = strategy("er_ring", base, **settings)
    same(losses(method, frames)["contrastive"], own_loss(new, [*NOW, *FORMER]))
    method, frames, _, new = strategy("er_ring", base, **settings, **{"method.negatives": "separate"})
    same(losses(method, frames)["contrastive"], (own_loss(new, NOW) + own_loss(new, FORMER)) / 2)


@pytest.mark.parametrize("base", BASES)
def test_der_is_eq_5_and_6_of_the_stored_features(base):
    settings = {"method.buffer_size": len(FORMER), "method.alpha": 0.7}
    method, frames, old, new = strategy("der", base, **settings)
    (q, v), (former_q, former_v) = encoded(new, FORMER), encoded(old, FORMER)
    order = method.memory.pairs.tolist()
    for found, expected in zip(method.memory.features(torch.arange(8)), (former_v, former_q), strict=True):
        same(found, expected[order])
    far = ((v - former_v) ** 2).sum(dim=1) + ((q - former_q) ** 2).sum(dim=1)
    terms = losses(method, frames)
    same(terms["contrastive"], own_loss(new, NOW))
    same(terms["distillation"], 0.7 / 2 * far.mean())
    method, frames, _, _ = strategy("der", base, **settings, **{"method.target": "similarities"})
    same(losses(method, frames)["distillation"], 0.7 * ((q @ v.mT - former_q @ former_v.mT) ** 2).mean())


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("ird", ["cross", "intra"])
def test_co2l_is_the_asymmetric_loss_and_the_relations_of_all_pairs(base, ird):
    kappa, former_kappa = 0.3, 0.1
    settings = {"method.kappa": kappa, "method.kappa_teacher": former_kappa, "method.weight": 0.6}
    kept = {"method.buffer_size": len(FORMER), "method.ird": ird}
    method, frames, old, new = strategy("co2l", base, **settings, **kept)
    (q, v), (memory_q, memory_v) = encoded(new, NOW), encoded(new, FORMER)

    def one_way(asking, asked, memory):
        s = scale(new) * asking @ torch.cat([asked, memory]).mT
        return -log_softmax(s).diagonal().mean()

    terms = losses(method, frames)
    expected = (one_way(q, v, memory_v) + one_way(v, q, memory_q)) / 2
    same(terms["contrastive"] + terms["negatives"], expected)

    def relations(student, teacher):
        return -(log_softmax(teacher / former_kappa).exp() * log_softmax(student / kappa)).sum(dim=1).mean()

    (q, v), (former_q, former_v) = encoded(new, [*NOW, *FORMER]), encoded(old, [*NOW, *FORMER])
    if ird == "cross":
        s, former = q @ v.mT, former_q @ former_v.mT
        expected = (relations(s, former) + relations(s.mT, former.mT)) / 2
    else:
        others = ~torch.eye(len(q), dtype=torch.bool)
        inner = [[(x @ x.mT)[others].view(len(q), -1) for x in pair] for pair in ((q, former_q), (v, former_v))]
        expected = sum(relations(*pair) for pair in inner) / 2
    same(terms["distillation"], 0.6 * expected)


# ------------------------------------------------------------------------------------------ old indexes


def after_three_tasks(name, base, **settings):
    """Return a method after three tasks, its retriever's weights after each, and an unfitted link's."""
    method, frames, first, second = strategy(name, base, **settings)
    method.end_task(make_task(1), [batch(frames, SECOND[:5], 1), batch(frames, SECOND[5:], 1)])
    method.begin_task(make_task(2))
    shaken(method, seed=2)
    third = values(method)
    start = values(method, "links.1.")  # every link starts from the same numbers
    method.end_task(make_task(2), [batch(frames, THIRD, 2)])
    return method, (first, second, third), start


@pytest.mark.parametrize("base", BASES)
def test_qdc_subtracts_the_mean_drifts_since_the_videos_were_stored(base):
    settings = {"method.query_weight": 0.7, "method.video_weight": 0.4}
    method, frames, old, new = strategy("qdc", base, **settings)
    (q, v), (former_q, former_v) = encoded(new, NOW), encoded(old, NOW)
    terms = losses(method, frames)
    same(terms["contrastive"], own_loss(new, NOW))
    same(terms["query_distillation"], 0.7 * (1 - (q * former_q).sum(dim=1)).mean())
    same(terms["video_distillation"], 0.4 * (1 - (v * former_v).sum(dim=1)).mean())
    method, (first, second, third), _ = after_three_tasks("qdc", base)
    drifts = [
        (encoded(now, rows)[0] - encoded(before, rows)[0]).mean(dim=0)
        for before, now, rows in ((first, second, SECOND), (second, third, THIRD))
    ]
    for number, drift in enumerate(drifts):
        same(method.links[number].drift[0], drift)
    q = encoded(third, range(PAIRS))[0]
    tokens = torch.arange(PAIRS)[:, None]
    for task, expected in enumerate((unit(q - drifts[0] - drifts[1]), unit(q - drifts[1]), q)):
        same(method.encode_text(tokens, task), expected)


def drift_map(kind, center, x, y, start):
    """Fit g of drift_adapter.py to unit captions x -> y; return it."""
    shift, target = (x.mean(dim=0), y.mean(dim=0)) if center else (0.0, 0.0)
    x, y = x - shift, y - target
    if kind == "procrustes":
        u, _, vh = torch.linalg.svd(x.mT @ y + 0.5 * torch.eye(x.shape[1], dtype=x.dtype))
        return lambda z: (z - shift) @ (u @ vh) + target

    def g(w, z):
        if kind == "low_rank":
            return z + z @ w["down"] @ w["up"] + w["shift"]
        return z + torch.nn.functional.gelu(z @ w["inner"] + w["inner_bias"]) @ w["outer"] + w["outer_bias"]

    names = {"low_rank": ("down", "up", "shift"), "mlp": ("inner", "inner_bias", "outer", "outer_bias")}[kind]
    first = {name: start[name][0].clone() for name in names}
    w = {name: value.clone().requires_grad_() for name, value in first.items()}
    optimizer = torch.optim.AdamW(list(w.values()), lr=1e-2, weight_decay=1e-2)
    held = torch.arange(len(x)) % 10 == 9
    for _ in range(7):
        optimizer.zero_grad()
        ((g(w, x[~held]) - y[~held]) ** 2).sum(dim=1).mean().backward()
        optimizer.step()
    best = min((first, w), key=lambda each: float(((g(each, x[held]) - y[held]) ** 2).sum(dim=1).mean()))
    best = {name: value.detach() for name, value in best.items()}
    s = torch.stack([(a @ b) / (a @ a) for a, b in zip(g(best, x).mT, y.mT, strict=True)])
    return lambda z: g(best, z - shift) * s + target


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("kind", ["procrustes", "low_rank", "mlp"])
def test_drift_adapter_chains_its_maps_to_the_model_that_stored_the_videos(base, center, kind):
    of_map = {"ridge": 0.5} if kind == "procrustes" else {"steps": 7, "lr": 1e-2, "decay": 1e-2}
    settings = {"method.map.name": kind, **{f"method.map.{name}": value for name, value in of_map.items()}}
    method, (first, second, third), start = after_three_tasks(
        "drift_adapter", base, **settings, **{"method.center": center}
    )
    g = [
        drift_map(kind, center, encoded(now, rows)[0], encoded(before, rows)[0], start)
        for before, now, rows in ((first, second, SECOND), (second, third, THIRD))
    ]
    q = encoded(third, range(PAIRS))[0]
    tokens = torch.arange(PAIRS)[:, None]
    for task, expected in enumerate((unit(g[0](unit(g[1](q)))), unit(g[1](q)), q)):
        same(method.encode_text(tokens, task), expected)


# ------------------------------------------------------------------------------------------ retrievers


def test_structalign_is_eq_13_and_17_of_the_adapted_towers():
    small = {"num_experts": 4, "text_rank": 3, "text_alpha": 6.0, "vision_rank": 2, "vision_alpha": 3.0, "sigma": 0.0}
    weights = {"lambda1": 0.3, "lambda2": 5.0, "tau2": 0.2}
    settings = {f"method.{name}": value for name, value in {**small, **weights}.items()}
    method, frames, old, new = in_second_task("structalign", FORMER, **settings)

    def experts(w):  # eqs. 2-3, of which each vector is its own end of text
        def addition(place, x):
            here = f"adapters.text.0.{place}."
            best = (x @ w[here + "router.route"].mT).topk(2, dim=-1)
            gates = torch.zeros(*x.shape[:-1], 4, dtype=x.dtype).scatter(-1, best.indices, best.values.softmax(dim=-1))
            return 6 / 3 * torch.einsum("...e,eor,erd,...d->...o", gates, w[here + "B"], w[here + "A"], x)

        return addition

    def lora(w):  # eq. 5, of which one vector reads v alone
        def addition(place, x):
            here = "adapters.vision.0.v."
            return 3 / 2 * x @ w[here + "A"].mT @ w[here + "B"].mT if place == "v" else 0.0

        return addition

    def features(w, rows):
        return tower(w, "text", captions_of(rows), experts(w)), tower(w, "vision", videos_of(rows), lora(w))

    def similarity(w):  # eq. 6
        cosines = torch.einsum("ind,jmd->ijnm", *(unit(x) for x in features(w, NOW)))
        return (cosines.amax(dim=3).mean(dim=2) + cosines.amax(dim=2).mean(dim=2)) / 2

    def head(side, x):  # eq. 10
        here = f"g_{side}."
        h = (x @ new[here + "0.weight"].mT + new[here + "0.bias"]).clamp(min=0)
        return h @ new[here + "2.weight"].mT + new[here + "2.bias"]

    def far(x, p):
        return 1 - unit(x) @ p

    p = new["prototypes.reference"]  # eq. 8
    same(p @ p.mT, torch.where(torch.eye(6, dtype=torch.bool), 1.0, -1 / 5).double())
    etf = 0.0
    for side, x in zip(("text", "video"), features(new, NOW), strict=True):  # eqs. 11-13, category 1
        mapped = head(side, x)
        pooled = ((mapped @ p[1]).softmax(dim=1)[..., None] * mapped).sum(dim=1)
        etf = etf + far(pooled, p[1]).mean()
    means = [x.mean(dim=1).mean(dim=0) for x in features(old, FORMER)]  # eq. 14 with sigma 0, category 0
    pseudo = far(head("text", means[0]), p[0]) + far(head("video", means[1]), p[0])
    now, before = similarity(new), similarity(old)
    terms = losses(method, frames)
    same(terms["contrastive"], info_nce(scale(new) * now))
    same(terms["etf"], 0.3 * etf)
    same(terms["etf_pseudo"], 0.3 * pseudo)
    same(terms["crp"], 5 / 2 * (kl(before / 0.2, now / 0.2) + kl(before.mT / 0.2, now.mT / 0.2)))


def test_bmu_moco_is_its_eight_steps_over_two_tasks():
    m, m_hat, tau, size, lr = 0.9, 0.8, 0.2, 12, 1e-2
    settings = {"m": m, "m_hat": m_hat, "tau": tau, "queue_size": size, "method_start_task": 1}
    torch.manual_seed(0)
    method, frames, _ = made("bmu_moco", several=3, **{f"method.{name}": value for name, value in settings.items()})
    theta = {name.removeprefix("encoders.clip."): x for name, x in values(method).items() if name.startswith("encod")}
    theta = {f"backbone.{name}": x for name, x in theta.items()}
    trained = [name for name in theta if name != "backbone.logit_scale"]
    copies, queues = {"global_": dict(theta)}, {"local": [], "global_": []}  # each a list of (q, v)

    def one_way(asking, side, keys):
        p = torch.stack([(asking * key[side]).sum(dim=1) for key in keys.values()], dim=1) / tau
        negatives = [each for name in keys for each in (pair[side] for pair in queues[name])]
        n = asking @ torch.stack(negatives).mT / tau if negatives else asking[:, :0]
        return (torch.cat([p, n], dim=1).exp().sum(dim=1).log() - p.exp().sum(dim=1).log()).mean()

    for task, parts in enumerate(([range(8), range(8, 16)], [range(20, 28), range(28, 36)])):
        method.begin_task(make_task(task))
        copies["local"] = dict(theta)
        for rows in parts:
            found = method.losses(batch(frames, rows, task))["contrastive"]
            parameters = method.param_groups()[0]["params"]
            with torch.no_grad():
                for parameter, gradient in zip(parameters, torch.autograd.grad(found, parameters), strict=True):
                    parameter -= lr * gradient
            method.after_step()

            leaves = {name: value.clone().requires_grad_() for name, value in theta.items()}
            q, v = encoded(leaves, rows)
            keys = {name: encoded(copies[name], rows) for name in ("local", "global_")}  # eqs. 7, 9, 15
            loss = one_way(v, 0, keys) + one_way(q, 1, keys)  # eqs. 16-18
            same(found, loss)
            gradients = torch.autograd.grad(loss, [leaves[name] for name in trained])
            theta = dict(theta) | {name: theta[name] - lr * g for name, g in zip(trained, gradients, strict=True)}
            for name in ("local", "global_"):  # eq. 12, then eq. 13
                theta = {each: m_hat * x + (1 - m_hat) * copies[name][each] for each, x in theta.items()}
            for name in ("local", "global_"):  # eq. 8, eq. 14
                copies[name] = {each: m * x + (1 - m) * theta[each] for each, x in copies[name].items()}
                queues[name] = [*queues[name], *zip(*keys[name], strict=True)][-size:]
        now = values(method)
        for each, x in theta.items():
            same(now[each.replace("backbone.", "encoders.clip.")], x)
            for name, copied in copies.items():
                same(now[each.replace("backbone.", f"{name}.encoders.clip.")], copied[each])
