"""A function of whole hops runs at its own rate, in a session of any other."""

import numpy as np
import pytest
from laws import check_stage_laws, noise

from myna.dsp.at_rate import HopsAtRate
from myna.dsp.stage import Block

RATES = (16000, 32000, 44100, 48000, 96000)


@pytest.mark.parametrize("rate", RATES)
def test_stage_laws(rate: int) -> None:
    check_stage_laws(lambda: HopsAtRate(rate, 48000, 480, lambda hop: hop.copy()), rate)


@pytest.mark.parametrize("rate", RATES)
def test_a_sine_comes_back_delayed_by_exactly_the_declared_frames(rate: int) -> None:
    stage = HopsAtRate(rate, 48000, 480, lambda hop: hop.copy())
    at = np.arange(rate)
    out = stage.process((0.5 * np.sin(2 * np.pi * 997 / rate * at)).astype(np.float32))
    wanted = 0.5 * np.sin(2 * np.pi * 997 / rate * (at - stage.latency_frames))
    settled = slice(rate // 5, None)
    # 1e-3 of the amplitude would be a shift by 0.008 frames at 48 kHz.
    assert np.max(np.abs(out[settled] - wanted[settled])) < 2e-4


@pytest.mark.parametrize("rate", [16000, 44100, 48000])
def test_its_inside_hears_the_same_bits_for_any_split(rate: int) -> None:
    sent, heard = noise(rate // 2), []
    for size in (len(sent), 1000, 77):
        hops: list[Block] = []

        def inner(hop: Block, hops: list[Block] = hops) -> Block:
            hops.append(hop.copy())
            return hop

        stage = HopsAtRate(rate, 48000, 480, inner)
        for at in range(0, len(sent), size):
            stage.process(sent[at : at + size])
        heard.append(np.concatenate(hops))
    assert len(heard[0]) == 48000 // 2 // 480 * 480
    np.testing.assert_array_equal(heard[0], heard[1])
    np.testing.assert_array_equal(heard[0], heard[2])


def test_an_inside_that_fails_is_silenced_and_reset() -> None:
    resets: list[None] = []
    poison = iter([False, True, False, False])

    def inner(hop: Block) -> Block:
        return np.full_like(hop, np.nan) if next(poison) else hop

    stage = HopsAtRate(48000, 48000, 480, inner, inner_reset=lambda: resets.append(None))
    sent = np.ones(4 * 480, np.float32)
    out = stage.process(sent)
    assert len(resets) == 1
    np.testing.assert_array_equal(out[479 : 479 + 480], 1.0)
    np.testing.assert_array_equal(out[479 + 480 : 479 + 960], 0.0)
    np.testing.assert_array_equal(out[479 + 960 :], 1.0)
