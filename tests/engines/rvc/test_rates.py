"""Changes of rate are scipy's polyphase filters to the bit, and a stream's are those of the whole."""

import math

import numpy as np
import pytest
import scipy.signal

from myna.engines.rvc.rates import StreamResampler, kernel, resampled, whole


@pytest.mark.parametrize(
    ("rate_in_hz", "rate_out_hz"), [(48000, 16000), (44100, 16000), (16000, 48000), (40000, 48000), (32000, 44100)]
)
def test_a_stream_is_resampled_as_by_a_polyphase_filter(rate_in_hz: int, rate_out_hz: int) -> None:
    sound = np.random.default_rng(2).standard_normal(rate_in_hz // 2).astype(np.float32)
    divisor = math.gcd(rate_in_hz, rate_out_hz)
    up, down = rate_out_hz // divisor, rate_in_hz // divisor
    taps, delay = kernel(up, down)
    wanted = scipy.signal.upfirdn(taps, sound, up, down)[: len(sound) * up // down]
    stream = StreamResampler(rate_in_hz, rate_out_hz)
    assert stream.latency_frames == delay
    np.testing.assert_allclose(
        np.concatenate([stream.process(block) for block in np.split(sound, 10)]), wanted, rtol=0, atol=1e-6
    )
    start = 10 * down
    np.testing.assert_allclose(
        resampled(sound, up, down, start=start, frames=500), whole(sound, rate_in_hz, rate_out_hz)[10 * up :][:500]
    )
