"""The pages that are written from the code: up to date, complete, and right about limits."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from methods import EVERY_METHOD
from orchestrator.jobs.meanings import WORDS, meanings_of
from orchestrator.learning.experiment import GROUPS, RunConfig
from orchestrator.learning.resolve import find
from orchestrator.on_ray.plan import SearchConfig
from tools.reference_pages import pages

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return pages()


def test_the_written_pages_are_up_to_date(made):
    for name, text in made.items():
        assert (DOCS / name).read_text(encoding="utf-8") == text, f"docs/{name}: run: python -m tools.reference_pages"


def test_every_setting_has_a_meaning_and_no_words_are_left_over():
    configs = [RunConfig, SearchConfig, *GROUPS.values(), *(find(name).Config for name in EVERY_METHOD)]
    fields = {(config.__name__, field.name) for config in configs for field in dataclasses.fields(config)}
    assert {field.name for config in configs for field in dataclasses.fields(config)} >= {
        name.rpartition(".")[2] for name in WORDS
    }
    assert {tuple(name.split(".")) for name in WORDS if "." in name} <= fields
    said = {(config.__name__, name) for config in configs for name in meanings_of(config)}
    assert fields - said == set(), "write a remark beside the field"


@pytest.mark.parametrize(
    "row",
    [
        "| `optim.momentum` | number | `0.0` | >= 0.0, < 1 | of sgd |",
        "| `optim.grad_clip` | number or none | `1.0` | > 0 | norm over all trained parameters |",
        "| `optim.weight_decay` | number | `0.2` | >= 0.0 | of the tensors that `optim.decay` names, times the rate |",
        "| `data.max_tokens` | whole number or none | `none` | >= 2 |",
        "| `data.augment` | word | `none` | `none`, `crop_flip`, `gray_jitter` |",
        "| `search.wave` | whole number | `8` | >= 1 |",
        "| `method.m_hat` | number | `0.99` | >= 0.0, <= 1 | eq. 12; 1 reviews nothing |",
    ],
)
def test_limits_are_those_of_the_classes(made, row):
    assert f"\n{row}" in made["settings.md"]
