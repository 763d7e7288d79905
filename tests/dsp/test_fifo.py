"""Frames come out of a FIFO as they went in, however they are cut."""

import numpy as np
import pytest
from laws import noise

from myna.dsp.fifo import Fifo, Reblocker


def test_any_cut_in_any_cut_out() -> None:
    sent, fifo, random = noise(20_000), Fifo(8), np.random.default_rng(5)
    got, at = [], 0
    while at < len(sent):
        size = int(random.integers(0, 300))
        fifo.push(sent[at : at + size])
        at += size
        got.append(fifo.pop(int(random.integers(0, len(fifo) + 1))))
    got.append(fifo.pop(len(fifo)))
    np.testing.assert_array_equal(np.concatenate(got), sent)


def test_what_was_popped_is_not_written_to_later() -> None:
    fifo = Fifo(4)
    fifo.push(np.ones(4, np.float32))
    taken = fifo.pop(4)
    fifo.push(np.zeros(64, np.float32))
    np.testing.assert_array_equal(taken, 1.0)


def test_peek_drop_clear() -> None:
    fifo = Fifo()
    fifo.push(np.arange(5, dtype=np.float32))
    fifo.push_silence(2)
    np.testing.assert_array_equal(fifo.peek(3), [0, 1, 2])
    fifo.drop(4)
    np.testing.assert_array_equal(fifo.pop(3), [4, 0, 0])
    fifo.push_silence(9)
    fifo.clear()
    assert len(fifo) == 0


@pytest.mark.parametrize("frames", [-1, 4])
def test_refuses_what_it_does_not_hold(frames: int) -> None:
    fifo = Fifo()
    fifo.push_silence(3)
    with pytest.raises(ValueError, match="of 3 frames"):
        fifo.pop(frames)
    with pytest.raises(ValueError, match="of 3 frames"):
        fifo.drop(frames)
    assert len(fifo) == 3


def test_steady_use_does_not_grow() -> None:
    fifo = Fifo(1000)
    store = fifo._store
    for _ in range(500):
        fifo.push_silence(90)
        fifo.pop(90)
    assert fifo._store is store


def test_reblocker_hands_over_whole_hops_only() -> None:
    heard: list[int] = []

    def inner(hop: np.ndarray) -> np.ndarray:
        heard.append(len(hop))
        return hop

    stage = Reblocker(480, inner)
    sent = noise(2000)
    got = np.concatenate([stage.process(sent[at : at + 7]) for at in range(0, 2000, 7)])
    assert heard == [480] * 4
    np.testing.assert_array_equal(got[479:], sent[: 2000 - 479])
    np.testing.assert_array_equal(got[:479], 0.0)


def test_reblocker_resets_its_inside() -> None:
    resets: list[None] = []
    stage = Reblocker(10, lambda hop: hop, inner_latency_frames=3, inner_reset=lambda: resets.append(None))
    assert stage.latency_frames == 12
    stage.reset()
    assert len(resets) == 1
    with pytest.raises(ValueError, match="hop_frames"):
        Reblocker(0, lambda hop: hop)
