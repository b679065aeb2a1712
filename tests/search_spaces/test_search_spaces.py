"""Every search space names settings that exist and contains the paper's value in every range."""

from dataclasses import fields

import numpy as np
import pytest
import torch
from ray.tune.search.sample import Categorical, Domain, Float, Integer

from ctvr.methods import CONFIGURATIONS, EVERY_METHOD, METHODS, find_method
from ctvr.methods.base import Method
from ctvr.methods.tempme import TempMe
from ctvr.orchestrator.config import build
from ctvr.orchestrator.keys.prefix_reuse import AccessLog, track_reads
from ctvr.orchestrator.on_ray.search import contains, first_point
from ctvr.orchestrator.on_ray.search_space import SearchSpace, within
from ctvr.orchestrator.setting_groups import setting_names
from ctvr.orchestrator.settings.experiment import GROUPS
from ctvr.orchestrator.settings.presets import presets_of
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.sweeps.search_spaces import default_metric, later_task_settings, search_space, upper_bounds
from ctvr.orchestrator.tables.unpublished_settings import deviations, unpublished
from ctvr.search_spaces import FAMILIES, SPACES
from tests.methods.conftest import make_small_clip
from tests.methods.test_contract import features, learn

pytestmark = pytest.mark.slow  # importing Ray Tune takes seconds


def test_every_method_has_one_space():
    assert set(EVERY_METHOD) <= set(SPACES) <= {*EVERY_METHOD, *CONFIGURATIONS}
    assert all("SPACE" in SPACES[name] for name in EVERY_METHOD)
    named = [name for family in FAMILIES for name in family.SPACE]
    assert sorted(named) == sorted(set(named)) == sorted(SPACES), "a later file would replace an earlier one's"


@pytest.mark.parametrize("name", METHODS)
def test_the_space_fits_the_method_and_holds_the_papers_values(name):
    space = SPACES[name]["SPACE"]
    cls = find_method(name)
    known = {f"method.{setting}" for setting in setting_names(cls.Config)}
    if cls.wraps:
        base = find_method(cls.Config().base)
        known |= {f"base.{setting}" for setting in setting_names(base.Config)}
    for group, config in GROUPS.items():
        known |= {f"{group}.{f.name}" for f in fields(config)}
    assert set(space) <= known
    first = search_space(name)[2]
    assert first_point(SearchSpace(space, {}, {}), first) == first, "a search begins with it"
    assert set(search_space(name)[0]) <= known
    for setting, domain in space.items():
        assert isinstance(domain, Domain)
        value = first[setting]
        if isinstance(domain, Categorical):
            assert value in domain.categories, setting
        elif isinstance(domain, (Float, Integer)):
            assert domain.lower <= value <= domain.upper, setting


@pytest.mark.parametrize("name", METHODS)
def test_paper_presets_lie_in_the_search_space(name):
    space = SPACES[name]["SPACE"]
    for preset, settings in presets_of(name).items():
        if preset in {"paper", "paper-actnet"}:
            outside = {s: v for s, v in settings.items() if s in space and not contains(space[s], v)}
            assert not outside, preset


@pytest.mark.parametrize("name", METHODS)
def test_every_point_of_the_space_is_a_legal_configuration(name):
    space = SPACES[name]["SPACE"]
    chance = np.random.default_rng(0)
    for _ in range(5):
        point = {setting: domain.sample(random_state=chance) for setting, domain in space.items()}
        point = within(point, upper_bounds(name))
        resolve({**search_space(name)[0], "method": name, "stream": "shapes-5", **point})
    resolve({**search_space(name)[0], "method": name, "stream": "shapes-5", **search_space(name)[2]})


@pytest.mark.parametrize("name", METHODS)
def test_unpublished_and_deviating_names_are_settings(name):
    known = resolve({**search_space(name)[0], "method": name, "stream": "shapes-5"}).settings
    assert set(unpublished(name)) <= set(known)
    for setting, words in deviations(name).items():
        assert str(known[setting]) != words  # or there is nothing to say
        resolve({**search_space(name)[0], "method": name, "stream": "shapes-5", setting: words})


@pytest.mark.parametrize("name", METHODS)
def test_later_settings_are_first_read_by_the_second_task(name):
    """A strategy runs around the retriever of its search with default settings: training, then an evaluation."""
    space, reads = SPACES[name]["SPACE"], AccessLog()

    def make(of: str, prefix: str, **given: str) -> Method:
        cls = find_method(of)
        frames = {"num_frames": 4} if any(f.name == "num_frames" for f in fields(cls.Config)) else {}
        frames |= {"reducer.num_frames": 4} if cls is TempMe else {}
        config = track_reads(build(cls.Config, {**frames, **given}, prefix), prefix, reads)
        return cls(config, make(config.base, "base") if cls.wraps else make_small_clip(layers=2))

    method = make(name, "method", **({"base": search_space(name)[0]["method.base"]} if find_method(name).wraps else {}))
    seen = []
    for index in range(2):
        learn(method, index, 1)
        with torch.no_grad():
            videos, captions = features(method, index)
            scores = method.score(captions, videos)
            (
                method.scale(),
                method.declared.normalizes_scores,
                method.normalize_scores(scores),
                method.normalize_scores_v2t(scores),
            )
        seen.append(set(reads.names))
    later = (seen[1] - seen[0]) & set(space)
    assert set(later_task_settings(name)) & set(space) == later


@pytest.mark.parametrize("name", METHODS)
def test_the_objective_is_comparable_at_every_task(name):
    assert default_metric(name, "ctvr") == {"metric": "stream/t2v/r1_gain", "mode": "max"}


@pytest.mark.parametrize("name", [*METHODS, *CONFIGURATIONS])
def test_a_search_space_names_only_values_that_differ_from_the_defaults(name):
    owner = CONFIGURATIONS.get(name, (name, ""))[0]
    own = {**SPACES[owner], **SPACES.get(name, {})}
    defaults = resolve({**own.get("FIXED", {}), "method": name, "stream": "shapes-5"}).settings
    assert [setting for setting, value in own.get("PAPER", {}).items() if defaults[setting] == value] == []
