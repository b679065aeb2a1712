"""ZSCL, LwF, LwF-VR (Thunderbeee/ZSCL@b96e714) and MoE-Adapters (4572d97) compared with their authors' programs.

The weights are numbers of a recipe (tests/methods/released.py).
"""

import json

import torch
import torch.nn.functional as F

from ctvr.methods.base import Frozen, ParamGroup, l2_normalize
from ctvr.methods.clip4clip import Clip4Clip, Clip4ClipConfig
from ctvr.methods.layers.experts import Router
from ctvr.methods.layers.losses.contrastive import distillation
from ctvr.methods.layers.losses.distillation import EncodedOnce
from ctvr.methods.lwf import LwF, LwFConfig
from ctvr.methods.moe_adapter import MoEAdapter, MoEAdapterConfig
from ctvr.methods.vr_lwf import VRLwF, VRLwFConfig
from ctvr.methods.zscl import ZSCL, ZSCLConfig
from tests.methods.conftest import make_task
from tests.methods.released import FIXTURES, continual_clip, draw, floats, pairs, read, seeded
from tests.methods.test_released_retrievers import released_name

FACTS = json.loads((FIXTURES / "retrievers_released.json").read_text())
T = 2.0


def retriever(moved: bool) -> Clip4Clip:
    return Clip4Clip(Clip4ClipConfig(train_scale=False), continual_clip(moved))


def entropies(teacher: torch.Tensor) -> torch.Tensor:
    """Compute T^2 times the teacher's entropy in both directions, by which the released cross-entropies differ."""
    both = [(F.softmax(z / T, -1) * F.log_softmax(z / T, -1)).sum(-1).mean() for z in (teacher, teacher.mT)]
    return -(T**2) * (both[0] + both[1])


def test_distillation_equals_the_released_program_in_value_and_gradient(compared):
    file = read(FIXTURES / "zscl_released.npz")
    old, images = Frozen(retriever(moved=False)), file["images"][0].float()[:, None] / 127.5 - 1
    shown = {"zscl": file["ref_images"].float()[:, None] / 127.5 - 1, "lwf": images, "lwf_vr": images}
    texts = {"zscl": "ref_tokens", "lwf": "tokens", "lwf_vr": "random_tokens"}
    names = {"zscl": "zscl", "lwf": "lwf", "lwf_vr": "vr_lwf"}
    for key, method in names.items():
        base, tokens = retriever(moved=True), file[texts[key]]
        taught, scale = old("encode_text", tokens), base.scale()
        for who, features in (("student", base.encode_video(shown[key])), ("teacher", old("encode_video", shown[key]))):
            compared(method, "forward", features @ taught.mT, file[f"step/{key}/logits_{who}"] / scale, 1e-6)
        strategy: LwF | VRLwF | ZSCL
        if key == "lwf":
            strategy = LwF(LwFConfig(), base)
            strategy.teacher = old
            found = strategy.distil(EncodedOnce(base, pairs(images, tokens)))
        elif key == "lwf_vr":
            strategy = VRLwF(VRLwFConfig(), base)
            strategy.teacher, strategy.sentences = old, tokens
            found = strategy.distil(pairs(images, tokens), base.encode_video(images))
        else:
            strategy = ZSCL(ZSCLConfig(), base)
            strategy.teacher, strategy._texts = old, taught
            found = strategy.distil(shown[key])
        released = file[f"step/{key}/image_loss"] + file[f"step/{key}/text_loss"]
        compared(method, "loss", found + entropies(file[f"step/{key}/logits_teacher"]), released, 5e-5)
        if key == "zscl":
            gradients_equal(compared, base, found, floats(file, "step/zscl/grad/"))


