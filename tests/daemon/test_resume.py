"""A session that was live is live again after the daemon's end, and waits for a device that is not there yet."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


class Daemon:
    """A real `mynad` in the foreground, without any sound device."""

    def __init__(self, folder: Path) -> None:
        self.env = {
            **os.environ,
            "MYNA_STATE_DIR": str(folder / "state"),
            "MYNA_CONFIG": str(folder / "settings.toml"),
            "MYNA_RUNTIME_DIR": str(folder / "r"),
            "PULSE_SERVER": str(folder / "none"),
        }
        self.process: subprocess.Popen[str] | None = None

    def start(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "myna.daemon", "--foreground", *arguments],
            env=self.env,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith("mynad ready pid=")

    def stop(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(20) == 0
        self.process.stdout.close()

    def myna(self, *arguments: str) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "myna.control.cli", *arguments, "--json"],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def until(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = time.monotonic() + 30
        while not condition(status := self.myna("live", "state")):
            assert time.monotonic() < deadline, status
            time.sleep(0.05)
        return status


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    made = Daemon(tmp_path)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.process.kill()
        made.process.wait()
    if made.process is not None and made.process.stdout is not None:
        made.process.stdout.close()


def test_what_was_live_is_live_again_with_its_settings(daemon: Daemon) -> None:
    daemon.start()
    daemon.myna("live", "start", "--voice", "deep", "--set", "pitch=-3", "--input", "null", "--output", "null")
    daemon.until(lambda s: s["state"] in ("running", "degraded"))
    daemon.stop()
    daemon.start("--resume")
    status = daemon.until(lambda s: s["state"] in ("running", "degraded"))
    assert (status["voice"], status["settings"]["pitch"], status["input"]) == ("deep", -3.0, "null")
    daemon.myna("live", "stop")
    daemon.stop()
    daemon.start("--resume")  # it was stopped before the end, so it stays stopped
    assert daemon.myna("live", "state")["state"] == "stopped"
    daemon.stop()


def test_a_resumed_session_waits_for_its_device(daemon: Daemon, tmp_path: Path) -> None:
    daemon.start()
    daemon.myna("live", "start", "--input", "null", "--output", "null")
    daemon.until(lambda s: s["state"] in ("running", "degraded"))
    daemon.stop()
    kept = tmp_path / "state" / "sessions" / "main.json"
    session = json.loads(kept.read_text())
    session["devices"]["input"] = "a microphone that is unplugged"
    kept.write_text(json.dumps(session))
    daemon.start("--resume")
    status = daemon.until(lambda s: s["state"] == "reconnecting")
    assert "a microphone that is unplugged" in status["stop_reason"]
    daemon.stop()


def test_a_second_daemon_is_refused(daemon: Daemon) -> None:
    daemon.start()
    second = subprocess.run(
        [sys.executable, "-m", "myna.daemon", "--foreground", "--json"],
        env=daemon.env,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert second.returncode == 5
    assert json.loads(second.stdout)["error"]["code"] == "already_running"
    assert daemon.myna("status")["pid"] > 0
    daemon.stop()
