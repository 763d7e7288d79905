"""Work beside the caller's: its result, its errors, and its priority."""

import os
import sys
import threading
from collections.abc import Iterator

import pytest

from myna.engines.rvc.beside import Beside


@pytest.fixture
def beside() -> Iterator[Beside]:
    """A helper, ended afterwards."""
    made = Beside("helper")
    yield made
    made.close()


def test_work_runs_on_one_other_thread(beside: Beside) -> None:
    threads = {beside.start(threading.get_ident).result() for _ in range(3)}
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_an_error_comes_back_to_who_asks(beside: Beside) -> None:
    def fails() -> None:
        raise ValueError("no pitch")

    with pytest.raises(ValueError, match="no pitch"):
        beside.start(fails).result()
    assert beside.start(lambda: 3).result() == 3


@pytest.mark.skipif(sys.platform != "linux", reason="threads have a scheduling policy of their own on Linux only")
def test_it_is_scheduled_as_its_caller_is(beside: Beside) -> None:
    seen: list[int] = []

    def ask() -> None:
        for policy in (os.SCHED_BATCH, os.SCHED_OTHER):
            os.sched_setscheduler(0, policy, os.sched_param(0))  # allowed without privileges, unlike real time
            seen.append(beside.start(lambda: os.sched_getscheduler(0)).result())

    caller = threading.Thread(target=ask)
    caller.start()
    caller.join()
    assert seen == [os.SCHED_BATCH, os.SCHED_OTHER]
