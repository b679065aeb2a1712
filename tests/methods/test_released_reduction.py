"""ToMe, EViT and DiffRate compared with their authors' codes: steps in every clone, and a whole tower."""

import json

import torch

from ctvr.methods.backbone.clip import Block, BlockSeams, TokenState, record_tokens
from ctvr.methods.layers.reduction.diffrate import merge_ranked
from ctvr.methods.layers.reduction.diffrate_search import Rate, masked_attention, merge_in_place
from ctvr.methods.layers.reduction.evit import annealed, keep_attended, kept_patches
from ctvr.methods.layers.reduction.merge import merge_tokens, plan_bipartite
from ctvr.methods.lora import Lora, LoraConfig
from tests.methods.conftest import reducer_config
from tests.methods.released import FIXTURES, Weights, floats, read, shape_of, tiny_clip, tiny_source

SHAPE = shape_of((48, 12, 4), (16, 1, 1), embed=24, image=28, patch=4, context=8, vocab=10)
NAMES = {"norm1": "ln_1", "norm2": "ln_2", "mlp.fc1": "mlp.c_fc", "mlp.fc2": "mlp.c_proj", "attn.proj": "attn.out_proj"}


def test_merged_and_unmerged_tokens_equal_the_released_ones(compared):
    file = read(FIXTURES / "tome_matching.npz")
    for case in ("n50_r2", "n50_r24", "n49_r7"):
        r, protected = file[f"{case}/r_protected"].tolist()
        plan = plan_bipartite(file[f"{case}/metric"], r, protected)
        merged, size = merge_tokens(file[f"{case}/x"], file[f"{case}/size"], plan)
        compared("tome", "forward", merged, file[f"{case}/out"], 1e-6)
        compared("tome", "forward", size, file[f"{case}/out_size"], 1e-6)
        unmerged = merged.gather(1, plan.target[..., None].expand(-1, -1, merged.shape[-1]))
        compared("tome", "forward", unmerged, file[f"{case}/unmerged"], 1e-6)


def tower(state: Weights) -> Weights:
    """Map timm's names to open_clip's."""
    new = {
        "visual.class_embedding": state["cls_token"].flatten(),
        "visual.positional_embedding": state["pos_embed"][0],
        "visual.conv1.weight": state["patch_embed.proj.weight"],
        "visual.proj": state["head.weight"].mT,
    }
    for kind in ("weight", "bias"):
        new[f"visual.ln_pre.{kind}"], new[f"visual.ln_post.{kind}"] = state[f"ln_pre.{kind}"], state[f"norm.{kind}"]
        for layer in range(12):
            block = f"visual.transformer.resblocks.{layer}"
            new[f"{block}.attn.in_proj_{kind}"] = state[f"blocks.{layer}.attn.qkv.{kind}"]
            for theirs, ours in NAMES.items():
                new[f"{block}.{ours}.{kind}"] = state[f"blocks.{layer}.{theirs}.{kind}"]
    return new


def test_features_and_sizes_of_a_whole_tower_equal_the_released_ones(compared, shared):
    folder = shared / "reference" / "reduction"
    io, state = read(folder / "tome_clip50.npz"), tower(floats(read(folder / "clip50_state.npz")))
    assert not floats(read(folder / "clip50_state.npz"))["patch_embed.proj.bias"].any()
    for case, settings in (
        ("r0", {"r": 0}),
        ("r2", {"r": 2}),
        ("r2_no_prop", {"r": 2, "proportional": False}),
        ("r_pair_2_down", {"r": 2, "inflection": -1.0}),
        ("r_list_short", {"r": (5, 0, 4)}),
    ):
        method = Lora(LoraConfig(reducer=reducer_config("tome", **settings)), tiny_clip(SHAPE, state)).eval()
        with torch.no_grad(), record_tokens() as states:
            found = method.encode_frames(io["frames"].float())
        compared("tome", "forward", found.flatten(0, 1), io[f"{case}/features"], 2e-5)
        if f"{case}/block11_size" in io:
            sizes = states[0].sizes[..., 0].sort(dim=-1).values
            compared("tome", "forward", sizes, io[f"{case}/block11_size"].sort(dim=-1).values, 0.0)


# ------------------------------------------------------------------------------------------ EViT


def test_a_reducing_block_keeps_the_patches_of_the_release_in_its_order(compared):
    """Block 3 of youweiliang/evit, rate 0.7, reads the output of CLIP's first three blocks for two frames."""
    file = read(FIXTURES / "evit_block3.npz")
    source = tiny_source({**SHAPE, "vision_layers": 1}).visual.transformer.resblocks[0]
    state = floats(file, "state/")
    names = {**NAMES, "attn.qkv.weight": "attn.in_proj_weight", "attn.qkv.bias": "attn.in_proj_bias"}
    source.load_state_dict({_renamed(name, names): value for name, value in state.items()})
    seen = []

    def keep(x, attended, state):
        seen.append((x, attended.class_row[:, 1:]))
        return keep_attended(x, attended.class_row[:, 1:], kept_patches(0.7, 49), 1, fuse=True)

    with torch.no_grad():
        out = Block(source)(file["in"], BlockSeams(between=keep, wants_class_row=True), TokenState(batch=2))
    compared("evit", "forward", seen[0][1], file["class_row"], 1e-6)
    compared("evit", "forward", out, file["out"], 1e-5)
    kept = keep_attended(seen[0][0], seen[0][1], 35, 1, fuse=False)
    rows = file["kept"].long() + 1
    assert torch.equal(kept[:, 1:], seen[0][0].gather(1, rows[..., None].expand(-1, -1, 48)))


