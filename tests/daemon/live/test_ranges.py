"""Drift, overload, and what is not finite, over ranges of all that can vary; `tools/soak/` goes on for hours."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from myna.daemon.live.messages import VoiceOrder
from myna.dsp.stage import Block
from myna.engines.index import Retrieval
from tools.live_rig import Rig, declared_ms, delay_ms
from tools.soak.clock_drift import drift
from tools.soak.simulated_session import RATE, noise_that_never_repeats

faiss = pytest.importorskip("faiss", reason="the package faiss-cpu is not installed")

SIGNAL = noise_that_never_repeats()
FEATURES = 16


def cheap(ppm: float, block_ms: float, period_ms: float = 10.0, **settings: Any) -> Rig:
    """A session at 8 kHz, whose hours cost little."""
    device = {"rate_hz": RATE, "keep_s": 5.0}
    rig = Rig(mic={**device, "signal": SIGNAL, "ppm": ppm}, out=device)
    return rig.start(settings={"block_ms": block_ms, **settings}, devices={"period_ms": period_ms})


def test_clocks_apart_with_steps_and_jitter() -> None:
    table = drift(400.0, 3)
    assert table.held, table.rows


def test_clocks_further_apart_than_can_be_followed_are_reported() -> None:
    failed = drift(60.0, 3, most_ppm=3000.0).failed
    assert any(law.startswith("the delay is held") for law in failed)
    assert "followed by resampling alone" in failed


@pytest.mark.parametrize("device", ["mic", "out"])
@pytest.mark.parametrize("lost_ms", [6.0, 14.0, 20.0, 38.0, 60.0, 150.0, 400.0])
def test_after_lost_sound_the_delay_is_nominal_within_a_second(device: str, lost_ms: float) -> None:
    rig = cheap(100.0, 20.0)
    rig.run(8.0)
    before = delay_ms(rig, 1024, 1500.0)[0]
    rig.audio.stall(device, lost_ms / 1000.0)
    rig.run(lost_ms / 1000.0 + 1.0)
    for _ in range(4):
        now, peak = delay_ms(rig, 1024, 1500.0)
        assert peak > 0.9
        assert now == pytest.approx(before, abs=2.0)
        assert now == pytest.approx(declared_ms(rig), abs=2.0)
        rig.run(1.5)
    # The hole, and blocks that come late until it is known what they are late by. Less than 15 ms is no hole.
    assert rig.status.xruns <= (0 if lost_ms < 15.0 else 3)


@pytest.mark.parametrize("device", ["mic", "out"])
@pytest.mark.parametrize("jitter_ms", [0.0, 3.0, 6.0])
def test_what_is_lost_as_a_session_begins_is_made_up_for_soon(device: str, jitter_ms: float) -> None:
    """The clocks are hardly known then: what blocks come late by must not be held against the voice for a minute."""
    rig = cheap(100.0, 20.0)
    rig.mic.jitter_ms = rig.out.jitter_ms = jitter_ms
    rig.run(0.3)
    rig.audio.stall(device, 0.02)
    rig.run(12.0)
    assert delay_ms(rig, 1024, 1500.0)[0] == pytest.approx(declared_ms(rig), abs=2.0 + jitter_ms / 2)
    assert rig.running.prefill.level_ms == rig.running.prefill.nominal_ms


@pytest.mark.parametrize("seed", range(6))
def test_a_model_too_slow_by_anything_for_any_time(seed: int) -> None:
    dice = np.random.default_rng(seed)
    slowness, seconds = float(1.05 * (4.0 / 1.05) ** dice.random()), float(2.0 * 60.0 ** dice.random())
    ppm, block_ms = float(dice.choice([0.0, dice.uniform(-300, 300)])), float(dice.choice([20.0, 40.0, 100.0, 250.0]))
    words = f"{slowness:.2f} times too slow for {seconds:.0f} s, {ppm:.0f} ppm, blocks of {block_ms:.0f} ms"
    rig = cheap(ppm, block_ms)
    rig.run(4.0)
    before = delay_ms(rig, 1024, 1500.0)[0]
    rig.engine.compute = lambda frames, rate: slowness * frames / rate
    end_s = rig.clock() + seconds
    highest = 0.0
    while rig.clock() < end_s:
        rig.run(seconds / 8)
        highest = max(highest, declared_ms(rig))
        assert rig.running.loop.intake.backlog_frames < RATE, words
    assert highest <= before + max(block_ms, 150.0) + 5.0, words
    if seconds > 30.0:
        assert rig.status.dropped_frames + rig.status.late_frames > 0, words
    rig.engine.compute = lambda frames, rate: 0.05 * frames / rate
    # A second after the recovery what goes in comes out at the delay from before; it is heard that delay later.
    rig.run(1.0 + before / 1000.0 + 2 * block_ms / 1000.0)
    measured, alike = delay_ms(rig, 512, 1500.0)
    assert measured == pytest.approx(before, abs=3.0), words
    assert alike > 0.95, words
    rig.run(1.0)
    assert rig.status.state == "running", words


def broken_retrieval(folder: Path, bad: float, dice: np.random.Generator) -> Retrieval:
    """An index in which every tenth vector is not finite, and some are equal to what is asked for."""
    vectors = dice.uniform(-0.6, 0.6, (400, FEATURES)).astype(np.float32)
    vectors[::10, int(dice.integers(FEATURES))] = bad
    vectors[5] = 0.0
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(FEATURES), FEATURES, 1)
    index.train(vectors[1:9])
    index.add(vectors)
    faiss.write_index(index, str(folder / "bad.index"))
    return Retrieval(folder / "bad.index", FEATURES)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("source", ["input", "engine", "retrieval"])
def test_what_is_not_finite_never_leaves_and_never_stays(source: str, bad: float, tmp_path: Path) -> None:
    dice = np.random.default_rng(len(source))
    rig = cheap(
        float(dice.uniform(-300, 300)), 20.0, gate_db=-60.0, rms_mix=0.5, denoise_in="spectral", denoise_out="spectral"
    )
    rig.order(voice=VoiceOrder(id="late", engine="fake", defaults={"latency_ms": 30.0}))
    rig.run(2.0)
    level = float(np.sqrt(np.mean(rig.played(1.0) ** 2)))
    for _ in range(2):
        share = float(dice.uniform(0.001, 1.0))

        def spoil(sound: Block, share: float = share) -> Block:
            return np.where(dice.random(len(sound)) < share, bad, sound).astype(np.float32)

        at_s = rig.clock()
        if source == "input":
            rig.mic.signal = lambda first, frames, spoil=spoil: spoil(SIGNAL(first, frames))
        elif source == "engine":
            rig.engine.shape = spoil
        else:
            retrieval, rate = broken_retrieval(tmp_path, bad, dice), float(dice.uniform(0.1, 1.0))
            rig.engine.shape = lambda sound, retrieval=retrieval, rate=rate: retrieval.blended(
                sound.reshape(-1, FEATURES), rate
            ).reshape(-1)
        rig.run(float(dice.uniform(0.05, 1.0)))
        rig.mic.signal, rig.engine.shape = SIGNAL, None
        rig.run(1.5)
        sound = rig.played_since(at_s)
        assert np.isfinite(sound).all()
        assert np.max(np.abs(sound)) <= 1.4  # the limiter's edges, made round by the resampler behind it
        assert np.sqrt(np.mean(rig.played(0.5) ** 2)) > 0.1 * level  # what noise the denoiser leaves varies
        assert rig.status.state == "running"
