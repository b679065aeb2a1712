"""Every numeric setting of every method changes the results of a tiny run.

Two tasks of two steps are trained with the setting's own value and with another one. Losses, learning rates,
parameters, features, scores and metrics are compared. Some settings act only together with another one (first table),
or on something that a tiny run does not show (`ELSEWHERE`, where each names the test that shows it).
"""

import ast
import functools
import itertools
import types
import typing
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ctvr.methods import METHODS, find_method
from ctvr.methods.base import Method
from ctvr.methods.lambda_orthogonality import RelaxedConfig
from ctvr.methods.layers.reduction.config import TRAINED_REDUCERS
from ctvr.orchestrator.learning.training.optimizer import freeze_except, make_optimizer, set_learning_rates
from ctvr.orchestrator.settings.optim_config import OptimConfig
from tests.methods.conftest import RegeneratedPairs, make_batch, make_small_clip, make_task, reducer_config

TESTS = Path(__file__).parent
NUMBERS = (int, float)
# method -> the reducers whose numbers are tried with it; they are settings of the layer, so one method tries them all
REDUCERS: dict[str, tuple[str, ...]] = {
    "lora": tuple(name for name in TRAINED_REDUCERS if name not in {"none", "tome_shared"}),
    "tempme": ("tempme",),
    "framefusion_moe": ("tome_shared",),
    **dict.fromkeys(("prompt", "adapter", "clip4clip", "structalign", "umt"), ("tome",)),
}

# method.setting or *.setting -> settings with which it acts, the method's own or base.*
BESIDE: dict[str, dict[str, Any]] = {
    "umt.tome.r": {"attends": "frame"},
    "umt.tome.inflection": {"attends": "frame"},
    "clip4clip.lr_head": {"sim_header": "seqLSTM"},
    "structalign.lr_other": {"prototypes": "learned"},
    "structalign.prototype_weight": {"prototypes": "learned"},
    "structalign.pair_weight": {"pseudo": "clip"},
    "structalign.fusion_layers": {"adapters": "task_aware"},
    "vop.lstm_width": {"prompts": "context"},
    "camoe.filler": {"mask_mode": "filler"},
    "camoe.temperature": {"loss": "dual_softmax"},
    "camoe.test_temperature": {"revise": True},
    **{f"lora.diffrate.{setting}": {"reducer.search_macs": 1e-3} for setting in ("search_step", "lr_rates")},
    "tempme.lr_clip": {"adaptation": "full"},
    **{f"dar.{setting}": {"route": "query"} for setting in ("margin", "tau")},
    "lpi.centres": {"route": "query"},
    "lpi.task_temperature": {"task_weight": 0.1},
    "lpi.similar_above": {"task_weight": 0.1, "task_temperature": 1.0},
    "lambda_orthogonality.pairs": {"map": RelaxedConfig(steps=20)},
    **{
        f"xbt.{setting}": {"base.lr": 1e-3, "lr": 0.01, "steps": 20}
        for setting in ("noise", "sentences", "pairs", "lr", "steps")
    },
}
# method.setting -> a test file and function that shows what it does
ELSEWHERE: dict[str, str] = {
    # the small backbone's towers differ in width, and its features fit no text block
    "clip4clip.sim_layers": "layers/test_sequence_headers.py::test_the_transformer_is_a_copy_of_the_text_tower",
    "clip4clip.sim_eps": "layers/test_sequence_headers.py::test_the_copied_layer_norms_have_the_eps_that_is_asked_for",
    # features of noise are nearly parallel, so every threshold leaves one direction
    "dns.threshold": "test_dns.py::test_it_projects_on_the_directions_above_the_threshold",
    # a video must have as many frames as the schedule is made for
    "*.tempme.num_frames": "layers/reduction/test_reducers.py::test_a_schedule_that_does_not_fit_the_tower_is_refused",
    "dgl.num_frames": "test_dgl.py::test_each_frame_has_prompts_of_its_own_where_a_transformer_makes_them",
    **{
        f"*.evit.anneal_{what}": "layers/reduction/test_evit.py::test_the_rate_falls_over_the_steps_of_training_alone"
        for what in ("from", "steps")
    },
    # frames of an image are alike, and the mean of them is one of them
    "zscl.reference_frames": "test_zscl.py::test_a_step_takes_as_many_images_as_pairs_by_default",
}
# values where the first guess would change nothing
VALUES: dict[str, Any] = {
    "framefusion_moe.ffa_layers": 2,
    "structalign.fusion_layers": 1,
    "camoe.filler": 7,
    "tempme.tempme.r": 1,
    "umt.rerank": 0,
    "umt.num_words": 6,
    "plevu.prefix": 2,
    "plevu.postfix": 2,
    "vop.prefix": 1,  # of 16 places 2 at most
    "vop.suffix": 1,
    "plevu.heads": 4,  # of 16 dimensions
    "lpi.num_prompts": 2,  # of 16 places 4 at most
    "lpi.depth": 2,  # of 3 blocks
    "lpi.similar_above": 0.99,
    "dar.margin": 2.0,
    "dar.reuse_above": -1.0,
    "*.testa.r_frames": 0,  # of 4 frames one can go
    "*.max_scale": 2.0,
    "*.min_scale": 50.0,
    "zscl.reference_texts": 5,
    "zscl.average_every": 1,
    "xbt.steps": 3,  # a fit keeps its best step, which may be before the last
    **dict.fromkeys(("drift_adapter.pairs", "lambda_orthogonality.pairs", "xbt.pairs"), 3),  # of eight captions
    "*.buffer_size": 3,  # fewer than there are pairs
}


