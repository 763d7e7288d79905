"""From one command to a changed voice at the far end, and again after the sound server was killed."""

import os
import subprocess
import time

import numpy as np
import psutil
import pytest
from desktop import Desktop
from numpy.typing import NDArray
from speaker import RATE_HZ, VOICED_HZ, pitch_of, speak

from myna.daemon.route.names import MICROPHONE, SINK
from tools.private_daemon import PrivateDaemon

pytestmark = pytest.mark.e2e


def hear(desktop: Desktop, seconds: float) -> NDArray[np.float32]:
    """What the virtual microphone delivers."""
    command = ["parec", "-d", MICROPHONE, "--raw", "--format=float32le", "--rate=48000", "--channels=1"]
    with subprocess.Popen(command, env=desktop.client, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as recorder:
        assert recorder.stdout is not None
        data = recorder.stdout.read(int(seconds * RATE_HZ) * 4)
        recorder.kill()
    return np.frombuffer(data[: len(data) // 4 * 4], np.float32)


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


def test_one_command_then_a_killed_server_then_nothing_left(desktop: Desktop, daemon: PrivateDaemon) -> None:
    expected_hz = VOICED_HZ * 2 ** (5 / 12)
    answer = daemon.myna("up", "--route", "--voice", "formant", "--pitch", "5", "--set", "block_ms=20")
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

    daemon.myna("down")
    daemon.myna("route", "remove")
    assert ours(desktop) == []
    left = [p.pid for p in psutil.process_iter(["environ"]) if (p.info["environ"] or {}).get("MYNA_STATE_DIR")]
    mine = [pid for pid in left if pid != os.getpid() and str(daemon.state_dir) in environ_of(pid)]
    assert mine == []


def environ_of(pid: int) -> str:
    """A process's state directory, or nothing if it has just ended."""
    try:
        return psutil.Process(pid).environ().get("MYNA_STATE_DIR", "")
    except psutil.Error:
        return ""
