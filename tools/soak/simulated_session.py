"""Hours of a live session on simulated devices, with everything that can go wrong, in a minute or two."""

import gc
import logging
import time
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil

from myna.daemon.audio.fake import FakeStream, Signal
from myna.daemon.live.messages import VoiceOrder
from myna.dsp.stage import Block
from tools.live_rig import Behaviour, Rig, declared_ms, delay_ms, time_s
from tools.soak.laws import ALIKE, LONGEST_MS, Record, find, judge, level_db
from tools.soak.progress import Progress
from tools.soak.table import Table

RATE = 8000  # cheap: nothing that is proven here depends on it
BLOCK_MS = 400.0
PERIOD_MS = 100.0
IDLE_S = 0.1  # how often a loop without input looks up
SIGNATURE_HZ = 997.0
LOUD = 0.05
PREFILLS = 10  # steps in which one may be given back, one after the other
QUIET_S = (15.0, 100.0)  # after every event
STRETCHES = 12  # whose age is looked at in one event
LOOK_BACK_S = 8.0
PASSED = 0.4  # of the rate
TABLE_FRAMES = 1 << 20  # of noise that never repeats within two minutes
MEBI = 1 << 20

PLAIN: dict[str, Any] = {
    "gate_db": "off", "denoise_in": "off", "target_latency_ms": "off", "block_ms": BLOCK_MS, "gain_out_db": 0.0,
}  # fmt: skip


class Ear:
    """Listens to all that one device plays."""

    def __init__(self, soak: "Soak", name: str) -> None:
        self._soak, self._name = soak, name

    def __call__(self, first: int, sound: Block) -> None:
        """One callback's sound, shape (frames,)."""
        soak, record = self._soak, self._soak.record
        soak.digest = zlib.crc32(sound.tobytes(), soak.digest)
        if not np.isfinite(sound).all():
            record.nonfinite += 1
        elif soak.listens_for == "anything":
            record.silent_peak = max(record.silent_peak, float(np.max(np.abs(sound))))
            record.silent_s += len(sound) / RATE
        elif soak.listens_for == "signature":
            if sound.any():
                record.traces += 1
                record.trace_db = max(record.trace_db, level_db(sound, SIGNATURE_HZ, RATE))
        elif soak.listens_for == "bypass" and self._name == "out":
            record.bypass_db.append(level_db(sound, SIGNATURE_HZ, RATE))
        elif soak.listens_for == "age" and self._name == "out":
            soak.remember(first, sound)


