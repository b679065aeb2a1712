"""The order of trials by several objectives."""

import itertools
import math
import random

import pytest

from ctvr.orchestrator.on_ray.pareto import best_first, dominates, fronts, losses_of


def points(seed: int, objectives: int, count: int = 12) -> list[tuple[float, ...]]:
    chance = random.Random(seed)
    return [tuple(float(chance.randrange(5)) for _ in range(objectives)) for _ in range(count)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("objectives", [1, 2, 3])
def test_each_front_is_what_nothing_left_dominates(seed, objectives):
    found = points(seed, objectives)
    numbers = fronts(found)
    for number in set(numbers):
        left = [point for point, other in zip(found, numbers) if other >= number]
        for point, other in zip(found, numbers):
            worse = any(all(a <= b for a, b in zip(each, point)) and each != point for each in left)
            assert not worse if other == number else True
    for one, two in itertools.combinations(range(len(found)), 2):
        if dominates(found[one], found[two]):
            assert numbers[one] < numbers[two]


@pytest.mark.parametrize("seed", range(3))
def test_one_objective_is_ordered_by_its_value_and_then_by_suggestion(seed):
    found = points(seed, 1)
    assert best_first(found) == sorted(range(len(found)), key=lambda index: (found[index], index))


def test_the_ends_of_a_front_come_before_its_middle_and_crowded_points_last():
    front = [(0.0, 10.0), (4.0, 6.0), (5.0, 5.0), (5.5, 4.5), (10.0, 0.0)]
    assert best_first(front) == [0, 4, 1, 3, 2]
    assert best_first([*front, (0.0, 11.0)])[-1] == 5  # dominated


def test_a_value_that_is_not_a_number_is_worse_than_any():
    assert losses_of((3.0, 2.0), ("max", "min")) == (-3.0, 2.0)
    lost = losses_of((math.nan, 0.0), ("max", "min"))
    assert best_first([lost, (0.0, 5.0), (-1.0, 9.0), lost]) == [2, 1, 0, 3]
