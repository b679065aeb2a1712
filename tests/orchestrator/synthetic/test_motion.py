"""Motions and their reversal."""

import numpy as np
import pytest

from ctvr.orchestrator.synthetic.drawing import Camera
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
