"""CLIP4Clip, X-Pool and CLIP-ViP compared with their authors' codes, on small seeded weights.

An extract of the reference files is in every clone: CLIP4Clip without its text tower, X-Pool's head, the beginning of
CLIP-ViP's vision tower and its last two blocks, with the gradients of all these. The whole models are compared where
all reference files are available.
"""

import json
from typing import Any

import torch
import torch.nn.functional as F

from ctvr.methods.backbone.clip import Clip, TokenState
from ctvr.methods.backbone.huggingface import under_open_clip_names
from ctvr.methods.base import l2_normalize
from ctvr.methods.clip4clip import Clip4Clip, Clip4ClipConfig
from ctvr.methods.clip_vip import CLIPViP, CLIPViPConfig
from ctvr.methods.layers.losses.contrastive import contrastive
from ctvr.methods.xpool import XPool, XPoolConfig
from tests.methods.released import FIXTURES, Weights, floats, pairs, read, shape_of, tiny_clip

FACTS = json.loads((FIXTURES / "retrievers_released.json").read_text())
C4C = shape_of((64, 2, 1), (128, 3, 2), embed=128, image=24, patch=8, context=20, vocab=99)
HEADERS: tuple[Any, ...] = ("meanP", "seqLSTM", "seqTransf")
PARTS = {"in_proj_": "in_", "out_proj.": "out."}  # the authors' names of an attention's parameters


def clip4clip(state: Weights, header: Any) -> Clip4Clip:
    clip = tiny_clip(C4C, floats(state, "clip."))
    config = Clip4ClipConfig(sim_header=header, sim_layers=2, sim_eps=1e-12, frame_norm="l2", mask_missing=True)
    method = Clip4Clip(config, clip).eval()
    own: Weights = {}
    if header == "seqLSTM":
        own = {f"lstm.{name}": value for name, value in floats(state, "lstm_visual.").items()}
    elif header == "seqTransf":
        own["positions"] = state["frame_position_embeddings.weight"]
        for name, value in floats(state, "transformerClip.resblocks.").items():
            own["blocks." + renamed(name)] = value
    if method.header is not None:
        method.header.load_state_dict(own)
    return method


def renamed(name: str) -> str:
    for theirs, ours in PARTS.items():
        name = name.replace(theirs, ours)
    return name


def extract() -> tuple[Weights, Weights]:
    """Return CLIP4Clip's weights, stored exactly as multiples of 1/128, and its inputs and outputs."""
    file = read(FIXTURES / "clip4clip_released.npz")
    state = {name.removeprefix("state/"): value.float() / 128 for name, value in file.items() if "state/" in name}
    return state, {name: value for name, value in file.items() if "state/" not in name}


def headers_equal(compared, state: Weights, io: Weights) -> None:
    video, captions = io["video"].float(), l2_normalize(io["sequence_output"])
    for header in HEADERS:
        method = clip4clip(state, header)
        with torch.no_grad():
            frames = method.backbone.vision(video)
            if header == "meanP":
                compared("clip4clip", "forward", frames[:1], io["visual_output_full"])
            else:
                frames = method.header(frames)
            compared("clip4clip", "forward", l2_normalize(frames[:1]), io[f"{header}/frames_unit_full"])
            found = method.encode_video(video)
            compared("clip4clip", "forward", found, l2_normalize(io[f"{header}/pooled_full"]))
            compared("clip4clip", "forward", method.scale() * captions @ found.mT, io[f"{header}/logits_full"], 5e-5)
        loss = contrastive(method.scale() * captions @ method.encode_video(video).mT)
        compared("clip4clip", "loss", loss, FACTS["train_loss"][f"{header}/full"], 5e-5)
    loss.backward()  # the gradients of seqTransf were recorded from the release
    trained = {name: norm for name, norm in FACTS["grad_norms"].items() if not of_text(name)}
    gradient_norms_equal(compared, method, "clip4clip", trained, released_name)


def of_text(name: str) -> bool:
    return name.startswith("clip.") and not name.startswith(("clip.visual.", "clip.logit_scale"))


