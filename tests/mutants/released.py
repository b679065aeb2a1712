"""Bugs in what rows of comparison have of their authors' codes; most were once in the sources (see bugs.py).

Each names the very tests that must notice, so that it takes a few seconds.
"""

from __future__ import annotations

RECIPES = "tests/orchestrator/learning/test_released_recipes.py"
RATES = f"{RECIPES}::test_the_rate_of_every_step_is_that_of_the_released_schedule"
STEPS = f"{RECIPES}::test_weights_after_every_step_are_those_of_the_released_optimizer"
GROUPS = f"{RECIPES}::test_clip4clip_freezes_decays_and_rates_the_tensors_that_the_release_does"
DECAY = f"{RECIPES}::test_xpool_decays_every_tensor_and_clip_vip_all_but_biases_and_the_temperature"
BOUNDS = f"{RECIPES}::test_the_temperature_begins_and_is_bounded_as_released"
COMPLETE = f"{RECIPES}::test_originals_have_what_the_first_ones_lacked"
VIP_RATES = f"{RECIPES}::test_clip_vip_counts_its_steps_from_one_and_ends_at_its_own_least_rate"
ZSCL = "tests/methods/test_zscl.py"
EXPERTS = (
    "tests/methods/test_moe_adapter.py::"
    "test_of_experts_used_alike_the_lower_numbers_are_kept_and_of_those_nobody_used_none"
)
IMAGES = "tests/methods/images/test_released.py"
IMAGE_STEPS = f"{IMAGES}::test_steps_from_the_reference_weights_are_the_released_ones"
REDUCERS = "tests/methods/layers/test_reducers.py"
DECODE = (
    "tests/orchestrator/video/test_decode.py::test_one_frame_a_second_and_from_first_to_last_are_the_released_rules"
)

UMT = "tests/methods/backbone/test_umt.py"
ANSWERS = "tests/methods/backbone/test_answers.py"
WORDS = "tests/methods/backbone/test_word_pieces.py"
UMT_METHOD = "tests/methods/test_umt.py"

