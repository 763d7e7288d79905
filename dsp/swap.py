"""A stage whose inside can be exchanged while it runs."""

from collections import deque

import numpy as np

from myna.dsp.stage import Block, Stage


class Swap:
    """Holds one stage and crossfades to another without a gap, a click or stale context.

    After `replace(new)` both stages hear the input; the old one sounds until the new one has rung in
    (`new.latency_frames` plus `lead_frames`), then a raised-cosine crossfade of `crossfade_frames` ends with
    the new one. The stage let go of lands in `retired`, for its owner to close outside the audio path. A
    replacement during a replacement retires the one that had not sounded yet.
    """

    def __init__(self, stage: Stage, crossfade_frames: int, lead_frames: int = 0) -> None:
        if crossfade_frames < 1:
            raise ValueError("crossfade_frames must be at least 1")
        self.stage = stage
        self.retired: deque[Stage] = deque()
        self._coming: Stage | None = None
        self._heard = 0  # frames the coming stage has processed
        self._lead = lead_frames
        phase = (np.arange(crossfade_frames, dtype=np.float32) + 0.5) / crossfade_frames
        self._rise = (0.5 - 0.5 * np.cos(np.pi * phase)).astype(np.float32)

    @property
    def latency_frames(self) -> int:
        """Delay of the stage that sounds."""
        return self.stage.latency_frames

    @property
    def swapping(self) -> bool:
        """Whether a replacement is on its way."""
        return self._coming is not None

    @property
    def newest(self) -> Stage:
        """The stage that sounds, or that will once a replacement on its way is through."""
        return self._coming if self._coming is not None else self.stage

    def replace(self, stage: Stage) -> None:
        """Begin to exchange the stage; call at a block boundary. `stage` must be warm and reset."""
        if self._coming is not None:
            self.retired.append(self._coming)
        self._coming = stage
        self._heard = 0

    def process(self, block: Block) -> Block:
        """Process one block, shape (frames,)."""
        old = self.stage.process(block)
        if self._coming is None:
            return old
        new = self._coming.process(block)
        start = self._heard - self._coming.latency_frames - self._lead
        self._heard += len(block)
        index = np.arange(start, start + len(block))
        weight = np.where(index < 0, 0.0, self._rise[np.clip(index, 0, len(self._rise) - 1)])
        weight[index >= len(self._rise)] = 1.0
        mixed = (old + weight.astype(np.float32) * (new - old)).astype(np.float32)
        mixed[index >= len(self._rise)] = new[index >= len(self._rise)]  # bit for bit, whatever the old one gives
        if start + len(block) >= len(self._rise):
            self.retired.append(self.stage)
            self.stage, self._coming = self._coming, None
        return mixed

    def reset(self) -> None:
        """Forget all audio; a replacement on its way is completed at once."""
        if self._coming is not None:
            self.retired.append(self.stage)
            self.stage, self._coming = self._coming, None
        self.stage.reset()
