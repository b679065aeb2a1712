"""The bugs of `make mutants`: each changes one line, and the tests named beside it must notice.

A line is given as it stands in its file, without the space at its ends, and must be there exactly once: an edit of the
sources that touches one fails a quick test (test_mutants.py), so that the list cannot rot. Add a bug wherever a review
or an accident shows one that the tests would have let pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from tests.mutants import bugs_of_places
from tests.mutants.released import RELEASED


class Bug(NamedTuple):
    """One line that is wrong; `breaks` says what, `tests` are the files of which one must fall."""

    file: str
    before: str
    after: str
    breaks: str
    tests: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.file}: {self.breaks}"


def tests_of(file: str) -> tuple[str, ...]:
    """The tests that mirror a source file."""
    folder, _, name = file.rpartition("/")
    return (f"tests/{folder}/test_{name}",)


def _bugs() -> Iterator[Bug]:
    for file, lines in chain(LINES.items(), bugs_of_places.LINES.items(), RELEASED.items()):
        for before, after, breaks, *tests in lines:
            yield Bug(file, before, after, breaks, tuple(tests) or tests_of(file))


RECORDED = "tests/methods/test_recorded.py::test_a_method_trains_and_searches_as_recorded[{}]"

# file -> (line, the line with the bug, what breaks[, other test files than the mirrored one])
LINES: dict[str, list[tuple[str, ...]]] = {
    # ------------------------------------------------------------------------------- losses that methods share
    "methods/layers/losses.py": [
        (
            'return both if reduction == "sum" else both / 2',
            "return both",
            "the mean of both directions is their sum",
        ),
        (
            "both = F.cross_entropy(logits, target) + F.cross_entropy(logits.mT, target)",
            "both = F.cross_entropy(logits, target) + F.cross_entropy(logits, target)",
            "videos -> captions is not trained",
        ),
        (
            'logits = logits.masked_fill(same, float("-inf"))',
            "logits = logits.masked_fill(same, 0.0)",
            "pairs of one video are negatives of each other",
        ),
        (
            "return F.cross_entropy(torch.cat([logits, references], dim=1), target)",
            "return F.cross_entropy(logits, target)",
            "stored videos are no negatives",
        ),
        (
            'return F.kl_div(logs, target, reduction="batchmean") * temperature**2',
            'return F.kl_div(logs, target, reduction="batchmean")',
            "distillation without T^2",
        ),
        (
            "target = F.softmax(teacher.float() / temperature, dim=-1)",
            "target = F.softmax(teacher.float(), dim=-1)",
            "the teacher's answers are not softened",
        ),
    ],
    "methods/layers/distillation.py": [
        (
            "return distillation(student, teacher, temperature) + distillation(student.mT, teacher.mT, temperature)",
            "return 2 * distillation(student, teacher, temperature)",
            "answers of videos are not kept",
        ),
        (
            "return (_kept(new, old, config) + _kept(new.mT, old.mT, config)) / 2",
            "return _kept(new, old, config)",
            "relations of videos are not kept",
        ),
        (
            "return F.cross_entropy(new / config.kappa, (old / config.kappa_teacher).softmax(dim=-1))",
            "return F.cross_entropy(new / config.kappa_teacher, (old / config.kappa).softmax(dim=-1))",
            "the two temperatures are swapped",
        ),
        (
            "both = [_kept(_others(x @ x.mT), _others(z @ z.mT), config) for x, z in zip(new, old, strict=True)]",
            "both = [_kept(x @ x.mT, z @ z.mT, config) for x, z in zip(new, old, strict=True)]",
            "a pair's relation to itself counts",
        ),
    ],
    "methods/layers/dual_softmax.py": [
        (
            "weighted = z * prior(z, temperature, 0, same) * pairs",
            "weighted = z * prior(z, temperature, 1, same) * pairs",
            "the prior is taken along the wrong axis",
        ),
        (
            "return torch.where(exact > 0, exact * prior(exact, temperature, dim), exact)",
            "return torch.where(exact > 0, exact * prior(exact, temperature, 1 - dim), exact)",
            "the prior of the search is taken along the wrong axis",
        ),
        (
            'return sum(rows, start=logits.new_zeros(())) / (1 if reduction == "sum" else 2)',
            "return sum(rows, start=logits.new_zeros(()))",
            "the mean of both directions is their sum",
        ),
    ],
    # --------------------------------------------------------------------------------------------- strategies
    "methods/lwf.py": [
        (
            'terms["distillation"] = self.config.weight * self.distil(encoded)',
            'terms["distillation"] = self.distil(encoded)',
            "weight is ignored",
        ),
        (
            "batch, kind, temperature = encoded.batch, self.config.student, self.config.temperature",
            "batch, kind, temperature = encoded.batch, self.config.student, 2.0",
            "temperature is ignored",
        ),
        (
            'old = scale.detach() * self.teacher("score", old_texts, old_videos).float()  # Z*',
            'old = scale * self.teacher("score", old_texts, old_videos).float()  # Z*',
            "the teacher's answers have a gradient",
        ),
        (
            "if task.index > 0 and self.config.weight:",
            "if task.index == 1 and self.config.weight:",
            "the teacher is never renewed",
        ),
    ],
    "methods/vr_lwf.py": [
        (
            'terms["distillation"] = self.config.weight * self.distil(batch, encoded.videos())',
            'terms["distillation"] = self.distil(batch, encoded.videos())',
            "weight is ignored",
        ),
        (
            "scale * self.base.score(sentences, videos).float(), old, self.config.temperature",
            "scale * self.base.score(sentences, videos).float(), old, 2.0",
            "temperature is ignored",
        ),
        (
            'old = scale.detach() * self.teacher("score", sentences, old_videos).float()  # Z*',
            'old = scale * self.teacher("score", sentences, old_videos).float()  # Z*',
            "the teacher's answers have a gradient",
        ),
        ("self._taught = None", "pass", "sentences of a former task are kept"),
    ],
    "methods/zscl.py": [
        (
            'terms["distillation"] = self.config.weight * self.distil(images)',
            'terms["distillation"] = self.distil(images)',
            "weight is ignored",
        ),
        (
            "return symmetric_distillation(student, teacher, self.config.temperature)",
            "return symmetric_distillation(student, teacher, 2.0)",
            "temperature is ignored",
        ),
        (
            'teacher = scale.detach() * self.teacher("score", texts, old).float()',
            'teacher = scale * self.teacher("score", texts, old).float()',
            "the teacher's answers have a gradient",
        ),
        ('terms["l2"] = self.config.l2 * self.distance()', 'terms["l2"] = self.distance()', "l2 is ignored"),
        (
            "average += (now - average) / (self._averaged + 1)",
            "average += (now - average) / self._averaged",
            "the start of a task is not in the mean of its weights",
        ),
        (
            "if self._average and self._steps % self.config.average_every == self._offset % self.config.average_every:",
            "if self._average:",
            "average_every is ignored",
        ),
        (
            "tokens = self.reference.tokens[: self.config.reference_texts]",
            "tokens = self.reference.tokens",
            "reference_texts is ignored",
        ),
    ],
    "methods/der.py": [
        (
            'terms["distillation"] = self.config.alpha * self.distil(self.memory.draw(len(batch.videos)))',
            'terms["distillation"] = self.distil(self.memory.draw(len(batch.videos)))',
            "alpha is ignored",
        ),
        ("return far.mean() / 2", "return far.mean()", "the half is missing"),
        (
            "return (self.base.score(text, video) - self.base.score(kept_text, kept_video)).square().mean()",
            "return (self.base.score(text, video) - self.base.score(kept_text, kept_video)).abs().mean()",
            "similarities are not squared",
        ),
    ],
    "methods/er_ring.py": [
        (
            "count = max(round(self.config.ratio * pairs * workers), int(self.config.ratio > 0))",
            "count = pairs * workers",
            "ratio is ignored",
        ),
    ],
    "methods/ewc.py": [
        (
            'terms["consolidation"] = self.config.weight / 2 * self.distance()',
            'terms["consolidation"] = self.config.weight * self.distance()',
            "the half is missing",
        ),
        ("sums[name] += gradient**2", "sums[name] += gradient.abs()", "the Fisher information is not squared"),
        (
            "getattr(self, _fisher(name)).mul_(self.config.decay).add_(sums[name] / max(1, count))",
            "getattr(self, _fisher(name)).mul_(self.config.decay).add_(sums[name])",
            "the Fisher information is a sum",
        ),
        ("getattr(self, _anchor(name)).copy_(parameter)", "pass", "the anchor stays at the first task"),
    ],
    "methods/co2l.py": [
        (
            'terms["distillation"] = self.config.weight * self.relations(student, taught)',
            'terms["distillation"] = self.relations(student, taught)',
            "weight is ignored",
        ),
        (
            "return (_added(own, of_texts) + _added(own.mT, of_videos)) / 2",
            "return _added(own, of_texts)",
            "videos are not pushed from memory's captions",
        ),
    ],
    "methods/co2l_moco.py": [
        (
            'terms["distillation"] = self.config.weight * self.relations(student, teacher)',
            'terms["distillation"] = self.relations(student, teacher)',
            "weight is ignored",
        ),
    ],
    "methods/lwf_moco.py": [
        (
            '"distillation": self.config.alpha * self.distil(queries, taught, keys[0]),',
            '"distillation": self.distil(queries, taught, keys[0]),',
            "alpha is ignored",
        ),
        (
            "new = student.video @ student.text.mT / self.config.tau  # (B, B)",
            "new = student.video @ student.text.mT",
            "tau is ignored",
        ),
        (
            "return (distillation(new, old, 1.0) + distillation(new.mT, old.mT, 1.0)) / 2",
            "return distillation(new, old, 1.0)",
            "answers of captions are not kept",
        ),
    ],
    "methods/lump.py": [
        (
            "pixels = share * batch.frames + (1 - share) * memory.frames",
            "pixels = (1 - share) * batch.frames + share * memory.frames",
            "the shares of pixels are swapped",
        ),
        ("if share < 0.5:", "if share > 0.5:", "the smaller share is the pair"),
    ],
    "methods/layers/mixing.py": [
        (
            "return share * a + (1 - share) * b, state",
            "return (1 - share) * a + share * b, state",
            "the shares of tokens are swapped",
        ),
        (
            "return length * F.normalize(share * first + (1 - share) * second, dim=-1)",
            "return F.normalize(share * first + (1 - share) * second, dim=-1)",
            "mixed features lose their length",
        ),
    ],
    "methods/layers/memory.py": [
        (
            "place = int(torch.randint(offered + 1, ()))",
            "place = int(torch.randint(room, ()))",
            "the reservoir forgets the past",
        ),
        (
            "frames, tokens = self.source.pairs(pairs[rows].tolist())",
            "frames, tokens = self.source.pairs(rows.tolist())",
            "the pairs at a place of the memory are read in place of those that it keeps",
        ),
        (
            "tasks=present if second.tasks is None else torch.cat([present, second.tasks]),",
            "tasks=None,",
            "old captions are read for the present task",
            "tests/methods/test_er_ring.py",
            "tests/methods/test_replay.py",
        ),
        (
            'shares = task.num_tasks if self.quota == "static" else task.index + 1',
            "shares = task.num_tasks",
            "quota is ignored",
        ),
    ],
    "orchestrator/data/augment.py": [
        (
            "x = (x - x.mean(dim=(1, 2, 3, 4), keepdim=True)) * contrast + x.mean(dim=(1, 2, 3, 4), keepdim=True)",
            "x = (x - x.mean(dim=(2, 3, 4), keepdim=True)) * contrast + x.mean(dim=(2, 3, 4), keepdim=True)",
            "contrast turns around the mean of each frame",
        ),
        (
            "tried = torch.stack([(area * ratio).sqrt(), (area / ratio).sqrt()], dim=-1)  # (B, TRIES, 2), relative to the frame",  # noqa: E501
            "tried = torch.stack([area.sqrt(), area.sqrt()], dim=-1)",
            "every crop is a square",
        ),
    ],
    "orchestrator/data/batches.py": [
        (
            "cut[:, longest - 1] = torch.where(end >= longest, tokens.amax(dim=1), cut[:, longest - 1])",
            "cut[:, longest - 1] = torch.where(end > longest, tokens.amax(dim=1), cut[:, longest - 1])",
            "a caption that is one token too long loses its end",
        ),
        (
            "return [pair for task in tasks for pair in range(self._first[task], self._first[task + 1])]",
            "return [pair for task in tasks for pair in range(self._first[task + 1] - self._first[task])]",
            "the numbers of pairs begin anew in every task",
        ),
        (
            "return videos.contiguous(), self._captions(chosen, self._width(range(len(self.stream.tasks))))",
            "return videos, self._captions(chosen, self._width(range(len(self.stream.tasks))))",
            "replayed frames lie in memory as others do, and round otherwise",
        ),
    ],
    "methods/layers/by_task.py": [
        (
            "return torch.cat(parts)[to_device(order.argsort(), tokens.device)]",
            "return torch.cat(parts)",
            "captions of several tasks come back in another order than their videos",
            "tests/methods/test_replay.py",
        ),
    ],
    "methods/upper_bound.py": [
        ("self.base = self._constructed().to(device)", "pass", "a stage starts where the former ended"),
    ],
    "methods/dsl.py": [
        (
            'terms["contrastive"] = self.config.weight * revised',
            'terms["contrastive"] = revised',
            "weight is ignored",
        ),
        (
            "return revise(self.base.scale().item() * scores, self.config.test_temperature)",
            "return revise(scores, self.config.test_temperature)",
            "the search revises unscaled similarities",
        ),
    ],
    # --------------------------------------------------------------------------------- FrameFusionMoE, experts
    "methods/framefusion_moe.py": [
        (
            'return {"contrastive": (1 - config.beta) * within, "cross_task": config.beta * across}',
            'return {"contrastive": within, "cross_task": config.beta * across}',
            "1 - beta is lost",
        ),
        (
            "if index == 0 or config.beta == 0:",
            "if config.beta == 0:",
            "beta weighs the first task, too",
        ),
        (
            "return TaskAwareExperts(width, width, c.rank, c.lora_alpha / c.rank, c.dropout)  # alpha / r: lambda of eq. 6",  # noqa: E501
            "return TaskAwareExperts(width, width, c.rank, 1 / c.rank, c.dropout)",
            "lora_alpha is ignored",
        ),
    ],
    "methods/layers/experts.py": [
        (
            "return (places * best.softmax(dim=-1)[..., None]).sum(dim=1)",
            "return (places * logits.softmax(dim=-1).gather(1, chosen)[..., None]).sum(dim=1)",
            "gates of the chosen do not sum to one",
        ),
        (
            "return self.router(u if prototype is None else u + prototype, eps)",
            "return self.router(u, eps)",
            "the router does not see the task's prototype",
        ),
        (
            "return self.scale * (down @ merged.mT.to(down.dtype))",
            "return down @ merged.mT.to(down.dtype)",
            "the experts' scale is lost",
        ),
        (
            "self.B.extend(first.clone() for _ in range(num_experts - len(self.B)))",
            "self.B.extend(torch.zeros_like(first) for _ in range(num_experts - len(self.B)))",
            "new experts start at zero",
        ),
    ],
    "methods/layers/temporal.py": [
        ("spatial = (1 - self.alpha) * spatial", "pass", "the convex mix is a sum"),
        (
            'return range(count) if placement == "shallowest" else range(depth - count, depth)',
            "return range(count)",
            "placement is ignored",
            "tests/methods/test_framefusion_moe.py",
        ),
        ("return spatial + self.alpha * temporal", "return spatial + temporal", "alpha is ignored"),
        ('if direction == "previous":', 'if direction == "next":', "the neighbouring frame is the other one"),
    ],
    "methods/layers/lora.py": [
        (
            "return projected + self.scale * F.linear(F.linear(x, self.A), self.B)",
            "return projected + F.linear(F.linear(x, self.A), self.B)",
            "the scale is lost",
        ),
    ],
    "methods/backbone/blocks.py": [
        (
            "return block(x, before.copy())",
            "return block(x, state.copy())",
            "a block is computed again from the tokens' state at the end of the tower",
            "tests/methods/test_checkpointing.py",
        ),
        (
            "passed: Tensor = checkpoint(run, x, use_reentrant=False, preserve_rng_state=True)",
            "passed: Tensor = checkpoint(run, x, use_reentrant=False, preserve_rng_state=False)",
            "a block is computed again with other noise",
            "tests/methods/test_checkpointing.py",
        ),
    ],
    "methods/moe_adapter.py": [
        (
            "if self.training and not passes_again():",
            "if self.training:",
            "what is computed again is counted again",
            "tests/methods/test_checkpointing.py",
        ),
        (
            "return SCALE * self.up(F.dropout(self.down(h).relu(), self.dropout, self.training))",
            "return self.up(F.dropout(self.down(h).relu(), self.dropout, self.training))",
            "the adapter's factor is lost",
        ),
        (
            "self.used += (gates > 0).sum(dim=0)",
            "self.used += (gates == 0).sum(dim=0)",
            "the least used experts freeze",
        ),
    ],
    "methods/adapter.py": [
        ("return self.up(F.gelu(self.down(x)))", "return self.up(self.down(x))", "the adapter is linear"),
    ],
    "methods/vop.py": [
        (
            "return unit(self.encode_frames(frames)).mean(dim=1)",
            "return unit(self.encode_frames(frames).mean(dim=1))",
            "a video is a unit vector, which it is not as released",
        ),
        (
            "behind = torch.where(place == self.columns - 1, a + b, a)",
            "behind = a",
            "a full caption is read at a suffix prompt",
        ),
        (
            "words = x - table[:length]  # they stand elsewhere now",
            "words = x",
            "words have two positions",
        ),
        (
            "rest = x.unflatten(0, (state.batch, state.frames)).flatten(1, 2) if is_first else x[:, len(prompts) :]",
            "rest = x.unflatten(0, (state.batch, state.frames)).flatten(1, 2) if is_first else x",
            "prompts of former blocks go on",
        ),
    ],
    "methods/layers/deep_prompts.py": [
        (
            "state.eot = state.eot + count",
            "pass",
            "the caption is read at a wrong token",
            "tests/methods/test_prompt.py",
        ),
    ],
    "methods/layers/merge.py": [
        (
            "share = leaving / merged.gather(1, plan.joined)  # (G, r) of the new token",
            "share = torch.full_like(leaving, 0.5)",
            "merged tokens forget how many they are",
        ),
    ],
    "methods/layers/pooling.py": [
        (
            'if frame_norm == "l2":',
            'if frame_norm != "l2":',
            "frame_norm is turned round",
        ),
    ],
    "methods/xpool.py": [
        (
            "return (asked @ keys.mT / math.sqrt(keys.shape[-1])).softmax(dim=-1)",
            "return (asked @ keys.mT / math.sqrt(keys.shape[-1])).softmax(dim=-2)",
            "captions share frames instead of frames a caption",
        ),
        (
            "square = quadratic(u, n @ n.mT) / s3**2 + 2 * (u @ (n @ last.bias)[..., None])[..., 0] / s3",
            "square = quadratic(u, n @ n.mT) / s3**2 + (u @ (n @ last.bias)[..., None])[..., 0] / s3",
            "the norm of r is wrong",
        ),
        (
            "u = torch.cat([w, torch.ones_like(w[..., :1])], dim=-1)  # (V, Q, T + 1)",
            "u = torch.cat([w, torch.zeros_like(w[..., :1])], dim=-1)  # (V, Q, T + 1)",
            "the residual's biases are lost",
            "tests/methods/test_released_retrievers.py",
        ),
        (
            "m = m - m.mean(dim=-1, keepdim=True)",
            "m = m - m.mean(dim=1, keepdim=True)",
            "the last LayerNorm centres frames",
            "tests/methods/test_xpool.py",
            "tests/methods/test_released_retrievers.py",
        ),
    ],
    "methods/camoe.py": [
        (
            "gates = self.project(self.aggregate(x)).softmax(dim=-1)",
            "gates = self.project(self.aggregate(x)).softmax(dim=0)",
            "gates are shared out over the batch",
        ),
    ],
    "methods/layers/testa.py": [
        (
            "return videos * places * (projections * frames * width**2 + 2 * frames**2 * width)",
            "return videos * places * (projections * frames * width**2 + frames**2 * width)",
            "half of the multiply-adds of attention over frames are left out",
        ),
        (
            "return accept(most_frequent(score), most_frequent(partner), r, frames, 0)",
            "return accept(score.amax(dim=1), most_frequent(partner), r, frames, 0)",
            "the most similar place decides for a frame",
            "tests/methods/layers/test_testa.py",
        ),
        (
            "state.frame_of = target if state.frame_of is None else target.gather(1, state.frame_of)",
            "state.frame_of = target",
            "a second merge forgets the first one's frames",
            "tests/methods/layers/test_testa.py",
        ),
    ],
    "methods/layers/diffrate_search.py": [
        (
            "seen = (logits - logits.amax(dim=-1, keepdim=True)).exp() * (mask[:, None, None] * (1 - own) + own)",
            "seen = (logits - logits.amax(dim=-1, keepdim=True)).exp() * mask[:, None, None]",
            "a token that was cut does not see itself",
            "tests/methods/test_released_reduction.py",
        ),
        (
            "grown = torch.cat([size[:, :kept], size[:, kept:left] * cosine], dim=1).clamp_min(1)",
            "grown = torch.cat([size[:, :kept], size[:, kept:left] * cosine], dim=1)",
            "sizes fall below 1 in a search",
            "tests/methods/test_released_reduction.py",
        ),
    ],
    # --------------------------------------------------------------------------------------------- StructAlign
    "methods/structalign.py": [
        (
            'terms["crp"] = c.lambda2 * self._relations(similarity, before)',
            'terms["crp"] = self._relations(similarity, before)',
            "lambda2 is ignored",
        ),
        (
            'terms["pairs"] = c.pair_weight * self._pseudo_contrast(words, frames)',
            'terms["pairs"] = self._pseudo_contrast(words, frames)',
            "pair_weight is ignored",
        ),
        (
            'weight = torch.full_like(terms["contrastive"].detach(), c.lambda1)',
            'weight = torch.full_like(terms["contrastive"].detach(), 1.0)',
            "lambda1 is ignored",
        ),
        (
            "now, before = now / tau2, before / tau2",
            "now, before = now, before / tau2",
            "tau2 of the student is lost",
        ),
    ],
    "methods/layers/temperature.py": [
        (
            "clip.logit_scale.clamp_(least, math.log(config.max_scale))",
            "clip.logit_scale.clamp_(max=math.log(config.max_scale))",
            "the temperature has no lower bound",
            "tests/orchestrator/learning/test_released_recipes.py",
        ),
    ],
    "methods/layers/kept_videos.py": [
        (
            "fresh = {number: row for row, number in enumerate(numbers) if number not in self._features}",
            "fresh = {number: row for row, number in enumerate(numbers)}",
            "a video is encoded in every step",
        ),
        (
            "return torch.stack([self._features[number] for number in numbers])",
            "return torch.stack([self._features[number] for number in sorted(numbers)])",
            "features come in the order of numbers",
        ),
    ],
    "methods/layers/masked_attention.py": [
        (
            "weighed = e * (policy * (1 - own) + own)",
            "weighed = e * policy",
            "a masked token does not attend to itself",
        ),
    ],
    "orchestrator/learning/repeats.py": [
        (
            "set_random_state(before, device)",
            "random_state(device)",
            "rows that draw are computed behind numbers that were drawn in vain",
        ),
        (
            "first = {number: row for row, number in reversed(list(enumerate(numbers)))}",
            "first = {number: index for index, number in enumerate(dict.fromkeys(numbers))}",
            "other videos stand for those that are left out",
        ),
    ],
    "orchestrator/video/sampling.py": [
        (
            "middles = (edges[:-1] + edges[1:] - 1) // 2",
            "middles = (edges[:-1] + edges[1:]) // 2",
            "the frame behind the middle of a part is taken",
            "tests/orchestrator/video/test_decode.py",
        ),
        (
            "return first + np.linspace(0, stop - first - 1, num_frames).astype(np.int64)",
            "return first + np.linspace(0, stop - first, num_frames).astype(np.int64)",
            "the last frame lies behind the film",
            "tests/orchestrator/video/test_decode.py",
        ),
        (
            "return _thinned(np.arange(first, last, max(1, int(fps))), num_frames)",
            "return _thinned(np.arange(first, last, max(1, round(fps))), num_frames)",
            "the rate is rounded",
            "tests/orchestrator/video/test_decode.py",
        ),
    ],
    "methods/layers/class_statistics.py": [
        (
            "departure = (centred @ centred.mT + 1 / (n - 1).clamp(min=0.5)).abs()",
            "departure = (means @ means.mT + 1 / (n - 1).clamp(min=0.5)).abs()",
            "angles are those of means that are not centred",
        ),
        (
            "spread = self.sigmas[:, which, None] if sigma is None else sigma",
            "spread = self.sigmas.flip(0)[:, which, None] if sigma is None else sigma",
            "noise has the spread of the other modality",
        ),
        (
            '"sigmas": variance.mean(dim=-1).sqrt(),',
            '"sigmas": variance.mean(dim=-1),',
            "the spread is a variance",
        ),
        (
            '"means": unit(mean) if normalise else mean,',
            '"means": mean,',
            "means are not brought to length one",
        ),
    ],
    "methods/layers/etf.py": [
        (
            "return (2 - (unit(text) * p).sum(dim=-1) - (unit(video) * p).sum(dim=-1)).mean()",
            "return (2 - 2 * (unit(text) * p).sum(dim=-1)).mean()",
            "videos are not aligned",
            "tests/methods/test_structalign.py",
        ),
        ("return (u @ centring).mT.contiguous()", "return u.mT.contiguous()", "the frame is not centred"),
    ],
    # ---------------------------------------------------------------------------------------------- BMU-MoCo
    "methods/layers/momentum.py": [
        ("move(momentum, encoders, 1 - m)", "move(momentum, encoders, m)", "the moving average is turned round"),
        ("mine.lerp_(other, 1 - m_hat)", "mine.lerp_(other, m_hat)", "the review is turned round"),
        (
            "return (torch.cat([p, n], dim=1).logsumexp(dim=1) - p.logsumexp(dim=1)).mean()",
            "return (n.logsumexp(dim=1) - p.logsumexp(dim=1)).mean()",
            "positives are not in the denominator",
        ),
        ("return to_text + to_video", "return 2 * to_text", "videos of captions are not trained"),
        (
            "if share == 1:",
            "if share:",
            "running statistics of keys are those of queries",
            "tests/methods/test_released_losses.py",
        ),
    ],
    "methods/layers/queues.py": [
        (
            "self.pointer.copy_((self.pointer + count) % self.size)",
            "self.pointer.copy_(self.pointer % self.size)",
            "the queue keeps its oldest",
        ),
    ],
    "methods/bmu_ensemble.py": [
        (
            "review(self.encoders, self.global_.encoders, 1 - third)",
            "review(self.encoders, self.global_.encoders, third)",
            "the share of the global encoders is turned round",
        ),
    ],
    # ------------------------------------------------------------------------------------------------ metrics
    "orchestrator/learning/metrics.py": [
        (
            "return 100.0 * (rank <= k).double().mean().item() if len(rank) else math.nan",
            "return 100.0 * (rank < k).double().mean().item() if len(rank) else math.nan",
            "R@k is R@(k-1)",
        ),
        (
            "return sum(matrix[i][i] - last[i] for i in range(earlier)) / earlier if earlier else 0.0",
            "return sum(matrix[i][i] - last[i] for i in range(earlier)) / len(matrix) if earlier else 0.0",
            "forgetting counts the last task",
        ),
        (
            "return float(sum(matrix[i][i] - last[i] for i in range(len(matrix))))",
            "return float(sum(last[i] - matrix[i][i] for i in range(len(matrix))))",
            "the sign of FR",
        ),
        (
            "return 2 * current * final / (current + final) if current + final else 0.0",
            "return (current + final) / 2",
            "the harmonic mean is the arithmetic one",
        ),
    ],
    "orchestrator/learning/ranking.py": [
        (
            "return better + torch.ge(scores, own, out=room).sum(dim=dim)",
            "return 2 * better + 1",
            "ties are won",
        ),
        (
            "to_videos=(counts.captions + 1) / 2,",
            "to_videos=(counts.captions + 2) / 2,",
            "the video is a tie",
        ),
        (
            "own=(counts.own_captions + 1) / 2,",
            "own=(counts.captions + 1) / 2,",
            "R@1 among the task's own videos is that among all",
        ),
        (
            "captions=(counts.all_captions[captioned] - equals + 2) / 2,",
            "captions=(counts.all_captions[captioned] + 1) / 2,",
            "a video's own captions beat each other",
        ),
        ("maxima[0] = torch.maximum(maxima[0], carry)", "pass", "captions of a video count in one tile alone"),
        (
            "beats = ((own > other).double() + (own >= other).double()) / 2",
            "beats = (own > other).double()",
            "twins that tie count as lost",
        ),
    ],
    "orchestrator/learning/evaluate.py": [
        (
            "target = torch.cat([q.target + start for q, start in zip(queries, columns)])",
            "target = torch.cat([q.target for q in queries])",
            "later tasks look for videos of the first",
        ),
        (
            'found.metrics["stream/t2v/bwf"] = metrics.backward_forgetting(own)',
            'found.metrics["stream/t2v/bwf"] = metrics.backward_forgetting(union)',
            "BWF is that of the other R@1",
        ),
        (
            'found.metrics["stream/t2v/r1_mean"] = sum(own[-1]) / len(own)',
            'found.metrics["stream/t2v/r1_mean"] = own[-1][-1]',
            "the mean over tasks is the last task",
        ),
    ],
    # ----------------------------------------------------------------------------- loop, optimizer, selection
    "orchestrator/learning/optimizer.py": [
        (
            'warm = share * steps if config.schedule == "cosine_whole" else int(share * steps)',
            'warm = share * steps if config.schedule == "cosine_whole" else round(share * steps)',
            "a warm-up is rounded to the nearest step",
        ),
        ("if step < warm:", "if step > warm:", "there is no warm-up"),
        (
            'return rule == "all" or parameter.ndim > 1 or (rule == "no_vectors" and parameter.ndim == 0)',
            "return True",
            "biases and norms decay",
        ),
        (
            "return max(0.0, 0.5 * (1 + math.cos(2 * math.pi * config.num_cycles * progress)))",
            "return max(0.0, 0.5 * (1 + math.cos(math.pi * config.num_cycles * progress)))",
            "the cosine ends half way",
        ),
        (
            "return 1.0 if step < steps_per_epoch else config.first_epoch_scale",
            "return config.first_epoch_scale",
            "the first epoch is as slow as the rest",
        ),
    ],
    "orchestrator/learning/accumulate.py": [
        (
            "set_random_state(part.random_state, grad.device)",
            "pass",
            "the second pass draws other noise than the first",
        ),
        (
            "with self.precision(), passing_again():",
            "with self.precision():",
            "what passes twice in a step is counted twice",
        ),
        (
            "for start in range(0, count, rows):",
            "for start, rows in [(0, count)]:",
            "the graph of a step holds all of its batches",
        ),
    ],
    "methods/layers/stand_in.py": [
        (
            "vars(module).update(former)",
            "pass",
            "a stand-in takes the one below it away",
            "tests/orchestrator/learning/test_accumulate.py",
        ),
    ],
    "orchestrator/learning/updates.py": [
        (
            'torch._foreach_add_(some, some, alpha=-group["lr"] * group["weight_decay"])',
            'torch._foreach_add_(some, some, alpha=-group["weight_decay"])',
            "the decay does not follow the rate",
            "tests/orchestrator/learning/test_optimizer.py",
        ),
        (
            'torch._foreach_add_(updates, some, alpha=group["weight_decay"])',
            "pass",
            "BertAdam forgets the decay",
            "tests/orchestrator/learning/test_released_recipes.py",
        ),
    ],
    "orchestrator/learning/commits.py": [
        (
            'return digest_of_commit(self.store.get_json("commits", self._name(done))) != parent',
            "return False",
            "a child of another parent is committed",
        ),
        (
            "if told is not None and _history(commit, own) != told:",
            "if False:",
            "tasks are taken over behind others than those that were told",
        ),
        ("if done < 1 or self.keep_states:", "if done < 1:", "states that are to be kept are let go"),
    ],
    "orchestrator/learning/loop.py": [
        (
            "if not self.workers.agree(is_ours):",
            "if False:",
            "a worker that was refused goes on from its own weights",
        ),
        (
            'self._seed("begin", task.index)  # the same on every worker: new parameters must agree',
            "pass",
            "what a task adds differs in a resumed run",
            "tests/orchestrator/learning/test_loop_steps.py",
        ),
        (
            "with checkpointing(self.config.optim.checkpoint_activations):  # end_task may take gradients, too",
            "with checkpointing(False):",
            "activations are kept whatever the setting",
            "tests/orchestrator/learning/test_loop_steps.py",
        ),
        (
            "(torch.stack(list(terms.values())).sum() * weight).backward()",
            "torch.stack(list(terms.values())).sum().backward()",
            "batches of one step are a sum",
        ),
        ("self.method.after_step()", "pass", "momentum encoders and averages stand still"),
        ("if best is None or score >= best[0]:", "if best is None or score < best[0]:", "the worst epoch is kept"),
        (
            'tasks = list(range(task.index + 1)) if self.method.trains_on == "seen" else [task.index]',
            "tasks = [task.index]",
            "the upper bound trains on one task",
            "tests/orchestrator/learning/test_loop.py::test_stored_galleries_are_never_recomputed_but_by_the_upper_bound",
        ),
        (
            "return list(range(task.index + 1)) if self._encodes_again else [task.index]",
            "return list(range(task.index + 1))",
            "old galleries are encoded by the present model",
            "tests/orchestrator/learning/test_loop.py::test_stored_galleries_are_never_recomputed_but_by_the_upper_bound",
        ),
        (
            "found.metrics[gain] = found.metrics[metric] - self.zero_shot[index]",
            "found.metrics[gain] = found.metrics[metric] - self.zero_shot[0]",
            "the gain is over the first task's zero-shot R@1",
            "tests/orchestrator/learning/test_loop.py::test_the_gain_after_each_task_is_over_the_zero_shot_model_after_that_task",
        ),
    ],
    # -------------------------------------------------------------------------------------------------- reuse
    "orchestrator/learning/reuse.py": [
        (
            "read = {name: self._settings[name] for name in sorted(names)}",
            "read = {name: None for name in sorted(names)}",
            "the values of settings do not matter",
        ),
        (
            'return digest_of([self.base, done, read, {name: self._contents.get(name, "") for name in read}])',
            "return digest_of([self.base, done, read])",
            "the contents of named files do not matter",
        ),
        (
            "reads.note(names[name])",
            "pass",
            "a setting that is read is not noted",
        ),
        (
            "for done in range(num_tasks, at_least - 1, -1):",
            "for done in range(at_least, num_tasks + 1):",
            "the shortest prefix is taken",
        ),
        (
            "if not set(names) <= self._settings.keys():",
            "if False:",
            "settings of another retriever are looked up",
        ),
    ],
    # --------------------------------------------------------------------------------------------- statistics
    "orchestrator/tables/intervals.py": [
        (
            "family, found = Family(len(rows), is_chosen), []",
            "family, found = Family(2, is_chosen), []",
            "many comparisons are not corrected for",
        ),
        (
            "d = own.mean(axis=0) - hits[best].mean(axis=0)  # (Q,)",
            "d = own.mean(axis=0) + hits[best].mean(axis=0)",
            "the difference is a sum",
        ),
        (
            "return Spread(seen * alike, both * alike, df, moderated * alike, weights + weights[best])",
            "return Spread(seen * alike, both * alike, df, moderated * alike, weights)",
            "the best row's spread over seeds is forgotten",
        ),
        (
            "sums = np.bincount(cluster[part], row[part] - row[part].mean())",
            "sums = row[part] - row[part].mean()",
            "captions of one video count as independent",
        ),
    ],
    # --------------------------------------------------------------------------------------------- selection
    "orchestrator/on_ray/waves.py": [
        (
            "trial.take_in(task, float(result[self.search.metric]), result, task == self.num_tasks)",
            "trial.take_in(task, float(result[self.search.metric]), result, task == until)",
            "what was read up to a rung counts as all that is read",
        ),
        (
            "return trial.settings == other.settings or (other not in self.wave and same_model(trial, other))",
            "return trial.settings == other.settings or same_model(trial, other)",
            "a resumed search knows what the first did not",
        ),
        (
            "for trial in ranked[self.kept(len(alive)) :]:",
            "for trial in ranked[self.kept(len(self.wave)) :]:",
            "trials that failed count at a rung",
        ),
        (
            "return max(math.ceil(number / self.search.reduction), min(number, self.search.keep))",
            "return math.ceil(number / self.search.reduction)",
            "a rung leaves a single trial",
        ),
        (
            "ranked = sorted(alive, key=lambda trial: (*self.loss(trial, rung), trial.number))",
            "ranked = sorted(alive, key=lambda trial: (*self.loss(trial, rung), -trial.number))",
            "of equal trials the last goes on",
        ),
        (
            'return math.isnan(value), 0.0 if math.isnan(value) else value if self.search.mode == "min" else -value',
            "return math.isnan(value), 0.0 if math.isnan(value) else -value",
            "a metric that is to be small is made large",
        ),
        (
            "if trial.failed or is_twin:",
            "if trial.failed:",
            "trials of one model count twice for TPE",
        ),
        (
            "return trial.settings == other.settings or (other not in self.wave and same_model(trial, other))",
            "return trial.settings == other.settings",
            "a setting that nobody reads makes another trial",
        ),
        (
            'if kept.get("sources") != self.sources:',
            "if False:",
            "results of other code are believed",
        ),
    ],
    "orchestrator/on_ray/wave_search.py": [
        (
            "if self.queues[row] or any(stretch.row == row for stretch in self.running.values()):",
            "if self.queues[row]:",
            "decisions do not wait for the wave",
            "tests/orchestrator/on_ray/test_waves.py",
        ),
    ],
    "orchestrator/on_ray/schedulers.py": [
        (
            "before = [score for score in recorded.values() if not math.isnan(score)]",
            "before = [score for score in recorded.values() if not math.isnan(score)] + [self._better * value]",
            "a trial is compared with itself",
        ),
    ],
    "orchestrator/jobs/again.py": [
        (
            'return rank, run.tags.get(NUMBER, "~") + settings',
            "return rank, settings",
            "of equal winners not the first that was suggested",
            "tests/orchestrator/jobs/test_rerun.py",
        ),
        (
            "return list(itertools.islice((seed for seed in itertools.count(first) if seed not in used), count))",
            "return list(itertools.islice(itertools.count(first), count))",
            "a rerun has seeds that a trial had",
            "tests/orchestrator/jobs/test_rerun.py",
        ),
    ],
    "orchestrator/jobs/rerun.py": [
        (
            "return over_seeds(found, seeds, workers, used_seeds([*trials, *confirmation]))",
            "return over_seeds(found, seeds, workers, used_seeds(trials))",
            "a rerun has seeds that the confirmation had",
            "tests/orchestrator/jobs/test_confirm.py",
        ),
    ],
    "orchestrator/jobs/confirm.py": [
        (
            "seeds = fresh_seeds(search.confirm_seeds, used, FIRST_CONFIRMATION)",
            "seeds = fresh_seeds(search.confirm_seeds, used)",
            "a confirmation takes the seeds of the rerun",
        ),
        (
            "known = {digest_of(recommended.settings)}",
            "known = set[str]()",
            "the recommended settings challenge themselves",
        ),
    ],
    "orchestrator/jobs/verdict.py": [
        (
            "winning = [better * each.value > 0 and each.p < LEVEL for each in seen]",
            "winning = [each.p < LEVEL for each in seen]",
            "a worse challenger wins",
        ),
        (
            "winning = [better * each.value > 0 and each.p < LEVEL for each in seen]",
            "winning = [better * each.value > 0 for each in seen]",
            "any difference confirms",
        ),
        (
            "seen = compare(base, [groups[name] for name in names], ranks, rule)",
            "seen = [compare(base, [groups[name]], ranks, rule)[0] for name in names]",
            "many challengers are not corrected for",
        ),
        (
            "independent = min(queries, videos)",
            "independent = queries",
            "captions of one video show small differences",
        ),
        (
            "return (seen.high - seen.low) / 2 * _beyond()",
            "return (seen.high - seen.low) / 2",
            "half of the differences are overlooked",
        ),
    ],
    "methods/images/bmu_moco.py": [
        (
            "used = self._new if self._has_started else self._new[:1]",
            "used = self._new",
            "the global encoder counts before the method starts",
        ),
    ],
    "orchestrator/learning/protocols.py": [
        (
            '(found.own, knn.released_k(sight.task + 1), "accuracy"),',
            '(found.own, knn.released_k(task + 1), "accuracy"),',
            "former tasks keep the k of their own time",
            "tests/orchestrator/learning/test_image_stream.py",
        ),
    ],
    "methods/layers/mv_adapters.py": [
        (
            "classes = self.calibration(whole, classes + means, there) * classes",
            "classes = self.calibration(whole, classes, there) * classes",
            "class tokens are calibrated without the means of patches",
            RECORDED.format("mv_adapter"),
        ),
    ],
    "methods/mv_adapter.py": [
        (
            "number = block - (blocks - len(self.shared))",
            "number = blocks - 1 - block",
            "tied vectors run from the last block to the first",
            RECORDED.format("mv_adapter"),
        ),
    ],
    "methods/dgl.py": [
        (
            "local = mixed[:, 2 * self.count :].unflatten(1, (self.num_frames, self.count))",
            "local = mixed[:, : -2 * self.count].unflatten(1, (self.num_frames, self.count))",
            "a caption's prompts are a video's local ones",
            RECORDED.format("dgl_transformer"),
        ),
    ],
}

BUGS: tuple[Bug, ...] = tuple(_bugs())
