"""Simulated sound devices on a hand-driven clock, around the real core: hours pass in seconds."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle

import numpy as np
from numpy.typing import NDArray

from myna.control.contract import DeviceInfo
from myna.daemon._core import Core
from myna.daemon.audio.backend import AudioStream, DeviceError, StreamFacts, StreamRequest
from myna.daemon.audio.choose import Direction, Listed, candidates
from myna.daemon.audio.enumerate import described
from myna.daemon.audio.ring import make_core
from myna.dsp.stage import Block

PREFIX = "fake:"
HOST_API = "Fake"
SILENT_S = 0.5
LOCKSTEP_S = 20.0
ROUNDING_S = 1e-9

Signal = Callable[[int, int], NDArray[np.floating]]
"""(first device frame, frames) to samples, shape (frames,) for all channels alike or (frames, channels)."""


def silence(first: int, frames: int) -> Block:
    """Nothing."""
    del first
    return np.zeros(frames, np.float32)


def tone(hz: float, rate_hz: int, level: float = 0.5) -> Signal:
    """A sine of `level` at full scale 1."""
    return lambda first, frames: level * np.sin(2 * math.pi * hz / rate_hz * np.arange(first, first + frames))


def noise(level: float = 0.1, seed: int = 0) -> Signal:
    """White noise, the same for the same device frames however they are cut."""
    table = np.random.default_rng(seed).uniform(-level, level, 1 << 16).astype(np.float32)
    return lambda first, frames: table[np.arange(first, first + frames) % len(table)]


class HandClock:
    """Seconds that pass only when told to."""

    def __init__(self, start_s: float = 1000.0) -> None:
        self.now_s = start_s

    def __call__(self) -> float:
        return self.now_s


class Tape:
    """What a device played, by its own frame numbers; keeps the newest `keep_frames`."""

    def __init__(self, keep_frames: int) -> None:
        self._keep = keep_frames
        self._parts: deque[tuple[int, Block]] = deque()

    @property
    def begin(self) -> int:
        """The first frame kept; 0 before any."""
        return self._parts[0][0] if self._parts else 0

    @property
    def end(self) -> int:
        """The frame after the last one; 0 before any."""
        return self._parts[-1][0] + len(self._parts[-1][1]) if self._parts else 0

    def add(self, first: int, block: Block) -> None:
        """Take what was played from `first` on."""
        self._parts.append((first, block))
        while len(self._parts) > 1 and self.end - self._parts[1][0] >= self._keep:
            self._parts.popleft()

    def at(self, first: int, frames: int) -> Block:
        """A stretch, shape (frames,): 0 where nothing was played, the sum where two streams played."""
        out = np.zeros(frames, np.float32)
        for begin, block in reversed(self._parts):
            if begin + len(block) <= first:
                break
            low, high = max(begin, first), min(begin + len(block), first + frames)
            if low < high:
                out[low - first : high - first] += block[low - begin : high - begin]
        return out

    def all(self) -> Block:
        """All that is kept, from `begin` to `end`."""
        return self.at(self.begin, self.end - self.begin)


@dataclass(slots=True, kw_only=True, eq=False)
class FakeDevice:
    """One device. Its numbers may be changed at any time; they count from the next callback on."""

    name: str
    inputs: int = 0
    outputs: int = 0
    rate_hz: int = 48000
    ppm: float = 0.0  # how much faster than its rate its clock runs
    card: str = ""  # devices of one card, rate and ppm share a clock: duplex
    jitter_ms: float = 0.0  # callbacks come up to so much late, never early
    partial: tuple[int, ...] = ()  # sizes of callbacks in frames, in turn; (): whole periods
    latency_ms: float = 5.0
    refuses: str | None = None  # reason of the DeviceError that opening it raises: busy, permission, …
    signal: Signal = silence
    keep_s: float = 600.0
    on_play: Callable[[int, Block], None] | None = None
    tape: Tape = field(init=False)

    def __post_init__(self) -> None:
        self.tape = Tape(round(self.keep_s * self.rate_hz))


class FakeAudio:
    """A backend of simulated devices. Implements AudioBackend; `advance` is the only thing that moves time.

    What happens to real devices is a method here: drift (a device's `ppm`), jitter, partial periods, xruns (`stall`),
    loss and return (`unplug`, `plug`), renaming, another default, another rate, busy or forbidden (a device's
    `refuses`), an error on every call (`failing`), suspend.
    """

    name = "fake"

    def __init__(self, clock: HandClock | None = None, *devices: FakeDevice) -> None:
        self.clock = clock if clock is not None else HandClock()
        self.default_input: str | None = None
        self.default_output: str | None = None
        self.failing: str | None = None
        self.opened = 0  # streams opened so far
        self.changes = 0  # how often a stream started or ended
        self._devices: dict[str, FakeDevice] = {}
        self._streams: list[FakeStream] = []
        self._lock = threading.Lock()  # sessions open and close on threads of their own
        for device in devices:
            self.plug(device)

    # --- devices ---

    def plug(self, device: FakeDevice) -> FakeDevice:
        """A device appears; the first of its direction becomes the default."""
        self._devices[device.name] = device
        if device.inputs and self.default_input is None:
            self.default_input = device.name
        if device.outputs and self.default_output is None:
            self.default_output = device.name
        return device

    def unplug(self, name: str) -> FakeDevice:
        """A device disappears, its streams are lost; plug the returned one to bring it back."""
        device = self._devices.pop(name)
        self._end_streams_of(device, "lost")
        return device

    def rename(self, name: str, new: str) -> None:
        """A device goes by another name from now on; open streams keep running, as they do in life."""
        device = self._devices.pop(name)
        device.name = new
        self._devices[new] = device

    def set_rate(self, name: str, rate_hz: int) -> None:
        """A device runs at another rate; its streams are lost."""
        device = self._devices[name]
        device.rate_hz = rate_hz
        self._end_streams_of(device, "lost")

    def stall(self, name: str, seconds: float, *, burst: bool = False) -> None:
        """Its callbacks stop for a while: an xrun. Then they go on, the missed ones left out, or all at once."""
        for stream in self._running():
            for half in stream.halves:
                if half.uses(self._devices[name]):
                    half.stall(self.clock.now_s + seconds, burst)

    def cable(self, output: str, input: str, delay_frames: int = 0) -> None:  # noqa: A002
        """What `output` plays is heard at `input`, `delay_frames` of its own clock later."""
        tape = self._devices[output].tape
        self._devices[input].signal = lambda first, frames: tape.at(first - delay_frames, frames)

    def listed(self) -> list[Listed]:
        """The devices as a host API would list them."""
        return [
            Listed(
                index=index,
                name=device.name,
                host_api=HOST_API,
                inputs=device.inputs,
                outputs=device.outputs,
                rate_hz=device.rate_hz,
                latency_in_ms=device.latency_ms if device.inputs else None,
                latency_out_ms=device.latency_ms if device.outputs else None,
                default_input=device.name == self.default_input,
                default_output=device.name == self.default_output,
                system_default_input=device.name == self.default_input,
                system_default_output=device.name == self.default_output,
            )
            for index, device in enumerate(self._devices.values())
        ]

    def devices(self) -> tuple[DeviceInfo, ...]:
        """The devices as the wire tells them."""
        return tuple(described(device) for device in self.listed())

    # --- streams ---

    def open(self, request: StreamRequest) -> AudioStream:
        """Open what is asked for. DeviceError as real devices raise it."""
        self._check()
        source = self._find(request.input, "input", request.host_api) if request.want_input else None
        sink = self._find(request.output, "output", request.host_api) if request.want_output else None
        for device in (source, sink):
            if device is not None and device.refuses is not None:
                raise DeviceError(device.refuses, f"{device.name!r} can't be opened: {device.refuses}.")
            if device is not None and request.rate_hz not in (None, device.rate_hz):
                raise DeviceError("rate", f"{device.name!r} runs at {device.rate_hz} Hz only.")
        if source is None and sink is None:
            raise DeviceError("failed", "A stream needs an input or an output.")
        stream = FakeStream(self, request, source, sink)
        with self._lock:
            self._streams.append(stream)
            self.opened += 1
        return stream

    def _find(self, name: str | None, direction: Direction, host_api: str | None) -> FakeDevice:
        plain = name[len(PREFIX) :] if name is not None and name.startswith(PREFIX) else name
        return self._devices[candidates(self.listed(), plain, direction, host_api)[0].name]

    def _check(self) -> None:
        if self.failing is not None:
            raise DeviceError(self.failing, f"The sound system fails: {self.failing}.")

    def forget(self, stream: "FakeStream") -> None:
        """A stream was closed."""
        with self._lock:
            if stream in self._streams:
                self._streams.remove(stream)
                self.changes += 1

    # --- time ---

    def advance(self, seconds: float, *, lockstep: bool = False) -> int:
        """Let time pass: all callbacks that are due, in the order of their times.

        Args:
            seconds: Of the hand-driven clock.
            lockstep: Before every callback wait (in real time) until each stream's reader, on its own thread, has
                done all it can and waits for more input; so a slow machine changes nothing in what comes out.

        Returns:
            Number of callbacks.

        Raises:
            TimeoutError: In lockstep, a reader did not come back within 20 s.
        """
        end_s, calls = self.clock.now_s + seconds, 0
        seen, halves = -1, list[Half]()
        while True:
            if seen != self.changes:
                seen, halves = self.changes, [half for stream in self._running() for half in stream.halves]
            half = min(halves, key=_due, default=None)
            if half is None or half.due_s > end_s + ROUNDING_S:
                break
            if lockstep:
                self._wait_for_readers()
                if not half.alive():
                    continue
            self.clock.now_s = max(self.clock.now_s, half.due_s)
            half.call()
            calls += 1
        if lockstep:
            self._wait_for_readers()
        self.clock.now_s = end_s
        return calls

    def suspend(self, seconds: float, *, lost: bool = True) -> None:
        """The machine sleeps: time jumps, nothing is called. `lost`: the streams do not survive it."""
        self.clock.now_s += seconds
        for stream in self._running():
            for half in stream.halves:
                half.move(seconds)
            if lost:
                stream.end("lost")

    def _running(self) -> list["FakeStream"]:
        with self._lock:
            return [stream for stream in self._streams if stream.running]

    def _end_streams_of(self, device: FakeDevice, reason: str) -> None:
        for stream in list(self._streams):
            if any(half.uses(device) for half in stream.halves):
                stream.end(reason)

    def _wait_for_readers(self) -> None:
        deadline = time.monotonic() + LOCKSTEP_S
        while any(
            stream.source is not None and stream.source.wanted() <= stream.source.readable()
            for stream in self._running()
        ):
            if time.monotonic() > deadline:
                raise TimeoutError("a reader does not come back for more input")
            time.sleep(0.0001)


def _due(half: "Half") -> float:
    return half.due_s


class FakeStream:
    """An open stream: one core on a shared clock, or two halves with a core and a clock each."""

    def __init__(
        self, audio: FakeAudio, request: StreamRequest, source: FakeDevice | None, sink: FakeDevice | None
    ) -> None:
        self._audio = audio
        self._reason: str | None = None
        self._closed = False
        self.running = False
        duplex = (
            source is not None
            and sink is not None
            and (source.card, source.rate_hz, source.ppm) == (sink.card, sink.rate_hz, sink.ppm)
        )
        if duplex:
            self.halves = [Half(self, audio.clock, request, source, sink)]
        else:
            one_way = [(source, None)] if source is not None else []
            other_way = [(None, sink)] if sink is not None else []
            self.halves = [Half(self, audio.clock, request, *devices) for devices in one_way + other_way]
        first, last = self.halves[0], self.halves[-1]
        self.source: Core | None = first.core if source is not None else None
        self.sink: Core | None = last.core if sink is not None else None
        self.facts = StreamFacts(
            input=source.name if source is not None else None,
            output=sink.name if sink is not None else None,
            host_api=HOST_API,
            rate_in_hz=source.rate_hz if source is not None else None,
            rate_out_hz=sink.rate_hz if sink is not None else None,
            period_in_frames=first.period if source is not None else None,
            period_out_frames=last.period if sink is not None else None,
            device_in_ms=source.latency_ms if source is not None else None,
            device_out_ms=sink.latency_ms if sink is not None else None,
            duplex=duplex,
            realtime="simulated",
        )

    def start(self) -> None:
        """Callbacks come with the next `advance`."""
        if self._audio.failing is not None:
            raise DeviceError(self._audio.failing, f"The sound system fails: {self._audio.failing}.")
        if self._reason is not None:
            raise DeviceError("lost", "The device is gone.")
        for half in self.halves:
            half.begin()
        self.running = True
        self._audio.changes += 1

    def ended(self) -> str | None:
        """Why it ended; as with real devices, half a second without a callback is a loss."""
        if self._audio.failing is not None:
            return self._audio.failing
        if self.running and any(half.silent_s() > SILENT_S for half in self.halves):
            self.end("lost")
        return self._reason

    def end(self, reason: str) -> None:
        """The device does not call any more."""
        self._reason = self._reason or reason
        self.running = False
        self._audio.changes += 1

    def close(self) -> None:
        """Stop."""
        self.running = False
        self._audio.forget(self)


class Half:
    """The callbacks of one core."""

    def __init__(
        self,
        stream: FakeStream,
        clock: HandClock,
        request: StreamRequest,
        source: FakeDevice | None,
        sink: FakeDevice | None,
    ) -> None:
        device = source or sink
        if device is None:
            raise ValueError("a half without a device")
        self._stream, self._clock, self._source, self._sink, self._device = stream, clock, source, sink, device
        self.period = max(1, round(request.period_ms * device.rate_hz / 1000))
        in_map = request.input_channels if source is not None else None
        if source is not None and in_map is not None and not all(0 <= c < source.inputs for c in in_map):
            raise DeviceError("format", f"{source.name!r} has {source.inputs} input channels.")
        self.core = make_core(
            device.rate_hz,
            request.capacity_ms,
            in_channels=source.inputs if source is not None else 0,
            out_channels=sink.outputs if sink is not None else 0,
            in_map=in_map,
            paced=False,
        )
        self._sizes: Iterator[int] = iter(())
        self._sizes_of: tuple[int, ...] | None = None
        self._jitter = np.random.default_rng(1)
        self._nominal_s = self._called_s = 0.0
        self._held_until_s = 0.0
        self._frame = 0  # of the device, at the next callback's begin
        self._frames = 0  # of the next callback
        self.due_s = math.inf

    def uses(self, device: FakeDevice) -> bool:
        """True if that device is one of its ends."""
        return device is self._source or device is self._sink

    def alive(self) -> bool:
        """True while its stream runs."""
        return self._stream.running

    def silent_s(self) -> float:
        """Time since the latest callback, or the start."""
        return self._clock.now_s - self._called_s

    def begin(self) -> None:
        """Start now; the device's own frame numbers have been running since time 0."""
        self._nominal_s = self._called_s = self._clock.now_s
        self._frame = round(self._clock.now_s * self._device.rate_hz)
        self._plan()

    def move(self, seconds: float) -> None:
        """The clock jumped."""
        self._nominal_s += seconds
        self.due_s += seconds

    def stall(self, until_s: float, burst: bool) -> None:
        """No callback before `until_s`."""
        if burst:
            self._held_until_s = until_s
            self.due_s = max(self.due_s, until_s)
            return
        missed = max(0, round((until_s - self._nominal_s) * self._true_rate()))
        self._frame += missed
        self._nominal_s += missed / self._true_rate()
        self._plan()

    def call(self) -> None:
        """One callback, now."""
        frames, channels_in = self._frames, self._source.inputs if self._source is not None else 0
        heard = played = None
        if self._source is not None:
            samples = np.asarray(self._source.signal(self._frame, frames), np.float32)
            wide = samples[:, None] if samples.ndim == 1 else samples
            heard = np.ascontiguousarray(np.broadcast_to(wide, (frames, channels_in)))
        if self._sink is not None:
            played = np.zeros((frames, self._sink.outputs), np.float32)
        self.core.call(heard, played, frames, round(self._clock.now_s * 1e9))
        if self._sink is not None and played is not None:
            sound = played[:, 0].copy()
            self._sink.tape.add(self._frame, sound)
            if self._sink.on_play is not None:
                self._sink.on_play(self._frame, sound)
        self._called_s = self._clock.now_s
        self._nominal_s += frames / self._true_rate()
        self._frame += frames
        self._plan()

    def _true_rate(self) -> float:
        return self._device.rate_hz * (1 + 1e-6 * self._device.ppm)

    def _plan(self) -> None:
        if self._sizes_of != self._device.partial:
            self._sizes_of = self._device.partial
            self._sizes = cycle(self._device.partial or (self.period,))
        self._frames = next(self._sizes)
        late_s = self._jitter.uniform(0.0, 1e-3 * self._device.jitter_ms) if self._device.jitter_ms else 0.0
        due_s = self._nominal_s + self._frames / self._true_rate() + late_s
        self.due_s = max(due_s, self._called_s, self._held_until_s)
