"""Nothing leaves above the ceiling; what is below the knee is left alone."""

import numpy as np
import pytest
from laws import noise

from myna.dsp.limiter import Limiter

CEILING = 10.0 ** (-1.0 / 20.0)


@pytest.mark.parametrize("gain", [0.1, 1.0, 4.0, 1e6])
def test_never_above_the_ceiling(gain: float) -> None:
    out = Limiter(48000).process(noise(48000, level=1.0) * np.float32(gain))
    assert np.max(np.abs(out)) <= CEILING


def test_quiet_sound_passes_bit_by_bit() -> None:
    sent = np.clip(noise(9000), -0.44, 0.44)  # the knee's foot is at −7 dB
    limiter = Limiter(48000)
    np.testing.assert_array_equal(limiter.process(sent), sent)
    assert limiter.reduction_db == 0.0


def test_a_steady_loud_sine_is_turned_down_undistorted() -> None:
    at = np.arange(48000) / 48000
    out = Limiter(48000).process((1.5 * np.sin(2 * np.pi * 200 * at)).astype(np.float32))[24000:]
    spectrum = np.abs(np.fft.rfft(out * np.hanning(len(out))))
    spectrum /= spectrum.max()
    harmonics = [spectrum[200 * k // 2] for k in (2, 3, 4, 5)]
    assert 20 * np.log10(max(harmonics)) < -30.0


def test_one_monstrous_frame_does_not_silence_what_follows() -> None:
    sent = np.full(48000, 0.1, np.float32)
    sent[100] = 1e9
    out = Limiter(48000).process(sent)
    assert out[101] > 0.1 * 10 ** (-12.1 / 20)
    np.testing.assert_array_equal(out[100 + 48000 // 4 :], sent[100 + 48000 // 4 :])  # 12 dB at 60 dB a second


def test_disabled_it_passes_all() -> None:
    sent = noise(1000, level=3.0)
    np.testing.assert_array_equal(Limiter(48000, enabled=False).process(sent), sent)
