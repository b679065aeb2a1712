"""Bugs that show on a GPU alone, or on several workers: one for each that was found once and has been mended since."""

from __future__ import annotations

SETTING_UP = "tests/orchestrator/learning/test_run.py::test_a_run_sets_its_device_up_and_says_where_it_will_not_repeat"
PRETENDED = "tests/devices/test_devices.py::test_a_method_stays_on_its_device_repeats_and_waits_no_more_than_its_budget"
ON_A_GPU = f"{PRETENDED}[clip4clip]"
IMAGES = "tests/orchestrator/learning/test_image_stream.py"
ON_TWO_WORKERS = "tests/workers/test_workers.py::test_a_few_methods_are_equal_on_two_workers_and_planted_faults_are_not"
TRIALS = "tests/orchestrator/on_ray/test_trial.py"
ASKED = "tests/orchestrator/learning/test_question_stream.py"
TRACKING = "tests/orchestrator/tracking/test_tracker.py"
PROGRESSIVE = "tests/methods/images/test_progressive.py"
EVALUATED = "tests/orchestrator/learning/test_loop.py::test_the_loss_of_evaluated_pairs_is_that_of_the_model_then"
UNLEARNED = "tests/orchestrator/learning/test_loop.py::test_losses_of_evaluated_pairs_are_told_and_decide_nothing"
LEFT_OUT = "tests/orchestrator/learning/test_run.py"

