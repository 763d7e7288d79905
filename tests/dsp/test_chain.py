"""A chain is its stages in order."""

import numpy as np
from laws import noise

from myna.dsp.chain import Chain
from myna.dsp.delay import DelayLine
from myna.dsp.fades import Ramp


def test_order_and_delay() -> None:
    chain = Chain([DelayLine(5), Ramp(48000, gain_db=-6.0), DelayLine(7)])
    sent = noise(100)
    assert chain.latency_frames == 12
    gain = np.float32(10 ** (-6 / 20))
    np.testing.assert_array_equal(chain.process(sent)[12:], sent[:-12] * gain)
    chain.reset()
    np.testing.assert_array_equal(chain.process(sent)[:12], 0.0)


def test_an_empty_chain_copies() -> None:
    sent = noise(10)
    got = Chain([]).process(sent)
    np.testing.assert_array_equal(got, sent)
    assert got is not sent