def test_clip4clip_equals_the_released_code_after_its_text_tower(compared):
    state, io = extract()
    headers_equal(compared, state, io)
    compared("clip4clip", "loss", contrastive(io["crossen/z"]), FACTS["crossen"]["loss"])


def test_a_video_with_fewer_frames_equals_the_masked_one_in_all_headers(compared):
    """The authors mask missing frames; here they are omitted. Their output exists only for meanP."""
    state, io = extract()
    assert io["mask_ragged"].sum(dim=1).tolist() == [6, 4, 1, 3]
    captions, full = l2_normalize(io["sequence_output"]), io["video"].float()
    for header in HEADERS:
        method = clip4clip(state, header)
        with torch.no_grad():
            videos = method.encode_video(full * io["mask_ragged"][:, :, None, None, None])
        if header == "meanP":
            logits = method.scale() * captions @ videos.mT
            compared("clip4clip", "evaluation", logits, io["meanP/logits_ragged"], 5e-5)
        with torch.no_grad():
            masked = masked_by_hand(method, full, io["mask_ragged"])
        torch.testing.assert_close(videos, masked, rtol=0, atol=2e-6)


def masked_by_hand(method: Clip4Clip, video: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Compute the release's result for zero images as missing frames, by the definition of `loose_type` headers."""
    shown = video * mask[:, :, None, None, None]
    frames, header = method.backbone.vision(shown), method.header
    if method.config.sim_header == "seqLSTM":
        packed = torch.nn.utils.rnn.pack_padded_sequence(frames, mask.sum(1), batch_first=True, enforce_sorted=False)
        out = torch.nn.utils.rnn.pad_packed_sequence(header.lstm(packed)[0], batch_first=True, total_length=6)[0]
        frames = frames + out
    elif method.config.sim_header == "seqTransf":
        x = frames + header.positions[: frames.shape[1]]
        hidden = (1 - mask.float())[:, None, None] * -1e6
        for block in header.blocks:
            y, heads = block.ln_1(x), block.attn.heads
            q, k, v = F.linear(y, block.attn.in_weight, block.attn.in_bias).chunk(3, dim=-1)
            q, k, v = (z.unflatten(-1, (heads, -1)).transpose(1, 2) for z in (q, k, v))
            weights = (q @ k.mT / q.shape[-1] ** 0.5 + hidden).softmax(dim=-1)
            x = x + block.attn.out((weights @ v).transpose(1, 2).flatten(2))
            x = x + block.mlp(block.ln_2(x))
        frames = frames + x
    weights = mask.float()[..., None]
    return l2_normalize((l2_normalize(frames) * weights).sum(1) / weights.sum(1))


def gradient_norms_equal(compared, method: Any, name: str, released: dict[str, float], names) -> None:
    found = {names(ours): parameter.grad for ours, parameter in method.named_parameters()}
    for theirs, norm in released.items():
        if "in_proj_bias" in theirs or "k_proj.bias" in theirs:
            continue  # the part of the keys is rounding
        gradient = found.get(theirs)
        size = 0.0 if gradient is None else float(gradient.norm())
        compared(name, "gradients", size / max(1.0, norm), norm / max(1.0, norm), 2e-5)


def test_all_of_clip4clip_equals_the_released_code(compared, shared):
    folder = shared / "reference" / "clip4clip"
    state, io = floats(read(folder / "c4c_state.npz")), read(folder / "c4c_io.npz")
    for header in HEADERS:
        method = clip4clip(state, header)
        batch = pairs(io["video"].float(), io["input_ids"])
        compared("clip4clip", "forward", method.encode_text(batch.tokens), l2_normalize(io["sequence_output"]))
        logits = method.logits(batch)
        compared("clip4clip", "forward", logits, io[f"{header}/logits_full"], 5e-5)
        loss = method.losses(batch)["contrastive"]
        compared("clip4clip", "loss", loss, FACTS["train_loss"][f"{header}/full"], 5e-5)
    loss.backward()
    gradient_norms_equal(compared, method, "clip4clip", FACTS["grad_norms"], released_name)


def released_name(ours: str) -> str:
    """Return the authors' name, in CLIP4Clip and X-Pool, of one of our parameters."""
    name = ours.replace("header.blocks", "transformerClip.resblocks")
    name = name.replace("header.positions", "frame_position_embeddings.weight")
    name = name.replace("backbone.vision.", "clip.visual.").replace("backbone.text.", "clip.")
    name = name.replace("backbone.logit_scale", "clip.logit_scale")
    if name.startswith("clip."):
        name = name.replace(".blocks.", ".transformer.resblocks.")
    if name == "clip.proj":
        return "clip.text_projection"
    return name.replace("attn.in_", "attn.in_proj_").replace("attn.out.", "attn.out_proj.")


def test_xpools_head_equals_the_released_code(compared):
    file = read(FIXTURES / "xpool_released.npz")
    method = xpool(tiny_clip(C4C), file)
    method.backbone.logit_scale.data.fill_(4.40625)
    xpool_equals(compared, method, file)
    with torch.no_grad():
        pooled = pool(method, file["alone/text"], file["alone/frames2"])
        compared("xpool", "forward", pooled, file["alone/pooled2"])
        compared("xpool", "forward", method.score(file["alone/text"], file["alone/frames2"]), file["alone/sims2"])
        fresh = XPool(XPoolConfig(), tiny_clip(C4C)).eval()
        compared("xpool", "forward", fresh.score(file["text_embeds"], file["frame_embeds"]), file["init/sims"])
        for scale, loss in FACTS["xpool"]["cliploss"].items():
            found = contrastive(torch.tensor(float(scale)).exp() * file["cliploss/sims"])
            compared("xpool", "loss", found, loss)
    loss = contrastive(method.scale() * method.score(file["text_embeds"], file["frame_embeds"]))
    compared("xpool", "loss", loss, FACTS["xpool"]["loss_train_no_dropout"], 5e-5)
    loss.backward()
    head = {name: norm for name, norm in FACTS["xpool"]["grad_norms"].items() if "pool_frames" in name}
    gradient_norms_equal(compared, method, "xpool", head, xpools_name)


HEADS = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "out": "out_proj"}


