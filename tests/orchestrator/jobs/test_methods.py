"""Methods by name: presets that a stream recommends, search spaces."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.errors import ConfigError
from orchestrator.importers.ctvr import ACTNET_SETTINGS
from orchestrator.jobs.methods import default_presets, search_space


def test_the_streams_preset_is_taken_where_the_method_has_it(small_stream):
    stream = replace(small_stream, settings={"preset": "shapes"})
    assert default_presets("clip4clip", stream, ()) == ("shapes",)
    assert default_presets("clip4clip", stream, ("paper",)) == ("paper",)
    assert default_presets("clip4clip", stream, ("seqLSTM",)) == ("shapes", "seqLSTM")
    assert default_presets("clip4clip", small_stream, ()) == ()


def test_a_preset_for_other_numbers_of_frames_is_not_taken_on_the_streams_word(small_stream):
    stream = replace(small_stream, settings=ACTNET_SETTINGS)
    assert default_presets("framefusion_moe", stream, ()) == ("paper-actnet",)
    assert default_presets("tempme", stream, ()) == ("paper",)  # its own for ActivityNet has 64 frames
    assert default_presets("tempme", stream, ("paper-actnet",)) == ("paper-actnet",)


def test_a_method_without_a_search_space_cannot_be_searched():
    with pytest.raises(ConfigError, match="nothing to search"):
        search_space("nothing")
