"""Making one block longer or shorter without a gap or a click: how a delay moves while sound runs."""

import numpy as np

from myna.dsp.fades import equal_gain
from myna.dsp.stage import Block


def lengthen(block: Block, by_frames: int) -> Block:
    """A block that lasts `by_frames` longer: it glides into itself, delayed by as much.

    Args:
        block: Shape (frames,), frames > by_frames.
        by_frames: >= 0.

    Returns:
        Shape (frames + by_frames,); its first and last frames are the block's own.

    Raises:
        ValueError: `by_frames` is negative or not less than the block.
    """
    frames = _checked(block, by_frames)
    if by_frames == 0:
        return block.copy()
    out = np.empty(frames + by_frames, np.float32)
    out[:by_frames], out[frames:] = block[:by_frames], block[frames - by_frames :]
    rise = equal_gain(frames - by_frames)
    out[by_frames:frames] = block[by_frames:] * (1.0 - rise) + block[: frames - by_frames] * rise
    return out


def shorten(block: Block, by_frames: int) -> Block:
    """A block that lasts `by_frames` less: it glides from its start into its end.

    Shape (frames,) to (frames − by_frames,); its first and last frames are about the block's own. ValueError as
    `lengthen`.
    """
    frames = _checked(block, by_frames)
    if by_frames == 0:
        return block.copy()
    rise = equal_gain(frames - by_frames)
    return np.asarray(block[: frames - by_frames] * (1.0 - rise) + block[by_frames:] * rise, np.float32)


def _checked(block: Block, by_frames: int) -> int:
    if not 0 <= by_frames < max(len(block), 1):
        raise ValueError(f"a block of {len(block)} frames can't change by {by_frames}")
    return len(block)
