"""Methods by name: presets that a stream recommends, and search spaces."""

import re
from dataclasses import replace

from ctvr.methods import CONFIGURATIONS, EVERY_METHOD, METHODS
from ctvr.methods.base import Recipe
from ctvr.orchestrator.importers.ctvr import ACTNET_SETTINGS
from ctvr.orchestrator.settings.presets import presets_of
from ctvr.orchestrator.sweeps import search_spaces
from ctvr.orchestrator.sweeps.search_spaces import (
    default_presets,
    depth_settings,
    later_task_settings,
    preset_text,
    search_space,
    upper_bounds,
)
from tests.refusing import refuses

ORIGINALS = [name for name in (*METHODS, *CONFIGURATIONS) if isinstance(presets_of(name).get("original"), Recipe)]


def test_the_streams_preset_is_taken_where_the_method_has_it(small_stream):
    stream = replace(small_stream, settings={"preset": "shapes"})
    assert default_presets("clip4clip", stream, ()) == ("shapes",)
    assert default_presets("clip4clip", stream, ("paper",)) == ("paper",)
    assert default_presets("clip4clip", stream, ("seqLSTM",)) == ("shapes", "seqLSTM")
    assert default_presets("clip4clip", small_stream, ()) == ()


def test_preset_of_another_frame_count_is_not_recommended(small_stream):
    stream = replace(small_stream, settings=ACTNET_SETTINGS)
    assert default_presets("framefusion_moe", stream, ()) == ("paper-actnet",)
    assert default_presets("tempme", stream, ()) == ("paper",)  # its own for ActivityNet has 64 frames
    assert default_presets("tempme", stream, ("paper-actnet",)) == ("paper-actnet",)


def test_a_preset_is_shown_as_what_it_changes_with_its_source():
    text = preset_text("clip4clip", "original")
    lines = text.splitlines()
    assert lines[0] == "clip4clip, preset original: ArrowLuo/CLIP4Clip@508ffa3"
    assert [line.split() for line in lines if line.strip().startswith("optim.name")] == [
        ["optim.name=bert_adam", "(adamw)", "modules/optimization.py"]
    ]
    assert "set, with the recommended value: " in text
    assert "  tightTransf" in lines
    changed = {line.split("=")[0].strip() for line in lines if "  (" in line}
    assert {
        "optim.schedule",
        "optim.decay_parameters",
        "method.frozen",
        "method.max_scale",
        "data.max_tokens",
    } <= changed
    assert "optim.weight_decay" not in changed  # 0.2 in both
    for name in ORIGINALS:  # every line ends with where its value stands
        shown = preset_text(name, "original").partition("\n\n")[2].partition("\n\n")[0].splitlines()[1:]
        assert shown
        assert [line for line in shown if not re.search(r"\)  \S.*\S$", line)] == [], name
    assert "optim.decay_parameters=matrices  (all)  our default: not given by its recipe" in preset_text(
        "tome", "original"
    )
    assert "method.sim_header=seqLSTM" in preset_text("clip4clip", "seqLSTM")
    with refuses("orignal", where="preset", write=("original",)):
        preset_text("zscl", "orignal")


def test_a_method_without_a_search_space_cannot_be_searched(monkeypatch):
    monkeypatch.setitem(EVERY_METHOD, "newcomer", EVERY_METHOD["clip4clip"])
    with refuses(where="method"):
        search_space("newcomer")
    with refuses("'nothing'", where="method"):
        search_space("nothing")


def test_setting_metadata_comes_from_config_and_search_space(monkeypatch):
    file = {"DEPTHS": ("method.layers",), "UPPER_BOUNDS": {"method.k": "method.n"}, "LATER_TASKS": ("method.k",)}
    monkeypatch.setattr(search_spaces, "_search_file", lambda method: file)
    assert depth_settings("framefusion_moe") == ("method.ffa_layers", "method.layers")
    assert upper_bounds("structalign") == {"method.top_k": "method.num_experts", "method.k": "method.n"}
    assert later_task_settings("bmu_fixed") == ("method.m_hat", "method.k")


def test_a_search_begins_with_the_defaults_where_the_space_names_no_value(monkeypatch):
    file = {"FIXED": {"optim.warmup": 0.0}, "SPACE": dict.fromkeys(("method.lr", "optim.warmup", "optim.eps"))}
    monkeypatch.setattr(search_spaces, "_search_file", lambda method: {**file, "PAPER": {"method.lr": 0.5}})
    assert search_space("clip4clip")[2] == {"method.lr": 0.5, "optim.warmup": 0.0, "optim.eps": 1e-6}