def xpools_name(ours: str) -> str:
    module, _, rest = ours.removeprefix("pooling.").partition(".")
    if module in HEADS:
        return f"pool_frames.cross_attn.{HEADS[module]}.{rest}"
    if ours.startswith("pooling.ln_"):
        return f"pool_frames.layer_norm{module[-1]}.{rest}"
    return f"pool_frames.linear_proj.{rest}" if module == "linear" else released_name(ours)


def xpool(clip: Clip, state: Weights) -> XPool:
    method = XPool(XPoolConfig(), clip).eval()
    names = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "out_proj": "out", "linear_proj": "linear"}
    names |= {f"layer_norm{i}": f"ln_{i}" for i in (1, 2, 3)}
    own = {}
    for name, value in floats(state, "state/pool_frames.").items():
        place, _, kind = name.removeprefix("cross_attn.").rpartition(".")
        own[f"{names[place]}.{kind}"] = value
    method.pooling.load_state_dict(own)
    return method


def pool(method: XPool, texts: torch.Tensor, frames: torch.Tensor) -> torch.Tensor:
    return method.pooling.pool(method.pooling.ask(texts), *method.pooling.read(frames))


def xpool_equals(compared, method: XPool, file: Weights) -> None:
    texts, frames = file["text_embeds"], file["frame_embeds"]
    with torch.no_grad():
        asked, keys = method.pooling.ask(texts), method.pooling.read(frames)[0]
        weights = method.pooling.attention(asked, keys)  # (V, Q, T)
        compared("xpool", "forward", weights, file["attention_weights"][:, 0].mT)
        compared("xpool", "forward", pool(method, texts, frames), file["pooled"])
        sims = method.score(texts, frames)
        compared("xpool", "forward", sims, file["sims"])
        compared("xpool", "loss", contrastive(method.scale() * sims), FACTS["xpool"]["loss_eval"], 5e-5)


