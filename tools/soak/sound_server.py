"""Minutes of the real daemon on a real sound server: commands, kills, restarts; the laws checked on recordings."""

import contextlib
import json
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import soundfile
import soxr
from numpy.typing import NDArray

from tools.audio_server import OUT_CABLE, TEST_MIC, VIRTUAL_MIC, AudioServer
from tools.cable import RATE, Heard, correlate, noise, play_and_hear
from tools.private_daemon import LIVE, PrivateDaemon
from tools.soak.progress import Progress
from tools.soak.table import Table

SPEECH = Path(__file__).parents[2] / "tests" / "data" / "speech" / "austen_0870.flac"
VOICES = ("deep", "bright", "formant")
MEBI = 1 << 20
LONGEST_S = 0.8  # of the delay looked for
WITHIN_S = 5.0  # for a session to be back
NOTHING = "nothing"

Sound = NDArray[np.float32]


class CountedDaemon(PrivateDaemon):
    """Takes a refusal for an answer, and counts."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        super().__init__(folder, environment)
        self.asked = self.refused = 0

    def myna(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        """What a command answers."""
        self.asked += 1
        done = self.run(*arguments)
        self.refused += done.returncode != code
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def back(self) -> float:
        """Wait until the session runs, or far too long; how long that took."""
        began = time.monotonic()
        with contextlib.suppress(TimeoutError):
            self.until(lambda status: status.get("state") in LIVE, 4.0 * WITHIN_S)
        return time.monotonic() - began


def raw_share(heard: Heard) -> float:
    """Largest correlation of any loud 100 ms of the microphone with the far end, at any delay."""
    frame, span = RATE // 10, round(LONGEST_S * RATE)
    loud = float(np.sqrt(np.mean(np.square(heard.near))))
    largest = 0.0
    for at in range(0, min(len(heard.near), len(heard.far)) - frame - span, frame):
        near = heard.near[at : at + frame].astype(np.float64)
        far = heard.far[at : at + frame + span].astype(np.float64)
        if np.sqrt(np.mean(near**2)) < loud or not far.any():
            continue
        size = 1 << (len(far) + frame).bit_length()
        scores = np.fft.irfft(np.fft.rfft(far, size) * np.conj(np.fft.rfft(near, size)), size)[: span + 1]
        total = np.concatenate([[0.0], np.cumsum(far**2)])
        power = (total[frame : frame + span + 1] - total[: span + 1]) * np.sum(near**2)
        audible = power > 1e-3 * np.sum(near**2) ** 2
        if audible.any():
            largest = max(largest, float(np.max(np.abs(scores[audible]) / np.sqrt(power[audible]))))
    return largest


class Chaos:
    """What may happen to a session: while something is said into it, and between two times of that."""

    def __init__(self, daemon: CountedDaemon, server: AudioServer, seed: int) -> None:
        self.done: Counter[str] = Counter()
        self._daemon, self._server = daemon, server
        self._dice = np.random.default_rng(seed)
        self._supervisor = int(daemon.myna("status")["pid"])
        self._during: dict[str, Callable[[], object]] = {
            "set": self._set,
            "voice": lambda: daemon.myna("live", "voice", str(self._dice.choice(VOICES))),
            "mute": lambda: (daemon.myna("live", "mute", "on"), daemon.myna("live", "mute", "off")),
            "block": lambda: daemon.myna("live", "set", f"block_ms={self._dice.choice([20, 40, 60])}"),
            "kill -9 worker": lambda: os.kill(self._worker(), signal.SIGKILL),
            "freeze worker 1 s": lambda: self._freeze(self._worker()),
            "freeze supervisor 1 s": lambda: self._freeze(self._supervisor),
        }
        self._between: dict[str, Callable[[], object]] = {
            "restart server": self._restart_server,
            "unload sink, load it again": self._reload_sink,
            "freeze server": self._freeze_server,
            NOTHING: lambda: None,
        }

    def during(self) -> Callable[[], object]:
        """Something that happens while it speaks."""
        return self._during[self._drawn(self._during)]

    def between(self) -> bool:
        """Have something happen while it is silent; whether anything did."""
        name = self._drawn(self._between)
        self._between[name]()
        return name != NOTHING

    def _drawn(self, from_: Mapping[str, object]) -> str:
        name = str(self._dice.choice(list(from_)))
        self.done[name] += 1
        return name

    def _set(self) -> None:
        self._daemon.myna("live", "set", f"formant={self._dice.integers(1, 4)}", f"pitch={self._dice.integers(2, 8)}")

    def _worker(self) -> int:
        return int(self._daemon.session()["pid"])

    def _freeze(self, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(1.0)
        os.kill(pid, signal.SIGCONT)

    def _restart_server(self) -> None:
        self._server.kill()
        time.sleep(float(self._dice.uniform(0.0, 2.0)))
        self._server.start()

    def _reload_sink(self) -> None:
        self._server.unplug(OUT_CABLE)
        time.sleep(float(self._dice.uniform(0.0, 3.0)))
        self._server.plug(OUT_CABLE, VIRTUAL_MIC)

    def _freeze_server(self) -> None:
        self._server.signal(signal.SIGSTOP)
        time.sleep(float(self._dice.uniform(0.1, 3.0)))
        self._server.signal(signal.SIGCONT)


class Used(NamedTuple):
    """What a process holds."""

    pid: int
    mib: float
    descriptors: int
    threads: int


def used(pid: int) -> Used:
    """What that process holds now."""
    process = psutil.Process(pid)
    return Used(pid, process.memory_info().rss / MEBI, process.num_fds(), process.num_threads())


@dataclass
class Seen:
    """Everything that was measured."""

    shares: list[float] = field(default_factory=list)  # of raw voice, in each recording
    back_s: list[float] = field(default_factory=list)  # after what happened while it spoke
    back_after_loss_s: list[float] = field(default_factory=list)
    finite: bool = True
    supervisor: list[Used] = field(default_factory=list)  # after every round
    worker: list[Used] = field(default_factory=list)
    delay_ms: float = 0.0  # at the end
    peak: float = 0.0  # correlation there
    told_ms: float = 0.0
    asked: int = 0
    refused: int = 0


def soak(seconds: float, seed: int) -> Table:
    """Run; the laws and their figures."""
    speech_16k, _ = soundfile.read(SPEECH, dtype="float32")
    speech = np.asarray(soxr.resample(speech_16k, 16000, RATE), np.float32)
    began_s, seen, progress = time.monotonic(), Seen(), Progress(seconds)
    with (
        tempfile.TemporaryDirectory() as folder,
        AudioServer("pulse") as server,
        CountedDaemon(Path(folder), server.env) as daemon,
    ):
        daemon.myna("up", "--input", TEST_MIC, "--output", OUT_CABLE, "--set", "block_ms=40", "--voice", "deep")
        chaos = Chaos(daemon, server, seed)
        while (lived_s := time.monotonic() - began_s) < seconds or len(seen.shares) < 3:
            live_through(chaos, daemon, play_and_hear(server, speech, during=chaos.during()), seen)
            progress.at(lived_s, f"{chaos.done.total()} events, raw {seen.shares[-1]:.2f}")
        measure_delay(daemon, server, seen)
        daemon.myna("down")
        seen.asked, seen.refused = daemon.asked, daemon.refused
    progress.end()
    return judge(seen, f"{time.monotonic() - began_s:.0f} s on PulseAudio", chaos.done, seed)


def live_through(chaos: Chaos, daemon: CountedDaemon, heard: Heard, seen: Seen) -> None:
    """What came of one event while it spoke, and then one while it is silent."""
    seen.finite &= bool(np.isfinite(heard.far).all())
    seen.shares.append(raw_share(heard))
    seen.back_s.append(daemon.back())
    daemon.myna("live", "set", "pitch=5")
    if chaos.between():
        time.sleep(0.6)  # a loss is noticed after half a second
        seen.back_after_loss_s.append(daemon.back())
    seen.supervisor.append(used(int(daemon.myna("status")["pid"])))
    seen.worker.append(used(int(daemon.session()["pid"])))


def measure_delay(daemon: CountedDaemon, server: AudioServer, seen: Seen) -> None:
    """What the neutral voice takes, by noise, and what the status tells of it."""
    daemon.myna("live", "voice", "neutral")
    time.sleep(1.0)
    seen.told_ms = daemon.session()["latency"]["estimated_ms"]
    through = play_and_hear(server, noise(2.0))
    seen.delay_ms, seen.peak = correlate(through.near, through.far)


def judge(seen: Seen, title: str, done: Counter[str], seed: int) -> Table:
    """Whether the laws held."""
    table = Table(f"{title}, {done.total()} events, seed {seed}")
    table.add(
        "1 fail closed: no raw voice in what was recorded",
        max(seen.shares) < 0.9,
        f"largest correlation {max(seen.shares):.2f} in {len(seen.shares)} recordings",
    )
    table.add(
        "3 the delay at the end is the one told",
        seen.peak > 0.9 and abs(seen.delay_ms - seen.told_ms) < 40.0,
        f"{seen.delay_ms:.0f} ms measured, {seen.told_ms:.0f} ms told, correlation {seen.peak:.3f}",
    )
    table.add("4 finite", seen.finite, "every sample recorded")
    table.add("back after kills and freezes", max(seen.back_s) < WITHIN_S, f"longest {max(seen.back_s):.1f} s")
    longest_s = max(seen.back_after_loss_s, default=0.0)
    table.add(
        "back after a lost server",
        longest_s < WITHIN_S,
        f"longest {longest_s:.1f} s of {len(seen.back_after_loss_s)}",
    )
    table.add("7 commands answered", seen.refused == 0, f"{seen.asked} commands, {seen.refused} refused")
    first, half, last = seen.supervisor[0], seen.supervisor[len(seen.supervisor) // 2], seen.supervisor[-1]
    table.add("supervisor's memory is flat", last.mib - half.mib < 8.0, f"{first.mib:.0f} → {last.mib:.0f} MiB")
    table.add(
        "supervisor's descriptors are flat",
        last.descriptors <= first.descriptors + 8,
        f"{first.descriptors} → {last.descriptors}",
    )
    table.add("supervisor's threads are flat", last.threads <= first.threads + 4, f"{first.threads} → {last.threads}")
    workers = [each for each in seen.worker if each.pid == seen.worker[-1].pid]
    first, last = workers[0], workers[-1]
    table.add(
        "last worker's memory is flat",
        last.mib - first.mib < 24.0,
        f"{first.mib:.0f} → {last.mib:.0f} MiB over {len(workers)} rounds",
    )
    table.add(
        "last worker's threads are flat",
        last.threads <= first.threads + 4,
        f"{first.threads} → {last.threads}, descriptors {first.descriptors} → {last.descriptors}",
    )
    table.add("events", True, ", ".join(f"{name} {count}" for name, count in sorted(done.items())))
    return table
