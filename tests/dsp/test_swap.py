"""Exchanging a stage while sound runs: no gap, no click, no stage lost."""

import numpy as np
import pytest
from laws import noise

from myna.dsp.delay import DelayLine
from myna.dsp.fades import Ramp
from myna.dsp.stage import Block, Stage
from myna.dsp.swap import Swap

FADE = 480


def _run(swap: Swap, sound: Block, size: int = 100) -> Block:
    return np.concatenate([swap.process(sound[at : at + size]) for at in range(0, len(sound), size)])


@pytest.mark.parametrize(("latency", "lead"), [(0, 0), (700, 0), (700, 333)])
def test_the_new_stage_sounds_once_it_has_rung_in(latency: int, lead: int) -> None:
    old, new = DelayLine(50), DelayLine(latency)
    swap = Swap(old, FADE, lead)
    sound = noise(6000)
    before = _run(swap, sound[:1000])
    swap.replace(new)
    assert swap.swapping
    assert swap.newest is new
    assert swap.latency_frames == 50
    after = _run(swap, sound[1000:])
    assert not swap.swapping
    assert swap.latency_frames == latency
    assert list(swap.retired) == [old]
    begins, ends = 1000 + latency + lead, 1000 + latency + lead + FADE
    whole = np.concatenate([before, after])
    np.testing.assert_array_equal(whole[50:begins], sound[: begins - 50])
    np.testing.assert_allclose(whole[ends:], sound[ends - latency : len(sound) - latency], atol=1e-7)


def test_no_gap_and_no_click() -> None:
    sine = (0.5 * np.sin(2 * np.pi * 220 / 48000 * np.arange(8000))).astype(np.float32)
    swap = Swap(Ramp(48000), FADE)
    first = _run(swap, sine[:2000])
    swap.replace(Ramp(48000, gain_db=-12.0))
    whole = np.concatenate([first, _run(swap, sine[2000:])])
    # The sine's own steepest slope and that of the fade, added.
    assert np.max(np.abs(np.diff(whole))) < 0.5 * 2 * np.pi * 220 / 48000 + 0.5 * np.pi / 2 / FADE
    for at in range(1500, 4000, 50):
        assert np.max(np.abs(whole[at : at + 220])) > 0.12  # a whole period is never quieter than the new stage


def test_equal_stages_cannot_be_heard_to_change() -> None:
    sound = noise(4000)
    swap = Swap(DelayLine(0), FADE)
    swap.replace(DelayLine(0))
    np.testing.assert_array_equal(_run(swap, sound), sound)


def test_any_split_gives_the_same_crossfade() -> None:
    sound, results = noise(4000), []
    for size in (4000, 480, 7):
        swap = Swap(DelayLine(0), FADE, 100)
        swap.replace(DelayLine(33))
        results.append(_run(swap, sound, size))
    # In a block's rest after the fade, old + (new − old) is new but for rounding.
    np.testing.assert_allclose(results[0], results[1], atol=1e-7)
    np.testing.assert_allclose(results[0], results[2], atol=1e-7)


def test_a_replacement_of_a_replacement_retires_the_one_never_heard() -> None:
    first, second, third = (DelayLine(n) for n in (0, 5, 9))
    swap = Swap(first, FADE)
    swap.replace(second)
    swap.process(noise(100))
    swap.replace(third)
    _run(swap, noise(2000))
    assert list(swap.retired) == [second, first]
    assert swap.stage is third


def test_reset_completes_a_replacement_and_forgets_sound() -> None:
    old: Stage = DelayLine(3)
    new = DelayLine(20)
    swap = Swap(old, FADE)
    swap.replace(new)
    swap.process(noise(40))
    swap.reset()
    assert swap.stage is new
    assert list(swap.retired) == [old]
    np.testing.assert_array_equal(swap.process(np.zeros(50, np.float32)), 0.0)


def test_refuses_no_crossfade() -> None:
    with pytest.raises(ValueError, match="crossfade_frames"):
        Swap(DelayLine(0), 0)