def _renamed(name: str, names: dict[str, str]) -> str:
    stem, _, kind = name.rpartition(".")
    return names.get(name, f"{names.get(stem, stem)}.{kind}")


def test_rates_and_counts_are_those_of_the_release(compared):
    tables = json.loads((FIXTURES / "evit_released.json").read_text())
    for step, _, start, end, per_epoch, base, rate in tables["adjust_keep_rate"]:
        found = annealed(base, step, start * per_epoch, (end - start) * per_epoch)
        compared("evit", "schedule", found, rate, 1e-12)
    for rate, patches, kept in tables["ceil_table"]:
        compared("evit", "schedule", kept_patches(rate, patches), kept, 0.0)


def test_features_and_gradients_of_evits_tower_equal_the_released_ones(compared, shared):
    folder = shared / "reference" / "reduction"
    io, state = read(folder / "evit_clip50.npz"), tower(floats(read(folder / "clip50_state.npz")))
    for case, settings in (("keep70_fuse", {}), ("keep70_drop", {"fuse": False})):
        method = Lora(LoraConfig(reducer=reducer_config("evit", **settings)), tiny_clip(SHAPE, state)).eval()
        with record_tokens() as states:
            found = method.encode_frames(io["frames"].float()).flatten(0, 1)
        compared("evit", "forward", found, io[f"{case}/features"], 1e-5)
        assert states[0].log[-1][2] == io[f"{case}/block9_out"].shape[1]
        if case == "keep70_fuse":
            for ours, theirs in gradients(method, io, "grad_fuse"):
                compared("evit", "gradients", ours, theirs, 1e-4)


