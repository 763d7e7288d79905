"""Plays into the test server's microphone cable and records both of its ends, to measure what lies between.

Everything goes through the sound server's own command line clients, in other processes than the one under test.
"""

import os
import shutil
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tools.audio_server import MIC_CABLE, TEST_MIC, VIRTUAL_MIC, AudioServer

RATE = 48000
Sound = NDArray[np.float32]


def urgent() -> list[str]:
    """A prefix that gives a command real-time priority where that is allowed: the far ends must not be what slips."""
    prefix = ["chrt", "-f", "38"]
    if not shutil.which("chrt") or subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        return []
    return prefix


class Recorder:
    """`parec` into memory; keeps when its first frame was heard."""

    def __init__(self, server: AudioServer, source: str, latency_ms: int = 10) -> None:
        self._process = subprocess.Popen(
            [*urgent(), "parec", "--raw", "--format=float32le", f"--rate={RATE}", "--channels=1",
             f"--latency-msec={latency_ms}", "-d", source],
            env=server.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._parts: list[bytes] = []
        self._frames = 0
        self._first_s = float("inf")  # the earliest moment that frame 0 can have been heard
        self._thread = threading.Thread(target=self._pump)
        self._thread.start()

    @property
    def frames(self) -> int:
        """Frames heard so far."""
        return self._frames

    def _pump(self) -> None:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while data := os.read(descriptor, 65536):
            now = time.monotonic()
            self._parts.append(data)
            self._frames += len(data) // 4
            self._first_s = min(self._first_s, now - self._frames / RATE)

    def stop(self) -> tuple[Sound, float]:
        """All that was heard, shape (frames,), and the moment of its first frame in monotonic seconds."""
        self._process.terminate()
        self._process.wait(5)
        self._thread.join(5)
        assert self._process.stdout is not None
        self._process.stdout.close()
        data = b"".join(self._parts)
        return np.frombuffer(data[: len(data) // 4 * 4], np.float32).copy(), self._first_s


@dataclass(frozen=True)
class Heard:
    """Both ends of the cables while a sound was played, on one time axis."""

    near: Sound  # what the microphone gave, shape (frames,)
    far: Sound  # what the virtual microphone gave, shape (frames,); frame 0 is the same moment as near's

    def delay_ms(self, seconds: float | None = None) -> tuple[float, float]:
        """Delay from near to far by cross-correlation, and the normalised peak."""
        n = len(self.near) if seconds is None else round(seconds * RATE)
        return correlate(self.near[:n], self.far[: n + RATE])


def correlate(near: Sound, far: Sound) -> tuple[float, float]:
    """(delay of `far` behind `near` in ms, normalised correlation there), both between whole samples too."""
    size = 1 << (len(near) + len(far)).bit_length()
    product = np.fft.irfft(
        np.fft.rfft(far.astype(np.float64), size) * np.conj(np.fft.rfft(near.astype(np.float64), size)), size
    )[: len(far)]
    at = int(np.argmax(np.abs(product)))
    part = far[at : at + len(near)].astype(np.float64)
    scale = np.sqrt(np.sum(part**2) * np.sum(near[: len(part)].astype(np.float64) ** 2)) + 1e-12
    peak, beside = abs(product[at]), 0.0
    if 0 < at < len(product) - 1:  # a parabola through the peak and its neighbours
        before, after = (float(product[at + step] * np.sign(product[at])) for step in (-1, 1))
        bend = before - 2.0 * peak + after
        if bend < 0.0:
            beside = 0.5 * (before - after) / bend
            peak -= 0.25 * (before - after) * beside
    return 1000.0 * (at + beside) / RATE, float(peak / scale)


def noise(seconds: float, up_to_hz: float = 4000.0) -> Sound:
    """Noise without its highest part, in which the few microseconds show by which two clocks are steered together."""
    frames = round(seconds * RATE)
    spectrum = np.fft.rfft(0.3 * np.random.default_rng(1).standard_normal(frames))
    spectrum[round(up_to_hz * frames / RATE) :] = 0
    return np.fft.irfft(spectrum, frames).clip(-0.9, 0.9).astype(np.float32)


class Player:
    """`pacat` into the microphone's cable."""

    def __init__(self, server: AudioServer, sound: Sound, sink: str = MIC_CABLE, latency_ms: int = 100) -> None:
        self._folder = tempfile.TemporaryDirectory()
        raw = Path(self._folder.name) / "sound.raw"
        raw.write_bytes(np.asarray(sound, np.float32).tobytes())
        self.process = subprocess.Popen(
            [*urgent(), "pacat", "--playback", "--raw", "--format=float32le", f"--rate={RATE}", "--channels=1",
             f"--latency-msec={latency_ms}", "-d", sink, str(raw)],
            env=server.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def wait(self, timeout_s: float) -> None:
        """Until all was played."""
        try:
            self.process.wait(timeout_s)
        finally:
            self.process.kill()
            self.process.wait()
            self._folder.cleanup()


def play_and_hear(
    server: AudioServer,
    sound: Sound,
    tail_s: float = 1.0,
    during: object = None,
    far_server: AudioServer | None = None,
) -> Heard:
    """Play `sound` at the microphone, record both ends meanwhile. `during` is called once it plays.

    The virtual microphone is that of `far_server`, None: of the same server.
    """
    near, far = Recorder(server, TEST_MIC), Recorder(far_server or server, VIRTUAL_MIC)
    deadline = time.monotonic() + 5.0
    while min(near.frames, far.frames) < RATE // 10 and time.monotonic() < deadline:
        time.sleep(0.01)
    player = Player(server, sound)
    if callable(during):
        during()
    player.wait(len(sound) / RATE + 20.0)
    enough = far.frames + round(tail_s * RATE)
    deadline = time.monotonic() + tail_s + 5.0
    while far.frames < enough and time.monotonic() < deadline:
        time.sleep(0.01)
    (a, a_s), (b, b_s) = near.stop(), far.stop()
    start = max(a_s, b_s)
    return Heard(a[round((start - a_s) * RATE) :], b[round((start - b_s) * RATE) :])