def test_all_of_xpool_equals_the_released_code(compared, shared):
    folder = shared / "reference" / "clip4clip"
    clip = tiny_clip(C4C, floats(floats(read(folder / "c4c_state.npz")), "clip."))
    weights = {f"state/{name}": value for name, value in read(folder / "xpool_state.npz").items()}
    io, method = read(folder / "xpool_io.npz"), xpool(clip, weights)
    batch = pairs(io["video"].float(), io["input_ids"])
    compared("xpool", "forward", method.encode_text(batch.tokens), io["text_embeds"])
    compared("xpool", "forward", method.encode_video(batch.frames), io["frame_embeds"])
    loss = method.losses(batch)["contrastive"]
    compared("xpool", "loss", loss, FACTS["xpool"]["loss_train_no_dropout"], 5e-5)
    loss.backward()
    gradient_norms_equal(compared, method, "xpool", FACTS["xpool"]["grad_norms"], xpools_name)
    method.train()  # dropout of 0.3, as the command has it
    torch.manual_seed(31)
    compared("xpool", "loss", method.losses(batch)["contrastive"], FACTS["xpool"]["loss_dropout_seed31"], 5e-5)


# ------------------------------------------------------------------------------------- CLIP-ViP

VIP = shape_of((48, 4, 4), (32, 4, 4), embed=24, image=32, patch=8, context=20, vocab=128)
LAYERS = {"mlp.fc1": "mlp.c_fc", "mlp.fc2": "mlp.c_proj", "layer_norm1": "ln_1", "layer_norm2": "ln_2"}
TOP = {
    "logit_scale": "backbone.logit_scale",
    "text_model.embeddings.token_embedding.weight": "backbone.text.token_embedding.weight",
    "text_model.embeddings.position_embedding.weight": "backbone.text.positional_embedding",
    "vision_model.embeddings.added_cls": "video.proxies",
    "vision_model.embeddings.temporal_embedding": "video.time",
    "vision_model.embeddings.class_embedding": "backbone.vision.class_embedding",
    "vision_model.embeddings.position_embedding.weight": "backbone.vision.positional_embedding",
    "vision_model.embeddings.patch_embedding.weight": "backbone.vision.conv1.weight",
    "visual_projection.weight": "backbone.vision.proj",
    "text_projection.weight": "backbone.text.proj",
}
NORMS = {"text_model.final_layer_norm": "backbone.text.ln_final", "vision_model.pre_layrnorm": "backbone.vision.ln_pre"}
NORMS["vision_model.post_layernorm"] = "backbone.vision.ln_post"


def clip_vip(state: Weights) -> CLIPViP:
    """Return the method with as many of the authors' weights as the file holds."""
    config = CLIPViPConfig(num_proxies=3, temporal_size=6, loss_reduction="sum")
    added = {name: state[name] for name in TOP if TOP[name].startswith("video.") and name in state}
    weights = under_open_clip_names({n: value for n, value in state.items() if n not in added}, {})
    method = CLIPViP(config, tiny_clip(VIP, weights)).eval()
    method.load_state_dict({TOP[name]: value for name, value in added.items()}, strict=False)
    return method


def clip_vip_blocks_equal(compared, method: CLIPViP, video: torch.Tensor, io: Weights) -> None:
    """Compare tokens before and after the blocks whose outputs `io` has."""
    embedded: list[torch.Tensor] = []
    states: list[torch.Tensor] = []
    video_tower = method.video

    class Watched(type(video_tower)):  # type: ignore[misc]
        def block(self, *args: Any) -> torch.Tensor:
            states.append(super().block(*args))
            return states[-1]

    video_tower.__class__ = Watched
    hook = method.backbone.vision.ln_pre.register_forward_hook(
        lambda module, args, out: embedded.extend((args[0], out))
    )
    with torch.no_grad():
        method.video(method.backbone.vision, video)
    hook.remove()
    for number, name in enumerate(("embeddings", "hidden0")):
        compared("clip_vip", "forward", embedded[number], io[name])
    for layer, found in enumerate(states, start=1):
        if f"hidden{layer}" in io:
            compared("clip_vip", "forward", found, io[f"hidden{layer}"])


