"""Published methods in examples/published compute what the authors' functions compute, on seeded tensors.

CTVR_AUTHORS is a folder with the git directory of each repository, OWNER+NAME/repo. A comparison reads one file of one
commit and runs functions of it; without the folder it is skipped. Nothing of these repositories is stored here.
"""

import ast
import copy
import importlib
import logging
import math
import os
import subprocess
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_avg_fn

from ctvr import BlockSeams, TokenState, drop_prompts, insert_prompts, mean_pool
from ctvr.methods import find_method
from ctvr.methods.tiny_models import EMBED_DIM, LAYERS, WIDTH, make_batch, make_small_clip, make_task
from tests.test_published_methods import FOLDER

SOURCES = {  # repository, commit, file
    "coda_prompt": ("GT-RIPL+CODA-Prompt", "6417d4f68754be68b697c7ca2323ee61e791e1a3", "models/zoo.py"),
    "dual_prompt": ("JH-LEE-KR+dualprompt-pytorch", "7eb457d988409a6abf97af2b121ffa62dd4b498a", "prompt.py"),
    "inf_lora": ("liangyanshuo+InfLoRA", "e08b00edd54f2f10cf2f9826eae7d44fdcb6354b", "methods/inflora.py"),
    "l2p": ("JH-LEE-KR+l2p-pytorch", "f7bc994365f51221e059b7be18c9b08c369444e6", "prompt.py"),
    "ranpac": ("RanPAC+RanPAC", "012927f86e8d95dc9e7c6015a5e1048e6604c8b6", "RanPAC.py"),
    "sema": ("huiyiwang01+SEMA-CL", "5a4551262d659c6d93dd6c50ff814e028554fbf3", "backbone/sema_components.py"),
    "sema_block": ("huiyiwang01+SEMA-CL", "5a4551262d659c6d93dd6c50ff814e028554fbf3", "backbone/sema_block.py"),
    "wise_ft": ("mlfoundations+wise-ft", "58b7a4b343b09dc06606aa929c2ef51accced8d1", "src/wise_ft.py"),
}
near = partial(torch.testing.assert_close, atol=1e-5, rtol=1e-5)


def authors(source: str, *wanted: str, **given: Any) -> SimpleNamespace:
    """Return classes and functions of an authors' file, which read the names in `given` as globals."""
    folder = os.environ.get("CTVR_AUTHORS")
    if not folder:
        pytest.skip("the authors' repositories are not on this machine (set CTVR_AUTHORS)")
    repository, commit, file = SOURCES[source]
    command = ["git", "-C", str(Path(folder, repository, "repo")), "show", f"{commit}:{file}"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    kinds = (ast.ClassDef, ast.FunctionDef)
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds) and node.name in wanted]
    assert sorted(node.name for node in found) == sorted(wanted)
    names = {"torch": torch, "nn": nn, "F": F, "np": np, "math": math, "copy": copy, "logging": logging, **given}
    exec(compile(ast.Module(found, []), file, "exec"), names)
    return SimpleNamespace(**{name: names[name] for name in wanted})