def gradients_equal(compared, base: Clip4Clip, loss: torch.Tensor, released: dict[str, torch.Tensor]) -> None:
    base.backbone.logit_scale.requires_grad_(True)
    loss.backward()
    tower = base.backbone.vision
    ours = {
        "visual.class_embedding": tower.class_embedding,
        "visual.positional_embedding": tower.positional_embedding,
        "visual.proj": tower.proj,
        "visual.ln_pre.weight": tower.ln_pre.weight,
        "visual.ln_pre.bias": tower.ln_pre.bias,
        "visual.ln_post.weight": tower.ln_post.weight,
        "visual.transformer.resblocks.0.attn.out_proj.weight": tower.blocks[0].attn.out.weight,
        "visual.transformer.resblocks.1.mlp.c_proj.bias": tower.blocks[1].mlp.c_proj.bias,
        "visual.transformer.resblocks.1.ln_2.weight": tower.blocks[1].ln_2.weight,
    }
    for name, parameter in ours.items():
        assert parameter.grad is not None
        compared("zscl", "gradients", parameter.grad, released[name], 5e-5)
    keys = slice(64, 128)  # the bias of keys has no gradient but rounding
    theirs, mine = released["visual.transformer.resblocks.0.attn.in_proj_bias"], tower.blocks[0].attn.in_bias.grad
    for part in (slice(0, 64), slice(128, 192)):
        compared("zscl", "gradients", mine[part], theirs[part], 5e-5)
    assert float(mine[keys].abs().max()) < 1e-4
    found = {released_name(name).removeprefix("clip."): each for name, each in base.named_parameters()}
    for name, norm in FACTS["zscl"]["grad_norms"].items():
        if name != "logit_scale" and "in_proj_bias" not in name:  # not trained, and there it is the teacher's, too
            gradient = found[name].grad
            assert gradient is not None
            compared("zscl", "gradients", gradient.norm() / max(1.0, norm), norm / max(1.0, norm), 5e-5)


def test_the_distance_to_the_start_equals_the_released_one(compared):
    file = read(FIXTURES / "zscl_released.npz")
    strategy = ZSCL(ZSCLConfig(weight=0.0, l2=1.0), retriever(moved=True))
    strategy.begin_task(make_task())
    start = dict(retriever(moved=False).named_parameters())
    names = [name for name, parameter in strategy.base.named_parameters() if "logit_scale" not in name]
    by_place = {id(parameter): name for name, parameter in strategy.base.named_parameters()}
    strategy._start = [start[by_place[id(parameter)]].detach() for parameter in strategy._trained()]
    assert len(strategy._start) == len(names)
    released = file["step/l2/s1_from_s0"]
    compared("zscl", "loss", strategy.distance() / released, 1.0, 1e-5)


class Vector(Clip4Clip):
    """Retriever whose only trained weights are one vector."""

    def __init__(self, start: torch.Tensor) -> None:
        super().__init__(Clip4ClipConfig(), continual_clip())
        self.theta = torch.nn.Parameter(start.clone())

    def param_groups(self) -> list[ParamGroup]:
        return [ParamGroup(name="theta", params=[self.theta], lr=1.0)]


def test_zscl_terms_equal_the_released_functions(compared):
    file = floats(read(FIXTURES / "zscl_released.npz"), "functions/")
    for case in ("a", "b"):
        student = file[f"distillation/{case}/student"].clone().requires_grad_()
        teacher = file[f"distillation/{case}/teacher"]
        loss = distillation(student, teacher, T)
        loss.backward()
        entropy = -(T**2) * (F.softmax(teacher / T, -1) * F.log_softmax(teacher / T, -1)).sum(-1).mean()
        compared("zscl", "loss", loss + entropy, file[f"distillation/{case}/loss"])
        compared("zscl", "gradients", student.grad, file[f"distillation/{case}/grad"])
    recipes = read(FIXTURES / "recipes_released.npz")
    base = Vector(recipes["zscl/models"][0])
    strategy = ZSCL(ZSCLConfig(weight=0.0, l2=1.0, average_every=1), base)
    strategy.begin_task(make_task())
    for number, (snapshot, merged) in enumerate(zip(recipes["zscl/models"][1:], recipes["zscl/merge"], strict=True)):
        base.theta.data.copy_(snapshot)
        if not number:
            distance = strategy.distance()
            compared("zscl", "loss", distance, file["l2/value"])
            compared("zscl", "gradients", torch.autograd.grad(distance, base.theta)[0], file["l2/grad"])
        strategy.after_step()
        compared("zscl", "steps", strategy._average[0], merged)


