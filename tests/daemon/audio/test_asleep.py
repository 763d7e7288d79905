"""A machine's sleep is noticed by the difference of two clocks."""

from myna.daemon.audio.asleep import SleepWatch


def test_sleep_is_noticed_and_running_time_is_not() -> None:
    awake, always = 100.0, 5000.0
    watch = SleepWatch(lambda: awake, lambda: always)
    awake, always = 9100.0, 14000.0  # hours of work, both clocks alike
    assert not watch.slept()
    always += 0.4
    assert not watch.slept()
    always += 30.0
    assert watch.slept()
    awake, always = awake + 10.0, always + 10.0
    assert watch.slept()


def test_this_machine_has_not_just_slept() -> None:
    assert not SleepWatch().slept()
