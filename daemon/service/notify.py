"""Tells systemd how the daemon fares (sd_notify), and decides when its watchdog may be fed."""

import contextlib
import os
import socket
from collections.abc import Hashable, Mapping


class Notifier:
    """Datagrams to the socket that systemd names in NOTIFY_SOCKET; does nothing where there is none.

    Never blocks and never raises: a manager that does not listen must not stop the daemon.

    Source: sd_notify(3).
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """Read NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID from `environment` (None: the process's own)."""
        known = os.environ if environment is None else environment
        self._address = _address(known.get("NOTIFY_SOCKET", ""))
        self._watchdog_s = _watchdog_s(known) if self._address else None
        self._socket: socket.socket | None = None
        if self._address is not None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)

    @property
    def listening(self) -> bool:
        """Whether a service manager asked to be told."""
        return self._socket is not None

    @property
    def watchdog_s(self) -> float | None:
        """Seconds of silence after which the manager kills this process; None without a watchdog."""
        return self._watchdog_s

    def ready(self, status: str) -> None:
        """The daemon serves. `status` is one line for `systemctl status`."""
        self._send("READY=1", f"MAINPID={os.getpid()}", f"STATUS={_line(status)}")

    def status(self, status: str) -> None:
        """What the daemon does now, in one line."""
        self._send(f"STATUS={_line(status)}")

    def alive(self) -> None:
        """Feed the watchdog."""
        self._send("WATCHDOG=1")

    def stopping(self, status: str) -> None:
        """The daemon has begun to end."""
        self._send("STOPPING=1", f"STATUS={_line(status)}")

    def close(self) -> None:
        """Let go of the socket; later calls do nothing."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, *fields: str) -> None:
        if self._socket is None or self._address is None:
            return
        with contextlib.suppress(OSError):  # full, or nobody there any more
            self._socket.sendto("\n".join(fields).encode(), self._address)


def _address(name: str) -> str | None:
    """A path, or an abstract name (`@…`, for the kernel a zero byte); None for anything else."""
    if not hasattr(socket, "AF_UNIX") or not name.startswith(("/", "@")):
        return None
    return "\0" + name[1:] if name.startswith("@") else name


def _watchdog_s(environment: Mapping[str, str]) -> float | None:
    owner = environment.get("WATCHDOG_PID")
    limit = environment.get("WATCHDOG_USEC", "")
    if (owner is not None and owner != str(os.getpid())) or not limit.isdigit() or int(limit) == 0:
        return None
    return int(limit) / 1e6


def _line(text: str) -> str:
    return " ".join(text.split())


class Watchdog:
    """When to feed systemd's watchdog: at half its limit, and only while the audio loop moves. Pure.

    `heartbeat` is whatever changes with every turn of the loop, such as its count of blocks; None while no loop is to
    run. A frozen loop thus ends in a restart by the manager, although the supervisor still answers.
    """

    def __init__(self, limit_s: float | None) -> None:
        """`limit_s` as `Notifier.watchdog_s` tells it; None: never."""
        self._interval_s = None if limit_s is None else limit_s / 2
        self._fed_at: float | None = None
        self._seen: Hashable = None

    def due(self, now_s: float, heartbeat: Hashable) -> bool:
        """Whether to feed it now; called at any rate, at least four times within the limit."""
        if self._interval_s is None:
            return False
        if self._fed_at is not None and now_s - self._fed_at < self._interval_s:
            return False
        if heartbeat is not None and heartbeat == self._seen:
            return False
        self._fed_at = now_s
        self._seen = heartbeat
        return True
