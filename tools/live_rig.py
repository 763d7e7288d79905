"""A whole live session on a hand-driven clock and one thread: what happens is exactly repeatable.

Computing takes simulated time: the fake voices let the clock (and with it the device callbacks) go on inside
`process`. What the builder does takes none, as it happens beside the loop in life.
"""

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import soxr
from numpy.typing import NDArray

from myna.control.contract import LiveDevices, LiveSettings, SessionStatus
from myna.daemon.audio.backend import AudioStream, StreamRequest
from myna.daemon.audio.fake import FakeAudio, FakeDevice, FakeStream, Half, HandClock
from myna.daemon.audio.open import open_stream
from myna.daemon.live.loop import IDLE_MS, BlockLoop
from myna.daemon.live.messages import SessionConfig, VoiceOrder
from myna.daemon.live.outside import Outside
from myna.daemon.live.running import Running
from myna.daemon.live.session import LiveSession
from myna.dsp.delay import DelayLine
from myna.dsp.stage import Block
from myna.engines.base import (
    Capabilities,
    EngineSpec,
    ModelUnusable,
    Placement,
    VoiceAsset,
    VoiceFacts,
    VoiceParameters,
)

MIC, OUT, EAR = "fake:mic", "fake:out", "fake:ear"


class InlineBuilder:
    """A Builder without a thread: the rig runs what is due."""

    def __init__(self, rig: "Rig") -> None:
        self._rig = rig
        self._count = itertools.count()
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.closed = False
        rig.builders.append(self)

    def submit(self, work: Callable[[], None]) -> None:
        self._put(-1.0, work)

    def later(self, seconds: float, work: Callable[[], None]) -> None:
        self._put(self._rig.clock() + seconds, work)

    def close(self, timeout_s: float) -> bool:
        del timeout_s
        self.closed = True
        self.queue = [item for item in self.queue if item[0] < 0]
        heapq.heapify(self.queue)
        self.run_due()
        if self in self._rig.builders:
            self._rig.builders.remove(self)
        return True

    def run_due(self) -> None:
        while self.queue and self.queue[0][0] <= self._rig.clock():
            work = heapq.heappop(self.queue)[2]
            with self._rig.aside():
                work()

    def _put(self, when_s: float, work: Callable[[], None]) -> None:
        if not self.closed:
            heapq.heappush(self.queue, (when_s, next(self._count), work))


class InlineLoop:
    """A RunningLoop that the rig turns."""

    priority = "simulated"

    def __init__(self, rig: "Rig", loop: BlockLoop, ended: Callable[[str], None]) -> None:
        self.loop, self.ended = loop, ended
        self._rig = rig
        rig.loops.append(self)

    def join(self, timeout_s: float) -> None:
        del timeout_s
        if self in self._rig.loops:
            self._rig.loops.remove(self)


@dataclass
class Behaviour:
    """How the fake engine behaves; may be changed at any time."""

    compute: Callable[[int, int], float] = lambda frames, rate_hz: 0.05 * frames / rate_hz
    """Seconds that a block of so many frames takes, at a rate."""
    latency_ms: float = 0.0
    gain: float = 1.0
    shape: Callable[[Block], Block] | None = None  # done to the output of every voice
    refuses: dict[str, Exception] = field(default_factory=dict)  # voice id to what loading it raises
    raises: Exception | None = None  # in every process()
    opened: int = 0
    closed: int = 0
    processed: int = 0  # calls of process


class FakeVoice:
    """Delays and scales. Its identity is its gain: `VoiceOrder.defaults` may hold `gain`, `latency_ms` and `mark`."""

    def __init__(self, rig: "Rig", asset: VoiceAsset, parameters: VoiceParameters, rate_hz: int) -> None:
        self._rig, self._rate = rig, rate_hz
        behaviour = rig.engine
        self.gain = float(asset.defaults.get("gain", behaviour.gain))  # type: ignore[arg-type]
        latency_ms = float(asset.defaults.get("latency_ms", behaviour.latency_ms))  # type: ignore[arg-type]
        self._line = DelayLine(round(latency_ms * rate_hz / 1000))
        self.parameters = parameters
        self.prepared: set[int] = set()
        self.unprepared = 0
        behaviour.opened += 1
        self.open = True

    @property
    def latency_frames(self) -> int:
        return self._line.latency_frames

    @property
    def tail_frames(self) -> int:
        return self._line.latency_frames

    @property
    def facts(self) -> VoiceFacts:
        return VoiceFacts(engine="fake", device="cpu", precision="fp32", backend="numpy")

    def prepare(self, block_frames: int) -> None:
        self.prepared.add(block_frames)

    def process(self, block: Block) -> Block:
        assert self.open
        behaviour = self._rig.engine
        behaviour.processed += 1
        self.unprepared += len(block) not in self.prepared
        self._rig.spend(behaviour.compute(len(block), self._rate))
        if behaviour.raises is not None:
            raise type(behaviour.raises)(*behaviour.raises.args)
        out = (self._line.process(block) * self.gain).astype(np.float32)
        return out if behaviour.shape is None or self._rig.is_aside else behaviour.shape(out)

    def set(self, parameters: VoiceParameters) -> None:
        self.parameters = parameters

    def reset(self) -> None:
        self._line.reset()

    def close(self) -> None:
        assert self.open
        self.open = False
        self._rig.engine.closed += 1


