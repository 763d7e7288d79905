"""Starts a daemon that outlives the command, and waits until it answers or says why not."""

import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import msgspec

from myna.control.client import Client
from myna.control.codec import Fault
from myna.control.connection import connection_file, is_alive, load_connection, private_dir, state_dir
from myna.control.contract import HelloReply
from myna.control.errors import CODES, Exit, MynaError

START_TIMEOUT_S = 20.0
_LOG = "start.log"  # what the daemon prints before its own log is open
# What `myna[daemon]` brings and the thin client lacks.
_NEEDED = ("numpy", "sounddevice", "soundfile", "soxr")


def require_daemon_package() -> None:
    """MynaError `missing_asset` with the command to run if only the thin client is installed."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise MynaError(
            "missing_asset",
            f"The daemon is not installed here ({', '.join(missing)} missing); run `pip install 'myna[daemon]'`.",
            missing=missing,
        )


def running_daemon(client: Client) -> HelloReply | None:
    """The daemon, if one answers. MynaError passes, but where starting one is the cure."""
    try:
        return client.hello()
    except MynaError as error:
        damaged = error.code == "config_invalid" and error.facts.get("path") == str(connection_file(state_dir()))
        if error.code != "unreachable" and not damaged:
            raise
        return None


def start_daemon(arguments: list[str]) -> None:
    """Start `mynad` with these arguments, detached, and wait for its connection file.

    Raises:
        MynaError: `missing_asset` (not installed), the daemon's own exit code with its last lines, or
            `timed_out`.
    """
    require_daemon_package()
    state = private_dir(state_dir())
    log = state / _LOG
    try:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    except OSError as error:
        raise MynaError("state_unwritable", f"{log} can't be written: {error.strerror}.", path=str(log)) from error
    command = [sys.executable, "-m", "myna.daemon", "--foreground", "--json", "--state-dir", str(state), *arguments]
    detach: dict[str, int | bool] = {"start_new_session": True}
    if sys.platform == "win32":
        detach = {"creationflags": subprocess.DETACHED_PROCESS | subprocess.CREATE_NEW_PROCESS_GROUP}
    try:
        process = subprocess.Popen(  # type: ignore[call-overload]
            command, stdin=subprocess.DEVNULL, stdout=handle, stderr=handle, close_fds=True, **detach
        )
    finally:
        os.close(handle)
    try:
        _wait(process, state, log)
    finally:
        process.returncode = process.returncode or 0  # it is meant to outlive us: no warning about that


def _wait(process: "subprocess.Popen[bytes]", state: Path, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        ended = process.poll()
        failure = None if ended is None else _failure(ended, log)
        if failure is not None and failure.code != "already_running":
            raise failure
        try:
            found = load_connection(connection_file(state))
            # Somebody else's, started at the same moment, is as good.
            if found.pid == process.pid or (failure is not None and is_alive(found)):
                return
        except MynaError as error:
            if error.code not in ("unreachable", "config_invalid"):  # a damaged one is about to be written anew
                raise
        time.sleep(0.01)
    if process.poll() is not None:
        raise _failure(process.returncode, log)
    process.terminate()
    raise MynaError(
        "timed_out",
        f"The daemon was not ready within {START_TIMEOUT_S:g} s and was ended. Its last lines: {_tail(log)}",
        log=str(log),
    )


def _failure(ended: int, log: Path) -> MynaError:
    """The daemon's end as the error it told, or as one with the same exit code."""
    told = _told(log)
    if told is not None:
        return told
    codes: dict[int, str] = {
        int(Exit.USAGE): "config_invalid",
        int(Exit.BUSY): "already_running",
        int(Exit.NOT_ALLOWED): "not_allowed",
    }
    known = codes.get(ended) or next((code for code, number in CODES.items() if number == ended), "failed")
    code = known if known not in ("internal", "interrupted") else "failed"
    return MynaError(
        code,
        f"The daemon did not start (exit code {ended}). Its last lines: {_tail(log)}",
        exit_code=ended,
        log=str(log),
    )


class _Told(msgspec.Struct):
    """What `mynad --json` prints when it can't start."""

    ok: bool
    error: Fault


def _told(log: Path) -> MynaError | None:
    """The error that the daemon printed as its last words."""
    for text in reversed(_tail(log).splitlines()):
        try:
            return msgspec.json.decode(text, type=_Told).error.error()
        except msgspec.MsgspecError:
            continue
    return None


def _tail(log: Path, lines: int = 12) -> str:
    try:
        text = log.read_text(errors="replace").strip()
    except OSError:
        text = ""
    return "\n".join(text.splitlines()[-lines:]) or "(it printed nothing)"
