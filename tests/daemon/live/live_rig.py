"""A whole live session on a hand-driven clock and one thread: what happens is exactly repeatable.

Computing takes simulated time: the fake voices let the clock (and with it the device callbacks) go on inside
`process`. What the builder does takes none, as it happens beside the loop in life.
"""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from myna.control.contract import LiveDevices, LiveSettings, SessionStatus
from myna.daemon.audio.backend import AudioStream, StreamRequest
from myna.daemon.audio.fake import FakeAudio, FakeDevice, HandClock
from myna.daemon.audio.open import open_stream
from myna.daemon.live.loop import BlockLoop
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
            raise behaviour.raises
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
    ) -> None:
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

    def run(self, seconds: float, step_s: float = 0.005) -> None:
        """Let so much time pass, with everything that happens in it."""
        end_s = self.clock() + seconds
        while self.clock() < end_s - 1e-9:
            self.audio.advance(min(step_s, end_s - self.clock()))
            self.turn()

    def turn(self) -> None:
        """Whatever can be done now."""
        for builder in list(self.builders):
            builder.run_due()
        for worker in list(self.loops):
            while worker in self.loops:
                ready = worker.loop.intake.wait(0.0)
                reason = worker.loop.turn(ready)
                if reason is not None:
                    self.loops.remove(worker)
                    worker.ended(reason)
                elif not ready:
                    break

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

        def open_live(
            asset: VoiceAsset, placement: Placement, parameters: VoiceParameters, rate_hz: int
        ) -> FakeVoice:
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
