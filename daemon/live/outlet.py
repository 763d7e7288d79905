"""From blocks to output rings: where and when each block is due."""

from typing import Protocol

from myna.daemon._core import Core
from myna.dsp.drift import ClockModel, DriftController
from myna.dsp.elastic import lengthen, shorten
from myna.dsp.resample import FractionalResampler
from myna.dsp.stage import Block

RESYNC_MS = 15.0  # an error of delay beyond this is a hole, and not hidden


class Outlet(Protocol):
    """Places blocks so that a frame captured at one moment is played a constant time later.

    `delay_frames` (session rate) is that time without the devices' own; set it to move there, a part of each
    block at a time, without a gap or a click.
    """

    delay_frames: int

    def start_at(self, delay_frames: int) -> None:
        """Begin with this delay, before the first block."""
        ...

    @property
    def latency_frames(self) -> int:
        """Delay of the outlet's own filter, at the session rate."""
        ...

    @property
    def settled(self) -> bool:
        """Whether the delay has arrived at `delay_frames`."""
        ...

    @property
    def drift_ppm(self) -> float | None:
        """How far the output's clock runs from the input's; None where they are one."""
        ...

    @property
    def clock_steps(self) -> int:
        """How often blocks were placed anew because a device lost sound: a hole that no longer delay would mend."""
        ...

    def write(self, position: int, block: Block) -> int:
        """Place the block whose first frame has this session position; returns its frames that came too late."""
        ...


class DuplexOutlet:
    """Input and output share one clock and one rate: a block is due a constant number of frames after its position."""

    drift_ppm: float | None = None
    latency_frames = 0
    clock_steps = 0

    def __init__(self, core: Core, delay_frames: int) -> None:
        self._core = core
        self._delay = self.delay_frames = delay_frames

    def start_at(self, delay_frames: int) -> None:
        """See Outlet."""
        self._delay = self.delay_frames = delay_frames

    @property
    def settled(self) -> bool:
        """See Outlet."""
        return self._delay == self.delay_frames

    def write(self, position: int, block: Block) -> int:
        """See Outlet."""
        moved = _moved(block, self.delay_frames - self._delay)
        late = _write(self._core, position + self._delay, moved)
        self._delay += len(moved) - len(block)
        return late


class DriftingOutlet:
    """Input and output on clocks of their own: a steered resampler holds the delay.

    Both clocks are read through delay-locked loops, so the delay is known without the jitter of callbacks:
    the moment a frame was captured, and the moment at which the next frame written will be played.
    """

    def __init__(
        self, source: Core, sink: Core, rate_in_hz: int, rate_hz: int, rate_out_hz: int, delay_frames: int
    ) -> None:
        self._source, self._sink = source, sink
        self._rate_in, self._rate, self._rate_out = rate_in_hz, rate_hz, rate_out_hz
        self._in_clock, self._out_clock = ClockModel(rate_in_hz), ClockModel(rate_out_hz)
        self._resampler = FractionalResampler(rate_hz, rate_out_hz)
        self._controller = DriftController(rate_out_hz, delay_frames * rate_out_hz / rate_hz)
        self._delay = self.delay_frames = delay_frames
        self._next: int | None = None  # output position of the next frame
        self._now_ns = self._out_stamped = 0
        self._following = -1  # session position that continues the last block
        self._updated_ns = 0
        self.resyncs = self.clock_steps = 0

    def start_at(self, delay_frames: int) -> None:
        """See Outlet."""
        self._delay = self.delay_frames = delay_frames

    @property
    def latency_frames(self) -> int:
        """See Outlet."""
        return round(self._resampler.delay_in_frames)

    @property
    def settled(self) -> bool:
        """See Outlet."""
        return self._delay == self.delay_frames

    @property
    def drift_ppm(self) -> float | None:
        """See Outlet."""
        if not (self._in_clock.locked and self._out_clock.locked):
            return None
        return self._out_clock.drift_ppm - self._in_clock.drift_ppm

    def write(self, position: int, block: Block) -> int:
        """See Outlet."""
        stepped = self._read_clocks()
        if self._out_stamped == 0:  # the output has not begun to run: nothing can be due yet
            return 0
        per_frame = self._rate_out / self._rate
        captured_ns = self._in_clock.time_ns_at(position * self._rate_in / self._rate)
        due = self._out_clock.frames_at(int(captured_ns)) + self._delay * per_frame
        jumped, self._following = position != self._following, position + len(block)  # input was dropped
        if self._next is None or jumped or abs(self._next - due) > RESYNC_MS * self._rate_out / 1000.0:
            self.resyncs += self._next is not None
            self.clock_steps += not jumped
            self._next = round(due)
            self._controller.reset(keep_drift=True)
        elif stepped:  # little was lost: the sound goes on, and is led back as after a change of the delay
            shift = round((self._next - due) / per_frame)
            self._delay += shift
            due += shift * per_frame
        self._steer(self._next - due)
        moved = _moved(block, self.delay_frames - self._delay)
        self._delay += len(moved) - len(block)  # from the next block's first frame on
        fresh = self._resampler.process(moved)
        late = _write(self._sink, self._next, fresh)
        self._next += len(fresh)
        return late

    def _read_clocks(self) -> bool:
        """Whether one of them took a step."""
        steps = self._in_clock.steps + self._out_clock.steps
        stamp_ns, captured, _ = self._source.stamp()
        self._now_ns = stamp_ns
        if stamp_ns:
            self._in_clock.update(stamp_ns, captured)
        self._out_stamped, _, played = self._sink.stamp()
        if self._out_stamped:
            self._out_clock.update(self._out_stamped, played)
        return self._in_clock.steps + self._out_clock.steps > steps

    def _steer(self, error_frames: float) -> None:
        elapsed_s = min(1e-9 * (self._now_ns - self._updated_ns), 1.0) if self._updated_ns else 0.0
        self._updated_ns = self._now_ns
        target = self._controller.target_frames
        self._resampler.steer(self._controller.update(target + error_frames, elapsed_s))


def _moved(block: Block, by_frames: int) -> Block:
    """The block, longer or shorter by as much of `by_frames` as can be hidden in it: at most half of it."""
    most = len(block) // 2
    if by_frames > 0:
        return lengthen(block, min(by_frames, most))
    return shorten(block, min(-by_frames, most)) if by_frames < 0 else block


def _write(core: Core, position: int, block: Block) -> int:
    """Write to the ring; returns how many frames came after their time."""
    before = core.stats()["late_frames"]
    core.write(position, block)
    return core.stats()["late_frames"] - before
