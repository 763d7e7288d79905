"""A real daemon whose session goes from nowhere to nowhere, for soaks that need no sound device."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from myna.control.client import Client
from myna.control.contract import LiveDevices, LiveStart, SessionRef, SessionStatus
from myna.control.errors import MynaError
from tools.private_daemon import PrivateDaemon, first

WITHIN_S = 60.0


class NullSession:
    """Runs a daemon in a folder, and ends it with the `with` block."""

    def __init__(self, folder: Path) -> None:
        self._daemon = PrivateDaemon(folder)
        self.supervisor = psutil.Process(self._daemon.start().pid)
        self.client = Client(state_dir=self._daemon.state_dir, name="soak")

    def start(self) -> SessionStatus:
        """Start the session, or start it anew; it goes at the clock's pace."""
        return self.client.call(
            "live.start",
            LiveStart(voice="deep", devices=LiveDevices(input="null", output="null"), settings={"block_ms": 40.0}),
            SessionStatus,
        )

    def status(self) -> SessionStatus:
        """Its status."""
        return self.client.call("live.state", SessionRef(), SessionStatus)

    def until(self, condition: Callable[[SessionStatus], bool]) -> SessionStatus:
        """The first status that fulfils `condition`. TimeoutError after a minute."""
        return first(self.status, condition, WITHIN_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(MynaError):
            self.client.close()
        self._daemon.stop()
