"""Clock model and drift controller, simulated over hours."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from myna.dsp.drift import ClockModel, DriftController

Drift = Callable[[float], float]
DRIFTS: dict[str, Drift] = {
    "plus": lambda t: 300.0,
    "minus": lambda t: -300.0,
    "step": lambda t: 300.0 if (t // 600) % 2 else -300.0,
    "swinging": lambda t: 300.0 * math.sin(t / 97.0),
}


@pytest.mark.parametrize("ppm", [-300.0, 0.0, 37.0, 300.0])
def test_the_line_is_smooth_and_true(ppm: float) -> None:
    """Callbacks up to 4 ms late on a clock that is off by `ppm`: the line wobbles by less than 0.3 ms."""
    rng, clock = np.random.default_rng(5), ClockModel(48000.0)
    true_rate = 48000.0 * (1 + 1e-6 * ppm)
    errors = []
    for turn in range(1, 12000):
        time_ns = 1e9 * 480 * turn / true_rate
        clock.update(int(time_ns + 4e6 * rng.random()) + 10**15, 480 * turn)
        if turn > 6000:
            errors.append(clock.frames_at(int(time_ns) + 10**15) - 480 * turn)
    assert clock.locked
    assert clock.steps == 0
    assert np.ptp(errors) < 0.0003 * 48000 * 2
    assert clock.drift_ppm == pytest.approx(ppm, abs=40.0)
    assert clock.time_ns_at(clock.frames_at(10**15)) == pytest.approx(1e15, abs=1000)


def test_a_jump_is_taken_and_an_outlier_is_not() -> None:
    clock = ClockModel(48000.0)
    for turn in range(500):
        clock.update(turn * 10_000_000, turn * 480)
    clock.update(500 * 10_000_000 + 300_000_000, 500 * 480)
    assert clock.steps == 0
    for turn in range(501, 800):  # an hour of suspend
        clock.update(3_600_000_000_000 + turn * 10_000_000, turn * 480)
    assert clock.steps == 1
    assert clock.frames_at(3_600_000_000_000 + 799 * 10_000_000) == pytest.approx(799 * 480, abs=1.0)


@pytest.mark.parametrize("ppm", [-300.0, 0.0, 300.0])
def test_a_start_with_wrong_stamps_is_unlearnt_within_seconds(ppm: float) -> None:
    """Callbacks that come ever later for 3 s, and then as they should, as PulseAudio's did: no clock runs so slow."""
    rng, clock = np.random.default_rng(4), ClockModel(44100.0)
    off_ms, slopes_ppm = {}, {}
    for turn in range(1, 1000):
        true_s = 0.02 * turn * (1 - 1e-6 * ppm)
        late_s = 0.003 * true_s if true_s < 3.0 else 0.0
        clock.update(int(1e9 * (true_s + late_s + 0.0001 * rng.exponential())), 882 * turn)
        second = int(true_s)
        off_ms[second] = 1e-6 * clock.time_ns_at(882 * turn) - 1e3 * true_s
        slopes_ppm[second] = clock.drift_ppm - ppm
    assert max(abs(off_ms[s]) for s in range(4, 20)) < 0.5
    assert max(abs(slopes_ppm[s]) for s in range(8, 20)) < 80.0
    assert abs(slopes_ppm[12]) < 20.0


@pytest.mark.parametrize("at_s", [0.05, 0.1, 0.2, 0.28])
@pytest.mark.parametrize("lost_ms", [5, 20, 38])
def test_what_is_lost_at_once_after_the_start_is_made_up_for_within_a_second(at_s: float, lost_ms: int) -> None:
    """Too little is known by then to tell a step from a slope; it took 8 s to unlearn the slope."""
    rng, clock = np.random.default_rng(1), ClockModel(48000.0)
    for turn in range(1, 1200):
        time_s = 0.01 * turn + (0.001 * lost_ms if 0.01 * turn > at_s else 0.0)
        clock.update(int(1e9 * (time_s + 3e-4 * rng.exponential())), 480 * turn)
        if turn > 100:
            assert abs(1e-6 * clock.time_ns_at(480 * turn) - 1e3 * time_s) < 1.3
        if turn > 500:
            assert abs(clock.drift_ppm) < 50.0


@pytest.mark.parametrize("jitter_ms", [1.0, 6.0])
def test_jitter_does_not_keep_the_loop_wide(jitter_ms: float) -> None:
    """What jitter makes of a young slope is no reason to doubt it: it narrows as it would have anyway."""
    rng, clock = np.random.default_rng(4), ClockModel(48000.0)
    slopes_ppm = []
    for turn in range(1, 3000):
        clock.update(int(1e7 * turn * (1 - 300e-6) + 1e6 * jitter_ms * rng.random()), 480 * turn)
        if turn > 1000:
            slopes_ppm.append(clock.drift_ppm)
    assert np.std(slopes_ppm) < 5.0 * jitter_ms
    assert np.mean(slopes_ppm) == pytest.approx(300.0, abs=5.0)