class Soak:
    """One session, its ears, and what may happen to it."""

    def __init__(self, seed: int, quiet_s: tuple[float, float] = QUIET_S) -> None:
        self._quiet_s = quiet_s
        self.record = Record(period_ms=PERIOD_MS)
        self.digest = 0  # of everything played: equal seeds must give equal ones
        self.listens_for = ""
        self.dice = np.random.default_rng(seed)
        self._heard: list[tuple[float, Block]] = []  # (newest microphone frame, what was played then)
        self._longest_ms = 0.0
        self._rested_ms = 0.0  # that a stall has kept back what was due
        self._answers: list[list[Exception | None]] = []
        self._speech = noise_that_never_repeats()
        self._tone = tone_and_noise(self._speech)
        device: dict[str, Any] = {"rate_hz": RATE, "keep_s": 5.0}
        self.rig = Rig(
            mic={**device, "signal": self._speech}, out=device, ear=device, engine=Behaviour(), idle_s=IDLE_S
        )
        self.rig.out.on_play, self.rig.ear.on_play = Ear(self, "out"), Ear(self, "ear")
        self.rig.start(devices={"monitor": "fake:ear", "period_ms": PERIOD_MS}, settings={**PLAIN, "limiter": False})
        self.calm()

    # --- what happens ---

    @property
    def events(self) -> dict[str, Callable[[], None]]:
        """Everything that can happen, by name."""
        rig, dice = self.rig, self.dice
        return {
            "voice swap": lambda: self.hot(voice=self.some_voice()),
            "mute": lambda: self.there_and_back({"muted": True}, {"muted": False}),
            "gain": lambda: self.hot(settings={"gain_out_db": float(dice.uniform(-20, 0))}),
            "gate": lambda: self.hot(settings={"gate_db": float(dice.integers(-60, -20))}),
            "denoise": lambda: self.there_and_back(
                {"settings": {"denoise_in": "spectral"}}, {"settings": {"denoise_in": "off"}}
            ),
            "block": lambda: self.hot(settings={"block_ms": float(dice.choice([300.0, 500.0, 700.0]))}),
            "target latency": lambda: self.hot(settings={"target_latency_ms": float(dice.integers(700, 1100))}),
            "microphone lost": lambda: self.lose("mic"),
            "output lost": lambda: self.lose("out"),
            "monitor lost": lambda: self.lose("ear"),
            "all devices lost": lambda: self.lose("mic", "out", "ear"),
            "stall": self.stall,
            "burst": lambda: rig.audio.stall("out", float(dice.uniform(0.05, 0.4)), burst=True),
            "freeze": lambda: rig.audio.stall(str(dice.choice(["mic", "out"])), float(dice.uniform(1.0, 5.0))),
            "suspend": lambda: rig.audio.suspend(float(dice.uniform(1.0, 5000.0)), lost=bool(dice.integers(2))),
            "overload": self.overload,
            "bad input": self.bad_input,
            "bad voice": self.bad_voice,
            "failing voice": self.failing_voice,
            "one clock": lambda: self.clocks(0.0),
            "clocks apart": lambda: self.clocks(float(dice.uniform(-300, 300))),
            "drift": self.drift,
            "storm of errors": self.storm,
        }

    def round(self) -> list[str]:
        """Every event once, in any order."""
        return [str(name) for name in self.dice.permutation(list(self.events))]

    def hot(self, **changes: Any) -> None:
        """A change that must not be heard."""
        before = self.gaps()
        self.order(**changes)
        self.rig.run(3.0)
        self.record.hot += 1
        self.record.hot_gaps += self.gaps() - before

    def there_and_back(self, *changes: dict[str, Any]) -> None:
        """Changes one after another that must not be heard."""
        for change in changes:
            self.hot(**change)

    def lose(self, *names: str) -> None:
        """Devices go and come back, each when it likes."""
        lost = []
        for name in self.dice.permutation(names):
            lost.append(self.rig.audio.unplug(str(name)))
            self.rig.run(float(self.dice.uniform(0.01, 5.0)))
        for index in self.dice.permutation(len(lost)):
            self.rig.audio.plug(lost[index])
            self.rig.run(float(self.dice.uniform(0.01, 1.0)))

    def stall(self) -> None:
        """The microphone skips a moment; an output on the same clock rests as long, and what was due waits."""
        seconds = float(self.dice.uniform(0.05, 0.4))
        self._rested_ms = 1000.0 * seconds
        self.rig.audio.stall("mic", seconds)

    def overload(self) -> None:
        """The model is too slow for a while."""
        slowness = float(self.dice.uniform(1.05, 4.0))
        self.rig.engine.compute = lambda frames, rate: slowness * frames / rate
        self.rig.run(float(self.dice.uniform(1.0, 30.0)))

    def bad_input(self) -> None:
        """The device gives NaN or infinity."""
        value = float(self.dice.choice([np.nan, np.inf, -np.inf]))
        self.rig.mic.signal = lambda first, frames: np.where(np.arange(frames) % 5 == 0, value, 0.1)
        self.record.fed += 1
        self.rig.run(float(self.dice.uniform(0.1, 3.0)))

    def bad_voice(self) -> None:
        """The model gives NaN or infinity."""
        value = float(self.dice.choice([np.nan, np.inf]))
        self.rig.engine.shape = lambda out: np.full(len(out), value, np.float32)
        self.record.fed += 1
        self.rig.run(float(self.dice.uniform(0.1, 3.0)))

    def failing_voice(self) -> None:
        """The model raises."""
        self.rig.engine.raises = RuntimeError("simulated fault")
        self.rig.run(float(self.dice.uniform(0.1, 4.0)))

    def clocks(self, ppm: float) -> None:
        """The microphone is on another clock from now on, or on the output's."""
        lost = self.rig.audio.unplug("mic")
        lost.ppm, self.rig.out.ppm, self.rig.out.jitter_ms = ppm, 0.0, 0.0
        self.rig.run(1.0)
        self.rig.audio.plug(lost)

    def drift(self) -> None:
        """The output's clock takes a step, its callbacks jitter."""
        self.rig.out.ppm = float(self.dice.uniform(-300, 300)) - self.rig.mic.ppm
        self.rig.out.jitter_ms = float(self.dice.uniform(0, 10))
        self.rig.run(float(self.dice.uniform(1.0, 30.0)))
        self.rig.out.ppm = self.rig.out.jitter_ms = 0.0

    def storm(self) -> None:
        """Every call to the sound system fails."""
        self.rig.audio.failing = str(self.dice.choice(["busy", "no_server", "lost"]))
        self.rig.run(float(self.dice.uniform(0.5, 20.0)))
        self.rig.audio.failing = None

    def some_voice(self) -> VoiceOrder:
        """A voice with a delay of its own."""
        latency_ms = float(self.dice.integers(0, 60))
        return VoiceOrder(id=f"v{self.dice.integers(99)}", engine="fake", defaults={"latency_ms": latency_ms})

    # --- how it is looked at ---

    def live_through(self, name: str) -> float:
        """One event with one of three voices, then all well again; the seconds lived, sleep left out."""
        before_s = self.rig.clock()
        self.record.events[name] += 1
        how = str(self.dice.choice(["anything", "signature", "age"]))
        engine = self.rig.engine
        if how == "anything":
            self.rig.mic.signal, engine.shape = self._tone, np.zeros_like  # a voice that says nothing
        elif how == "signature":
            self.rig.mic.signal, engine.shape = self._tone, mirrored()  # one that moves every line elsewhere
        self.rig.run(LONGEST_MS / 1000.0)  # what was in the pipes before is over, the monitor's too
        self.listens_for = how
        self._longest_ms = self._rested_ms = 0.0
        asleep_s = self.rig.clock()
        self.events[name]()
        asleep_s = self.rig.clock() - asleep_s if name == "suspend" else 0.0
        self.mend(self._tone if how != "age" else self._speech)
        if how != "age":
            engine.shape = np.zeros_like if how == "anything" else mirrored()
        self.rig.run(float(self.dice.uniform(*self._quiet_s)))
        self.listens_for = ""
        if how == "age":
            self.look_at_ages()
        self.order(settings=PLAIN, muted=False)
        self.calm()
        self.measure()
        return self.rig.clock() - before_s - asleep_s

    def mend(self, signal: Signal) -> None:
        """Everything outside is well again: the session must be so too, by itself."""
        self.rig.engine.compute = lambda frames, rate: 0.05 * frames / rate
        self.rig.engine.raises = None
        self.rig.mic.signal = signal
        since_s = self.rig.clock()
        while self.rig.status.state != "running" and self.rig.clock() - since_s < 70.0:
            self.rig.run(0.5)
            self.record.held_ms += [declared_ms(self.rig)] if self.rig.session._running is not None else []
        self.record.back_s.append(self.rig.clock() - since_s)

    def calm(self) -> None:
        """The voice is the identity, which the delay is measured with."""
        self.rig.engine.shape = None
        self.rig.mic.signal = self._speech
        self.rig.run(4.0)

    def told_ms(self) -> float:
        """The delay that is told, once all that was placed by another (before a prefill was given back) is heard."""
        told = declared_ms(self.rig)
        for _ in range(PREFILLS):
            self.rig.run(LONGEST_MS / 1000.0)
            before, told = told, declared_ms(self.rig)
            if told == before:
                break
        return told

    def measure(self) -> None:
        """The delay as told and as it is; and, now and then, what bypass lets through."""
        if self.rig.session._running is None:
            self.record.delays_ms.append((-np.inf, np.inf))
            return
        declared = self.told_ms()
        measured, peak = delay_ms(self.rig, 2048, 1500.0)
        self.record.held_ms.append(declared)
        self.record.delays_ms.append((declared, measured if peak > 0.9 else np.inf))  # inf: nothing was found there
        voice = self.rig.running.pipeline.newest_voice.latency_frames
        prefill_ms = self.rig.status.latency.prefill_ms or 0.0
        self.record.starts_ms.append(measured - prefill_ms - BLOCK_MS - 1000.0 * voice / RATE)
        if not self.record.bypass_db or self.dice.integers(6) == 0:
            self.rig.mic.signal, self.rig.engine.shape = self._tone, np.zeros_like
            self.order(bypass=True)
            self.rig.run(2.0)
            self.listens_for = "bypass"
            self.rig.run(1.0)
            self.listens_for = ""
            self.order(bypass=False)
            self.rig.run(2.0)
            self.calm()

    def remember(self, first: int, sound: Block) -> None:
        """A callback's sound, and where the microphone was at that moment."""
        running = self.rig.session._running
        if running is None or np.max(np.abs(sound)) < LOUD:
            return
        stream = running.stream
        assert isinstance(stream, FakeStream)
        heard, played = stream.halves[0], stream.halves[-1]
        at_s = time_s(played, first)
        newest = heard._frame + (at_s - heard._nominal_s) * RATE
        self._heard.append((newest, sound))
        held = 1000.0 * running.outlet.delay_frames / RATE + running.stages_ms
        self._longest_ms = max(self._longest_ms, held)

    def look_at_ages(self) -> None:
        """How old some of the stretches were when they were heard."""
        self.record.held_ms.append(self._longest_ms)
        longest_ms = self._longest_ms + self._rested_ms
        some = self.dice.permutation(len(self._heard))[:STRETCHES]
        for newest, sound in (self._heard[index] for index in some):
            oldest = int(newest - LOOK_BACK_S * RATE)
            at, alike = find(sound, self._speech(oldest, int(newest) + len(sound) - oldest))
            if alike > ALIKE:
                self.record.old_ms.append((1000.0 * (newest - oldest - at) / RATE, longest_ms))
        self._heard.clear()

    def order(self, **changes: Any) -> None:
        """An order; its answer is looked at in the end."""
        self._answers.append(self.rig.order(**changes))

    def gaps(self) -> int:
        """Dry rings of the output so far."""
        return self.rig.status.xruns

    def end(self, title: str) -> Record:
        """Stop; all that was seen."""
        rig, record = self.rig, self.record
        record.title = title
        record.voices_open = rig.engine.opened - rig.engine.closed
        record.voices_loaded, record.streams_opened = rig.engine.opened, rig.audio.opened
        record.streams_open, record.log_lines = len(rig.audio._streams), len(rig.logged)
        record.orders = len(self._answers)
        record.unanswered = sum(len(answers) != 1 for answers in self._answers)
        record.refused = sum(answer is not None for answers in self._answers for answer in answers)
        rig.session.stop()
        return record


