"""A real daemon under a socket that stands for systemd: ready, alive while its loop moves, stopping."""

import contextlib
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tools.private_daemon import LIVE, PrivateDaemon

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(sys.platform != "linux", reason="systemd is Linux's")]

WATCHDOG_S = 2.0


class Managed:
    """A daemon that was started as systemd would start it, and what it told."""

    def __init__(self, folder: Path) -> None:
        self.told: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(folder / "n"))
        self._socket.settimeout(0.05)
        self.daemon = PrivateDaemon(folder)
        self.process = self.daemon.start(NOTIFY_SOCKET=str(folder / "n"), WATCHDOG_USEC=str(int(WATCHDOG_S * 1e6)))

    def until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Take in what it tells until a condition holds."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, self.told
            self.listen()

    def listen(self) -> None:
        """Take in one message, if one comes within a moment."""
        with contextlib.suppress(TimeoutError):
            self.told += self._socket.recv(4096).decode().split("\n")

    def listen_for(self, seconds: float) -> list[str]:
        """What it tells within a while."""
        self.told.clear()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.listen()
        return list(self.told)

    def close(self) -> None:
        """End it, if it has not ended."""
        self.daemon.stop()
        self._socket.close()


@pytest.fixture
def managed() -> Iterator[Managed]:
    with tempfile.TemporaryDirectory(prefix="myna-") as folder:
        daemon = Managed(Path(folder))
        try:
            yield daemon
        finally:
            daemon.close()


def test_ready_alive_frozen_alive_again_stopping(managed: Managed) -> None:
    managed.until(lambda: "READY=1" in managed.told, 30)
    assert f"MAINPID={managed.process.pid}" in managed.told
    managed.until(lambda: managed.told.count("WATCHDOG=1") >= 2, 30)

    session = managed.daemon.myna("live", "start", "--input", "null", "--output", "null", "--voice", "formant")
    assert session["state"] in LIVE
    managed.told.clear()
    managed.until(lambda: managed.told.count("WATCHDOG=1") >= 2, 30)

    os.kill(session["pid"], signal.SIGSTOP)
    try:
        managed.listen_for(WATCHDOG_S)  # one more may be under way
        assert "WATCHDOG=1" not in managed.listen_for(WATCHDOG_S)
    finally:
        os.kill(session["pid"], signal.SIGCONT)
    managed.told.clear()
    managed.until(lambda: "WATCHDOG=1" in managed.told, 30)

    managed.told.clear()
    managed.process.send_signal(signal.SIGTERM)
    managed.until(lambda: "STOPPING=1" in managed.told, 30)
    assert managed.process.wait(timeout=30) == 0
