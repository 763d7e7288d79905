"""No NaN, infinity or denormal gets past the guard, and none stays in it."""

import numpy as np
import pytest
from laws import noise

from myna.dsp.finite import Finite


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_bad_block_is_faded_silence(poison: float) -> None:
    guard = Finite(64)
    level = np.full(480, 0.5, np.float32)
    bad = level.copy()
    bad[200] = poison
    outs = [guard.process(b) for b in (level, bad, bad, level, level)]
    whole = np.concatenate(outs)
    assert np.isfinite(whole).all()
    assert guard.bad_blocks == 2
    np.testing.assert_array_equal(outs[1][64:], 0.0)
    np.testing.assert_array_equal(outs[2], 0.0)
    np.testing.assert_array_equal(outs[4], level)
    assert np.max(np.abs(np.diff(whole))) < 0.5 * np.pi / 2 / 64 * 1.1  # the slope of the fade, no step


def test_bad_from_the_start_is_silent() -> None:
    guard = Finite()
    np.testing.assert_array_equal(guard.process(np.full(100, np.nan, np.float32)), 0.0)


def test_denormals_become_zero() -> None:
    out = Finite().process(np.array([1e-42, -1e-40, 1e-30], np.float32))
    np.testing.assert_array_equal(out, np.array([0, 0, 1e-30], np.float32))


def test_the_count_outlives_a_reset() -> None:
    guard = Finite()
    guard.process(np.array([np.nan], np.float32))
    guard.reset()
    assert guard.bad_blocks == 1
    sound = noise(100)
    np.testing.assert_array_equal(guard.process(sound), sound)
    with pytest.raises(ValueError, match="fade_frames"):
        Finite(0)
