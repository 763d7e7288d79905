"""A `mynad` with folders of its own and the `myna` that drives it, beside whatever daemon the user runs."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

LIVE = ("running", "degraded")
"""States of a session that converts."""

READY = "mynad ready pid="
COMMAND_S = 60.0
STOP_S = 20.0
LOOK_S = 0.02

Status = TypeVar("Status")


class Unexpected(Exception):
    """A daemon or a command did something else than it should; the message says what."""


class PrivateDaemon:
    """Keeps state, settings and sockets in one folder, and ends with its `with` block, however it was started."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None, **variables: str) -> None:
        """Start nothing yet: `start` does so, or `myna("up")`.

        Args:
            folder: Takes all that the daemon writes.
            environment: One in which a sound server is found; None: this process's own, without any.
            variables: What is added to it.
        """
        if environment is None:
            environment = {**os.environ, "PULSE_SERVER": str(folder / "none")}
        self.state_dir = folder / "state"
        self.env = {
            **{name: value for name, value in environment.items() if not name.startswith("MYNA_")},
            "MYNA_STATE_DIR": str(self.state_dir),
            "MYNA_CONFIG": str(folder / "settings.toml"),
            "MYNA_RUNTIME_DIR": str(folder / "r"),
            **variables,
        }
        self._process: subprocess.Popen[str] | None = None

    def start(self, *arguments: str, **variables: str) -> "subprocess.Popen[str]":
        """Run it in the foreground, these variables added, and wait until it is ready. Unexpected if it is not."""
        process = subprocess.Popen(
            [sys.executable, "-m", "myna.daemon", "--foreground", *arguments],
            env={**self.env, **variables},
            stdout=subprocess.PIPE,
            text=True,
        )
        self._process = process
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith(READY):
            raise Unexpected(f"mynad said {line!r} and ended with {self.stop()}")
        return process

    def stop(self) -> int:
        """Ask what `start` made to end; its exit code, that of a kill if it does not end in time."""
        process, self._process = self._process, None
        if process is None:
            raise Unexpected("no mynad was started here")
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        if process.stdout is not None:
            process.stdout.close()
        return code

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a `myna` command that answers in JSON."""
        return subprocess.run(
            [sys.executable, "-m", "myna.control.cli", *arguments, "--json"],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )

    def myna(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        """What a command answers. Unexpected if it ends with another exit code."""
        done = self.run(*arguments)
        if done.returncode != code:
            raise Unexpected(f"myna {' '.join(arguments)} ended with {done.returncode}: {done.stdout}{done.stderr}")
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def session(self) -> dict[str, Any]:
        """Status of the session."""
        return self.myna("live", "state")

    def until(self, condition: Callable[[dict[str, Any]], bool], timeout_s: float) -> dict[str, Any]:
        """The first status that fulfils `condition`. TimeoutError with the last one."""
        return first(self.session, condition, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.stop()
        else:
            self.run("down")  # refused if nothing runs


def first(look: Callable[[], Status], condition: Callable[[Status], bool], timeout_s: float) -> Status:
    """The first that `look` finds of which `condition` is true. TimeoutError with the last one."""
    deadline = time.monotonic() + timeout_s
    while not condition(found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"it did not come to that within {timeout_s:g} s: {found}")
        time.sleep(LOOK_S)
    return found
