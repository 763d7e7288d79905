"""From one command to a changed voice at the far end, and again after the sound server was killed."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from desktop import Desktop
from numpy.typing import NDArray

from myna.daemon.route.names import MICROPHONE, SINK

pytestmark = pytest.mark.e2e

RATE_HZ = 48_000
VOICED_HZ = 150.0


class Myna:
    """The command on one desktop, with a state directory of its own."""

    def __init__(self, desktop: Desktop) -> None:
        self.desktop = desktop
        self.settings = {
            "MYNA_STATE_DIR": str(desktop.folder / "myna"),
            "MYNA_CONFIG": str(desktop.folder / "settings.toml"),
            "MYNA_RUNTIME_DIR": str(desktop.folder / "r"),
        }

    def __call__(self, *arguments: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "myna.control.cli", *arguments, "--json"]
        done = self.desktop.run(*command, **self.settings)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer


@pytest.fixture
def myna(desktop: Desktop) -> Iterator[Myna]:
    command = Myna(desktop)
    yield command
    # Whatever happened: nothing of it may outlive the test.
    for process in psutil.process_iter(["environ"]):
        if (process.info["environ"] or {}).get("MYNA_STATE_DIR") == command.settings["MYNA_STATE_DIR"]:
            process.kill()


def voice(seconds: float) -> NDArray[np.float32]:
    """A voice-like sound: a pulse train with a few formants, which is anything but still."""
    t = np.arange(int(seconds * RATE_HZ)) / RATE_HZ
    sound = sum(np.sin(2 * np.pi * VOICED_HZ * k * t) / (1 + abs(k - 4)) for k in range(1, 20))
    return (0.1 * sound / np.abs(sound).max() * (1 + 0.3 * np.sin(2 * np.pi * 3 * t))).astype(np.float32)


def pitch_of(sound: NDArray[np.float32]) -> float | None:
    """Fundamental in Hz by autocorrelation, None for silence."""
    if np.sqrt(np.mean(sound**2)) < 1e-4:
        return None
    spectrum = np.abs(np.fft.rfft(sound, 2 * sound.size)) ** 2
    correlation = np.fft.irfft(spectrum)[: sound.size]
    low, high = RATE_HZ // 500, RATE_HZ // 70
    return float(RATE_HZ / (low + np.argmax(correlation[low:high])))


def hear(desktop: Desktop, seconds: float) -> NDArray[np.float32]:
    """What the virtual microphone delivers."""
    command = ["parec", "-d", MICROPHONE, "--raw", "--format=float32le", "--rate=48000", "--channels=1"]
    with subprocess.Popen(command, env=desktop.client, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as recorder:
        assert recorder.stdout is not None
        data = recorder.stdout.read(int(seconds * RATE_HZ) * 4)
        recorder.kill()
    return np.frombuffer(data[: len(data) // 4 * 4], np.float32)


def speak(desktop: Desktop, folder: Path, seconds: float) -> "subprocess.Popen[bytes]":
    """Play a voice into the desktop's microphone."""
    path = folder / "voice.raw"
    path.write_bytes(voice(seconds).tobytes())
    command = ["pacat", "-d", "speakers", "--raw", "--format=float32le", "--rate=48000", "--channels=1", str(path)]
    return subprocess.Popen(command, env=desktop.client, stderr=subprocess.DEVNULL)


def until_heard(desktop: Desktop, expected_hz: float, within_s: float) -> None:
    """Wait until the far end hears the shifted voice; the voice as it was spoken must never be heard."""
    deadline = time.monotonic() + within_s
    while True:
        found = pitch_of(hear(desktop, 0.4)) if MICROPHONE in desktop.names("sources") else None
        assert found is None or abs(found - VOICED_HZ) > 10, "the raw voice is heard"
        if found is not None and abs(found / expected_hz - 1) < 0.03:
            return
        assert time.monotonic() < deadline, f"heard {found} instead of {expected_hz} Hz"


def ours(desktop: Desktop) -> list[str]:
    return sorted(n for kind in ("sinks", "sources") for n in desktop.names(kind) if n in (SINK, MICROPHONE))


def test_one_command_then_a_killed_server_then_nothing_left(desktop: Desktop, myna: Myna) -> None:
    expected_hz = VOICED_HZ * 2 ** (5 / 12)
    answer = myna("up", "--route", "--voice", "formant", "--pitch", "5", "--set", "block_ms=20")
    assert answer["session"]["state"] in ("running", "degraded")
    assert answer["session"]["output"] == "Myna"
    speaker = speak(desktop, desktop.folder, 20)
    until_heard(desktop, expected_hz, 18)
    speaker.kill()
    speaker.wait()

    desktop.restart()
    speaker = speak(desktop, desktop.folder, 20)
    until_heard(desktop, expected_hz, 18)
    speaker.kill()
    speaker.wait()
    assert ours(desktop) == [MICROPHONE, SINK]

    myna("down")
    myna("route", "remove")
    assert ours(desktop) == []
    left = [p.pid for p in psutil.process_iter(["environ"]) if (p.info["environ"] or {}).get("MYNA_STATE_DIR")]
    mine = [pid for pid in left if pid != os.getpid() and myna.settings["MYNA_STATE_DIR"] in environ_of(pid)]
    assert mine == []


def environ_of(pid: int) -> str:
    """A process's state directory, or nothing if it has just ended."""
    try:
        return psutil.Process(pid).environ().get("MYNA_STATE_DIR", "")
    except psutil.Error:
        return ""
