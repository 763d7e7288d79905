"""The gate opens in time, holds, and closes to exact zeros."""

import numpy as np
import pytest

from myna.dsp.gate import Gate
from myna.dsp.stage import Block

RATE = 48000


def _sine(level_db: float, ms: float) -> Block:
    at = np.arange(round(RATE * ms / 1000)) / RATE
    return (10 ** (level_db / 20) * np.sqrt(2) * np.sin(2 * np.pi * 1000 * at)).astype(np.float32)


def _silence(ms: float) -> Block:
    return np.zeros(round(RATE * ms / 1000), np.float32)


def test_opens_holds_and_closes() -> None:
    sound = _sine(-20, 300)
    out = Gate(RATE, -40.0).process(np.concatenate([_silence(100), sound, _sine(-60, 500)]))
    heard = out[4800 : 4800 + len(sound)]
    np.testing.assert_array_equal(out[:4800], 0.0)
    np.testing.assert_array_equal(heard[200:], sound[200:])  # detected within 0.6 ms, opened over 2 ms: 4.2 at most
    after = np.flatnonzero(out[4800 + len(sound) :])
    last_ms = after[-1] / 48
    assert 120 <= last_ms <= 120 + 80 + 20  # hold, release, and the detector's own 2 ms falling by 40 dB


def test_lookahead_keeps_the_onset() -> None:
    sound = _sine(-20, 200)
    gate = Gate(RATE, -40.0, lookahead_ms=3.0)
    assert gate.latency_frames == 144
    out = gate.process(np.concatenate([_silence(50), sound, _silence(50)]))
    np.testing.assert_array_equal(out[2400 + 144 : 2400 + 144 + len(sound)], sound)


def test_hysteresis_keeps_it_open_just_below_the_threshold() -> None:
    gate = Gate(RATE, -40.0)
    gate.process(_sine(-30, 100))
    assert gate.is_open
    gate.process(_sine(-44, 1000))
    assert gate.is_open
    out = gate.process(_sine(-50, 1000))
    assert not gate.is_open
    np.testing.assert_array_equal(out[-4800:], 0.0)
    gate.process(_sine(-44, 1000))
    assert not gate.is_open


def test_pauses_shorter_than_the_hold_do_not_chop() -> None:
    sound = np.concatenate([_sine(-20, 100), _silence(90)] * 3)
    out = Gate(RATE, -40.0).process(sound)
    np.testing.assert_array_equal(out[400:], sound[400:])


def test_settings_change_without_a_click() -> None:
    gate = Gate(RATE, None)
    sound = _sine(-30, 100)
    first = gate.process(sound)
    np.testing.assert_array_equal(first, sound)
    gate.set(-10.0, hold_ms=0.0)
    second = gate.process(sound)
    gate.set(None)
    third = gate.process(np.concatenate([sound, sound]))
    assert gate.is_open
    whole = np.concatenate([first, second, third])
    np.testing.assert_array_equal(second[-480:], 0.0)
    np.testing.assert_array_equal(third[-len(sound) :], sound)
    steepest = np.max(np.abs(np.diff(sound)))
    assert np.max(np.abs(np.diff(whole))) < 1.2 * steepest


@pytest.mark.parametrize("size", [5, 64, 997])
def test_decides_at_the_same_frame_for_any_split(size: int) -> None:
    sound = np.concatenate([_silence(20), _sine(-20, 50), _silence(300), _sine(-30, 40), _silence(250)])
    whole = Gate(RATE, -40.0).process(sound)
    gate = Gate(RATE, -40.0)
    parts = [gate.process(sound[at : at + size]) for at in range(0, len(sound), size)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
