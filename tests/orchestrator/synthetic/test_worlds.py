"""Worlds: the meaning of their words, the content of their clips, the effect of each dial."""

import numpy as np
import pytest

from ctvr.orchestrator.synthetic import worlds
from ctvr.orchestrator.synthetic.worlds import Dials, Scene, caption, draw_scene, world
from tests.refusing import refuses


def scene(axis: int, **more) -> Scene:
    drawn = draw_scene(1, Dials(), np.random.default_rng(3))
    return Scene(**{**vars(drawn), "axis": axis, **more})


def test_every_name_of_a_world_is_one_word_and_unique():
    assert len(set(worlds.NAMES)) == len(worlds.NAMES) == 50
    assert all(name.isalpha() for name in worlds.NAMES)


def test_shared_words_mean_something_else_in_the_next_world():
    for first, second in zip(range(5), range(1, 6)):
        one, other = world(first), world(second)
        assert sorted(one.nouns.values()) == sorted(other.nouns.values())
        assert all(one.nouns[shape] != other.nouns[shape] for shape in worlds.SHAPES)
        assert [*one.signs.values()] != [*other.signs.values()]


def test_without_conflict_every_word_means_the_same_in_all_worlds():
    assert len({tuple(world(index, conflict=0).nouns.items()) for index in range(50)}) == 1


@pytest.mark.parametrize(("conflict", "moved"), [(0.5, 3), (1.0, 6)])
def test_conflict_is_the_share_of_nouns_that_change(conflict, moved):
    one, other = (world(index, conflict=conflict).nouns for index in (0, 1))
    assert sum(one[shape] != other[shape] for shape in worlds.SHAPES) == moved


@pytest.mark.parametrize("axis", range(len(worlds.MOVES)))
def test_a_reversed_clip_has_the_same_frames_in_reversed_order(axis):
    made = scene(axis)
    forward, backward = (made.render(direction, 4, 32) for direction in (False, True))
    assert np.array_equal(forward[::-1], backward)
    assert not np.array_equal(forward, backward)
    assert np.array_equal(forward, made.render(False, 4, 32))


def test_the_main_thing_moves_in_the_direction_of_its_caption():
    def ends(axis):
        path = scene(axis)._path(np.random.default_rng(0), 4)
        return path[0], path[-1]

    (left_first, left_last), (up_first, up_last), (far, near) = (ends(axis) for axis in range(3))
    assert left_last[0] < left_first[0] - 0.5
    assert up_last[1] < up_first[1] - 0.5  # y points down
    assert near[2] > 2 * far[2]
    assert [forward for forward, _ in worlds.MOVES] == ["left", "up", "closer"]


def test_captions_of_twins_differ_in_the_direction_only():
    rng = np.random.default_rng(0)
    for seed in range(50):
        drawn = draw_scene(2, Dials(), rng)
        forward, backward = (
            caption(drawn, direction, Dials(), np.random.default_rng(seed)).split() for direction in (False, True)
        )
        assert [(a, b) for a, b in zip(forward, backward, strict=True) if a != b] == [worlds.MOVES[drawn.axis]]


def test_captions_name_the_thing_by_the_noun_of_their_world():
    drawn = draw_scene(4, Dials(), np.random.default_rng(9))
    text = caption(drawn, False, Dials(), np.random.default_rng(9))
    assert world(4).nouns[drawn.shape] in text.split()
    assert drawn.shape not in text.split()


def test_shift_of_zero_is_one_plain_camera_for_all_worlds():
    plain = world(3, shift=0).style
    assert (plain.gain, plain.gamma, plain.fog, plain.pixel, plain.letterbox) == ((1, 1, 1), 1, 0, 1, 0)
    assert {(world(i, shift=0).style.pixel, world(i, shift=0).vignette) for i in range(10)} == {(1, 0)}
    assert not np.array_equal(scene(0, shift=0.0).render(False, 1, 32), scene(0, shift=1.0).render(False, 1, 32))


def test_distractors_add_things_and_leave_the_caption_unchanged():
    few, many = (Dials(distractors=count) for count in (0, 3))
    one, other = (draw_scene(0, dials, np.random.default_rng(5)) for dials in (few, many))
    assert not np.array_equal(one.render(False, 1, 64), other.render(False, 1, 64))
    assert caption(one, False, few, np.random.default_rng(1)) == caption(other, False, many, np.random.default_rng(1))


@pytest.mark.parametrize("given", [{"shift": 1.5}, {"conflict": -0.1}, {"pairs": 3}, {"distractors": 4}])
def test_a_dial_outside_its_range_is_refused_by_name(given):
    with refuses(*given, *given.values(), kind=ValueError):
        Dials(**given)