# file -> (line, the line with the bug, what breaks, the tests that must fall)
RELEASED: dict[str, list[tuple[str, ...]]] = {
    # --------------------------------------------------------------------------------------------------- UMT
    "methods/backbone/umt.py": [
        (
            "return torch.cat([self.q_bias, torch.zeros_like(self.q_bias), self.v_bias])",
            "return torch.cat([self.q_bias, self.q_bias, self.v_bias])",
            "keys have a bias",
            f"{UMT}::test_keys_get_no_bias_from_training_and_frames_apart_know_nothing_of_one_another",
        ),
        (
            "return tokens.scatter(1, end[:, None], 0)",
            "return tokens",
            "a caption's end is a word",
            f"{UMT}::test_a_caption_is_read_alike_beside_longer_ones_and_its_end_is_a_pad",
        ),
        (
            'return self.pretrained_frames if self.attends == "video" and num_frames > 1 else None',
            "return None",
            "positions are never stretched over time",
            f"{UMT}::test_positions_begin_as_an_images_and_stretch_over_time",
        ),
    ],
    "methods/umt.py": [
        (
            "return self._best(scores, 0)",
            "return self._best(scores, 1)",
            "captions are chosen by their own best videos",
            f"{UMT_METHOD}::test_the_best_are_ordered_by_the_head_in_each_direction_and_all_others_come_last",
        ),
        (
            "wrong_text = self._drawn(negative_weights(similar.mT, numbers, hard))",
            "wrong_text = self._drawn(negative_weights(similar, numbers, hard))",
            "wrong captions are drawn by what the captions compare",
            f"{UMT_METHOD}::test_the_second_loss_reads_pairs_then_wrong_videos_then_wrong_captions",
        ),
        (
            "self.seed += torch.is_grad_enabled()",
            "pass",
            "every step draws the same wrong pairs",
            f"{UMT_METHOD}::test_losses_are_those_of_the_pairs_and_of_wrong_ones_that_are_drawn_again_alike",
        ),
        (
            "self.backbone.temp.clamp_(0.001, 0.5)",
            "self.backbone.temp.clamp_(0.001)",
            "the temperature grows without bound",
            f"{UMT_METHOD}::test_both_losses_train_all_of_it_and_the_temperature_stays_within_its_bounds",
        ),
    ],
    "methods/backbone/answers.py": [
        (
            "behind = torch.ones(length, length, device=x.device).tril()",
            "behind = torch.ones(length, length, device=x.device)",
            "an answer's pieces know those behind them",
            f"{ANSWERS}::test_a_piece_knows_nothing_of_those_behind_it_nor_of_pads_of_the_question",
        ),
        (
            "scores.append(top.values[number] - answer_losses(logits, ids))",
            "scores.append(-answer_losses(logits, ids))",
            "the first piece of an answer counts once",
            f"{ANSWERS}::test_an_answers_first_piece_counts_twice_and_only_the_likeliest_beginnings_are_scored",
        ),
        (
            "return (weights * losses).sum() / questions",
            "return (weights * losses).sum() / len(losses)",
            "answers are counted in the place of questions",
            f"{ANSWERS}::test_pieces_of_stored_logits_cost_what_the_released_ones_do",
        ),
    ],
    "methods/backbone/word_pieces.py": [
        (
            'prefix = "##" if start else ""',
            'prefix = ""',
            "pieces within a word are words",
            f"{WORDS}::test_the_longest_pieces_are_taken_and_a_caption_ends_with_the_largest_id",
        ),
    ],
    "methods/backbone/bert.py": [
        (
            "return ((seen == 0) * _OUT).to(x.dtype)",
            "return ((seen == 0) * 0.0).to(x.dtype)",
            "captions read their pads",
            f"{UMT}::test_a_caption_is_read_alike_beside_longer_ones_and_its_end_is_a_pad",
        ),
    ],
    "methods/layers/matching.py": [
        (
            "target = same / same.sum(dim=1, keepdim=True)",
            "target = same",
            "captions of one video count several times",
            f"{UMT}::test_captions_of_one_video_share_its_mass_and_are_no_negatives",
        ),
        (
            "return weights.masked_fill(same, 0.0)",
            "return weights",
            "another caption of the same video is a wrong one",
            f"{UMT}::test_captions_of_one_video_share_its_mass_and_are_no_negatives",
        ),
    ],
    # -------------------------------------------------------------------------------------------- evaluation
    "orchestrator/learning/ranking.py": [
        (
            "videos=(counts.groups[captioned] + 1) / 2,",
            "videos=(counts.all_captions[captioned] - equals + 2) / 2,",
            "a video is ranked among all captions of the others",
            "tests/orchestrator/learning/test_ranking.py::"
            "test_both_directions_agree_with_the_released_codes_where_videos_have_several_captions",
        ),
    ],
    "methods/dsl.py": [
        (
            "return revise(self.base.scale().item() * scores, self.config.test_temperature, dim=1)",
            "return revise(self.base.scale().item() * scores, self.config.test_temperature)",
            "both directions of the search have one matrix",
            "tests/methods/test_dsl.py::test_the_search_revises_scaled_similarities",
        ),
    ],
    "orchestrator/learning/evaluate.py": [
        (
            "ways = method.calibrate, method.calibrate_for_videos",
            "ways = method.calibrate, method.calibrate",
            "videos -> captions are read from the matrix of captions -> videos",
            "tests/orchestrator/learning/test_evaluate.py::"
            "test_each_direction_and_each_own_gallery_is_calibrated_alone",
        ),
        (
            "own, own_to_captions = (tuple(way(scores[part]) for part in parts) for way in ways)",
            "own, own_to_captions = (tuple(each[part] for part in parts) for each in (to_videos, to_captions))",
            "an untrained model forgets: its own galleries are calibrated with those of later tasks",
            "tests/orchestrator/conform/test_forgetting.py::"
            "test_an_untrained_model_whose_scores_are_calibrated_forgets_nothing",
        ),
    ],
    "orchestrator/video/sampling.py": [
        ('if rule == "linspace":', 'if rule == "lines":', "CLIP-ViP's frames are the middles of parts", DECODE),
        (
            'if rule == "one_per_second":',
            'if rule == "seconds":',
            "CLIP4Clip's frames are the middles of parts",
            DECODE,
        ),
    ],
    "orchestrator/data/frames.py": [
        (
            '"rule": self.sampling.rule,',
            '"rule": "segments",',
            "frames of one rule are found under another's key",
            "tests/orchestrator/data/test_frames.py::test_the_key_changes_with_everything_that_decides_the_frames",
        ),
    ],
    # ------------------------------------------------------------------------------------ rates, decay, optimizers
    "orchestrator/learning/optimizer.py": [
        (
            'return min(1.0, (step + (config.warmup_from == "first")) / warm)',
            "return min(1.0, (step + 1) / warm)",
            "no warm-up begins at 0",
            RATES,
        ),
        ("warm = 0", "pass", "CLIP4Clip's cosine begins behind the warm-up", RATES),
        (
            'progress = min(1.0, (step + (config.schedule == "cosine_from_one") - warm) / max(1, last - warm))',
            "progress = min(1.0, (step - warm) / max(1, last - warm))",
            "CLIP-ViP's steps are counted from 0",
            VIP_RATES,
        ),
        (
            'last = steps - (config.schedule == "cosine_to_end")',
            "last = steps",
            "ZSCL's last step has a rate",
            RATES,
        ),
        (
            'return "bias" not in name and not (rule == "no_bias_or_scale" and "logit_scale" in name)',
            "return parameter.ndim > 1",
            "decay goes by the number of dimensions, whatever is asked for",
            GROUPS,
        ),
        (
            "return BertAdam(torch_groups, config.betas, config.eps, config.grad_clip)",
            "return AdamWHF(torch_groups, config.betas, config.eps)",
            "bert_adam is another AdamW",
            STEPS,
        ),
        (
            "return AdamWHF(torch_groups, config.betas, config.eps)",
            "return torch.optim.AdamW(torch_groups, betas=config.betas, eps=config.eps)",
            "adamw_hf is torch's",
            STEPS,
        ),
    ],
    "orchestrator/learning/updates.py": [
        (
            "if self.max_norm is not None:",
            "if not self.max_norm:",
            "BertAdam clips no tensor by itself",
            STEPS,
        ),
    ],
    # -------------------------------------------------------------------------------------------- recipes
    "methods/clip4clip.py": [
        (
            "self._frozen = {id(parameter) for parameter in parts(backbone, config.frozen)}",
            "self._frozen = set[int]()",
            "nothing of CLIP is frozen",
            GROUPS,
        ),
        (
            '"method.max_scale": (100.0, "main_task_retrieval.py: clamp at log 100 after a step"),',
            '"method.max_scale": (200.0, "main_task_retrieval.py: clamp at log 100 after a step"),',
            "its temperature is bounded as CTVR's",
            BOUNDS,
        ),
        (
            '"method.min_scale": (0.0, "main_task_retrieval.py: no lower bound"),',
            '"method.min_scale": (1.0, "main_task_retrieval.py: no lower bound"),',
            "its temperature has a lower bound",
            BOUNDS,
        ),
        (
            '"optim.name": ("bert_adam", "modules/optimization.py"),',
            '"optim.name": ("adamw", "modules/optimization.py"),',
            "its optimizer is torch's AdamW",
            STEPS,
        ),
        (
            '"optim.schedule": ("cosine_whole", "modules/optimization.py: warmup_cosine"),',
            '"optim.schedule": ("cosine", "modules/optimization.py: warmup_cosine"),',
            "its schedule is ours",
            RATES,
        ),
        ('"optim.epochs": (5, "README: --epochs 5"),', '"optim.epochs": (20, "README"),', "20 epochs for 5", COMPLETE),
    ],
    "methods/xpool.py": [
        (
            '"optim.name": ("adamw_hf", "modules/optimization.py"),',
            '"optim.name": ("adamw", "modules/optimization.py"),',
            "its optimizer is torch's AdamW",
            STEPS,
        ),
        (
            '"optim.decay": ("all", "train.py: every group has the decay, LayerNorms and logit_scale too"),',
            '"optim.decay": ("matrices", "train.py: every group has the decay, LayerNorms and logit_scale too"),',
            "its biases do not decay",
            DECAY,
        ),
    ],
    "methods/clip_vip.py": [
        (
            '"optim.name": ("adamw_hf", "src/optimization/adamw.py"),',
            '"optim.name": ("adamw", "src/optimization/adamw.py"),',
            "its optimizer is torch's AdamW",
            COMPLETE,
        ),
        (
            '"optim.decay": ("no_bias_or_scale", "src/optimization/utils.py: LayerNorm.weight occurs in no name"),',
            '"optim.decay": ("matrices", "src/optimization/utils.py: LayerNorm.weight occurs in no name"),',
            "its gains do not decay",
            DECAY,
        ),
        (
            '"method.start_scale": (math.exp(4.6), f"{_FILE}: logit_scale_init_value 4.60"),',
            '"method.start_scale": (100.0, f"{_FILE}: logit_scale_init_value 4.60"),',
            "its temperature begins at CLIP's",
            BOUNDS,
        ),
        (
            '"optim.last_lr": (1e-8, "src/optimization/sched.py: where the curve ends in 0"),',
            '"optim.last_lr": (0.0, "src/optimization/sched.py: where the curve ends in 0"),',
            "its last step has the rate 0",
            VIP_RATES,
        ),
    ],
    "methods/families/released_recipes.py": [
        (
            '"optim.eps": (1e-8, "mtil/src/models/finetune.py: torch\'s default"),',
            '"optim.eps": (1e-6, "mtil/src/models/finetune.py: torch\'s default"),',
            "ZSCL's eps is ours",
            COMPLETE,
        ),
        (
            '"optim.grad_clip": (None, "mtil/src/models/finetune.py: there is none"),',
            '"optim.grad_clip": (1.0, "mtil/src/models/finetune.py: there is none"),',
            "ZSCL's gradients are clipped",
            COMPLETE,
        ),
        (
            'FIXED_SCALE = (False, "mtil/src/models/finetune.py: logit_scale is in no group")',
            'FIXED_SCALE = (True, "mtil/src/models/finetune.py: logit_scale is in no group")',
            "ZSCL's temperature learns",
            COMPLETE,
        ),
    ],
    "methods/zscl.py": [
        (
            "if self._average and self._steps % self.config.average_every == self._offset % self.config.average_every:",
            "if self._average and self._steps % self.config.average_every == 0:",
            "the ensemble is out of phase",
            f"{ZSCL}::test_preset_original_takes_the_released_steps_and_averages_the_released_weights",
        ),
        (
            'learned = "half of its first step" if self._offset else "nothing"',
            'learned = "nothing"',
            "the warning is untrue of the released phase",
            f"{ZSCL}::test_snapshots_begin_where_the_setting_says_and_the_warning_says_what_was_learned",
        ),
        (
            '"weight-consolidation": Change({"method.l2": 1.0, "method.average_every": 0, "method.weight": 0.0}),',
            '"weight-consolidation": Change({"method.l2": 1.0, "method.average_every": 0}),',
            "weight consolidation distils",
            f"{ZSCL}::test_weight_consolidation_is_the_authors_script_without_distillation",
        ),
        (
            '"method.l2": (1.0, f"{_SCRIPT}: --l2 1"),',
            '"method.l2": (0.0, f"{_SCRIPT}: --l2 1"),',
            "the command's weight consolidation is left out",
            COMPLETE,
        ),
    ],
    "methods/layers/temperature.py": [
        (
            "least = math.log(config.min_scale) if config.min_scale else -math.inf",
            "least = 0.0",
            "every preset has a lower bound of 1",
            BOUNDS,
        ),
        (
            "clip.logit_scale.clamp_(least, math.log(config.max_scale))",
            "clip.logit_scale.clamp_(least, math.log(200.0))",
            "every preset has an upper bound of 200",
            BOUNDS,
        ),
    ],
    "methods/der.py": [
        (
            '"method.alpha": (2 * 0.3 / 512, "utils/best_args.py: alpha 0.3 of a mean over numbers; features of 512"),',
            '"method.alpha": (0.3, "utils/best_args.py: alpha 0.3 of a mean over numbers; features of 512"),',
            "the published alpha is taken as it is",
            COMPLETE,
        ),
    ],
    "methods/co2l.py": [
        (
            "_UNIT = 0.07 / 0.5  # the released loss is that of this file, divided by it: the rate is divided, the decay multiplied",  # noqa: E501
            "_UNIT = 1.0",
            "the published weight is taken as it is",
            COMPLETE,
        ),
    ],
    # -------------------------------------------------------------------------------------- float16, ranges
    "orchestrator/tables/float16_rates.py": [
        (
            '"clip4clip": {"lr": 1e-7},',
            '"clip4clip": {},',
            "rows with a rate of float16 do not say so",
            "tests/orchestrator/tables/test_float16_rates.py",
        ),
    ],
    "search_spaces/clip4clip.py": [
        (
            '"method.lr": tune.loguniform(1e-7, 1e-4),',
            '"method.lr": tune.loguniform(1e-7, 1e-6),',
            "the search ends where float32 hardly moves",
            "tests/search_spaces/test_ranges.py",
        ),
    ],
    "search_spaces/co2l.py": [
        (
            '"method.weight": tune.loguniform(0.03, 3.0),',
            '"method.weight": tune.loguniform(0.3, 30.0),',
            "the released weight is out of reach",
            "tests/search_spaces/test_ranges.py",
        ),
    ],
    # ------------------------------------------------------------------- reduction, momentum, replay, experts
    "methods/layers/reducers.py": [
        (
            "return [*r, *[0] * blocks][:blocks]",
            "return [*r]",
            "a list is neither cut nor filled up",
            f"{REDUCERS}::test_tomes_schedules_are_those_of_its_code_a_number_a_list_or_a_pair",
        ),
        (
            "low = int(r * (1 - inflection))",
            "low = r",
            "an inflection is ignored",
            f"{REDUCERS}::test_tomes_schedules_are_those_of_its_code_a_number_a_list_or_a_pair",
        ),
    ],
    "methods/layers/masked_attention.py": [
        (
            "policy = kept[:, None, None].to(logits.dtype)  # (G, 1, 1, N)",
            "policy = kept.detach()[:, None, None].to(logits.dtype)",
            "a masked key has no gradient",
            "tests/methods/layers/test_masked_attention.py::"
            "test_a_masked_key_has_a_gradient_which_a_bias_of_its_logarithm_could_not_give",
        ),
    ],
    "methods/layers/momentum.py": [
        (
            "module.train(mode)",
            "module.train(False)",
            "keys are normalised by running statistics",
            "tests/methods/test_released_losses.py::"
            "test_keys_and_queue_of_an_encoder_with_batch_normalisation_equal_the_released_ones",
        ),
    ],
    "orchestrator/tables/marks.py": [
        (
            'marks.append(TEXTS["replay"])',
            "pass",
            "rows do not say how their memory is written and drawn",
            "tests/orchestrator/tables/test_build.py::test_a_row_that_replays_says_how_its_memory_is_written_and_drawn",
        ),
    ],
    "methods/moe_adapter.py": [
        (
            "chosen = self.used.argsort(descending=True, stable=True)[: self.config.frozen_per_task]",
            "chosen = self.used.argsort(stable=True).flip(0)[: self.config.frozen_per_task]",
            "of experts used alike the higher numbers are kept",
            EXPERTS,
        ),
        (
            "self.frozen[chosen] = self.frozen[chosen] | (self.used[chosen] > 0)",
            "self.frozen[chosen] = True",
            "experts that nobody used are frozen",
            EXPERTS,
        ),
    ],
    # -------------------------------------------------------------------------------------------- images
    "methods/images/siamese.py": [
        (
            "c = first.mT @ second / len(z1)",
            "c = first.mT @ second / (len(z1) - 1)",
            "Barlow Twins' diagonal of equal views is 1",
            f"{IMAGES}::test_both_losses_and_their_gradients_are_the_released_ones",
        ),
    ],
    "methods/images/bmu_moco.py": [
        (
            "if task.index == 0 or momentum is self.local:  # the global one starts once",
            "if task.index >= 0:",
            "the global encoder forgets former tasks",
            "tests/methods/images/test_bmu_moco.py::"
            "test_a_task_starts_the_local_encoder_anew_and_leaves_the_global_one",
        ),
    ],
    "methods/images/si.py": [
        (
            "self.importance += self.path / ((weights - self.anchor).square() + 1)",
            "self.importance = self.path / ((weights - self.anchor).square() + 1)",
            "what tasks before the last one needed is forgotten",
            f"{IMAGES}::test_si_adds_what_each_task_needed",
        ),
        (
            "nn.utils.clip_grad_value_(self.base.parameters(), self.config.clip)",
            "nn.utils.clip_grad_norm_(self.base.parameters(), self.config.clip)",
            "gradients are clipped by their norm",
            f"{IMAGES}::test_si_adds_what_each_task_needed",
        ),
    ],
    "methods/images/replay.py": [
        (
            "return share * first + (1 - share) * again, share * second + (1 - share) * self.memory.kept[rows]",
            "return share * first + (1 - share) * again, share * second + (1 - share) * again",
            "the second view is mixed with the plain image",
            IMAGE_STEPS,
        ),
    ],
    "methods/images/memory.py": [
        (
            "place = seen if seen < self.capacity else int(self.random.randint(0, seen + 1))",
            "place = seen if seen < self.capacity else int(self.random.randint(0, seen))",
            "an image is kept too often",
            f"{IMAGES}::test_a_memory_keeps_and_draws_what_the_released_one_does_and_goes_on_where_it_was_saved",
        ),
    ],
    "methods/images/knn.py": [
        (
            "weights = (nearest / TEMPERATURE).exp()",
            "weights = (nearest / TEMPERATURE).exp().ceil()",
            "neighbours vote in whole numbers",
            f"{IMAGES}::test_neighbours_vote_as_in_the_release_and_foreign_classes_change_nothing",
        ),
    ],
}
