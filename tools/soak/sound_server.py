"""Minutes of the real daemon on a real sound server: commands, kills, restarts; the laws checked on recordings."""

import contextlib
import json
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
WITHIN_S = 20.0  # for a session to be back

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
        """Wait until the session runs, or too long; how long that took."""
        began = time.monotonic()
        with contextlib.suppress(TimeoutError):
            self.until(lambda status: status.get("state") in LIVE, WITHIN_S)
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


def resources(pid: int) -> tuple[float, int, int]:
    """(MiB, descriptors, threads) of a process."""
    process = psutil.Process(pid)
    return process.memory_info().rss / MEBI, process.num_fds(), process.num_threads()


def soak(seconds: float, seed: int) -> Table:
    """Run; the laws and their figures."""
    dice = np.random.default_rng(seed)
    speech_16k, _ = soundfile.read(SPEECH, dtype="float32")
    speech = np.asarray(soxr.resample(speech_16k, 16000, RATE), np.float32)
    done: Counter[str] = Counter()
    shares: list[float] = []
    returns: list[float] = []
    after_loss: list[float] = []
    finite = True
    delays: list[float] = []
    supervisor: list[tuple[float, int, int]] = []
    worker: list[tuple[int, float, int, int]] = []
    began = time.monotonic()
    progress = Progress(seconds)
    with (
        tempfile.TemporaryDirectory() as folder,
        AudioServer("pulse") as server,
        CountedDaemon(Path(folder), server.env) as daemon,
    ):
        daemon.myna("up", "--input", TEST_MIC, "--output", OUT_CABLE, "--set", "block_ms=40", "--voice", "deep")
        pid = int(daemon.myna("status")["pid"])

        def kill_worker() -> None:
            os.kill(int(daemon.session()["pid"]), signal.SIGKILL)

        def freeze_worker() -> None:
            frozen = int(daemon.session()["pid"])
            os.kill(frozen, signal.SIGSTOP)
            time.sleep(1.0)
            os.kill(frozen, signal.SIGCONT)

        def restart_server() -> None:
            server.kill()
            time.sleep(float(dice.uniform(0.0, 2.0)))
            server.start()

        def reload_sink() -> None:
            server.unplug(OUT_CABLE)
            time.sleep(float(dice.uniform(0.0, 3.0)))
            server.plug(OUT_CABLE, VIRTUAL_MIC)

        def freeze_server() -> None:
            server.signal(signal.SIGSTOP)
            time.sleep(float(dice.uniform(0.1, 3.0)))
            server.signal(signal.SIGCONT)

        def freeze_supervisor() -> None:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(1.0)
            os.kill(pid, signal.SIGCONT)

        during = {
            "set": lambda: daemon.myna(
                "live", "set", f"formant={dice.integers(1, 4)}", f"pitch={dice.integers(2, 8)}"
            ),
            "voice": lambda: daemon.myna("live", "voice", str(dice.choice(VOICES))),
            "mute": lambda: (daemon.myna("live", "mute", "on"), daemon.myna("live", "mute", "off")),
            "block": lambda: daemon.myna("live", "set", f"block_ms={dice.choice([20, 40, 60])}"),
            "kill -9 worker": kill_worker,
            "freeze worker 1 s": freeze_worker,
            "freeze supervisor 1 s": freeze_supervisor,
        }  # fmt: skip
        between = {
            "restart server": restart_server,
            "unload sink, load it again": reload_sink,
            "freeze server": freeze_server,
            "nothing": lambda: None,
        }
        while time.monotonic() - began < seconds or len(shares) < 3:
            name = str(dice.choice(list(during)))
            done[name] += 1
            heard = play_and_hear(server, speech, during=during[name])
            finite &= bool(np.isfinite(heard.far).all())
            shares.append(raw_share(heard))
            returns.append(daemon.back())
            daemon.myna("live", "set", "pitch=5")
            name = str(dice.choice(list(between)))
            done[name] += 1
            between[name]()
            if name != "nothing":
                time.sleep(0.6)  # a loss is noticed after half a second
                after_loss.append(daemon.back())
            status = daemon.session()
            supervisor.append(resources(pid))
            worker.append((int(status["pid"]), *resources(int(status["pid"]))))
            progress.at(time.monotonic() - began, f"{sum(done.values())} events, raw {shares[-1]:.2f}")
        daemon.myna("live", "voice", "neutral")
        time.sleep(1.0)
        estimated = daemon.session()["latency"]["estimated_ms"]
        through = play_and_hear(server, noise(2.0))
        delay_ms, peak = correlate(through.near, through.far)
        delays.append(delay_ms)
        status = daemon.session()
        daemon.myna("down")
    progress.end()
    result = Table(f"{time.monotonic() - began:.0f} s on PulseAudio, {sum(done.values())} events, seed {seed}")
    result.add(
        "1 fail closed: no raw voice in what was recorded",
        max(shares) < 0.9,
        f"largest correlation {max(shares):.2f} in {len(shares)} recordings",
    )
    result.add(
        "3 the delay at the end is the one told",
        peak > 0.9 and abs(delay_ms - estimated) < 40.0,
        f"{delay_ms:.0f} ms measured, {estimated:.0f} ms told, correlation {peak:.3f}",
    )
    result.add("4 finite", finite, "every sample recorded")
    result.add("back after kills and freezes", max(returns) < WITHIN_S, f"longest {max(returns):.1f} s")
    result.add(
        "back after a lost server",
        max(after_loss, default=0.0) < WITHIN_S,
        f"longest {max(after_loss, default=0.0):.1f} s of {len(after_loss)}",
    )
    result.add("7 commands answered", daemon.refused == 0, f"{daemon.asked} commands, {daemon.refused} refused")
    memory = [row[0] for row in supervisor]
    result.add(
        "supervisor's memory is flat",
        memory[-1] - memory[len(memory) // 2] < 8.0,
        f"{memory[0]:.0f} → {memory[-1]:.0f} MiB",
    )
    for index, what, slack in ((1, "descriptors", 8), (2, "threads", 4)):
        figures = [row[index] for row in supervisor]
        result.add(f"supervisor's {what} are flat", figures[-1] <= figures[0] + slack, f"{figures[0]} → {figures[-1]}")
    last = [row for row in worker if row[0] == worker[-1][0]]
    result.add(
        "last worker's memory is flat",
        last[-1][1] - last[0][1] < 24.0,
        f"{last[0][1]:.0f} → {last[-1][1]:.0f} MiB over {len(last)} rounds",
    )
    result.add(
        "last worker's threads are flat",
        last[-1][3] <= last[0][3] + 4,
        f"{last[0][3]} → {last[-1][3]}, descriptors {last[0][2]} → {last[-1][2]}",
    )
    result.add("events", True, ", ".join(f"{name} {count}" for name, count in sorted(done.items())))
    return result
