"""Overload: bounded delay, whole stretches dropped, told, and back to nominal within a second of recovery."""

import numpy as np
import pytest

from myna.daemon.audio.fake import noise
from myna.dsp.stage import Block
from tools.live_rig import Behaviour, Rig, declared_ms, delay_ms


def long_noise() -> Block:
    """Ten seconds of noise up to 19.2 kHz, which every resampler passes."""
    lines = np.fft.rfft(np.random.default_rng(3).standard_normal(10 * 48000))
    lines[4 * len(lines) // 5 :] = 0.0
    sound = np.fft.irfft(lines)
    return (0.5 / np.max(np.abs(sound)) * sound).astype(np.float32)


@pytest.mark.parametrize(
    ("slowness", "seconds", "duplex"),
    [(1.05, 3.0, True), (1.05, 3.0, False), (1.5, 3.0, False), (2.0, 20.0, True), (4.0, 3.0, True), (4.0, 3.0, False)],
)
def test_a_model_that_is_too_slow(slowness: float, seconds: float, duplex: bool) -> None:
    table = long_noise()
    rig = Rig(
        mic={"signal": lambda first, frames: table[np.arange(first, first + frames) % len(table)],
             "ppm": 0.0 if duplex else 40.0}
    ).start(settings={"block_ms": "auto" if slowness > 3 else 20.0})  # fmt: skip
    rig.run(2.0)
    before, block_ms = delay_ms(rig)[0], rig.status.block_ms
    ceiling = before + 150.0 + 5.0
    rig.engine.compute = lambda frames, rate: slowness * frames / rate
    rig.run(2.5)
    started, seen_drops = rig.clock(), rig.status.dropped_frames
    while rig.clock() < started + seconds:
        rig.run(seconds / 6)
        assert declared_ms(rig) <= ceiling
        assert rig.status.state == "degraded"
        assert rig.status.advice
        assert rig.running.loop.intake.backlog_frames <= 0.5 * 48000
    dropped = (rig.status.dropped_frames - seen_drops + rig.status.late_frames) / 48000
    assert dropped > 0.5 * seconds * (1 - 1 / slowness)
    rig.engine.compute = lambda frames, rate: 0.05 * frames / rate
    rig.run(1.0)
    assert rig.status.block_ms == block_ms
    # What is played a second after the recovery comes at the delay that it had before.
    rig.run(0.3)
    measured, peak = delay_ms(rig, 4800)
    assert measured == pytest.approx(before, abs=1.0 if duplex else 3.0)
    assert peak > 0.99
    rig.run(1.0)
    assert rig.status.state == "running"


def test_fixed_cost_makes_the_block_grow_and_calm_makes_it_shrink() -> None:
    rig = Rig(mic={"signal": noise()}, engine=Behaviour(compute=lambda frames, rate: 0.006 + 0.05 * frames / rate))
    rig.start(settings={"block_ms": "auto"})
    rig.run(1.0)
    small = rig.status.block_ms
    assert rig.status.block_auto
    assert small is not None
    assert small <= 10.0
    rig.engine.compute = lambda frames, rate: 0.015 + 0.1 * frames / rate
    rig.run(10.0)
    grown = rig.status.block_ms
    assert grown is not None
    assert grown >= 20.0
    rig.run(5.0)
    assert rig.status.state == "running"
    assert delay_ms(rig)[0] == pytest.approx(declared_ms(rig), abs=0.1)
    rig.engine.compute = lambda frames, rate: 0.002
    rig.run(200.0)
    assert rig.status.block_ms == small
    assert any("block_ms is now" in message for _, message in rig.logged)


def test_a_fixed_block_is_never_changed() -> None:
    rig = Rig(engine=Behaviour(compute=lambda frames, rate: 0.006 + 0.05 * frames / rate)).start()
    rig.engine.compute = lambda frames, rate: 0.03
    rig.run(10.0)
    assert rig.status.block_ms == 20.0
    assert not rig.status.block_auto
    assert "block_ms=" in (rig.status.advice or "")


def test_a_single_stall_costs_one_gap_and_the_delay_returns() -> None:
    rig = Rig(mic={"signal": noise()}).start()
    rig.run(1.0)
    before = delay_ms(rig)[0]
    slow = iter([0.06])
    rig.engine.compute = lambda frames, rate: next(slow, 0.001)
    rig.run(1.5)
    assert rig.status.xruns == 1
    rig.run(0.5)
    assert delay_ms(rig)[0] == pytest.approx(before, abs=0.05)


def test_regular_stalls_keep_the_prefill_up() -> None:
    """Another program takes the processor every two seconds: after the first two gaps there are no more."""
    rig = Rig(mic={"signal": noise()}).start()
    rig.run(1.0)
    count = 0

    def compute(frames: int, rate: int) -> float:
        nonlocal count
        count += 1
        return 0.019 if count % 100 == 0 else 0.001

    rig.engine.compute = compute
    rig.run(30.0)
    assert rig.status.xruns <= 3
