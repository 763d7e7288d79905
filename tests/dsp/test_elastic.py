"""A block made longer or shorter keeps its ends and has no step."""

import numpy as np
import pytest
from laws import noise

from myna.dsp.elastic import lengthen, shorten

BLOCK = (0.5 * np.sin(2 * np.pi * 150 / 48000 * np.arange(4800))).astype(np.float32)
SLOPE = 0.5 * 2 * np.pi * 150 / 48000


@pytest.mark.parametrize("by", [1, 48, 480, 2400])
def test_lengthen(by: int) -> None:
    out = lengthen(BLOCK, by)
    assert out.dtype == np.float32
    assert out.shape == (4800 + by,)
    np.testing.assert_array_equal(out[:by], BLOCK[:by])
    np.testing.assert_array_equal(out[-by:], BLOCK[-by:])
    # Both sounds' slope, and their difference (at most 1) times that of the glide.
    assert np.max(np.abs(np.diff(out))) <= SLOPE + np.pi / 2 / (4800 - by) * 1.01


@pytest.mark.parametrize("by", [1, 48, 480, 2400])
def test_shorten(by: int) -> None:
    out = shorten(BLOCK, by)
    assert out.dtype == np.float32
    assert out.shape == (4800 - by,)
    assert out[0] == pytest.approx(BLOCK[0], abs=1e-5)
    assert out[-1] == pytest.approx(BLOCK[-1], abs=1e-5)
    assert np.max(np.abs(np.diff(out))) <= SLOPE + np.pi / 2 / (4800 - by) * 1.01


def test_by_nothing_is_a_copy() -> None:
    for change in (lengthen, shorten):
        out = change(BLOCK, 0)
        np.testing.assert_array_equal(out, BLOCK)
        assert not np.shares_memory(out, BLOCK)
        assert change(BLOCK[:0], 0).shape == (0,)


def test_silence_stays_exact_and_sound_is_not_amplified() -> None:
    for change in (lengthen, shorten):
        np.testing.assert_array_equal(change(np.zeros(100, np.float32), 10), 0.0)
        sound = noise(2000)
        assert np.max(np.abs(change(sound, 100))) <= np.max(np.abs(sound)) * (1 + 1e-6)


@pytest.mark.parametrize("by", [-1, 100, 101])
def test_refuses_more_than_there_is(by: int) -> None:
    for change in (lengthen, shorten):
        with pytest.raises(ValueError, match="100 frames can't change"):
            change(np.zeros(100, np.float32), by)