# As LINES of bugs.py
LINES: dict[str, list[tuple[str, ...]]] = {
    # ----------------------------------------------------------------------------------- a GPU's numbers repeat
    "orchestrator/data/device.py": [
        (
            "torch.use_deterministic_algorithms(is_repeatable)",
            "torch.use_deterministic_algorithms(is_repeatable, warn_only=True)",
            "attention's backward pass is free on a GPU",
        ),
        (
            "torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # unread",
            "torch.utils.deterministic.fill_uninitialized_memory = True",
            "memory is filled that is written anyway",
        ),
        (
            'torch.backends.cudnn.allow_tf32 = precision == "tf32"',
            "pass",
            "convolutions keep the TF32 of another run",
        ),
        (
            'torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"',
            "torch.backends.cuda.matmul.allow_tf32 = True",
            "float32 products of a GPU are TF32",
        ),
        ("if not torch.cuda.is_available():", "if False:", "a GPU that torch cannot use is said nowhere"),
        (
            "except torch.OutOfMemoryError as error:",
            "except MemoryError as error:",
            "memory that is too small is said without the remedy",
        ),
    ],
    "orchestrator/learning/run.py": [
        (
            "prepare_device(workers.device, experiment.run.repeatable, experiment.run.precision)",
            "prepare_device(workers.device, precision=experiment.run.precision)",
            "repeatable=false frees no kernel",
            SETTING_UP,
        ),
        ("if share > MOST_LEFT_OUT:", "if share > 1:", "any share of pairs is left out", LEFT_OUT),
        (
            "if share and workers.rank == 0:",
            "if share > 1 and workers.rank == 0:",
            "nobody hears of pairs that are left out",
            LEFT_OUT,
        ),
    ],
    "orchestrator/data/frozen_features.py": [
        ("**numerics(device),", "", "features do not know how a GPU was set up"),
    ],
    "orchestrator/bench/gpu.py": [
        ("prepare_device(device, precision=precision)", "pass", "a GPU is measured with free kernels"),
        (
            "with waits_of(self.workers.device) as self.waits:",
            'with waits_of(torch.device("cpu")) as self.waits:',
            "a GPU is measured without its waits",
            "tests/devices/test_devices.py::"
            "test_the_measurements_for_a_gpu_time_the_loop_and_name_the_lines_at_which_it_waits",
        ),
    ],
    "methods/layers/sequence_headers.py": [
        (
            "self.lstm.train(self.training or torch.is_grad_enabled())",
            "self.lstm.train(self.training)",
            "EWC takes gradients where cuDNN has none",
        ),
    ],
    # ------------------------------------------------------------------------------------------ questions, answers
    "methods/umt_qa.py": [
        (
            "ids = batch.answers[:, : self.config.answer_words]",
            "ids = batch.answers[:, : self.config.answer_words - 1]",
            "the last id of an answer is not learned",
            "tests/methods/test_umt_qa.py",
        ),
        ("ids = answers[: self.config.answers, : self.config.answer_words]", "ids = answers", "all answers are ranked"),
        (
            "own = [p for name, p in self.backbone.named_parameters() if not name.startswith(OF_RETRIEVAL)]",
            "own = list(self.backbone.parameters())",
            "heads that no question reads are trained",
        ),
        (
            "self.decoder.load_state_dict(self.backbone.decoder_state)",
            "pass",
            "a decoder begins anew beside a checkpoint",
        ),
        (
            "ids = self.backbone.text.without_end(within(questions, most + 1))[:, :most]",
            "ids = within(questions, most + 1)[:, :most]",
            "a question is read with the mark behind it",
        ),
    ],
    "orchestrator/data/questions.py": [
        ("counts.update(item.answers)", "counts.update(item.captions)", "questions are ranked as answers", ASKED),
        (
            "return tuple(answer for answer, _ in counts.most_common())",
            "return tuple(sorted(counts))",
            "answers are cut by the alphabet",
            ASKED,
        ),
    ],
    "orchestrator/importers/questions.py": [
        (
            "made[category * count // CATEGORIES][split].append(item)",
            "made[category % count][split].append(item)",
            "a question lies in another task than its category",
            "tests/orchestrator/importers/test_questions.py",
        ),
    ],
    "orchestrator/shapes/questions.py": [
        (
            'of_shape = scene.other if category.motion == "morph" else scene.main',
            "of_shape = scene.main",
            "a thing is asked that has two shapes",
            "tests/orchestrator/shapes/test_questions.py",
        ),
    ],
    # ------------------------------------------------------------------------------------ what is drawn of a model
    "orchestrator/retrieval/insight.py": [
        (
            "q = attention.q(neighbour(tokens, fusion.direction)).unflatten(-1, (heads, -1)).transpose(2, 3)",
            "q = attention.q(tokens).unflatten(-1, (heads, -1)).transpose(2, 3)",
            "a frame asks itself",
        ),
        (
            "logits = (q[..., :1, :] @ k.mT)[..., 0, :].float() / q.shape[-1] ** 0.5",
            "logits = (q[..., :1, :] @ k.mT)[..., 0, :].float() / (q.shape[-1] * q.shape[-3]) ** 0.5",
            "attention is drawn flatter than it is",
        ),
        (
            "return logits.softmax(dim=-1).mean(dim=-2)[..., 1:].cpu()",
            "return logits.softmax(dim=-1).amax(dim=-2)[..., 1:].cpu()",
            "one head is drawn",
        ),
        (
            "chosen = block.items[:number]",
            "chosen = block.items[-number:]",
            "scores are of other videos than said",
        ),
        (
            "found = follow(moved.moves, shape[0] * shape[1], tower.num_tokens)[:, tower.classes :]",
            "found = follow(moved.moves, shape[0] * shape[1], tower.num_tokens)[:, : -tower.classes]",
            "merged patches are drawn one place on",
        ),
        (
            "pictures = ((frames * std + mean).clamp(0, 1) * 255).round().to(torch.uint8)",
            "pictures = ((frames * std).clamp(0, 1) * 255).round().to(torch.uint8)",
            "frames are drawn darker than they are",
        ),
        (
            "return plain.cpu(), method.calibrate(plain).float().cpu(), [item.video for item in chosen]",
            "return plain.cpu(), plain.softmax(0).cpu(), [item.video for item in chosen]",
            "another calibration is drawn than the method's",
        ),
    ],
    "orchestrator/retrieval/drift.py": [
        (
            "last = _features(state, len(blocks) - 1, number)",
            "last = _features(state, 0, number)",
            "the last task's queries are the first's",
        ),
        (
            "flat, explained = principal(torch.cat([points.flatten(0, 1), last]).double().numpy())",
            "flat, explained = principal(torch.cat([points.flatten(0, 1) * 0, last]).double().numpy())",
            "the plane is the last task's alone",
        ),
        (
            "two = two * np.sign(two[np.arange(len(two)), np.abs(two).argmax(axis=1)])[:, None]",
            "two = two * np.abs(two[np.arange(len(two)), np.abs(two).argmax(axis=1)])[:, None]",
            "the same queries are drawn mirrored",
        ),
        (
            "cosines = F.cosine_similarity(points, points[:1], dim=-1).mean(dim=1)",
            "cosines = F.cosine_similarity(points, points, dim=-1).mean(dim=1)",
            "no query moves",
        ),
    ],
    "orchestrator/tracking/sending.py": [
        ("with self.ledger.alone(offline):", "if True:", "two drivers open two runs of one key", TRACKING),
    ],
    # ------------------------------------------------------------------------------------------- a GPU is waited for
    "orchestrator/learning/progress.py": [
        (
            'self._where, self._every = where, EVERY if device.type == "cuda" else 1',
            "self._where, self._every = where, 1",
            "the losses of every step are read from a GPU",
            ON_A_GPU,
        ),
        (
            "flags = list(least(torch.stack(flags)).unbind())  # all workers end, or none: others would wait for one",
            "flags = list(torch.stack(flags).unbind())",
            "a worker that diverges stops, and the others wait for it",
            "tests/orchestrator/learning/test_workers.py",
        ),
    ],
    "methods/layers/transfer.py": [
        (
            "return host.pin_memory().to(device, non_blocking=True)",
            "return host.to(device)",
            "copies to a GPU are waited for",
            ON_A_GPU,
        ),
    ],
    # ------------------------------------------------------------------------------------------ a GPU of one's own
    "orchestrator/on_ray/alone.py": [("require_gpu()", "pass", "a CPU stands in for a GPU", TRIALS)],
    "orchestrator/on_ray/featurize.py": [
        (
            'device = torch.device("cuda" if has_gpu else "cpu")',
            'device = torch.device("cuda" if torch.cuda.is_available() else "cpu")',
            "all towers take the first GPU",
            TRIALS,
        ),
        ("require_gpu()", "pass", "a tower takes the CPU in a GPU's stead", TRIALS),
    ],
    "orchestrator/on_ray/trial.py": [
        ("require_gpu()", "pass", "a CPU stands in for a GPU", TRIALS),
        (
            "return TorchConfig(backend=backend, timeout_s=round(3600 * min(plan.patience, STEP_HOURS)))",
            "return TorchConfig(backend=backend, timeout_s=round(3600 * plan.patience))",
            "the workers of a step wait a day for one that hangs",
            TRIALS,
        ),
        (
            'backend = "cpu:gloo,cuda:nccl" if plan.gpus_per_worker >= 1 else "gloo"',
            'backend = "nccl" if plan.gpus_per_worker >= 1 else "gloo"',
            "objects go over a GPU",
            TRIALS,
        ),
    ],
    # ------------------------------------------------------------------------------------------------ W workers are one
    "methods/layers/mixing.py": [
        (
            "return x * (torch.arange(x.shape[1], device=x.device) <= state.eot[:, None])[..., None]",
            "return x",
            "pads of a longer caption beside a pair are mixed into it",
        ),
    ],
    "orchestrator/learning/evaluate.py": [
        (
            "tokens = cut(tokens) if method.reads_pads else tokens",
            "tokens = tokens",
            "queries have pads that no query needs",
            "tests/methods/test_structalign.py",
        ),
        (
            "own = tokens[part] if method.reads_pads else cut(tokens[part])",
            "own = cut(tokens[part])",
            "evaluation.batch_size decides what pads a caption has",
            "tests/methods/test_structalign.py",
        ),
    ],
    "orchestrator/data/batches.py": [
        (
            "own.append(batch[rank * count : (rank + 1) * count])",
            "own.append(batch[rank::workers])",
            "gathered rows are in another order than one worker's",
        ),
        (
            "tokens=self._captions(chosen, width),",
            "tokens=self._captions(chosen, None),",
            "pads of training captions are those of the batch",
        ),
    ],
    "methods/er_ring.py": [
        (
            "count = max(round(self.config.ratio * pairs * workers), int(self.config.ratio > 0))",
            "count = round(self.config.ratio * pairs) * workers",
            "few memory pairs are rounded to none",
        ),
    ],
    "methods/layers/memory.py": [
        (
            "return deal(drawn, sizes)",
            "return drawn[: sizes[0]]",
            "workers draw apart, and a pair twice",
            ON_TWO_WORKERS,
        ),
        (
            "if known is None or any(x is not y or x._version != n for x, (y, n) in zip(now, known[0])):",
            "if True:",
            "every replaying step waits for a GPU",
            f"{PRETENDED}[er_ring]",
        ),
        (
            "if known is None or any(x is not y or x._version != n for x, (y, n) in zip(now, known[0])):",
            "if known is None:",
            "pairs are replayed that were once at a place of the memory",
        ),
    ],
    "methods/layers/expert_usage.py": [
        (
            "total = world_size() * torch.stack(sums).mean(dim=0)",
            "total = torch.stack(sums).mean(dim=0)",
            "captions of experts are a worker's share of them",
        ),
        (
            "if self.training and not passes_again():",
            "if self.training:",
            "an expert counts a caption that passes again twice",
        ),
    ],
    "methods/zscl.py": [
        (
            "count = size * math.ceil((self.config.reference_images or len(batch.videos) * size) / size)",
            "count = size * (self.config.reference_images or len(batch.videos))",
            "reference images count on each worker",
        ),
    ],
    "methods/der.py": [
        (
            "video, text, kept_video, kept_text = (gather(x) for x in (video, text, kept_video, kept_text))",
            "pass",
            "similarities of memory pairs are those of each worker alone",
            ON_TWO_WORKERS,
        ),
    ],
    "orchestrator/learning/protocols.py": [
        (
            "in_all = in_own if own == everything else self._accuracy(sight, asked, videos, everything)",
            "in_all = in_own",
            "answers of all tasks are those of one",
            ASKED,
        ),
        (
            "everything = data.candidates(range(sight.task + 1))",
            "everything = data.candidates(range(len(data.stream.tasks)))",
            "answers of later tasks are ranked",
            ASKED,
        ),
        (
            "seen, tokens = videos[asked.video[some]].to(sight.device), cut(asked.tokens[some]).to(sight.device)",
            "seen, tokens = videos[asked.video[some] * 0].to(sight.device), cut(asked.tokens[some]).to(sight.device)",
            "every question is asked of the first video",
            ASKED,
        ),
        (
            '(found.own, knn.released_k(sight.task + 1), "accuracy"),',
            '(found.own, min(200, len(bank)), "accuracy"),',
            "k of the release is the fixed one",
            IMAGES,
        ),
        (
            "for task, test in enumerate(sight.galleries):",
            "for task, test in enumerate(sight.galleries[:1] * len(sight.galleries)):",
            "every task is judged by the images of the first",
            IMAGES,
        ),
    ],
    "orchestrator/data/images.py": [
        (
            "views = [normalise(view(plain)) for _ in range(2)]",
            "views = [normalise(view(plain))] * 2",
            "both views of an image are one",
            IMAGES,
        ),
        (
            "return index_batches(pairs, size, seed)",
            "return [batch for batch in index_batches(pairs, size, seed) if len(batch) == size]",
            "the uneven last batch of images is left out",
            IMAGES,
        ),
    ],
    "methods/images/progressive.py": [
        (
            "h = h + self.laterals[place - 1](self.adaptors[place - 1](beside))",
            "h = self.laterals[place - 1](self.adaptors[place - 1](beside))",
            "a column reads its predecessors alone",
            PROGRESSIVE,
        ),
        ("return self.mix(h * self.alpha).relu()", "return self.mix(h).relu()", "no factor counts", PROGRESSIVE),
        ("column.eval()", "pass", "running statistics of former columns move", PROGRESSIVE),
        ("self.requires_grad_(False)", "pass", "former columns learn", PROGRESSIVE),
        (
            "return self.outputs(images, task + 1)[-1][-1].mean(dim=(2, 3))",
            "return self.outputs(images, len(self))[-1][-1].mean(dim=(2, 3))",
            "every image is read by the last column",
            PROGRESSIVE,
        ),
        (
            "return torch.cat([features, self.columns[-1].aside(former)], dim=1) if former else features"
            "  # type: ignore",
            "return torch.cat([features, 0 * features], dim=1) if former else features",
            "heads take nothing of former columns",
            PROGRESSIVE,
        ),
        (
            "self.base = Siamese(self.base.config, self.columns)",
            "pass",
            "a column goes on with the heads of the last one",
            PROGRESSIVE,
        ),
    ],
    "methods/images/views.py": [
        (
            "hue = (hue / 6 + turn.view(-1, 1, 1)) % 1 * 6",
            "hue = (hue / 6 - turn.view(-1, 1, 1)) % 1 * 6",
            "hues turn the other way",
            "tests/methods/images/test_views.py",
        ),
    ],
    "orchestrator/tables/curves.py": [
        (
            "whole[step] = whole.get(step, 0.0) + value",
            "whole[step] = value",
            "of a loss only the last term is drawn",
            "tests/orchestrator/tables/test_drawings.py",
        ),
    ],
    "methods/umt.py": [
        (
            "self.seed += torch.is_grad_enabled()",
            "self.seed += 1",
            "pairs that are not learned from decide which wrong ones are drawn",
            f"{UNLEARNED}[umt]",
        ),
    ],
    "orchestrator/learning/weights.py": [
        (
            "del self[name]",
            "pass",
            "what a fused optimizer has written is not kept",
            "tests/orchestrator/learning/test_weights.py",
        ),
        (
            "return first._version == self._versions[name]",
            "return True",
            "a frozen weight that was written to is not kept",
            "tests/orchestrator/learning/test_weights.py",
        ),
        (
            "new = {name: value for name, value in full.items() if value.data_ptr() != present[name].data_ptr()}",
            "new = full",
            "a resumed run keeps the backbone again",
            "tests/orchestrator/learning/test_weights.py",
        ),
    ],
    "orchestrator/learning/loop.py": [
        (
            "return score, copied_state(self.method, self._pretrained)",
            "return score, copied_state(self.method)",
            "commits of a best epoch hold a frozen backbone",
            "tests/orchestrator/learning/test_loop.py::test_no_commit_holds_a_backbone_that_stays_as_it_was",
        ),
        (
            "data = self.data.instead(split)",
            "data = self.data",
            "losses of evaluated pairs are those of training pairs",
            EVALUATED,
        ),
        (
            "with self._autocast():  # numbers of pairs and videos are not those of training",
            "with torch.enable_grad(), self._autocast():",
            "keys of evaluated pairs come into the queues",
            f"{UNLEARNED}[bmu_moco]",
        ),
        (
            "for name, value in self.commits.momenta(done).items():",
            "for name, value in dict[str, Tensor]().items():",
            "a resumed run forgets the moments that cross tasks",
            IMAGES,
        ),
        (
            "optimizer.state.update({p: self._momenta[p] for p in parameters if p in self._momenta})",
            "pass",
            "no moment crosses tasks",
            IMAGES,
        ),
        (
            "self.method.before_step()",
            "pass",
            "no method sees the gradient of a step",
            IMAGES,
        ),
        (
            "return self.workers.mean(progress.means())  # a term may be a mean over a worker's own pairs",
            "return progress.means()",
            "the log is that of one worker",
            ON_TWO_WORKERS,
        ),
    ],
    "methods/layers/gather.py": [
        (
            "return grad[start : start + ctx.rows] * world_size()",
            "return (dist.all_reduce(grad := grad.clone()), grad[start : start + ctx.rows])[1]",
            "a collective of a backward pass may cross DDP's",
            ON_TWO_WORKERS,
        ),
    ],
    "methods/xpool.py": [
        (
            "if world_size() == 1 or not self.training:",
            "if True:",
            "workers drop other numbers of the same pairs",
        ),
    ],
    "orchestrator/learning/workers.py": [
        (
            'names = ("forward_sync_buffers", "broadcast_buffers")  # before torch 2.13 it had the second name',
            'names = ("broadcast_buffers",)',
            "several workers are warned of a deprecated argument",
            ON_TWO_WORKERS,
        ),
        (
            "dist.broadcast_object_list(box, src=0, group=self.patient)",
            "dist.broadcast_object_list(box, src=0)",
            "workers wait half an hour for one that decodes",
        ),
        (
            "whole[rank :: self.size] = part",
            "whole[rank * len(parts[0]) : rank * len(parts[0]) + len(part)] = part",
            "features of all workers are in another order than was dealt",
        ),
    ],
}