class Rig:
    """A session `s` on fake devices `mic`, `out` and (a monitor) `ear`."""

    def __init__(
        self,
        *,
        mic: dict[str, Any] | None = None,
        out: dict[str, Any] | None = None,
        ear: dict[str, Any] | None = None,
        engine: Behaviour | None = None,
        real_engine: Callable[[str], EngineSpec] | None = None,
        idle_s: float = 1e-3 * IDLE_MS,
    ) -> None:
        self.idle_s = idle_s  # a loop without input looks up so often
        self.clock = HandClock()
        self.audio = FakeAudio(self.clock)
        self.mic = self.audio.plug(FakeDevice(name="mic", inputs=1, **(mic or {})))
        self.out = self.audio.plug(FakeDevice(name="out", outputs=2, **(out or {})))
        self.ear = self.audio.plug(FakeDevice(name="ear", outputs=2, **(ear or {})))
        self.engine = engine or Behaviour()
        self.builders: list[InlineBuilder] = []
        self.loops: list[InlineLoop] = []
        self.is_aside = False
        self.aside_s = 0.0  # what the stopwatch of work aside shows beyond the world's clock
        self.logged: list[tuple[str, str]] = []
        self.states: list[tuple[str, str | None]] = []
        outside = Outside(
            open_stream=self._open,
            find_engine=real_engine or self.find_engine,
            clock=lambda: self.clock() + self.aside_s,
            builder=lambda name: InlineBuilder(self),
            run_loop=lambda loop, ended: InlineLoop(self, loop, ended),
        )
        self.session = LiveSession("s", self._changed, outside)
        self.session.log = lambda level, message: self.logged.append((level, message))
        self.config = SessionConfig(
            session="s",
            voice=VoiceOrder(id="one", engine="fake"),
            devices=LiveDevices(input=MIC, output=OUT),
            settings=LiveSettings(block_ms=20.0),
        )

    # --- time ---

    def spend(self, seconds: float) -> None:
        """Computing takes so long: the world goes on meanwhile, or, aside, only the stopwatch does."""
        if self.is_aside:
            self.aside_s += seconds
        else:
            self.audio.advance(seconds)

    def aside(self) -> "_Aside":
        """What is done meanwhile takes no time of the world's."""
        return _Aside(self)

    def run(self, seconds: float) -> None:
        """Let so much time pass, with everything that happens in it."""
        end_s = self.clock() + seconds
        while self.clock() < end_s - 1e-9:
            due_s = min((half.due_s for stream in self.audio._running() for half in stream.halves), default=math.inf)
            work_s = min((builder.queue[0][0] for builder in self.builders if builder.queue), default=math.inf)
            self.audio.advance(max(0.0, min(due_s, work_s, self.clock() + self.idle_s, end_s) - self.clock()) + 1e-9)
            self.turn(end_s)

    def turn(self, until_s: float = 0.0) -> None:
        """Whatever can be done now; a loop that computes goes on until a moment, and at least by a block."""
        for builder in list(self.builders):
            builder.run_due()
        for worker in list(self.loops):
            while worker in self.loops:
                ready = worker.loop.intake.wait(0.0)
                reason = worker.loop.turn(ready)
                if reason is not None:
                    self.loops.remove(worker)
                    worker.ended(reason)
                    break
                for builder in list(self.builders):
                    builder.run_due()
                if not ready or self.clock() >= until_s:
                    break  # a loop that is too slow always has something to do

    # --- orders ---

    def order(self, **changes: Any) -> list[Exception | None]:
        """Give the session a changed configuration: fields of it, `settings` and `devices` as dicts. Returns a list
        that the answer is put into."""
        settings = msgspec.structs.replace(self.config.settings, **changes.pop("settings", {}))
        devices = msgspec.structs.replace(self.config.devices, **changes.pop("devices", {}))
        self.config = msgspec.structs.replace(
            self.config, settings=settings, devices=devices, revision=self.config.revision + 1, **changes
        )
        answers: list[Exception | None] = []
        self.session.configure(self.config, answers.append)
        return answers

    def start(self, **changes: Any) -> "Rig":
        """Start and let the first block through."""
        answers = self.order(**changes)
        self.turn()
        assert answers == [None], answers
        return self

    @property
    def status(self) -> SessionStatus:
        return self.session.status()

    @property
    def running(self) -> Running:
        running = self.session._running
        assert running is not None
        return running

    def played(self, seconds: float, device: FakeDevice | None = None) -> Block:
        """The newest so many seconds that a device played, shape (frames,)."""
        tape = (device or self.out).tape
        frames = round(seconds * (device or self.out).rate_hz)
        return tape.at(tape.end - frames, frames)

    def played_since(self, at_s: float, device: FakeDevice | None = None) -> Block:
        """What a device has played since a moment."""
        return self.played(self.clock() - at_s, device)

    # --- inside ---

    def _open(self, request: StreamRequest, fast: bool) -> AudioStream:
        return open_stream(request, fast, fake=self.audio)

    def _changed(self) -> None:
        state = (self.session._state, self.session._reason)
        if not self.states or self.states[-1] != state:
            self.states.append(state)

    def find_engine(self, name: str) -> EngineSpec:
        assert name == "fake"

        def open_live(asset: VoiceAsset, placement: Placement, parameters: VoiceParameters, rate_hz: int) -> FakeVoice:
            del placement
            if (refusal := self.engine.refuses.get(asset.id)) is not None:
                raise refusal
            return FakeVoice(self, asset, parameters, rate_hz)

        def open_file(*_: object) -> Any:
            raise ModelUnusable("live only")

        return EngineSpec(
            name="fake",
            capabilities=Capabilities(live=True, file=False, hop_ms=10.0, parameters=frozenset({"pitch"})),
            built_in=(),
            check=lambda asset: (),
            open_live=open_live,
            open_file=open_file,
        )


