"""Real-time priority is given up by a thread that leaves the processor no time, and asked for again."""

import os
import sys
import threading
import time

import pytest

from myna.daemon.live.realtime import Courtesy


class Thread:
    """What a thread has used of what has passed."""

    def __init__(self) -> None:
        self.wall_s = self.worked_s = 0.0
        self.told: list[str] = []

    def courtesy(self) -> Courtesy:
        return Courtesy(lambda: self.wall_s, lambda: self.worked_s, lambda: self.say("fifo"), lambda: self.say("other"))

    def say(self, what: str) -> str:
        self.told.append(what)
        return what

    def pass_by(self, courtesy: Courtesy, seconds: float, share: float) -> None:
        for _ in range(round(seconds / 0.02)):
            self.wall_s += 0.02
            self.worked_s += 0.02 * share
            courtesy.look()


def test_it_is_given_up_under_full_load_and_asked_for_again() -> None:
    thread = Thread()
    courtesy = thread.courtesy()
    assert courtesy.told == "fifo"
    thread.pass_by(courtesy, 10.0, 0.9)
    assert thread.told == ["fifo"]
    thread.pass_by(courtesy, 10.0, 0.95)  # the most that Linux leaves a real-time thread while others wait
    assert thread.told == ["fifo", "other"]
    assert courtesy.told == "other"
    thread.pass_by(courtesy, 10.0, 0.9)  # not enough to be sure that it has recovered
    assert thread.told == ["fifo", "other"]
    thread.pass_by(courtesy, 3.0, 0.5)
    assert thread.told == ["fifo", "other", "fifo"]


@pytest.mark.skipif(sys.platform != "linux", reason="no real-time priority is asked for on this platform")
def test_a_real_thread_that_computes_without_a_pause_goes_back_to_usual_scheduling() -> None:
    seen: dict[str, object] = {}

    def compute() -> None:
        courtesy = Courtesy(wall_s=time.thread_time)  # no second passes while others have the processor
        seen["first"] = courtesy.told
        if os.sched_getscheduler(0) != os.SCHED_FIFO:
            return
        deadline = time.monotonic() + 30.0
        while os.sched_getscheduler(0) == os.SCHED_FIFO and time.monotonic() < deadline:
            courtesy.look()
        seen["then"] = courtesy.told

    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    if str(seen["first"]).startswith("refused"):
        pytest.skip(f"this user may not have real-time priority: {seen['first']}")
    assert "given up" in str(seen["then"])
