"""Filters equal scipy's, however the sound is split; lengths that transform quickly."""

import numpy as np
import pytest
import scipy.fft
import scipy.signal
from numpy.typing import NDArray

from myna.dsp.filters import RecursiveFilter, fast_length, highpass, lowpass_taps, one_pole, quarter_turn_taps

RATES_HZ = (8000, 48000, 192000)
Signal = NDArray[np.float64]


def split(made: RecursiveFilter, signal: Signal, seed: int) -> Signal:
    """`signal` filtered in some seventy blocks of any length."""
    cuts = np.unique(np.random.default_rng(seed).integers(0, len(signal), 70))
    return np.concatenate([made.process(part) for part in np.split(signal, cuts)])


@pytest.mark.parametrize("rate_hz", RATES_HZ)
@pytest.mark.parametrize("order", [1, 2])
def test_a_highpass_is_butterworths(order: int, rate_hz: int) -> None:
    signal = np.random.default_rng(order).standard_normal(20_000)
    forward, backward = scipy.signal.butter(order, 60.0, "highpass", fs=rate_hz)
    wanted = scipy.signal.lfilter(forward, backward, signal)
    made = highpass(order, 60.0, rate_hz)
    for seed in range(3):
        np.testing.assert_allclose(split(made, signal, seed), wanted, rtol=0, atol=1e-9)
        made.reset()
    with pytest.raises(ValueError, match="order 3"):
        highpass(3, 60.0, rate_hz)


def test_a_pole_remembers_as_long_as_it_should() -> None:
    signal = np.random.default_rng(1).standard_normal(5_000)
    wanted = scipy.signal.lfilter([0.001], [1.0, -0.999], signal)
    np.testing.assert_allclose(split(one_pole(0.999), signal, 1), wanted, rtol=0, atol=1e-12)
    assert len(one_pole(0.5).process(np.zeros(0))) == 0


def test_coefficients_that_make_no_filter_are_refused() -> None:
    for forward, backward in (([1.0], [1.0]), ([1.0], [1.0, 0.5]), ([1.0, 0.0], [2.0, 0.5])):
        with pytest.raises(ValueError, match="coefficients"):
            RecursiveFilter(np.array(forward), np.array(backward))


def test_a_lowpass_is_a_windowed_sinc() -> None:
    np.testing.assert_allclose(lowpass_taps(121, 1300.0, 48000), scipy.signal.firwin(121, 1300.0, fs=48000), atol=1e-15)


def test_fast_lengths_are_the_smallest_ones() -> None:
    for least in (*range(1, 3000), 151_007, 1_000_001):
        assert fast_length(least) == scipy.fft.next_fast_len(least, real=True)


@pytest.mark.parametrize("hz", [600.0, 1000.0, 5000.0, 15000.0])
def test_a_quarter_turn_makes_sines_of_cosines(hz: float) -> None:
    reach, rate_hz = 96, 48000
    at = np.arange(4000)
    turned = np.convolve(np.cos(2 * np.pi * hz * at / rate_hz), quarter_turn_taps(reach), "valid")
    np.testing.assert_allclose(turned, np.sin(2 * np.pi * hz * at[reach:-reach] / rate_hz), atol=0.06)
