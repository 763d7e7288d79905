"""A delay is exact, and moves without a click."""

import numpy as np
import pytest
from laws import noise, run_split

from myna.dsp.delay import DelayLine


@pytest.mark.parametrize("frames", [0, 1, 479, 4096, 10_000])
def test_exact(frames: int) -> None:
    sent = noise(15_000)
    got = DelayLine(frames).process(sent)
    np.testing.assert_array_equal(got[frames:], sent[: len(sent) - frames])
    np.testing.assert_array_equal(got[:frames], 0.0)


def test_a_new_delay_is_crossfaded_in() -> None:
    line = DelayLine(100, max_frames=1000, crossfade_frames=480)
    sent = np.sin(2 * np.pi * 200 / 48000 * np.arange(20_000)).astype(np.float32)
    first = line.process(sent[:5000])
    line.set(900)
    assert line.latency_frames == 900
    assert not line.settled
    second = line.process(sent[5000:])
    assert line.settled
    np.testing.assert_array_equal(first[100:], sent[:4900])
    np.testing.assert_array_equal(second[480:], sent[5000 + 480 - 900 : -900])
    # A 200 Hz sine moves by at most 0.026 a frame; the fade adds at most 2 × π/2 / 480.
    assert np.max(np.abs(np.diff(np.concatenate([first, second])))) < 0.026 + 0.0066


def test_changes_on_top_of_each_other_end_at_the_last_one_for_any_split() -> None:
    sent = noise(6000)
    results = []
    for sizes in ([1000], [100], [250, 750]):
        line = DelayLine(0, max_frames=500, crossfade_frames=300)
        head = run_split(line, sent[:1000], sizes)
        line.set(500)
        middle = run_split(line, sent[1000:1100], [100])
        line.set(20)
        tail = run_split(line, sent[1100:], sizes)
        results.append(np.concatenate([head, middle, tail]))
        np.testing.assert_array_equal(tail[-1000:], sent[-1020:-20])
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_refuses_what_it_cannot_keep() -> None:
    with pytest.raises(ValueError, match=r"0\.\.100"):
        DelayLine(100).set(101)
    with pytest.raises(ValueError, match="-1 frames"):
        DelayLine(-1, max_frames=10)
    with pytest.raises(ValueError, match="crossfade_frames"):
        DelayLine(1, crossfade_frames=0)


def test_reset_goes_back_to_the_first_delay() -> None:
    line = DelayLine(10, max_frames=50)
    line.set(50)
    line.process(noise(2000))
    line.reset()
    assert line.latency_frames == 10
    np.testing.assert_array_equal(line.process(noise(20))[:10], 0.0)