def gradients(method: Lora, io: Weights, kind: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return pairs of gradients of sum(features * probe), ours and the authors'."""
    method.requires_grad_(True).zero_grad()
    (method.encode_frames(io["frames"].float()).flatten(0, 1) * io["probe"]).sum().backward()
    vision = method.backbone.vision
    ours = {"cls_token": vision.class_embedding, "pos_embed": vision.positional_embedding}
    for layer, block in enumerate(vision.blocks):
        ours |= {f"blocks.{layer}.attn.qkv.{kind}": getattr(block.attn, f"in_{kind}") for kind in ("weight", "bias")}
        ours |= {f"blocks.{layer}.norm1.{kind}": getattr(block.ln_1, kind) for kind in ("weight", "bias")}
    theirs = floats(io, f"{kind}/")
    assert len(theirs) == 8
    return [(ours[name].grad, value.reshape(ours[name].shape)) for name, value in theirs.items()]


# -------------------------------------------------------------------------------------- DiffRate


def test_diffrates_merge_is_the_released_mean_and_sizes_grow(compared):
    """In OpenGVLab/DiffRate 12 tokens are ranked, of which the last 4 join the first 8, without the class token."""
    file = floats(read(FIXTURES / "diffrate_merge.npz"))
    x, metric, size = (file[name][:, 1:] for name in ("x", "metric", "size"))
    found, sizes = merge_ranked(x, metric, size, 7)
    compared("diffrate", "forward", found, file["x_out"][:, 1:], 1e-6)
    compared("diffrate", "forward", sizes, file["size_out_eval"][:, 1:], 1e-6)


def test_diffrate_tower_equals_the_release(compared, shared):
    folder = shared / "reference" / "reduction"
    io, state = read(folder / "diffrate_clip50.npz"), tower(floats(read(folder / "clip50_state.npz")))
    facts = json.loads((folder / "diffrate.json").read_text())
    for case in ("fixed_both", "fixed_prune_only", "fixed_nothing"):
        counts = {"prune_to": tuple(facts[case]["prune"]), "merge_to": tuple(facts[case]["merge"])}
        method = Lora(LoraConfig(reducer=reducer_config("diffrate", **counts)), tiny_clip(SHAPE, state)).eval()
        with record_tokens() as states:
            found = method.encode_frames(io["frames"].float()).flatten(0, 1)
        compared("diffrate", "forward", found, io[f"{case}/features"], 1e-5)
        assert [tokens for _, _, tokens in states[0].log] == facts[case]["tokens_after_block"]
        if case == "fixed_both":
            compared("diffrate", "forward", states[0].sizes[..., 0], io[f"{case}/block11_size"], 1e-5)
            for ours, theirs in gradients(method, io, "grad_fixed_both"):
                compared("diffrate", "gradients", ours, theirs, 1e-4)


def test_diffrate_search_equals_the_release(compared):
    file = read(FIXTURES / "diffrate_search.npz")
    rate = Rate(49, 4)
    rate.logits.data = file["rate/logits"]
    kept, probability = rate.kept(), rate.stays()
    (slope,) = torch.autograd.grad(kept, rate.logits, retain_graph=True)
    compared("diffrate", "forward", kept, file["rate/kept"], 0.0)
    compared("diffrate", "gradients", slope, file["rate/kept_grad"], 1e-5)
    compared("diffrate", "forward", probability, file["rate/token_probability"][1:], 1e-6)
    logits, mask = file["policy/logits"].requires_grad_(), file["policy/policy"].requires_grad_()
    found = masked_attention(logits, mask)
    (found * file["policy/weights"]).sum().backward()
    compared("diffrate", "forward", found, file["policy/out"], 1e-6)
    compared("diffrate", "gradients", logits.grad, file["policy/grad_logits"], 1e-5)
    compared("diffrate", "gradients", mask.grad, file["policy/grad_policy"], 1e-5)
    given = floats(read(FIXTURES / "diffrate_merge.npz"))
    merged, size = merge_in_place(*(given[name][:, 1:] for name in ("x", "metric", "size")), 7, 11)
    compared("diffrate", "forward", merged, file["x_out_training"][:, 1:], 1e-6)
    compared("diffrate", "forward", size, file["size_out_training"][:, 1:], 1e-6)


def searching(target: float, step: int, state: Weights, arch: Weights) -> Lora:
    """Return a search on the tower, with the release's logits; equal logits where it has none."""
    settings = reducer_config("diffrate", search_macs=target, search_step=step)
    method = Lora(LoraConfig(reducer=settings), tiny_clip(SHAPE, state)).train()
    for name, logits in arch.items():
        proxy(method, name).logits.data = logits
    return method


def proxy(method: Lora, name: str) -> Rate:
    """Return the counterpart of `blocks.3.merge_ddp.selected_probability`."""
    _, block, kind, _ = name.split(".")
    return getattr(method.reducer, "pruned" if kind == "prune_ddp" else "merged")[int(block) - 1]


def cross_entropy(method: Lora, io: Weights) -> torch.Tensor:
    features = method.encode_frames(io["frames"].float()).flatten(0, 1)
    return -(io["targets"] * features.log_softmax(dim=-1)).sum(dim=-1).mean()


def test_the_search_of_rates_equals_the_released_one(compared, shared):
    """Features, masks, sizes, both gradients of every rate, and the rates after a step of its optimizer are equal."""
    folder = shared / "reference" / "reduction"
    io, state = read(folder / "diffrate_clip50.npz"), tower(floats(read(folder / "clip50_state.npz")))
    facts = json.loads((folder / "diffrate.json").read_text())
    for case in ("search_zeros_g1", "search_mixed_g1"):
        method = searching(0.011, 1, state, floats(io, f"{case}/arch/"))
        wanted = list(zip(facts[case]["prune"], facts[case]["merge"]))
        assert method.reducer.counts() == wanted
        with record_tokens() as states:
            loss = cross_entropy(method, io)
            found = method.encode_frames(io["frames"].float()).flatten(0, 1)
        compared("diffrate", "forward", found, io[f"{case}/logits_out"], 1e-5)
        compared("diffrate", "forward", states[0].policy, io[f"{case}/block11_mask"][:, 1:], 0.0)
        compared("diffrate", "forward", states[0].sizes[..., 0], io[f"{case}/block11_size"], 1e-5)
        compared("diffrate", "loss", loss, facts[case]["ce"], 1e-5)
        compared("diffrate", "loss", method.reducer.macs() / facts[case]["flops"], 1.0, 1e-6)
        for kind, term in (("ce", loss), ("flops", method.reducer.macs())):
            method.zero_grad()
            term.backward()
            theirs = floats(io, f"{case}/{kind}_grad/")
            assert len(theirs) == 22
            scale = max(value.abs().max() for value in theirs.values())
            for name, value in theirs.items():
                gradient = proxy(method, name).logits.grad
                ours = torch.zeros_like(value) if gradient is None else gradient
                compared("diffrate", "gradients", ours / scale, value / scale, 1e-4)
        with torch.no_grad():
            found = method.eval().encode_frames(io["frames"].float()).flatten(0, 1)
        compared("diffrate", "forward", found, io[f"{case}/logits_out_eval"], 1e-5)
    method = searching(3.0, 2, state, floats(io, "loop_target3/init/"))
    (group,) = method.param_groups()
    optimizer = torch.optim.AdamW(group["params"], lr=group["lr"], weight_decay=0)
    (cross_entropy(method, io) + method.reducer.penalty()).backward()
    optimizer.step()
    for name, value in floats(io, "loop_target3/step0/").items():
        compared("diffrate", "steps", proxy(method, name).logits, value, 1e-5)
