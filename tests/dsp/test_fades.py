"""Gain curves add up, and gains move without a click."""

import numpy as np
import pytest
from laws import noise

from myna.dsp.fades import Ramp, Switch, crossfade, equal_gain, equal_power, linear


@pytest.mark.parametrize("frames", [1, 2, 63, 480])
def test_curves_and_their_mirrors_add_up(frames: int) -> None:
    for curve in (linear(frames), equal_gain(frames)):
        np.testing.assert_allclose(curve + curve[::-1], 1.0, atol=1e-6)
        assert np.all(np.diff(curve) > 0)
    power = equal_power(frames)
    np.testing.assert_allclose(power**2 + power[::-1] ** 2, 1.0, atol=1e-6)


def test_crossfade_of_a_sound_into_itself_is_that_sound() -> None:
    sound = noise(480)
    np.testing.assert_allclose(crossfade(sound, sound, equal_gain(480)), sound, atol=1e-7)
    with pytest.raises(ValueError, match="480 and 479"):
        crossfade(sound, sound[1:], equal_gain(480))


def test_switch_reaches_exact_ends_and_turns_round_on_the_way() -> None:
    switch = Switch(100, 50)
    out = np.ones(40, np.float32)
    switch.apply(out, True)
    assert 0.0 < out[-1] < 1.0
    back = np.ones(30, np.float32)
    switch.apply(back, False)
    assert abs(back[0] - out[-1]) < 0.05  # it goes on from where it was
    np.testing.assert_array_equal(back[-5:], 0.0)
    up = np.ones(150, np.float32)
    switch.apply(up, True)
    np.testing.assert_array_equal(up[100:], 1.0)
    with pytest.raises(ValueError, match="at least one frame"):
        switch.times(0, 1)


def test_ramp_moves_in_decibels_within_its_time() -> None:
    ramp = Ramp(48000, ramp_ms=20.0)
    sent = np.ones(4000, np.float32)
    np.testing.assert_array_equal(ramp.process(sent), sent)
    ramp.set(-40.0)
    assert ramp.gain_db == pytest.approx(-40.0)
    moved = ramp.process(sent)
    np.testing.assert_allclose(moved[960:], 0.01, rtol=1e-6)
    assert 20 * np.log10(moved[479]) == pytest.approx(-20.0, abs=0.1)  # half-way in dB at half the time
    assert np.all(np.diff(moved) <= 0)


def test_ramp_to_and_from_silence() -> None:
    ramp = Ramp(1000, ramp_ms=100.0)
    ramp.set(-np.inf)
    out = ramp.process(np.ones(200, np.float32))
    np.testing.assert_array_equal(out[100:], 0.0)
    assert ramp.gain_db == -np.inf
    ramp.set(0.0)
    back = ramp.process(np.ones(200, np.float32))
    np.testing.assert_array_equal(back[100:], 1.0)
    assert np.max(np.abs(np.diff(np.concatenate([out, back])))) < 0.02


@pytest.mark.parametrize("gain_db", [np.nan, np.inf])
def test_ramp_refuses_what_is_no_gain(gain_db: float) -> None:
    with pytest.raises(ValueError, match="no such gain"):
        Ramp(48000).set(gain_db)