class _Aside:
    def __init__(self, rig: Rig) -> None:
        self._rig = rig

    def __enter__(self) -> None:
        self._was, self._now_s = self._rig.is_aside, self._rig.aside_s
        self._rig.is_aside = True

    def __exit__(self, *_: object) -> None:
        self._rig.is_aside = self._was
        self._rig.aside_s = self._now_s


def time_s(half: Half, frame: float) -> float:
    """The moment of a device's frame, on the hand-driven clock."""
    return half._nominal_s + (frame - half._frame) / half._true_rate()


def delay_ms(rig: Rig, frames: int = 4096, longest_ms: float = 600.0) -> tuple[float, float]:
    """(delay from the microphone to the output, normalised correlation) of the newest sound.

    Without what the devices declare, which simulated ones do not have. The microphone's signal must be noise.
    """
    stream = rig.running.stream
    assert isinstance(stream, FakeStream)
    heard, played = stream.halves[0], stream.halves[-1]
    rate_in, rate_out = rig.mic.rate_hz, rig.out.rate_hz
    first = played._frame - frames
    sound = rig.out.tape.at(first, frames)
    at_s = time_s(played, first)
    if rate_in != rate_out:
        sound = np.asarray(soxr.resample(sound, rate_out, rate_in), np.float32)
    newest = round(heard._frame + (at_s - heard._nominal_s) * rate_in)
    oldest = newest - round(longest_ms * rate_in / 1000)
    source = np.asarray(rig.mic.signal(oldest, newest - oldest + len(sound)), np.float64)
    size = 1 << (len(source) + len(sound)).bit_length()
    scores = np.fft.irfft(np.fft.rfft(source, size) * np.conj(np.fft.rfft(sound.astype(np.float64), size)), size)
    at, score = _peak(scores, newest - oldest + 1)
    part = source[round(at) : round(at) + len(sound)]
    peak = score / np.sqrt(np.sum(part**2) * np.sum(sound.astype(np.float64) ** 2) + 1e-30)
    return 1e3 * (at_s - time_s(heard, oldest + at)), float(peak)


def _peak(scores: NDArray[np.float64], frames: int) -> tuple[float, float]:
    """Where the largest of a cyclic correlation's first scores is, between frames too, and how large it is."""
    at = int(np.argmax(np.abs(scores[:frames])))
    near = np.arange(-24, 25)
    parts = np.linspace(-0.5, 0.5, 65)[:, None] - near
    values = np.abs((np.sinc(parts) * np.cos(np.pi * parts / 50.0) ** 2) @ scores[(at + near) % len(scores)])
    best = int(np.argmax(values))
    return at + best / 64.0 - 0.5, float(values[best])


def declared_ms(rig: Rig) -> float:
    """The delay that status tells, without the devices' own."""
    latency = rig.status.latency
    assert latency.estimated_ms is not None
    return latency.estimated_ms - (latency.device_in_ms or 0.0) - (latency.device_out_ms or 0.0)


def level_db(sound: Block, hz: float, rate_hz: int) -> float:
    """Level of one spectral line against full scale, in dB; Blackman-Harris, so that its skirts lie below −90."""
    n = np.arange(len(sound))
    a = (0.35875, -0.48829, 0.14128, -0.01168)
    window = sum(c * np.cos(2 * np.pi * k * n / len(sound)) for k, c in enumerate(a))
    line = np.sum(sound * window * np.exp(-2j * np.pi * hz / rate_hz * n)) / np.sum(window)
    return float(20 * np.log10(2 * abs(line) + 1e-15))


def frequency_hz(sound: Block, near_hz: float, rate_hz: int) -> float:
    """Frequency of a steady tone: the slope of its phase."""
    n = np.arange(len(sound))
    turned = sound * np.exp(-2j * np.pi * near_hz / rate_hz * n)
    half = len(sound) // 2
    window = np.hanning(half)
    a, b = np.sum(turned[:half] * window), np.sum(turned[half : 2 * half] * window)
    return float(near_hz + np.angle(b * np.conj(a)) / (2 * np.pi) * rate_hz / half)
