import pytest

from ctvr.methods import METHODS
from ctvr.orchestrator.tables.setting_diff import differences
from ctvr.orchestrator.tables.unpublished_settings import departures, footnote, unpublished


@pytest.mark.parametrize("method", METHODS)
def test_every_method_lists_its_unpublished_settings(method):
    assert all(name.partition(".")[0] in {"method", "base", "optim", "data"} for name in unpublished(method))


def test_footnote_names_only_unpublished_values():
    settings = {"method": "lwf", "method.weight": "0.3", "method.temperature": "2.0", "base.lr": "4e-06"}
    assert footnote(settings) == (
        "chosen by us, because no paper publishes these values: method.weight=0.3, base.lr=4e-06"
    )


def test_a_strategy_names_the_settings_of_its_retriever_once():
    settings = {"method": "lwf", "method.base": "xpool", "base.lr": "1", "base.lr_head": "2", "method.lr": "3"}
    assert footnote(settings).endswith(": base.lr=1, base.lr_head=2")


def test_a_row_of_two_published_parts_reads_the_strategys_space():
    assert unpublished("tvr_plus_cl") == unpublished("vr_lwf")


def test_a_row_says_where_it_departs_from_its_papers_words():
    settings = {"method": "structalign", "method.pseudo": "inputs", "method.lr": "3e-06"}
    assert departures(settings).endswith(": method.pseudo inputs (paper shared)")
    assert departures({**settings, "method.pseudo": "shared"}) == departures({"method": "lwf"}) == ""
    assert differences({**settings, "method.pseudo": "shared"}, settings) == {}
    frames = ({"data.num_frames": n, "method.num_frames": n} for n in (8, 12))
    assert differences(*frames) == {"data.num_frames": ("8", "12")}
    assert differences({**settings, "method.pseudo": "clip"}, settings) == {"method.pseudo": ("clip", "inputs")}


def test_published_and_unknown_settings_have_no_footnote():
    assert footnote({"method": "bmu_moco", "method.lr": "5e-05"}) == ""
    assert footnote({"method": "a_method_of_yours", "method.lr": "1"}) == ""
    assert footnote({}) == ""
