"""The block loop: input ring to output ring, one block at a time, waiting for nobody else."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from myna.daemon.audio.backend import Clock
from myna.daemon.live.intake import Intake, Taken
from myna.daemon.live.outlet import Outlet
from myna.dsp.stage import Block

ASK_S = 0.05  # between two looks at whether the stream still runs
IDLE_MS = 20.0
STOPPED = "stopped"

Done = Callable[[Exception | None], None]


class BlockPipeline(Protocol):
    """What the loop runs for every block."""

    def process(self, position: int, block: Block) -> Block:
        """Convert the block whose first frame has this session position."""
        ...

    def reset(self) -> None:
        """Forget all sound."""
        ...


@dataclass(frozen=True, slots=True)
class Mail:
    """A change for the next block boundary, and who hears that it was made (or what refused it)."""

    apply: Callable[[], None]
    done: Done


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
    faulting_since_s: float | None = None  # None: the latest block went well


class BlockLoop:
    """Takes blocks, converts them, writes them to where they are due.

    `mail` is the mailbox: what other threads put there happens at a block boundary. `after_block` hears of
    every block (compute ms, late frames) and may answer with a change of its own (prefill, block length).
    """

    def __init__(
        self,
        intake: Intake,
        pipeline: BlockPipeline,
        outlet: Outlet,
        after_block: Callable[[float, int], None],
        ended: Callable[[], str | None],
        clock: Clock,
        rate_hz: int,
    ) -> None:
        self.intake, self.pipeline, self.outlet = intake, pipeline, outlet
        self.mail: deque[Mail] = deque()
        self.counters = LoopCounters()
        self.stopping = False
        self._after_block, self._ended = after_block, ended
        self._clock, self._rate = clock, rate_hz
        self._asked_s = clock()
        self._expected_frames = 0.0  # compute of a recent block, in session frames

    def run(self, each_turn: Callable[[], None]) -> str:
        """Run until told to stop or the stream ends; returns why it ended. Raises nothing."""
        try:
            while True:
                each_turn()
                waited = self.intake.wait(IDLE_MS)
                if (reason := self.turn(waited)) is not None:
                    return reason
        except Exception as error:  # our bug: the session reopens what this loop served, in silence until then
            self.counters.last_fault = error
            return f"{type(error).__name__}: {error}"

    def turn(self, waited: bool = True) -> str | None:
        """One round: see whether the stream still runs, convert one block if there is one. Why it ended, or None."""
        if self.stopping:
            return STOPPED
        # Also while input flows: an output that is a device of its own can die alone.
        now_s = self._clock()
        if not waited or now_s - self._asked_s > ASK_S:
            self._asked_s = now_s
            if (reason := self._ended()) is not None:
                return reason
        self.step()
        return None

    def step(self) -> bool:
        """Convert one block if there is one; True if there was."""
        while self.mail:
            _deliver(self.mail.popleft())
        self._catch_up()
        if (taken := self.intake.take()) is None:
            return False
        started_s = self._clock()
        late = self._convert(taken, started_s)
        compute_ms = 1e3 * (self._clock() - started_s)
        self._count(compute_ms, late)
        self._after_block(compute_ms, late)
        return True

    def _convert(self, taken: Taken, now_s: float) -> int:
        try:
            if taken.jumped:
                self.pipeline.reset()
            block = self.pipeline.process(taken.position, taken.block)
        except Exception as fault:  # nothing is written: the core fades to silence by itself
            self.counters.faults += 1
            self.counters.last_fault = fault
            if self.counters.faulting_since_s is None:
                self.counters.faulting_since_s = now_s
            self.pipeline.reset()
            return 0
        self.counters.faulting_since_s = None
        return self.outlet.write(taken.position, block)

    def _catch_up(self) -> None:
        """Drop the input that waits when what comes next would be too late anyway.

        A voice that computes in less than half of its time catches up by itself (the core skips what is late) and keeps
        its context whole. For a slower one all that waits goes at once, so that a whole stretch after it is in
        time. Worked example at 48 kHz: blocks of 960 take 1008 (1.05 times too slow), the delay is 960 + 7200.
        Each block comes 48 frames later than the one before; after about 128 blocks 6192 frames wait, the next
        block would be late, and those 129 ms go.
        """
        block = self.intake.block_frames
        if self._expected_frames <= 0.5 * block or (backlog := self.intake.backlog_frames) < block // 4:
            return
        if backlog + block + self._expected_frames <= self.outlet.delay_frames:
            return
        self.counters.dropped_frames += self.intake.drop(backlog)
        self.counters.drops += 1

    def _count(self, compute_ms: float, late: int) -> None:
        self.counters.blocks += 1
        self._expected_frames = 0.8 * self._expected_frames + 0.2 * compute_ms * 1e-3 * self._rate
        if late:
            self.counters.late_frames += late
            self.counters.late_blocks += 1


def _deliver(mail: Mail) -> None:
    try:
        mail.apply()
    except Exception as error:  # a value the voice refuses: the sound goes on as it was
        mail.done(error)
    else:
        mail.done(None)
