"""Relations between vectors are exact where they hold, and far from it for unrelated vectors."""

import numpy as np
import pytest

from ctvr.orchestrator.vectors import relations

RNG = np.random.default_rng(0)
OLD = RNG.normal(size=(16, 24))
OTHER = RNG.normal(size=(16, 24))
SCALES = RNG.uniform(0.5, 2, (16, 1))
ROTATION = np.linalg.qr(RNG.normal(size=(24, 24)))[0]
GAIN, OFFSET = RNG.uniform(0.3, 2, 24) * RNG.choice([-1, 1], 24), RNG.normal(size=24)


@pytest.mark.parametrize(
    ("relation", "new"),
    [
        (relations.gram_difference, SCALES * (OLD @ ROTATION)),
        (relations.offset_residual, SCALES * (OLD - OFFSET)),
        (relations.diagonal_residual, SCALES * OLD * GAIN),
        (relations.affine_residual, SCALES * OLD * GAIN),
        (lambda old, new: relations.affine_residual(old, new), (SCALES * OLD - OFFSET) / GAIN),
    ],
)
def test_a_relation_is_recognised_whatever_the_lengths(relation, new):
    assert relation(OLD, new) < 1e-6
    assert relation(OLD, OTHER) > 0.1
    assert relation(OLD, OLD + 0.3 * OTHER) > 0.01


def test_a_relation_stays_recognised_in_half_precision():
    half = (SCALES * (OLD - OFFSET)).astype(np.float16).astype(np.float64)
    assert relations.offset_residual(OLD, half) < 6e-3
    assert relations.diagonal_residual(OLD, (OLD * GAIN).astype(np.float16).astype(np.float64)) < 6e-3


def test_unchanged_rows_are_not_an_offset():
    new = OLD.copy()
    new[3:] += 0.2 * OTHER[3:]
    assert relations.offset_residual(OLD, new) == 1.0


def test_rows_of_other_ids_are_found():
    nearest, distance = relations.sources(OLD, np.roll(OLD, 2, 0))
    assert nearest.tolist() == np.roll(np.arange(16), 2).tolist()
    assert distance.max() < 1e-6


def test_a_change_in_one_direction_has_low_rank():
    assert relations.low_rank_share(OLD, OLD + RNG.normal(size=(16, 1)) * 0.01 * OFFSET) > 0.9
    assert relations.low_rank_share(OLD, OLD + 0.01 * OTHER) < 0.5


def test_overlaps_are_one_for_equal_sets_and_low_for_unrelated_ones():
    assert relations.neighbour_overlap(OLD, OLD @ ROTATION) == relations.mixed_overlap(OLD, 3 * OLD) == 1
    assert relations.mixed_overlap(OLD, OLD @ ROTATION) < 0.7


@pytest.mark.parametrize(("dtype", "expected"), [(np.float32, False), (np.float16, False)])
def test_numbers_of_bfloat16_are_recognised(dtype, expected):
    vectors = OLD.astype(dtype)
    assert relations.is_bfloat16(vectors) is expected
    cut = (OLD.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)
    assert relations.is_bfloat16(cut)


def test_saturated_numbers_are_counted_once_for_equal_rows():
    assert relations.saturated(np.concatenate([OLD, OLD])) <= 1
    assert relations.saturated(np.clip(OLD, -1, 1)) > 50
    assert relations.saturated(np.where(OLD > 1.5, np.inf, OLD)) == (OLD > 1.5).sum()
