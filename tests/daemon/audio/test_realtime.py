"""A sound library's thread that spins at real-time priority loses it; one that rests keeps it."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from myna.daemon.audio.realtime import PRIORITY, Spinning

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="no real-time priority is asked for on this platform")


@contextmanager
def thread_at_priority(work: Callable[[], object]) -> Iterator[int]:
    """The id of a thread that does this over and over at a sound library's priority."""
    born: list[int] = []
    ended = threading.Event()
    ready = threading.Event()

    def run() -> None:
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
            born.append(threading.get_native_id())
        except OSError:
            pass
        ready.set()
        while born and not ended.is_set():
            work()

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait()
    try:
        if not born:
            pytest.skip("this user may not have real-time priority")
        yield born[0]
    finally:
        ended.set()
        thread.join()


def test_a_spinning_thread_loses_its_priority() -> None:
    spinning = Spinning()
    with thread_at_priority(lambda: sum(range(10_000))) as thread:
        deadline = time.monotonic() + 30.0
        while not spinning.look():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert os.sched_getscheduler(thread) == os.SCHED_OTHER


def test_a_thread_that_waits_keeps_it() -> None:
    now = [0.0]
    spinning = Spinning(lambda: now[0])
    with thread_at_priority(lambda: time.sleep(0.01)) as thread:
        for _ in range(20):
            now[0] += 1.0
            assert spinning.look() == 0
        assert os.sched_getscheduler(thread) == os.SCHED_FIFO
