"""Positions of a searched setting's values; the panels are tested with the other figures of a table."""

from ctvr.orchestrator.tables.sensitivity import _places


def test_values_stand_where_their_numbers_are_or_in_a_row():
    assert _places(["0.2", "0.4"]) == ({"0.2": 0.2, "0.4": 0.4}, "linear")
    assert _places(["0.01", "1", "100"])[1] == "log"
    assert _places(["0.0", "1", "100"]) == ({"0.0": 0.0, "1": 1.0, "100": 2.0}, "linear")
    assert _places(["mean", "se"]) == ({"mean": 0.0, "se": 1.0}, "linear")
