"""Numbers of tokens in every block, as a plan determines them before a run."""

from collections.abc import Sequence

from ctvr.methods.layers.reduction.plan import Step, most_frames


def token_log(steps: Sequence[Step], tokens: int, frames: int) -> list[tuple[int, int, int]]:
    """Return, for each block: attention groups of a video, tokens per group in attention, tokens per group in the MLP.

    Args:
        steps: one step for each block.
        tokens: N of a frame before the first block.
        frames: T.
    """
    log, groups = [], frames
    for step in steps:
        groups = groups // step.group - min(step.frames, most_frames(groups))
        tokens = tokens * step.group - step.cross
        log.append((groups, tokens, tokens - step.intra))
        tokens -= step.intra + step.late
    return log
