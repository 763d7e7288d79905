"""`myna down`: the live session and the daemon end."""

import contextlib
import os
import signal
import sys
import time
from typing import Annotated

import typer

from myna.control.cli import output
from myna.control.cli.options import Json, connect
from myna.control.connection import Connection, is_alive, read_connection
from myna.control.contract import Empty, Shutdown
from myna.control.errors import MynaError

END_TIMEOUT_S = 30.0


def down(
    force: Annotated[
        bool, typer.Option("--force", help="Do not wait for jobs; kill a daemon that does not answer.")
    ] = False,
    as_json: Json = False,
) -> None:
    """End the live session and the daemon; nothing to do is no error."""
    with connect() as client:
        try:
            connection = client.connection
            client.call("shutdown", Shutdown(force=force), Empty)
        except MynaError as error:
            if error.code == "unreachable" and not _lives():
                _tell(as_json, False, "no daemon was running")
                return
            if not force or error.code not in ("unreachable", "timed_out"):
                raise
            connection = read_connection()
            _signal(connection, signal.SIGTERM)
    if not _gone(connection, END_TIMEOUT_S if not force else 5.0):
        if not force:
            raise MynaError(
                "timed_out",
                "The daemon still finishes its work; ask again later, or end it with `myna down --force`.",
                pid=connection.pid,
            )
        _signal(connection, signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)
        if not _gone(connection, 5.0):
            raise MynaError("failed", f"Process {connection.pid} can't be ended.", pid=connection.pid)
    _tell(as_json, True, "the daemon has ended")


def _lives() -> bool:
    """Whether the connection file's process is there, answering or not."""
    try:
        return read_connection().pid is not None
    except MynaError as error:
        if error.code != "unreachable":
            raise
        return False


def _tell(as_json: bool, stopped: bool, words: str) -> None:
    if as_json:
        output.print_json({"stopped": stopped, "detail": words})
    else:
        output.line(words)


def _gone(connection: Connection, seconds: float) -> bool:
    """Wait for the process to end; a daemon elsewhere is taken at its word."""
    if connection.pid is None:
        return True
    deadline = time.monotonic() + seconds
    while is_alive(connection):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _signal(connection: Connection, number: signal.Signals) -> None:
    """Signal that very process: the start time tells it from another that got its id."""
    if connection.pid is not None and is_alive(connection):
        with contextlib.suppress(ProcessLookupError):
            os.kill(connection.pid, number)