# ------------------------------------------------------------------------------------- MoE-Adapters


def test_weights_of_the_recipe_are_those_of_the_reference_models(shared):
    """This covers both of ZSCL's models, and the adapters with their first routers; no fixture holds a weight of
    theirs.
    """
    folder = shared / "reference" / "clip_continual"
    for prefix, is_moved in (("s0/", False), ("s1/", True)):
        for name, value in floats(read(folder / "zscl_state.npz"), prefix).items():
            if name != "logit_scale":  # 4.60 in both
                assert torch.equal(seeded(name, tuple(value.shape), is_moved), value), (prefix, name)
    weights = floats(read(folder / "moe_state.npz"))
    adapters = [name for name in weights if "adaptmlp" in name or "_list." in name]
    assert len(adapters) > 80
    for name in adapters:
        made = seeded(name, tuple(weights[name].shape))
        assert torch.allclose(made, weights[name], rtol=0, atol=5e-4), name  # a float16 may be rounded the other way


def moe_adapter() -> MoEAdapter:
    """Return the reference model, all of whose weights are numbers of the recipe."""
    config = MoEAdapterConfig(num_experts=5, bottleneck=64, dropout=0.0)
    method = MoEAdapter(config, continual_clip())
    method.begin_task(make_task(0, 3))
    for tower, mixtures in (("visual.transformer", method.vision), ("transformer", method.text)):
        for layer, mixture in enumerate(mixtures):
            block = f"{tower}.resblocks.{layer}"
            for number, expert in enumerate(mixture.experts):
                for part, linear in (("down_proj", expert.down), ("up_proj", expert.up)):
                    for kind, parameter in linear.named_parameters():
                        name = f"{block}.adaptmlp_list.{number}.{part}.{kind}"
                        parameter.data.copy_(seeded(name, tuple(parameter.shape)))
            for task, router in enumerate(mixture.routers):
                router.route.data.copy_(seeded(f"{block}.router_list.{task}", (64, 5)).mT)
                router.noise.data.copy_(seeded(f"{block}.w_noise_list.{task}", (64, 5)).mT)
    return method.eval()


def gates_of(method: MoEAdapter) -> dict[str, list[torch.Tensor]]:
    """Return a list that receives the gates of every block as the method encodes."""
    found: dict[str, list[torch.Tensor]] = {"image": [], "text": []}
    for kind, mixtures in (("image", method.vision), ("text", method.text)):
        for mixture in mixtures:
            for router in mixture.routers:
                router.register_forward_hook(lambda module, args, out, kind=kind: found[kind].append(out))
    return found


def test_moe_adapters_equal_the_released_code(compared):
    file = read(FIXTURES / "moe_released.npz")
    images, tokens, plain = file["images"].float()[:, None] / 127.5 - 1, file["tokens"], continual_clip()
    method = moe_adapter()
    with torch.no_grad():
        compared(
            "moe_adapter", "forward", l2_normalize(plain.vision(images)[:, 0]), l2_normalize(file["eval/task-1/image"])
        )
        compared("moe_adapter", "forward", l2_normalize(plain.text(tokens)), l2_normalize(file["eval/task-1/text"]))
        for task in (0, 1):
            method.begin_task(make_task(task, 3))
            gates = gates_of(method)
            compared(
                "moe_adapter", "forward", method.encode_video(images), l2_normalize(file[f"eval/task{task}/image"])
            )
            compared(
                "moe_adapter", "forward", method.encode_text(tokens, task), l2_normalize(file[f"eval/task{task}/text"])
            )
            for kind in ("image", "text") if task == 0 else ():
                for layer, found in enumerate(gates[kind]):
                    compared("moe_adapter", "forward", found, file[f"eval/task0/{kind}{layer}/gates"])