def numeric(config: type) -> list[str]:
    hints = typing.get_type_hints(config)
    found = []
    for field in fields(config):
        hint = hints[field.name]
        kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        if any(kind in NUMBERS for kind in kinds):
            found.append(field.name)
    return found


CASES = [f"{name}.{setting}" for name in METHODS for setting in numeric(find_method(name).Config)]
CASES += [
    f"{name}.{kind}.{setting}"
    for name, kinds in REDUCERS.items()
    for kind in kinds
    for setting in numeric(TRAINED_REDUCERS[kind])
]


def looked_up(table: dict[str, Any], case: str) -> Any:
    return table.get(case, table.get(f"*.{case.partition('.')[2]}"))


def others(value: Any, is_whole: bool) -> Iterator[Any]:
    """Return candidates for another value, until the settings accept one."""
    if isinstance(value, int):
        yield from (value + 1, value - 1, value * 2, value // 2)
    elif isinstance(value, float):
        yield from (value * 0.5, value * 2, 0.3, 0.7, 1.5)
    else:
        yield from (7, 2, 50) if is_whole else (0.05, 0.5)


def other_config(name: str, kind: str, setting: str, beside: dict[str, Any]) -> Any:
    """Return a config with another value of a setting: the method's own, or one of its reducer of this kind."""
    sound = config_of(name, beside)
    kept = sound.reducer if kind else sound
    given = looked_up(VALUES, ".".join(filter(None, (name, kind, setting))))
    is_whole = "int" in str(typing.get_type_hints(type(kept))[setting])
    for value in [given] if given is not None else others(getattr(kept, setting), is_whole):
        try:
            if value != getattr(kept, setting):
                changed = replace(kept, **{setting: value})
                return replace(sound, reducer=changed) if kind else changed
        except ValueError:
            continue
    raise AssertionError(f"{name}.{setting}: no other value is accepted; name one in VALUES")


def config_of(name: str, beside: dict[str, Any]) -> Any:
    """Return the settings of a method with which a number is tried; `reducer.name` and others are its reducer's."""
    cls = find_method(name).Config
    own = {key: value for key, value in beside.items() if not key.startswith(("base.", "reducer."))}
    frames = {"num_frames": 4} if any(f.name == "num_frames" for f in fields(cls)) else {}
    reducer = {"name": "tempme"} if name == "tempme" else {}
    reducer |= {key.removeprefix("reducer."): value for key, value in beside.items() if key.startswith("reducer.")}
    return cls(**{**frames, **({"reducer": reducer_config(num_frames=4, **reducer)} if reducer else {}), **own})


def build(name: str, config: Any, beside: dict[str, Any]) -> Method:
    torch.manual_seed(5)
    cls = find_method(name)
    if not cls.wraps:
        return cls(config, make_small_clip(layers=3))
    of_base = {key.removeprefix("base."): value for key, value in beside.items() if key.startswith("base.")}
    return cls(config, build(config.base, config_of(config.base, of_base), of_base))


def run(name: str, config: Any, beside: dict[str, Any]) -> Iterator[torch.Tensor]:
    """Yield all numbers that two tasks of two steps compute, in order."""
    method = build(name, config, beside)
    method.set_pair_source(RegeneratedPairs())
    for index in range(2):
        task = make_task(index, 2)
        torch.manual_seed(100 + index)
        method.begin_task(task)
        groups = method.param_groups()
        yield torch.tensor([group["lr"] for group in groups], dtype=torch.float64)
        batches = [make_batch(4, 4, seed=10 * index + step, categories=task.categories) for step in range(2)]
        if freeze_except(method, groups):
            optimizer = make_optimizer(groups, OptimConfig(lr_scale=20.0))
            method.train()
            for step, batch in enumerate(batches):
                torch.manual_seed(1000 * index + step)
                terms = method.losses(batch)
                yield torch.stack([term.detach().double() for term in terms.values()])
                sum(terms.values()).backward()
                set_learning_rates(optimizer, 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                method.after_step()
        method.eval()
        torch.manual_seed(200 + index)
        method.end_task(task, batches)
        with torch.no_grad():
            videos = method.encode_video(make_batch(5, 4, seed=77 + index).frames).float()
            method.on_gallery_stored(task, videos)
            texts = method.encode_text(make_batch(5, 4, seed=78).tokens, index).float()
            scores = method.normalize_scores(method.score(texts, videos))
        yield from (videos, texts, scores)
    yield from (value.double() for value in method.state_dict().values())
    yield from (value.detach() for value in method.parameters())
    yield torch.tensor(list(getattr(method, "task_metrics", dict)().values()), dtype=torch.float64)


@functools.cache
def sound(name: str, beside: tuple[tuple[str, Any], ...]) -> tuple[list[torch.Tensor], Iterator[torch.Tensor]]:
    """Return the run with the setting's own value: the numbers computed so far, and the rest."""
    return [], run(name, config_of(name, dict(beside)), dict(beside))


def differ(changed: Iterator[torch.Tensor], known: list[torch.Tensor], rest: Iterator[torch.Tensor]) -> bool:
    """Return any difference; neither run continues after the first. Each number of both is computed from one seed."""
    for number in itertools.count():
        torch.manual_seed(number)
        value = next(changed, None)
        if number == len(known):
            torch.manual_seed(number)
            if (last := next(rest, None)) is None:
                return value is not None
            known.append(last.clone())
        if value is None or value.shape != known[number].shape or not torch.equal(value, known[number]):
            return True
    raise AssertionError


@pytest.mark.parametrize("case", [case for case in CASES if looked_up(ELSEWHERE, case) is None])
def test_a_number_that_is_set_changes_what_is_computed(case):
    name, *kinds, setting = case.split(".")
    kind = "".join(kinds)
    beside = {**({"reducer.name": kind} if kind else {}), **(looked_up(BESIDE, case) or {})}
    config = other_config(name, kind, setting, beside)
    is_alive = differ(run(name, config, beside), *sound(name, tuple(beside.items())))
    assert is_alive, f"{config}: computes what it computes without this {setting}"


def test_a_setting_that_acts_elsewhere_names_the_test_that_shows_it():
    """In addition, every entry of the three lists is a setting that exists."""
    for case, where in ELSEWHERE.items():
        file, _, function = where.partition("::")
        names = {node.name for node in ast.walk(ast.parse((TESTS / file).read_text())) if hasattr(node, "name")}
        assert function in names, f"{case}: {where}"
    settings = {case.partition(".")[2] for case in CASES}
    for case in (*BESIDE, *ELSEWHERE, *VALUES):
        assert case in CASES or (case.startswith("*.") and case[2:] in settings), case