def test_clip_vips_tokens_blocks_and_gradients_equal_the_released_code(compared):
    file = read(FIXTURES / "clip_vip_released.npz")
    method, every = clip_vip(floats(floats(file, "state/"), "clipmodel.")), slice(None, None, 7)
    tower, before = method.backbone.vision, []
    hook = tower.ln_pre.register_forward_hook(lambda module, args, out: before.append(args[0]))
    with torch.no_grad():
        tokens = method.video._embed(tower, file["video"].float())
    hook.remove()
    compared("clip_vip", "forward", before[0][:, every], file["embeddings"])
    compared("clip_vip", "forward", tokens[:, every], file["hidden0"])
    x, state = file["hidden2"], TokenState(4, 6, classes=1, protected=4)
    for block in tower.blocks[2:]:
        x = method.video.block(block, 6, x, state)
    found = l2_normalize(tower.read(x[:, 0]))
    compared("clip_vip", "forward", found, file["vis_features"])
    logits = method.scale() * method.score(file["text_features"], found)
    compared("clip_vip", "forward", logits.mT, file["logits_v2t"])
    loss = contrastive(logits, "sum")
    compared("clip_vip", "loss", loss, FACTS["clip_vip"]["loss"])
    loss.backward()
    ours = {**dict(method.named_parameters()), **thirds(tower.blocks)}
    names = {theirs: mine for theirs, mine in TOP.items() if theirs in ("logit_scale", "visual_projection.weight")}
    for theirs, norm in FACTS["clip_vip"]["grad_norms"].items():
        module, _, kind = theirs.rpartition(".")
        mine = names.get(theirs) or f"{vips_name(module)}.{kind}"
        gradient = ours[mine] if "_proj of " in mine else ours[mine].grad
        compared("clip_vip", "gradients", gradient.norm() / max(1.0, norm), norm / max(1.0, norm), 2e-5)


def vips_name(module: str) -> str:
    """Return our name of one of CLIP-ViP's modules; for the fused three of an attention, the key of `thirds`."""
    if module in NORMS:
        return NORMS[module]
    layer, _, part = module.removeprefix("vision_model.encoder.layers.").partition(".")
    if part in LAYERS:
        return f"backbone.vision.blocks.{layer}.{LAYERS[part]}"
    if part == "self_attn.out_proj":
        return f"backbone.vision.blocks.{layer}.attn.out"
    return f"{part.removeprefix('self_attn.')} of {layer}"


def thirds(blocks: torch.nn.ModuleList) -> Weights:
    """Return the separate gradients of queries, keys and values."""
    found: Weights = {}
    for layer, block in enumerate(blocks):
        for kind in ("weight", "bias"):
            gradient = getattr(block.attn, f"in_{kind}").grad
            if gradient is not None:
                found |= {f"{part}_proj of {layer}.{kind}": third for part, third in zip("qkv", gradient.chunk(3))}
    return found


def test_all_of_clip_vip_equals_the_released_code(compared, shared):
    folder = shared / "reference" / "clip_vip"
    io, state = read(folder / "vip_io.npz"), floats(floats(read(folder / "vip_state.npz")), "clipmodel.")
    method = clip_vip(state)
    batch = pairs(io["video"].float(), io["text_input_ids"])
    compared("clip_vip", "forward", method.encode_video(batch.frames), io["vis_features"])
    compared("clip_vip", "forward", method.encode_text(batch.tokens), io["text_features"])
    loss = method.losses(batch)["contrastive"]
    compared("clip_vip", "loss", loss, FACTS["clip_vip"]["loss"])
    loss.backward()
    ours = dict(method.named_parameters())
    for name in TOP:
        released = io.get(f"grad/clipmodel.{name}")
        gradient = ours[TOP[name]].grad
        if released is not None and gradient is not None:
            released = released.mT if "projection" in name else released
            compared("clip_vip", "gradients", gradient, released)
    clip_vip_blocks_equal(compared, method, batch.frames, io)
    alone = read(folder / "vip_attention.npz")
    for case in ("m4n3l5", "m1n2l4"):
        whole, frames, _ = alone[f"{case}/size"].tolist()
        method.video.proxies = torch.nn.Parameter(torch.zeros(whole - 1, 48))
        attention = method.backbone.vision.blocks[int(alone["layer"])].attn
        found = method.video.attend(attention, alone[f"{case}/x"], frames, TokenState(2, frames, classes=1))
        compared("clip_vip", "forward", found, alone[f"{case}/out"])