@pytest.fixture
def example(monkeypatch):
    """Return a function that imports a file of examples/published, with the weights and numbers of one seed."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr(Tensor, "cuda", lambda self: self)
    monkeypatch.setattr(nn.Module, "cuda", lambda self: self)
    torch.manual_seed(0)
    return importlib.import_module


def made(module: ModuleType, name: str, tasks: int = 1, **settings: Any) -> Any:
    """Return a method on the small backbone after `begin_task` of its first tasks."""
    cls = getattr(module, name)
    method = cls(cls.Config(**settings), make_small_clip())
    for index in range(tasks):
        method.begin_task(make_task(index))
    return method


def query_of(method: Any, frames: Tensor) -> Tensor:
    return mean_pool(method.backbone.vision(frames)).detach()


def test_l2p_chooses_prompts_and_pulls_keys_as_the_authors_do(example):
    method, batch = made(example("l2p"), "L2P", tasks=0, pool=6, top=2, pull=0.5), make_batch()
    theirs = authors("l2p", "Prompt").Prompt(
        embedding_key="cls", prompt_pool=True, prompt_key=True, pool_size=6, top_k=2, length=5, embed_dim=WIDTH
    )
    theirs.prompt, theirs.prompt_key = method.prompts, method.keys
    found = theirs(torch.zeros(6, 1, WIDTH), cls_features=query_of(method, batch.frames))
    chosen = method._choose(batch.frames)[1]
    assert torch.equal(chosen, found["prompt_idx"])
    near(torch.cat([method.prompts[chosen].flatten(1, 2), torch.zeros(6, 1, WIDTH)], 1), found["prompted_embedding"])
    near(method.losses(batch)["pull"], 0.5 * (2 - found["reduce_sim"]))


def test_dual_prompt_matches_keys_as_the_authors_do(example):
    method, batch = made(example("dual_prompt"), "DualPrompt", tasks=3, pull=0.7), make_batch()
    for parameter in [*method.experts, *method.keys]:
        parameter.data.normal_()
    theirs = authors("dual_prompt", "EPrompt").EPrompt(
        embedding_key="cls", prompt_pool=True, prompt_key=True, pool_size=3, top_k=1, length=4, embed_dim=WIDTH
    )
    theirs.prompt, theirs.prompt_key = (
        nn.Parameter(x) for x in (torch.stack(list(method.experts), 1), torch.stack(list(method.keys)))
    )
    found = theirs(torch.zeros(6, 1, WIDTH), cls_features=(query := query_of(method, batch.frames)))
    nearest = method._cosines(batch.frames).argmax(1)
    assert torch.equal(nearest[:, None], found["prompt_idx"])
    near(torch.stack(list(method.experts))[nearest], found["batched_prompt"].transpose(0, 1))
    own = theirs(torch.zeros(6, 1, WIDTH), torch.full((6, 1), 2), cls_features=query)
    near(method.losses(batch)["pull"], 0.7 * (1 - own["reduce_sim"]))


def test_coda_prompt_assembles_components_and_penalizes_overlaps_as_the_authors_do(example):
    method, batch = made(example("coda_prompt"), "CodaPrompt", tasks=2, components=3, depth=2, ortho=0.1), make_batch()
    for parameter in method.prompts:
        parameter.data.normal_()
    code = authors("coda_prompt", "CodaPrompt", "ortho_penalty", "tensor_prompt")
    theirs = code.CodaPrompt(WIDTH, 2, [6, 4, 0.1], EMBED_DIM)
    theirs.task_count = 1
    prompts, penalty = [], torch.zeros(())
    for block in range(2):
        for name, parts in {"p": method.prompts, "k": method.keys, "a": method.attention}.items():
            setattr(theirs, f"e_{name}_{block}", nn.Parameter(torch.cat([part[:, block] for part in parts])))
        (keys, values), loss, _ = theirs(query_of(method, batch.frames), block, None, train=True)
        prompts.append(torch.cat([keys, values], dim=1))
        penalty = penalty + loss
    near(method._assemble(query_of(method, batch.frames)), torch.stack(prompts, 1))
    near(method.losses(batch)["ortho"], penalty)
    penalty.backward()  # with its own gradients, earlier components do not move
    assert [theirs.e_k_0.grad[:3].abs().sum().item(), theirs.e_p_1.grad[:3].abs().sum().item()] == [0, 0]


def test_o_lora_penalizes_every_pair_of_rows_of_two_tasks(example):
    method = made(example("o_lora"), "OLora", tasks=3, ortho=0.5)
    total = torch.zeros(())
    for tower in (method.vision, method.text):
        newest = dict(tower[-1].named_parameters())
        for earlier in tower[:-1]:
            for name, rows in earlier.named_parameters():
                if name.endswith(".A"):
                    total = total + (rows @ newest[name].T).square().sum()
    near(method.losses(make_batch())["ortho"], 0.5 * total)


def test_inf_lora_extends_its_memory_and_its_inputs_subspace_as_the_authors_do(example):
    method = made(example("inf_lora"), "InfLora", tasks=1, rank=2, energy=0.8)
    method.end_task(make_task(0), [make_batch(seed=1)])
    first = method.known.clone()
    assert first.any()
    method.begin_task(make_task(1))
    method.prepare_task(make_task(1), [batch := make_batch(seed=2)])
    learner = SimpleNamespace(lamb=0.8, lame=0.8, _cur_task=1, total_sessions=2, feature_list=[])
    inputs = []
    method.known.zero_()
    for known, moments in zip(first, method._unknown([batch])):
        values, directions = torch.linalg.eigh(known.double())
        learner.feature_list.append(directions[:, values > 0.5].numpy())
        values, directions = torch.linalg.eigh(moments.detach())
        inputs.append(directions * values.clamp(min=0).sqrt())  # left singular vectors and values are those of H
    method.known.copy_(first)
    for known, h, down in zip(first.double(), inputs, method.get_buffer("down1")):
        main = torch.linalg.svd(h - known @ h).U[:, :2]
        near(3 * down.T @ down, (main @ main.T).float())
    method.end_task(make_task(1), [batch])
    authors("inf_lora", "update_GPM").update_GPM(learner, [h.numpy() for h in inputs])
    assert not torch.equal(method.known, first)
    for known, memory in zip(method.known, learner.feature_list):
        near(known, torch.from_numpy(memory @ memory.T).float())


def test_ranpac_selects_the_penalty_as_the_authors_do(example):
    module = example("ranpac")
    h = torch.relu(torch.randn(40, 30)).double()
    q = h @ torch.randn(30, 8).double() + 2 * torch.randn(40, 8).double()
    held = torch.arange(40) % 5 == 0
    code = authors("ranpac", "optimise_ridge_parameter")
    ridge = code.optimise_ridge_parameter(None, *(torch.cat([x[~held], x[held]]) for x in (h, q)))
    assert 1e-8 < ridge < 1e8  # not at an end of the grid
    assert module._penalty(h, q) == pytest.approx(ridge)


def test_ranpac_solves_the_ridge_regression_of_all_tasks_with_the_penalty_of_the_last(example):
    module = example("ranpac")
    method = made(module, "RanPac", width=30)
    loader = [make_batch(pairs=10, seed=seed) for seed in (1, 2)]
    for task, batch in enumerate(loader):
        method.end_task(make_task(task), [batch])
    features = [torch.relu(query_of(method, b.frames) @ method.projection.T).double() for b in loader]
    targets = [method.encode_text(b.tokens).double() for b in loader]
    gram, cross = (sum(x.T @ y for x, y in zip(features, part)) for part in (features, targets))
    ridge = module._penalty(features[1], targets[1])
    assert ridge != module._penalty(features[0], targets[0])
    near(method.map, torch.linalg.solve(gram + ridge * torch.eye(30), cross))


def test_slca_samples_from_means_and_covariances_as_the_authors_compute_them(example, monkeypatch):
    module = example("slca")
    method, batches = made(module, "Slca", align_steps=1, samples=1, lr_align=0.1), [make_batch(seed=1), make_batch()]
    batches[1].categories.add_(2)
    monkeypatch.setattr(torch, "randn_like", torch.ones_like)
    pairs = [torch.cat([query_of(method, b.frames), method._captions(b.tokens)], 1).detach().double() for b in batches]
    method.end_task(make_task(0), batches[:1])
    assert not method.head.any()  # the alignment begins after the second task
    own = pairs[0][batches[0].categories == 1]
    near(method.means[1], own.mean(0).float())
    near(method.factors[1] @ method.factors[1].T, (torch.cov(own.T) + 1e-4 * torch.eye(len(own.T))).float())
    method.end_task(make_task(1), batches[1:])
    head = torch.zeros_like(method.head).requires_grad_()
    means = torch.stack([pairs[c // 2][batches[c // 2].categories == c].mean(0) for c in range(4)]).float()
    means = means * torch.tensor([0.95, 0.95, 1.0, 1.0])[:, None]  # 0.9 + 0.1 of 1 / 2 and 2 / 2
    video, x = (means + method.factors[:4].sum(2)).chunk(2, dim=1)
    logits = method.scale().detach() * F.normalize(x + x @ head.T, dim=1) @ F.normalize(video, dim=1).T
    target = torch.arange(4)
    loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
    near(method.head.detach(), -0.1 * torch.autograd.grad(loss, head)[0])


def test_sema_mixes_adapters_and_describes_inputs_as_the_authors_do(example):
    method = made(example("sema"), "Sema", tasks=2, depth=1, width=8)
    for parameter in method.blocks.parameters():
        parameter.data.normal_()
    for each in method.blocks[0]:
        each.up.bias = None
        each.is_used.fill_(True)
    parts = authors("sema", "Adapter", "AE", "Records")
    code = authors("sema_block", "AdapterModule", "SEMAModules", List=list, device="cpu", **vars(parts))
    sizes = {"d_model": WIDTH, "ffn_num": 8, "rd_dim": 8, "buffer_size": 500, "exp_threshold": 2}
    places = {"adapt_start_layer": 0, "adapt_end_layer": 0}
    options = {"init_option": "lora", "scalar": "0.1", "layernorm_option": "none"}
    config = SimpleNamespace(**sizes, **places, **{f"ffn_adapter_{name}": value for name, value in options.items()})
    theirs = code.SEMAModules(config, 0, None).eval()
    theirs.add_adapter()
    theirs.fix_router()
    theirs.router.weight.data = torch.stack([each.row.data for each in method.blocks[0]])
    theirs.router.bias.data.zero_()
    for ours, their in zip(method.blocks[0], theirs.eval().adapters):
        their.functional.down_proj, their.functional.up_proj = ours.down, ours.up
        their.rd.encoder, their.rd.decoder = ours.descriptor
    method.inputs = []
    x, output = torch.randn(5, 9, WIDTH), torch.randn(5, 9, WIDTH)
    near(method._mix(method.blocks[0], x, output, TokenState(5)) - output, theirs(x)["func_out"], rtol=1e-4)
    near(method.blocks[0][1].error(method.inputs[0]), theirs.adapters[1].rd.compute_reconstruction_loss(x))
    method.end_task(make_task(1), [make_batch()])
    record = theirs.adapters[1].rd_loss_record
    record.add_record(theirs.adapters[1].rd.compute_reconstruction_loss(method.inputs[0][:, None]).detach())
    near(method.blocks[0][1].errors, torch.tensor([record.stddev, record.mean]))


@pytest.mark.parametrize("sign", [1, -1])
def test_a_gem_projects_only_a_gradient_that_increases_the_loss_of_the_memory(example, sign):
    g, r = torch.randn(50), torch.randn(50)
    r = r * sign * (g @ r).sign()
    found = strategy(example("a_gem"), "AGem").combine_gradients({"loss": g, "memory": r.clone()})
    near(found, g if sign > 0 else g - (g @ r) / (r @ r) * r)


def strategy(module: ModuleType, name: str, **settings: Any) -> Any:
    """Return a strategy around clip4clip after `begin_task` of its first task."""
    cls = getattr(module, name)
    base = find_method("clip4clip")
    method = cls(cls.Config(**settings), base(base.Config(), make_small_clip()))
    method.begin_task(make_task())
    return method


def test_wise_ft_merges_weights_as_the_authors_do(example):
    method = strategy(example("wise_ft"), "WiseFt", alpha=0.3)
    first = {name: p.detach().clone() for name, p in method.base.named_parameters()}
    with torch.no_grad():
        for parameter in method.base.parameters():
            parameter.add_(torch.randn_like(parameter))
    last = {name: p.detach().clone() for name, p in method.base.named_parameters()}
    method.eval()
    merged = authors("wise_ft", "_merge")._merge(0.3, first, last, None, 0)
    for name, parameter in method.base.named_parameters():
        near(parameter.detach(), merged[name])


def test_ema_is_that_of_torch(example):
    method = strategy(example("wise_ft"), "WiseFt", average="ema", decay=0.8)
    average = {name: p.detach().clone() for name, p in method.base.named_parameters()}
    for _ in range(3):
        for name, parameter in method.base.named_parameters():
            parameter.data.add_(torch.randn_like(parameter))
            average[name] = get_ema_avg_fn(0.8)(average[name], parameter.detach(), 1)
        method.after_step()
    method.eval()
    for name, parameter in method.base.named_parameters():
        near(parameter.detach(), average[name])


@pytest.mark.parametrize("groups", [(), (6,)])
def test_prompts_are_inserted_after_the_class_token_of_a_tower_with_one(groups):
    """For such a tower, `insert_prompts` and `drop_prompts` are a concatenation and its reversal."""
    backbone, frames, prompts = make_small_clip(), make_batch().frames[:2], torch.randn(*groups, 3, WIDTH)
    wide = prompts.expand(6, -1, -1)
    by_hand = BlockSeams(
        before=lambda x, state: torch.cat([x[:, :1], wide, x[:, 1:]], dim=1),
        after=lambda x, state: torch.cat([x[:, :1], x[:, 4:]], dim=1),
    )
    seams = BlockSeams(before=insert_prompts(prompts), after=drop_prompts(3))
    ours, theirs = (backbone.vision(frames, [each, *[None] * (LAYERS - 1)]) for each in (seams, by_hand))
    assert torch.equal(ours, theirs)
    assert not torch.equal(ours, backbone.vision(frames))
