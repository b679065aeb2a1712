"""Blocks of work: small for little work, and large enough to fill a pack of the store for much work."""

from ctvr.orchestrator.on_ray.map_blocks import BLOCK, LARGE, MANY, num_blocks
from ctvr.orchestrator.store import packer


def test_many_items_come_in_blocks_that_fill_packs():
    assert num_blocks(1) == num_blocks(BLOCK) == 1
    assert num_blocks(MANY - 1) == -(-(MANY - 1) // BLOCK)
    assert num_blocks(MANY) == MANY // LARGE
    video = 12 * 224 * 224 * 3
    full = -(-packer.FULL // video)  # videos of a pack
    assert (LARGE - full) * video >= packer.LEAST  # and the rest of a block is one, too
