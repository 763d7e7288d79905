"""A real `mynad` with folders of its own and no sound device, for soaks that need none."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from myna.control.client import Client
from myna.control.contract import LiveDevices, LiveStart, SessionRef, SessionStatus
from myna.control.errors import MynaError

READY = "mynad ready pid="
WITHIN_S = 60.0
LOOK_S = 0.02
LIVE = ("running", "degraded")


class RealDaemon:
    """Starts it, and ends it with the `with` block."""

    def __init__(self, folder: Path) -> None:
        self._env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("MYNA_")},
            "MYNA_STATE_DIR": str(folder / "state"),
            "MYNA_CONFIG": str(folder / "settings.toml"),
            "MYNA_RUNTIME_DIR": str(folder / "r"),
            "PULSE_SERVER": str(folder / "none"),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "myna.daemon", "--foreground"], env=self._env, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith(READY):
            self._process.kill()
            self._process.wait()
            raise RuntimeError(f"mynad did not start: {line!r}")
        self.pid = self._process.pid
        self.client = Client(state_dir=folder / "state", name="soak")

    def start_live(self) -> SessionStatus:
        """A session from nowhere to nowhere, at the clock's pace."""
        return self.client.call(
            "live.start",
            LiveStart(voice="deep", devices=LiveDevices(input="null", output="null"), settings={"block_ms": 40.0}),
            SessionStatus,
        )

    def session(self) -> SessionStatus:
        """Its status."""
        return self.client.call("live.state", SessionRef(), SessionStatus)

    def until(self, condition: Callable[[SessionStatus], bool]) -> SessionStatus:
        """The first status that fulfils `condition`. TimeoutError after a minute."""
        deadline = time.monotonic() + WITHIN_S
        while not condition(status := self.session()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the session never came there: {status}")
            time.sleep(LOOK_S)
        return status

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(MynaError):
            self.client.close()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(20.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