def test_a_training_step_of_moe_adapters_equals_the_released_code(compared):
    file = read(FIXTURES / "moe_released.npz")
    method = moe_adapter().train()
    method.begin_task(make_task(0, 3))
    gates = gates_of(method)
    torch.manual_seed(31)
    texts = method.encode_text(file["tokens"])
    videos = method.encode_video(file["images"].float()[:, None] / 127.5 - 1)
    logits = torch.tensor(4.6).half().float().exp() * videos @ texts.mT
    compared("moe_adapter", "forward", logits, file["step_task0/logits"], 5e-5)
    for kind in ("text", "image"):
        for layer, found in enumerate(gates[kind]):
            compared("moe_adapter", "forward", found, file[f"step_task0/{kind}{layer}/gates"])
    loss = F.cross_entropy(logits, file["labels"], label_smoothing=0.2)
    compared("moe_adapter", "loss", loss, file["step_task0/loss"])
    loss.backward()
    released = floats(file, "step_task0/grad/")
    for tower, mixtures in (("visual.transformer", method.vision), ("transformer", method.text)):
        for layer, mixture in enumerate(mixtures):
            block = f"{tower}.resblocks.{layer}"
            ours = {
                f"{block}.router_list.0": mixture.routers[0].route,
                f"{block}.w_noise_list.0": mixture.routers[0].noise,
            }
            for number, expert in enumerate(mixture.experts):
                for part, linear in (("down_proj", expert.down), ("up_proj", expert.up)):
                    name = f"{block}.adaptmlp_list.{number}.{part}"
                    ours |= {f"{name}.bias": linear.bias}
                    norm = FACTS["moe_adapter"]["grad_norms"].get(f"{name}.weight")
                    if norm is None:
                        assert linear.weight.grad is None, name
                    else:
                        compared("moe_adapter", "gradients", linear.weight.grad.norm() / norm, 1.0, 5e-5)
            for name, parameter in ours.items():
                if name not in released:  # no sample chose the expert
                    assert parameter.grad is None, name
                    continue
                gradient = parameter.grad.mT if name[-7:] == "_list.0" and parameter.ndim == 2 else parameter.grad
                compared("moe_adapter", "gradients", gradient, released[name])


def test_gates_alone_equal_the_released_ones_in_value_and_gradient(compared):
    file = floats(read(FIXTURES / "moe_released.npz"), "functions/gating/")
    for mode in ("eval", "train"):
        router = Router(64, 5, 2).train(mode == "train")
        router.route.data.copy_(file["router"].mT)
        router.noise.data.copy_(file["w_noise"].mT)
        gates = router(file["x"], file["train/noise"])
        compared("moe_adapter", "forward", gates, file[f"{mode}/gates"])
        (gates * torch.from_numpy(draw(f"gatew/{mode}", (9, 5)))).sum().backward()
        compared("moe_adapter", "gradients", router.route.grad.mT, file[f"{mode}/grad_router"])
        if mode == "train":
            compared("moe_adapter", "gradients", router.noise.grad.mT, file["train/grad_w_noise"])


def test_an_expert_alone_and_the_blocks_around_it_equal_the_released_ones(compared, shared):
    folder = shared / "reference" / "clip_continual"
    file, io = floats(read(folder / "moe_functions.npz"), "adapter/"), read(folder / "moe_io.npz")
    method = moe_adapter()
    x, expert = file["x"].clone().requires_grad_(), method.vision[0].experts[1]
    y = expert(x)
    compared("moe_adapter", "forward", y, file["y"])
    (y * file["w"]).sum().backward()
    compared("moe_adapter", "gradients", x.grad, file["grad_x"])
    for part, linear in (("down_proj", expert.down), ("up_proj", expert.up)):
        compared("moe_adapter", "gradients", linear.bias.grad, file[f"grad/{part}.bias"])
    outs: list[torch.Tensor] = []
    towers = (method.backbone.vision, method.backbone.text)
    for block in (block for tower in towers for block in tower.blocks):
        block.register_forward_hook(lambda module, args, out: outs.append(out))
    with torch.no_grad():
        method.encode_video(io["images_u8"][0].float()[:, None] / 127.5 - 1)
        method.encode_text(io["class_tokens"], 0)
    for number, name in enumerate(("image0", "image1", "text0", "text1")):
        released = io[f"eval/task0/{name}/out"]
        found = outs[number][:2, : released.shape[1]]
        compared("moe_adapter", "forward", found, released[:, : found.shape[1]])
