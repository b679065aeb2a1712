"""The generated pages are complete and correct about limits; their links and commands exist."""

import dataclasses
import posixpath
import re
from pathlib import Path

import pytest

from ctvr.methods import CONFIGURATIONS, EVERY_METHOD
from ctvr.methods.settings import groups_of, settings_of
from ctvr.orchestrator.on_ray.plan import SearchConfig
from ctvr.orchestrator.settings.experiment import GROUPS, RunConfig
from ctvr.orchestrator.settings.presets import get_method
from ctvr.orchestrator.tables.paper_items import read as read_items
from tests.test_commands import check, commands_of, lines_of
from tools import reference_pages
from tools.reference_pages import TABLES, pages

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return pages()


def test_every_site_page_exists_and_its_links_work(made):
    nav = set(re.findall(r"[\w./-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    assert set(made) <= nav
    committed = {file.relative_to(DOCS).as_posix() for file in DOCS.rglob("*.md")}
    assert committed & set(made) == set(), "generated pages are not committed"
    for name, text in made.items():
        for target in re.findall(r"\]\(([^)#:]+\.md)", text):
            file = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
            assert file in committed | set(made), f"{name}: {target}"


def test_every_method_item_and_comparison_is_on_its_page(made):
    for name in (*EVERY_METHOD, *CONFIGURATIONS):
        assert f"\n## {name}\n" in made["methods.md"]
        assert f"\n| `{name}` | " in made["reproducibility.md"]
    assert all(f"\n| `{item.item}` | " in made["papers.md"] for item in read_items()[1])
    assert set(reference_pages.OTHER_PAPERS) <= set(EVERY_METHOD)
    assert all(f"\n| [`{name}`](methods.md#{name}) | " in made["papers.md"] for name in reference_pages.OTHER_PAPERS)
    assert TABLES in (ROOT / "REPRODUCIBILITY.md").read_text(encoding="utf-8")
    assert TABLES not in made["reproducibility.md"]


def test_the_commands_of_the_pages_exist(made):
    commands = [words for text in made.values() for line in lines_of(text) for words in commands_of(line)]
    assert len(commands) > 50
    for words in commands:
        check(words)


def test_the_pages_are_written_into_a_folder(made, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(reference_pages, "pages", lambda: made)
    assert reference_pages.main(["--out", str(tmp_path / "new")]) == 0
    assert (tmp_path / "new" / "papers" / "bmu.md").read_text(encoding="utf-8") == made["papers/bmu.md"]
    assert str(tmp_path / "new" / "settings.md") in capsys.readouterr().out


def test_every_setting_is_declared_with_a_doc():
    configs = [RunConfig, SearchConfig, *GROUPS.values(), *(get_method(name).Config for name in EVERY_METHOD)]
    fields = {
        (config.__name__, f"{field.name}.name" if field.name in groups_of(config) else field.name)
        for config in configs
        for field in dataclasses.fields(config)
    }
    documented = {
        (config.__name__, name) for config in configs for name, facts in settings_of(config).items() if facts.doc
    }
    assert fields - documented == set(), "declare the field by `setting(default, doc=...)`"


def test_settings_for_exact_reproduction_follow_under_their_own_heading(made):
    ordinary, _, exact = made["settings.md"].partition("### `optim.*` for exact reproduction of a release")
    assert "`optim.warmup`" in ordinary
    assert "`optim.num_cycles`" not in ordinary
    assert "`optim.num_cycles`" in exact


@pytest.mark.parametrize(
    "row",
    [
        "| `optim.momentum` | number | `0.0` | >= 0.0, < 1 | momentum of the optimizer sgd |",
        "| `optim.grad_clip` | number or none | `1.0` | > 0 | maximum norm of the gradient of all trained parameters; "
        "none: no clipping |",
        "| `optim.weight_decay` | number | `0.2` | >= 0.0 | weight decay of the tensors that "
        "`optim.decay_parameters` selects; each step multiplies it by the learning rate |",
        "| `data.max_tokens` | whole number or none | `none` | >= 2 |",
        "| `data.augment` | word | `none` | `none`, `crop_flip`, `gray_jitter` |",
        "| `search.bracket_size` | whole number | `8` | >= 1 |",
        "| `method.reducer.keep_rate` | number | `0.7` | > 0, <= 1 | share of the patches kept in each block "
        "of `stages` | `evit` |",
        "| `method.reducer.r` | whole number or none | `none` | >= 0 | number of tokens merged in each frame per "
        "block; none: the paper's values, 2 of 49 or 10 of 196 patches | `tempme` |",
        "| `method.m_hat` | number | `0.99` | >= 0.0, <= 1 | momentum of the reverse update, from the momentum "
        "encoder to the encoder, eq. 12; 1: no reverse update |",
    ],
)
def test_limits_are_those_of_the_classes(made, row):
    assert f"\n{row}" in made["settings.md"]
