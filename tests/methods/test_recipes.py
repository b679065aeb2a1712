"""Records of trials by hand: a recipe states how many chose it, and which of its values have no record."""

import pytest

from ctvr.methods import METHODS, find_method
from ctvr.methods.recipes import EMBEDDED, Tuned, trials_by_hand


@pytest.mark.parametrize(
    ("presets", "expected"),
    [
        ([], ""),
        ([None, None], ""),
        ([Tuned({"method.lr": 1.0}, trials=9)], "9"),
        ([Tuned({"method.lr": 1.0}, trials=9), None, Tuned({}, trials=2)], "11"),
        ([Tuned({"method.lr": 1.0}, trials=9, unrecorded=["method.rank"])], "9?"),
        ([Tuned({"method.lr": 1.0}, trials=9), {"method.lr": 2.0}], "9?"),
        ([{"method.lr": 2.0}], "?"),
    ],
)
def test_trials_by_hand_are_added_and_missing_records_are_marked(presets, expected):
    assert trials_by_hand(presets) == expected


@pytest.mark.parametrize("name", METHODS)
def test_a_recorded_recipe_names_its_own_settings(name):
    recipe = find_method(name).PRESETS.get(EMBEDDED, {})
    if isinstance(recipe, Tuned):
        assert recipe.trials > 0
        assert set(recipe.unrecorded) <= recipe.keys()
