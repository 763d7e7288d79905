"""Stages in a row are a stage."""

from collections.abc import Iterable

from myna.dsp.stage import Block, Stage


class Chain:
    """Runs stages one after another; delays add up."""

    def __init__(self, stages: Iterable[Stage]) -> None:
        self.stages: tuple[Stage, ...] = tuple(stages)

    @property
    def latency_frames(self) -> int:
        """Sum of the stages' delays."""
        return sum(stage.latency_frames for stage in self.stages)

    def process(self, block: Block) -> Block:
        """Run a block, shape (frames,), through all stages; an empty chain returns a copy."""
        if not self.stages:
            return block.copy()
        for stage in self.stages:
            block = stage.process(block)
        return block

    def reset(self) -> None:
        """Reset every stage."""
        for stage in self.stages:
            stage.reset()
