"""A browser as the far end: it lists Myna among its microphones and records what is played into it."""

import contextlib
import http.server
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from desktop import Desktop
from numpy.typing import NDArray
from speaker import RATE_HZ, VOICED_HZ, pitch_of, speak

from tools.private_daemon import PrivateDaemon

pytestmark = pytest.mark.e2e

PAGE = Path(__file__).with_name("microphone.html")
TONE_HZ = 997.0
# Long enough for a suite; `MYNA_BROWSER_SECONDS=60` proves it over a minute.
SECONDS = float(os.environ.get("MYNA_BROWSER_SECONDS", "5"))


class Far:
    """The page's server, which takes in what the page posts."""

    def __init__(self) -> None:
        self.posted: queue.Queue[tuple[str, bytes]] = queue.Queue()
        posted = self.posted

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.end_headers()
                self.wfile.write(PAGE.read_bytes())

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(204)
                self.end_headers()
                posted.put((self.path, body))

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        # Only localhost and https may record.
        self.url = f"http://localhost:{self._server.server_port}/?seconds={SECONDS:g}"

    def take(self, path: str, within_s: float = 60.0) -> tuple[str, bytes]:
        """The next thing that the page posts, which has to begin like this: the rest of its path, its body."""
        got, body = self.posted.get(timeout=within_s)
        assert got.startswith(path), body[:500].decode(errors="replace")
        return got.removeprefix(path), body

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextlib.contextmanager
def browsing(desktop: Desktop) -> Iterator[Far]:
    """A browser at the page."""
    server = Far()
    options = [
        "--headless=new", "--no-sandbox", "--use-fake-ui-for-media-stream", "--no-first-run", "--disable-gpu",
        f"--user-data-dir={desktop.folder}/browser",
    ]  # fmt: skip
    with subprocess.Popen(
        [chromium(), *options, server.url],
        env=desktop.client,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as browser:
        try:
            yield server
        finally:
            browser.terminate()
            browser.wait(timeout=20)
            server.close()


def chromium() -> str:
    """Its program; skips aloud where there is none."""
    program = next((found for name in ("chromium", "chromium-browser") if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("Chromium not installed (python3 tools/dev.py setup --browser)")
    return program


def recorded(far: Far) -> tuple[int, NDArray[np.float32]]:
    """The rate in Hz and the sound that the page records from the one microphone named Myna."""
    labels = json.loads(far.take("/microphones")[1])
    assert labels.count("Myna") == 1
    assert not any(label.startswith("Monitor") for label in labels), labels
    rate, data = far.take("/recording/", SECONDS + 60.0)
    return int(rate), np.frombuffer(data, np.float32)


# The browser, the player and the server slip too on a busy machine: then it is recorded again.
TRIES = 3


def test_it_lists_and_records_the_microphone(desktop: Desktop) -> None:
    chromium()
    desktop.run(sys.executable, "-m", "myna.daemon.route", "create")
    tone = 0.1 * np.sin(2 * np.pi * TONE_HZ * np.arange(int((SECONDS + 60) * RATE_HZ)) / RATE_HZ)
    play = ["pacat", "-d", "myna_sink", "--raw", "--format=float32le", "--rate=48000", "--channels=1"]
    with (
        browsing(desktop) as far,
        subprocess.Popen(play, env=desktop.client, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as player,
    ):
        assert player.stdin is not None
        feeder = threading.Thread(target=feed, args=(player.stdin.fileno(), tone.astype(np.float32).tobytes()))
        feeder.start()
        rate_hz, heard = recorded(far)
        player.kill()
        feeder.join()
    assert slips(heard[rate_hz // 2 :], rate_hz) == 0
    assert np.abs(heard[rate_hz:]).max() == pytest.approx(0.1, rel=0.5)


def test_it_records_the_converted_voice_after_one_command(desktop: Desktop, daemon: PrivateDaemon) -> None:
    chromium()
    daemon.myna("up", "--route", "--voice", "formant", "--pitch", "5", "--set", "block_ms=20")
    speaker = speak(desktop, desktop.folder, TRIES * (SECONDS + 60))
    found = []
    try:
        for _ in range(TRIES):
            with browsing(desktop) as far:
                before = daemon.session()
                rate_hz, heard = recorded(far)
                after = daemon.session()
            slipped = after["xruns"] - before["xruns"]
            found.append((gaps(heard[rate_hz:], rate_hz, VOICED_HZ * 2 ** (5 / 12)), slipped))
            if found[-1][0] == 0:
                break
    finally:
        speaker.kill()
        speaker.wait()
    print("gaps, and slips that the session counted", found)
    assert found[-1][0] == 0, found
    daemon.myna("down")
    daemon.myna("route", "remove")
    assert "Myna" not in desktop.run("pactl", "list").stdout


def gaps(signal: NDArray[np.float32], rate_hz: int, expected_hz: float) -> int:
    """Stretches of a held voice that are silent for 5 ms or more, or have another pitch (within 3 %)."""
    step = rate_hz // 200
    power = np.square(signal[: signal.size // step * step].reshape(-1, step)).mean(axis=1)
    silent = power < 0.01 * np.median(power)
    wrong = np.zeros_like(silent)
    frame = rate_hz // 20
    for at in range(0, signal.size - frame, frame):
        found = pitch_of(signal[at : at + frame], rate_hz)
        if found is None or abs(found / expected_hz - 1) > 0.03:
            wrong[at // step : (at + frame) // step] = True
    bad = silent | wrong
    return int(np.count_nonzero(np.diff(bad.astype(np.int8)) > 0) + bad[0])


def feed(handle: int, data: bytes) -> None:
    """Write until the player has gone."""
    try:
        while data:
            data = data[os.write(handle, data) :]
    except BrokenPipeError:
        pass


def slips(signal: NDArray[np.float32], rate_hz: int) -> int:
    """Places where the tone's phase jumps or its level drops, in windows of 10 ms.

    Two clocks a few hundred ppm apart turn the phase by far less than the 0.3 rad a window that counts here.
    """
    step = rate_hz // 100
    frames = signal[: signal.size // step * step].reshape(-1, step)
    turning = np.exp(-2j * np.pi * TONE_HZ * np.arange(frames.size) / rate_hz).reshape(frames.shape)
    value = (frames * turning).mean(axis=1)
    jumps = np.abs(np.angle(value[1:] / value[:-1]))
    return int((jumps > 0.3).sum() + (np.abs(value) < 0.5 * np.median(np.abs(value))).sum())
