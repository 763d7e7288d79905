"""The notify socket, with a real socket that stands for systemd, and when the watchdog is fed."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from myna.daemon.service.notify import Notifier, Watchdog


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    monkeypatch.chdir(tmp_path)  # socket names are short, temporary folders' are not
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.settimeout(2.0)
        listening.bind("n")
        yield listening


@pytest.fixture
def notifier(manager: socket.socket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notifier]:
    made = Notifier({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())})
    monkeypatch.setattr(made, "_address", "n")
    yield made
    made.close()


def told(manager: socket.socket) -> list[str]:
    return manager.recv(4096).decode().split("\n")


def test_the_life_of_a_daemon(manager: socket.socket, notifier: Notifier) -> None:
    assert notifier.listening
    assert notifier.watchdog_s == 30.0
    notifier.ready("live with formant")
    assert told(manager) == ["READY=1", f"MAINPID={os.getpid()}", "STATUS=live with formant"]
    notifier.status("two\nlines")
    assert told(manager) == ["STATUS=two lines"]
    notifier.alive()
    assert told(manager) == ["WATCHDOG=1"]
    notifier.stopping("draining")
    assert told(manager) == ["STOPPING=1", "STATUS=draining"]


def test_a_manager_that_does_not_read_is_not_waited_for(manager: socket.socket, notifier: Notifier) -> None:
    for _ in range(5000):
        notifier.alive()
    manager.setblocking(False)
    kept = 0
    with contextlib.suppress(BlockingIOError):
        while manager.recv(4096) == b"WATCHDOG=1":
            kept += 1
    assert 0 < kept < 5000  # the rest was lost rather than waited with
    notifier.alive()
    assert told(manager) == ["WATCHDOG=1"]


def test_a_manager_that_is_gone_is_no_error(manager: socket.socket, notifier: Notifier) -> None:
    manager.close()
    notifier.ready("x")
    notifier.close()
    notifier.alive()
    assert not notifier.listening


def test_an_abstract_socket() -> None:
    name = f"myna-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        try:
            listening.bind("\0" + name)
        except OSError:
            pytest.skip("this system has no abstract sockets")
        listening.settimeout(2.0)
        notifier = Notifier({"NOTIFY_SOCKET": "@" + name})
        notifier.alive()
        notifier.close()
        assert told(listening) == ["WATCHDOG=1"]


@pytest.mark.parametrize("environment", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1"}])
def test_without_a_manager_nothing_happens(environment: dict[str, str]) -> None:
    notifier = Notifier(environment | {"WATCHDOG_USEC": "30000000"})
    notifier.ready("x")
    notifier.alive()
    assert not notifier.listening
    assert notifier.watchdog_s is None


@pytest.mark.parametrize(
    ("limit", "owner", "expected"),
    [("30000000", None, 30.0), ("30000000", "1", None), ("0", None, None), ("x", None, None), (None, None, None)],
)
def test_the_watchdogs_limit(manager: socket.socket, limit: str | None, owner: str | None, expected: float) -> None:
    given = {"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": limit, "WATCHDOG_PID": owner}
    notifier = Notifier({key: value for key, value in given.items() if value is not None})
    assert notifier.watchdog_s == expected
    notifier.close()


def feeds(watchdog: Watchdog, beats: list[int | None], step_s: float = 1.0) -> list[int]:
    """At which steps the watchdog was fed."""
    return [step for step, beat in enumerate(beats) if watchdog.due(step * step_s, beat)]


def test_it_is_fed_at_half_the_limit_while_the_loop_moves() -> None:
    assert feeds(Watchdog(10.0), list(range(21))) == [0, 5, 10, 15, 20]


def test_a_frozen_loop_starves_it_and_a_moving_one_feeds_it_again() -> None:
    beats: list[int | None] = [*range(7), *[6] * 20, 7, 8]
    assert feeds(Watchdog(10.0), beats) == [0, 5, 10, 27]


def test_a_loop_frozen_at_its_last_feed_is_never_fed_again() -> None:
    assert feeds(Watchdog(10.0), [3] * 40) == [0]


def test_without_a_loop_the_supervisor_alone_feeds_it() -> None:
    assert feeds(Watchdog(10.0), [None] * 11) == [0, 5, 10]
    assert feeds(Watchdog(None), [None] * 11) == []
