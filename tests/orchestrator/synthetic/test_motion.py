"""Motions and their reversal."""

import numpy as np
import pytest

from ctvr.orchestrator.synthetic.drawing import BACKGROUNDS, SHAPES, Camera, Sprite, background, draw
from ctvr.orchestrator.synthetic.motion import MOTIONS, Thing, render_clip

THINGS = (Thing("red", "square", "large"), Thing("blue", "star", "small"))


def clip(motion, backward=False, seed=3, frames=9):
    turned = Thing("green", "heart", "large")
    return render_clip(motion, "paper", THINGS, turned, Camera(), seed, backward=backward, frames=frames, size=32)


@pytest.mark.parametrize("motion", MOTIONS)
def test_both_directions_differ_and_repeat_exactly(motion):
    forward, backward = clip(motion), clip(motion, backward=True)
    assert forward.shape == (9, 32, 32, 3)
    assert not np.array_equal(forward, backward)
    assert np.array_equal(forward, clip(motion))
    assert not np.array_equal(forward, clip(motion, seed=4))


@pytest.mark.parametrize("motion", [name for name, motion in MOTIONS.items() if motion.reverses])
def test_a_motion_that_reverses_holds_the_same_frames_in_opposite_order(motion):
    assert np.array_equal(clip(motion), clip(motion, backward=True)[::-1])


@pytest.mark.parametrize("motion", [name for name, motion in MOTIONS.items() if not motion.reverses])
def test_other_motions_rest_in_their_end_state(motion):
    forward, backward = clip(motion), clip(motion, backward=True)
    assert np.array_equal(forward[5], forward[-1])
    assert np.array_equal(backward[5], backward[-1])
    assert np.array_equal(forward[0], backward[-1])


def test_a_camera_that_changes_nothing_changes_nothing():
    frames = clip("slide")
    assert np.array_equal(Camera().apply(frames), frames)


def test_full_fog_hides_everything():
    fogged = Camera(fog=1.0, fog_colour=np.array([9.0, 8.0, 7.0])).apply(clip("slide"))
    assert np.unique(fogged.reshape(-1, 3), axis=0).tolist() == [[9, 8, 7]]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_sprite_changes_pixels_near_it_only(shape):
    frame = np.zeros((64, 64, 3), np.uint8)
    draw(frame, Sprite(shape, 0.5, 0.5, 0.2, np.array([200.0, 100.0, 50.0])))
    rows, columns = np.nonzero(frame.any(axis=2))
    assert 100 < len(rows) < 900
    assert min(rows.min(), columns.min()) >= 64 * (0.5 - 0.27)
    assert frame.max() == 200


@pytest.mark.parametrize("sprite", [(2.0, 0.5, 0.2, 1.0), (0.5, 0.5, 0.0, 1.0), (0.5, 0.5, 0.2, 0.0)])
def test_a_sprite_outside_empty_or_transparent_draws_nothing(sprite):
    x, y, radius, alpha = sprite
    frame = np.full((16, 16, 3), 7, np.uint8)
    draw(frame, Sprite("star", x, y, radius, np.zeros(3), alpha=alpha))
    assert (frame == 7).all()


@pytest.mark.parametrize("name", BACKGROUNDS)
def test_backgrounds_repeat_for_a_seed_and_vary_between_seeds(name):
    first, again, other = (background(name, np.random.default_rng(seed), 24) for seed in (1, 1, 2))
    assert first.shape == (24, 24, 3)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