@pytest.mark.parametrize("jitter_ms", [0.0, 1.0])
@pytest.mark.parametrize("lost_ms", [-30, 10, 20, 38, 60, 200])
def test_lost_sound_is_a_step_within_a_tenth_of_a_second(lost_ms: int, jitter_ms: float) -> None:
    """Callbacks that did not come, with what they would have brought: the line must not creep there for 20 s."""
    rng, clock = np.random.default_rng(3), ClockModel(48000.0)
    for turn in range(1500):
        clock.update(turn * 10_000_000 + int(1e6 * jitter_ms * rng.random()), turn * 480)
    before_ppm = clock.drift_ppm
    for turn in range(1500, 1510):
        clock.update((turn * 10 + lost_ms) * 1_000_000 + int(1e6 * jitter_ms * rng.random()), turn * 480)
    assert clock.steps == 1
    assert clock.frames_at((15_090 + lost_ms) * 1_000_000) == pytest.approx(1509 * 480, abs=48.0 * (0.01 + jitter_ms))
    assert clock.drift_ppm == pytest.approx(before_ppm, abs=20.0)  # a crystal's


def test_a_line_that_no_stamp_is_near_is_given_up() -> None:
    """A step, and jitter that begins with it: no two errors are alike, and all are far."""
    clock = ClockModel(48000.0)
    for turn in range(3000):
        off_ms = 0.0 if turn < 1500 else (6.0, 9.5)[turn % 2]
        clock.update(int(1e6 * (turn * 10 + off_ms)), turn * 480)
    assert clock.steps >= 1
    assert clock.frames_at(int(1e6 * 29_997.75)) == pytest.approx(2999 * 480, abs=0.5 * 48.0)


def test_jitter_that_begins_and_ends_is_no_step() -> None:
    rng, clock = np.random.default_rng(4), ClockModel(48000.0)
    for turn in range(12_000):
        jitter_ms = (0.0, 6.0, 0.5, 10.0)[turn // 1000 % 4]
        clock.update(turn * 10_000_000 + int(1e6 * jitter_ms * rng.random()), turn * 480)
    assert clock.steps == 0


@pytest.mark.parametrize("held_ms", [45, 90, 200])
def test_callbacks_that_catch_up_are_none(held_ms: int) -> None:
    """Nothing is lost: those that were due come at once when the machine goes on; the last of them pull a little."""
    clock = ClockModel(48000.0)
    for turn in range(1500):
        clock.update(turn * 10_000_000, turn * 480)
    goes_on_ms = 15_000 + held_ms
    for turn in range(1500, 1700):
        clock.update(max(turn * 10, goes_on_ms) * 1_000_000, turn * 480)
    assert clock.steps == 0
    assert clock.frames_at(16_990 * 1_000_000) == pytest.approx(1699 * 480, abs=4 * 48.0)


@pytest.mark.parametrize("name", sorted(DRIFTS))
@pytest.mark.parametrize("jitter_ms", [0.0, 1.0])
def test_the_level_is_held_within_2_ms_for_hours(name: str, jitter_ms: float) -> None:
    rng, dt, target = np.random.default_rng(7), 0.1, 960.0
    control = DriftController(48000.0, target)
    level, worst, fastest, before, drift = target, 0.0, 0.0, 0.0, DRIFTS[name]
    for turn, noise in enumerate((48.0 * jitter_ms * rng.uniform(-1, 1, int(2 * 3600 / dt))).tolist()):
        t = turn * dt
        ppm = control.update(level + noise, dt)
        level += 48000.0 * dt * 1e-6 * (ppm - drift(t))
        assert abs(ppm) <= 1000.0  # 1.73 cents
        fastest, before = max(fastest, abs(ppm - before) / dt), ppm
        if t > 30:
            worst = max(worst, abs(level - target) / 48.0)
    assert worst < 2.0
    assert fastest <= 400.0 + 1e-6


def test_a_level_far_off_comes_back_without_overshoot_beyond_2_ms() -> None:
    """50 ms too full: 1 ms a second at most, and the integrator does not wind up meanwhile."""
    control, level = DriftController(48000.0, 960.0), 960.0 + 50 * 48.0
    lowest = level
    for _ in range(2000):
        level += 4800.0 * 1e-6 * control.update(level, 0.1)
        lowest = min(lowest, level)
    assert level == pytest.approx(960.0, abs=2.0)
    assert lowest > 960.0 - 2 * 48.0


def test_reset_can_keep_what_was_learned() -> None:
    control, level = DriftController(48000.0, 960.0), 960.0
    for _ in range(1000):
        level += 4800.0 * 1e-6 * (control.update(level, 0.1) - 200.0)
    control.reset(keep_drift=True)
    assert control.ppm == pytest.approx(200.0, abs=5.0)
    control.reset()
    assert control.ppm == 0.0
    assert control.update(math.nan, 0.1) == 0.0
