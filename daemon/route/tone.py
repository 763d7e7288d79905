"""Proves a virtual microphone: a tone is played into its sink and looked for in its source."""

import math
import os
import select
import subprocess
import time

import numpy as np
from numpy.typing import NDArray

from myna.daemon.route.names import MICROPHONE, RATE_HZ, SINK
from myna.daemon.route.programs import installed
from myna.daemon.route.state import Proof

TONE_HZ = 997.0
TONE_DB = -40.0  # quiet: nobody is to be startled by a check
LENGTH_S = 1.0
WINDOW_S = 0.2
NEEDED_SNR_DB = 20.0
DEADLINE_S = 5.0


def tone() -> NDArray[np.float32]:
    """The tone, mono, faded at both ends so that it makes no click."""
    t = np.arange(int(LENGTH_S * RATE_HZ)) / RATE_HZ
    edge = int(0.02 * RATE_HZ)
    envelope = np.ones(t.size)
    envelope[:edge] = np.linspace(0.0, 1.0, edge)
    envelope[-edge:] = envelope[edge - 1 :: -1]
    return (10 ** (TONE_DB / 20) * envelope * np.sin(2 * np.pi * TONE_HZ * t)).astype(np.float32)


def find_tone(signal: NDArray[np.float32]) -> Proof:
    """Look for the tone in what was recorded, shape (frames,), at RATE_HZ.

    The best window counts: the tone's power against all other power in the window.
    """
    length = int(WINDOW_S * RATE_HZ)
    window = np.hanning(length)
    energy = float(window @ window)
    best: tuple[float, float] | None = None
    centre = round(TONE_HZ * length / RATE_HZ)
    for start in range(0, len(signal) - length + 1, length // 2):
        power = np.abs(np.fft.rfft(signal[start : start + length] * window)) ** 2
        # A Hann window spreads a tone over two bins to each side.
        inside = float(power[centre - 3 : centre + 4].sum())
        outside = max(float(power.sum()) - inside, 1e-20)
        snr_db = 10 * math.log10(max(inside, 1e-20) / outside)
        # A sine of amplitude a has a²/4 · length · Σ window² on its side of the spectrum.
        level_db = 10 * math.log10(max(4 * inside / (length * energy), 1e-20))
        if best is None or snr_db > best[0]:
            best = (snr_db, level_db)
    if best is None or best[0] < NEEDED_SNR_DB or best[1] < TONE_DB - 40:
        return Proof(reason="no_signal")
    return Proof(reason="ok", snr_db=round(best[0], 1), level_db=round(best[1], 1))


def prove(listeners: int) -> Proof:
    """Send the tone through the running server. Not while others record the microphone: they would hear it."""
    if listeners:
        return Proof(reason="in_use")
    if not installed("pacat", "parec"):
        return Proof(reason="no_tools")
    options = ["--raw", "--format=float32le", f"--rate={RATE_HZ}", "--channels=2", "--latency-msec=20"]
    names = ["--client-name=myna route", "--stream-name=check"]
    # Never moved: a check must not be heard through loudspeakers if the sink vanishes under it.
    environment = {**os.environ, "LC_ALL": "C", "PULSE_PROP": "node.dont-reconnect=true"}
    recorder = subprocess.Popen(
        ["parec", "-d", MICROPHONE, *options, *names],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment,
    )  # fmt: skip
    player: subprocess.Popen[bytes] | None = None
    try:
        deadline = time.monotonic() + DEADLINE_S
        heard = _read(recorder, 1, deadline)  # the microphone delivers: now the tone can't be missed
        if not heard:
            return Proof(reason="not_there" if recorder.poll() is not None else "no_signal")
        player = subprocess.Popen(
            ["pacat", "-d", SINK, *options, *names],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment,
        )  # fmt: skip
        assert player.stdin is not None
        try:
            player.stdin.write(np.repeat(tone(), 2).tobytes())
            player.stdin.close()
        except BrokenPipeError:
            return Proof(reason="not_there")
        frame = 2 * 4
        wanted = int((LENGTH_S + 0.5) * RATE_HZ) * frame
        data = _read(recorder, wanted, deadline)
        return find_tone(np.frombuffer(data[: len(data) // frame * frame], np.float32)[::2])
    finally:
        for process in (player, recorder):
            if process is not None:
                process.kill()
                for stream in (process.stdin, process.stdout):
                    if stream is not None and not stream.closed:
                        stream.close()
                process.wait()


def _read(process: "subprocess.Popen[bytes]", count: int, deadline: float) -> bytes:
    """At least `count` bytes of a process's output; fewer if it ends or the deadline passes."""
    assert process.stdout is not None
    handle = process.stdout.fileno()
    data = b""
    while len(data) < count and (left := deadline - time.monotonic()) > 0:
        ready, _, _ = select.select([handle], [], [], left)
        chunk = os.read(handle, 65536) if ready else b""
        if not chunk:
            break
        data += chunk
    return data
