"""A browser as the far end: it lists Myna among its microphones and records what is played into it."""

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

pytestmark = pytest.mark.e2e

PAGE = Path(__file__).with_name("microphone.html")
SECONDS = 3
RATE_HZ, TONE_HZ = 48_000, 997.0


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
        self.url = f"http://localhost:{self._server.server_port}/?seconds={SECONDS}"

    def take(self, path: str) -> tuple[str, bytes]:
        """The next thing that the page posts, which has to begin like this: the rest of its path, its body."""
        got, body = self.posted.get(timeout=60)
        assert got.startswith(path), body[:500].decode(errors="replace")
        return got.removeprefix(path), body

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def far(desktop: Desktop) -> Iterator[Far]:
    program = next((found for name in ("chromium", "chromium-browser") if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("Chromium not installed (python3 tools/dev.py setup --browser)")
    desktop.run(sys.executable, "-m", "myna.daemon.route", "create")
    server = Far()
    options = [
        "--headless=new", "--no-sandbox", "--use-fake-ui-for-media-stream", "--no-first-run", "--disable-gpu",
        f"--user-data-dir={desktop.folder}/browser",
    ]  # fmt: skip
    with subprocess.Popen(
        [program, *options, server.url],
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


def test_it_lists_and_records_the_microphone(desktop: Desktop, far: Far) -> None:
    tone = 0.1 * np.sin(2 * np.pi * TONE_HZ * np.arange(40 * RATE_HZ) / RATE_HZ)
    play = ["pacat", "-d", "myna_sink", "--raw", "--format=float32le", "--rate=48000", "--channels=1"]
    with subprocess.Popen(play, env=desktop.client, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as player:
        assert player.stdin is not None
        feeder = threading.Thread(target=feed, args=(player.stdin.fileno(), tone.astype(np.float32).tobytes()))
        feeder.start()
        labels = json.loads(far.take("/microphones")[1])
        assert labels.count("Myna") == 1
        assert not any(label.startswith("Monitor") for label in labels), labels
        rate, data = far.take("/recording/")
        rate_hz, heard = int(rate), np.frombuffer(data, np.float32)
        player.kill()
        feeder.join()
    assert slips(heard[rate_hz // 2 :], rate_hz) == 0
    assert np.abs(heard[rate_hz:]).max() == pytest.approx(0.1, rel=0.5)


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
