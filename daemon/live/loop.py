"""The block loop: input ring to output ring, one block at a time, waiting for nobody else."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from myna.daemon.live.intake import Intake
from myna.daemon.live.outlet import Outlet
from myna.dsp.stage import Block


ASK_S = 0.05  # between two looks at whether the stream still runs


class BlockPipeline(Protocol):
    """What the loop runs for every block."""

    def process(self, position: int, block: Block) -> Block:
        """Convert the block whose first frame has this session position."""
        ...

    def reset(self) -> None:
        """Forget all sound."""
        ...


@dataclass(slots=True)
class LoopCounters:
    """What the loop counts; written by the loop alone, read by anyone."""

    blocks: int = 0
    faults: int = 0
    late_frames: int = 0
    late_blocks: int = 0
    dropped_frames: int = 0
    drops: int = 0
    last_fault: BaseException | None = None
    compute_ms: deque[float] = field(default_factory=lambda: deque(maxlen=512))


class BlockLoop:
    """Takes blocks, converts them, writes them to where they are due.

    `changes` is the mailbox: functions put there by other threads run at a block boundary. `after_block` hears of
    every block (compute ms, late frames) and may answer with a change of its own (prefill, block length).
    """

    def __init__(
        self,
        intake: Intake,
        pipeline: BlockPipeline,
        outlet: Outlet,
        after_block: Callable[[float, int], None],
        ended: Callable[[], str | None],
    ) -> None:
        self.intake, self.pipeline, self.outlet = intake, pipeline, outlet
        self.changes: deque[Callable[[], None]] = deque()
        self.counters = LoopCounters()
        self.stopping = False
        self._after_block, self._ended = after_block, ended
        self._expected_frames = 0.0  # compute of a recent block, in session frames

    def run(self, rate_hz: int, idle_ms: float = 20.0) -> str:
        """Run until told to stop or the stream ends; returns why it ended."""
        asked_s = time.monotonic()
        while not self.stopping:
            waited = self.intake.wait(idle_ms)
            # Also while input flows: an output that is a device of its own can die alone.
            if not waited or time.monotonic() - asked_s > ASK_S:
                asked_s = time.monotonic()
                if (reason := self._ended()) is not None:
                    return reason
            self.step(rate_hz)
        return "stopped"

    def step(self, rate_hz: int) -> bool:
        """Convert one block if there is one; True if there was."""
        while self.changes:
            self.changes.popleft()()
        self._catch_up()
        if (taken := self.intake.take()) is None:
            return False
        started = time.perf_counter()
        try:
            if taken.jumped:
                self.pipeline.reset()
            block = self.pipeline.process(taken.position, taken.block)
        except Exception as fault:  # nothing is written: the core fades to silence by itself
            self.counters.faults += 1
            self.counters.last_fault = fault
            self.pipeline.reset()
            late = 0
        else:
            late = self.outlet.write(taken.position, block)
        compute_ms = 1e3 * (time.perf_counter() - started)
        self._count(compute_ms, late, rate_hz)
        self._after_block(compute_ms, late)
        return True

    def _catch_up(self) -> None:
        """Drop whole stretches of input when there is no hope to convert them in time.

        A voice that computes in less than half of its time catches up by itself (the core skips what is late) and keeps
        its context whole; for a slower one every block that would come late would delay the next.
        """
        block = self.intake.block_frames
        if self._expected_frames <= 0.5 * block or (backlog := self.intake.backlog_frames) < block:
            return
        self.counters.dropped_frames += self.intake.drop(backlog // block * block)
        self.counters.drops += 1

    def _count(self, compute_ms: float, late: int, rate_hz: int) -> None:
        self.counters.blocks += 1
        self.counters.compute_ms.append(compute_ms)
        self._expected_frames = 0.8 * self._expected_frames + 0.2 * compute_ms * 1e-3 * rate_hz
        if late:
            self.counters.late_frames += late
            self.counters.late_blocks += 1