def noise_that_never_repeats() -> Signal:
    """Noise that can be told from any other moment of the last two minutes, of a band that every resampler passes."""
    lines = np.fft.rfft(np.random.default_rng(2).standard_normal(TABLE_FRAMES))
    lines[round(PASSED * TABLE_FRAMES) :] = 0.0
    table = np.fft.irfft(lines, TABLE_FRAMES)
    table = (0.9 / np.max(np.abs(table)) * table).astype(np.float32)
    return lambda first, frames: table[np.arange(first, first + frames) % TABLE_FRAMES]


def tone_and_noise(speech: Signal) -> Signal:
    """The signature: a tone, with a trace of noise below it so that no stretch is like another."""
    turn = 2.0 * np.pi * SIGNATURE_HZ / RATE

    def signal(first: int, frames: int) -> Block:
        n = np.arange(first, first + frames)
        return (0.5 * np.sin(turn * n) + 0.002 * speech(first, frames)).astype(np.float32)

    return signal


def mirrored() -> Callable[[Block], Block]:
    """A voice that turns the spectrum round: 997 Hz come out as 3003."""
    sign = 1.0

    def shape(out: Block) -> Block:
        nonlocal sign
        signs = np.where(np.arange(len(out)) % 2 == 0, sign, -sign)
        sign = sign if len(out) % 2 == 0 else -sign
        return (out * signs).astype(np.float32)

    return shape


def run(seconds: float, seed: int) -> tuple[Record, int]:
    """So many seconds of life, but every event once; what was seen, and a digest of all that was played."""
    soak, cpu_s, wall_s = Soak(seed), time.process_time(), time.monotonic()
    process, progress = psutil.Process(), Progress(seconds)
    logging.getLogger("myna").setLevel(logging.CRITICAL)  # faults are meant; what a user reads of them is counted
    lived = 0.0
    waiting = soak.round()
    while lived < seconds or len(soak.record.events) < len(soak.events):
        waiting = waiting or soak.round()
        lived += soak.live_through(waiting.pop())
        soak.record.memory_mib.append(process.memory_info().rss / MEBI)
        progress.at(lived, f"{lived / 3600:.2f} h, {sum(soak.record.events.values())} events")
    progress.end()
    gc.collect()
    title = (
        f"{lived / 3600:.2f} h simulated in {time.monotonic() - wall_s:.0f} s "
        f"({time.process_time() - cpu_s:.0f} s of CPU), {sum(soak.record.events.values())} events, seed {seed}"
    )
    return soak.end(title), soak.digest


def soak(seconds: float, seed: int) -> Table:
    """Run; the laws and their figures."""
    return judge(run(seconds, seed)[0])
