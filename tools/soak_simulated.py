"""Hours of a live session on simulated devices, with everything that can go wrong, in minutes."""

import gc
import sys
import time
from collections import Counter
from typing import Any

import numpy as np
import psutil

from myna.daemon.live.messages import VoiceOrder
from myna.dsp.stage import Block
from tools.live_rig import Behaviour, Rig, declared_ms, delay_ms
from tools.soak_table import Table

RATE = 16000
BLOCK_MS = 200.0
MEBI = 1 << 20


class Ear:
    """Listens to everything a device plays: the voice says nothing, so whatever is heard is the raw input."""

    def __init__(self) -> None:
        self.raw = 0.0  # largest sample
        self.nonfinite = 0
        self.listening = True

    def __call__(self, first: int, sound: Block) -> None:
        del first
        if not np.isfinite(sound).all():
            self.nonfinite += 1
        elif self.listening:
            self.raw = max(self.raw, float(np.max(np.abs(sound))))


def soak(seconds: float, seed: int) -> Table:
    """Run; the laws and their figures."""
    dice = np.random.default_rng(seed)
    table = np.random.default_rng(2).uniform(-0.9, 0.9, RATE * 20).astype(np.float32)

    def signature(first: int, frames: int) -> Block:
        return np.asarray(table[np.arange(first, first + frames) % len(table)], np.float32)

    device: dict[str, Any] = {"rate_hz": RATE, "keep_s": 5.0}
    rig = Rig(
        mic={**device, "signal": signature, "ppm": 120.0}, out=device, ear=device, engine=Behaviour(shape=np.zeros_like)
    )
    ears = {"out": Ear(), "ear": Ear()}
    rig.out.on_play, rig.ear.on_play = ears["out"], ears["ear"]
    rig.start(
        devices={"monitor": "fake:ear", "period_ms": 50.0},
        settings={"block_ms": BLOCK_MS, "limiter": False},
    )
    started_s, cpu_s = rig.clock(), time.process_time()
    done: Counter[str] = Counter()
    errors: list[float] = []
    returns: list[float] = []
    unanswered: list[tuple[str, list[Exception | None]]] = []
    memory: list[float] = []
    delays: list[float] = []

    def order(**changes: Any) -> None:
        unanswered.append((str(changes), rig.order(**changes)))

    def calm(for_s: float = 12.0) -> None:
        """Everything is well again: the session must be, and its delay what it says."""
        rig.engine.compute = lambda frames, rate: 0.05 * frames / rate
        rig.engine.raises = None
        rig.mic.signal = signature
        since = rig.clock()
        while rig.status.state != "running" and rig.clock() - since < 70.0:
            rig.run(0.5)
        returns.append(rig.clock() - since)
        rig.run(for_s)

    def measure() -> None:
        rig.engine.shape = None
        for ear in ears.values():
            ear.listening = False
        rig.run(2.0)
        measured, peak = delay_ms(rig, 4096)
        if peak > 0.9:
            errors.append(abs(measured - declared_ms(rig)))
            delays.append(declared_ms(rig))
        rig.engine.shape = np.zeros_like
        rig.run(2.0)
        for ear in ears.values():
            ear.listening = True

    def bypass() -> None:
        for ear in ears.values():
            ear.listening = False
        order(bypass=True)
        rig.run(1.0)
        order(bypass=False)
        rig.run(2.0)
        for ear in ears.values():
            ear.listening = True

    def lose(name: str) -> None:
        lost = rig.audio.unplug(name)
        rig.run(float(dice.uniform(0.01, 5.0)))
        rig.audio.plug(lost)
        rig.run(3.0)

    def overload() -> None:
        slowness = dice.uniform(1.05, 4.0)
        rig.engine.compute = lambda frames, rate: slowness * frames / rate
        rig.run(float(dice.uniform(1.0, 30.0)))
        delays.append(declared_ms(rig))

    def bad_input() -> None:
        value = dice.choice([np.nan, np.inf, -np.inf])
        rig.mic.signal = lambda first, frames: np.where(np.arange(frames) % 5 == 0, value, 0.1)
        rig.run(float(dice.uniform(0.1, 3.0)))

    def bad_voice() -> None:
        rig.engine.shape = lambda out: np.full(len(out), np.nan, np.float32)
        rig.run(float(dice.uniform(0.1, 3.0)))
        rig.engine.shape = np.zeros_like

    def failing_voice() -> None:
        rig.engine.raises = RuntimeError("simulated fault")
        rig.run(float(dice.uniform(0.1, 4.0)))

    def drift() -> None:
        rig.mic.ppm = float(dice.uniform(-300, 300))
        rig.out.jitter_ms = float(dice.uniform(0, 5))

    def storm() -> None:
        rig.audio.failing = str(dice.choice(["busy", "no_server", "lost"]))
        rig.run(float(dice.uniform(0.5, 20.0)))
        rig.audio.failing = None

    def swap() -> None:
        latency = float(dice.integers(0, 60))
        order(voice=VoiceOrder(id=f"v{dice.integers(99)}", engine="fake", defaults={"latency_ms": latency}))

    events: dict[str, Any] = {
        "voice swap": swap,
        "mute on and off": lambda: (order(muted=True), rig.run(0.5), order(muted=False)),
        "gate": lambda: order(settings={"gate_db": float(dice.integers(-60, -20))}),
        "gate off": lambda: order(settings={"gate_db": "off"}),
        "denoise": lambda: order(settings={"denoise_in": "spectral"}),
        "denoise off": lambda: order(settings={"denoise_in": "off"}),
        "block": lambda: order(settings={"block_ms": float(dice.choice([100.0, 200.0, 300.0]))}),
        "target latency": lambda: order(settings={"target_latency_ms": float(dice.integers(300, 900))}),
        "target off": lambda: order(settings={"target_latency_ms": "off"}),
        "bypass": bypass,
        "microphone lost": lambda: lose("mic"),
        "output lost": lambda: lose("out"),
        "monitor lost": lambda: lose("ear"),
        "stall": lambda: rig.audio.stall("mic", float(dice.uniform(0.05, 0.4))),
        "suspend": lambda: rig.audio.suspend(float(dice.uniform(5.0, 5000.0))),
        "overload": overload,
        "bad input": bad_input,
        "bad voice": bad_voice,
        "failing voice": failing_voice,
        "drift": drift,
        "storm of errors": storm,
    }
    names = list(events)
    lived = 0.0
    process = psutil.Process()
    while lived < seconds:
        before = rig.clock()
        suspended = 0.0
        name = names[int(dice.integers(len(names)))]
        done[name] += 1
        at = rig.clock()
        events[name]()
        if name == "suspend":
            suspended = rig.clock() - at
        calm(float(dice.uniform(20.0, 120.0)))
        order(settings={"gate_db": "off"}, muted=False)
        measure()
        lived += rig.clock() - before - suspended
        memory.append(process.memory_info().rss / MEBI)
        if sys.stdout.isatty():
            print(f"\r{lived / 3600:.2f} h, {sum(done.values())} events", end="", flush=True)
    open_voices = rig.engine.opened - rig.engine.closed
    streams = len(rig.audio._streams)
    logged = len(rig.logged)
    rig.session.stop()
    gc.collect()

    half = memory[len(memory) // 4 :]
    slope = float(np.polyfit(np.arange(len(half)), half, 1)[0] * len(half)) if len(half) > 3 else 0.0
    silent = [text for text, answers in unanswered if len(answers) != 1]
    refused = [answers[0] for _, answers in unanswered if answers and answers[0] is not None]
    hours = lived / 3600
    result = Table(
        f"{hours:.2f} h simulated ({rig.clock() - started_s:.0f} s on the clock) in "
        f"{time.process_time() - cpu_s:.0f} s of CPU, {sum(done.values())} events, seed {seed}"
    )
    raw = max(ear.raw for ear in ears.values())
    result.add("1 fail closed: the signature in output and monitor", raw == 0.0, f"largest {raw:.1e} of full scale")
    result.add(
        "2, 3 delay is as declared after every event",
        max(errors) < 2.0,
        f"largest error {max(errors):.2f} ms, {len(errors)} measured",
    )
    result.add("3 bounded delay, under overload too", max(delays) < 1300.0, f"largest {max(delays):.0f} ms declared")
    result.add(
        "3 back after every event",
        max(returns) < 70.0,
        f"median {np.median(returns):.1f} s, longest {max(returns):.1f} s (a failing voice waits)",
    )
    bad = sum(ear.nonfinite for ear in ears.values())
    result.add(
        "4 finite",
        bad == 0,
        f"{bad} blocks played with NaN or infinity; {done['bad input'] + done['bad voice']} times fed",
    )
    result.add(
        "7 every order answered, none refused",
        not silent and not refused,
        f"{len(unanswered)} orders, {len(silent)} unanswered, {len(refused)} refused",
    )
    result.add("voices let go of", open_voices == 1, f"{rig.engine.opened} loaded, {open_voices} open at the end")
    result.add("streams let go of", streams == 2, f"{rig.audio.opened} opened, {streams} open at the end")
    result.add("memory is flat", slope < 8.0, f"{slope:+.1f} MiB over the last three quarters")
    result.add("the log is no storm", logged < 12 * sum(done.values()), f"{logged} lines")
    result.add("events", True, ", ".join(f"{name} {count}" for name, count in sorted(done.items())))
    return result
