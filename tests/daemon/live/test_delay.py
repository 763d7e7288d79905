"""The delay is what status says, equal on every start, held under drift, and moved without a gap."""

from typing import Any

import numpy as np
import pytest
import soxr

from myna.control.contract import LatencyReply, LatencyRequest
from myna.daemon.audio.fake import noise, tone
from myna.daemon.live.messages import VoiceOrder
from myna.dsp.stage import Block
from tools.live_rig import Behaviour, Rig, declared_ms, delay_ms, frequency_hz, level_db

NOISE = {"signal": noise()}


def voice(latency_ms: float) -> VoiceOrder:
    return VoiceOrder(id="v", engine="fake", defaults={"latency_ms": latency_ms})


@pytest.mark.parametrize(
    ("latency_ms", "block_ms", "period_ms", "settings"),
    [
        (0.0, 20.0, 10.0, {}),
        (42.5, 20.0, 10.0, {}),
        (10.0, 50.0, 10.0, {}),
        (10.0, 30.0, 5.0, {}),
        (10.0, 100.0, 7.0, {"prefill_ms": 40.0}),
        (10.0, 20.0, 10.0, {"denoise_in": "spectral"}),
        (10.0, 20.0, 10.0, {"denoise_out": "spectral"}),
        (10.0, 20.0, 10.0, {"denoise_in": "rnnoise", "vad": True}),
        (10.0, 20.0, 10.0, {"target_latency_ms": 150.0}),
        (10.0, "auto", 10.0, {}),
    ],
)
def test_declared_is_measured(
    latency_ms: float, block_ms: float, period_ms: float, settings: dict[str, Any], speech_16k: Block
) -> None:
    signal = noise()
    if any("denoise" in key for key in settings):  # a denoiser takes noise away, speech it leaves
        speech = np.asarray(soxr.resample(speech_16k, 16000, 48000), np.float32)
        signal = lambda first, frames: speech[np.arange(first, first + frames) % len(speech)]  # noqa: E731
    rig = Rig(mic={"signal": signal})
    rig.start(
        voice=voice(latency_ms),
        settings={"block_ms": block_ms, **settings},
        devices={"period_ms": period_ms},
    )
    rig.run(4.0)
    measured, peak = delay_ms(rig, 48000)
    assert peak > 0.5
    assert measured == pytest.approx(declared_ms(rig), abs=1.5 if "denoise_in" in settings else 0.1)
    assert rig.status.xruns == rig.status.late_frames == 0
    if "target_latency_ms" in settings:
        assert rig.status.latency.estimated_ms == pytest.approx(150.0, abs=0.1)


def test_equal_starts_give_equal_delays() -> None:
    for mic in ({}, {"ppm": 150.0}):  # duplex, and clocks apart
        delays = []
        for start in range(20):
            rig = Rig(mic={**NOISE, **mic})
            rig.audio.advance(0.0137 * start)
            rig.start(voice=voice(12.0))
            rig.run(0.8)
            delays.append(delay_ms(rig)[0])
        assert max(delays) - min(delays) < (0.1 if not mic else 2.0)


def test_the_delay_comes_back_as_it_was_after_a_loss() -> None:
    rig = Rig(mic=NOISE).start(voice=voice(12.0), settings={"block_ms": "auto"})
    rig.run(1.0)
    before = delay_ms(rig)[0]
    rig.audio.unplug("out")
    rig.run(1.0)
    rig.audio.plug(rig.out)
    rig.run(2.5)
    assert delay_ms(rig)[0] == pytest.approx(before, abs=0.05)
    assert rig.engine.opened == 1  # the voice stayed in memory


@pytest.mark.parametrize("duplex", [True, False])
def test_the_latency_probe_finds_the_declared_delay(duplex: bool) -> None:
    rig = Rig(mic={} if duplex else {"ppm": 60.0})
    rig.audio.cable("out", "mic", 960)
    rig.start(voice=voice(23.0))
    rig.run(1.0)
    answers: list[LatencyReply | Exception] = []
    rig.session.measure_latency(LatencyRequest(bursts=5), answers.append)
    rig.run(6.0)
    (reply,) = answers
    assert isinstance(reply, LatencyReply)
    assert reply.reason == "ok"
    # The simulated cable is one of 20 ms and a callback's period; devices add nothing.
    assert reply.latency.loopback_ms == pytest.approx(declared_ms(rig) + 20.0, abs=10.1)
    assert rig.status.latency.loopback_ms == reply.latency.loopback_ms
    assert rig.running.heard.probe is None


def test_without_a_cable_the_probe_says_so() -> None:
    rig = Rig().start()
    answers: list[LatencyReply | Exception] = []
    rig.session.measure_latency(LatencyRequest(bursts=3), answers.append)
    rig.run(6.0)
    (reply,) = answers
    assert isinstance(reply, LatencyReply)
    assert reply.reason == "no_signal"
    assert reply.latency.loopback_ms is None


def test_a_target_is_held_across_block_changes_and_load() -> None:
    rig = Rig(mic=NOISE).start(voice=voice(12.0), settings={"block_ms": 20.0, "target_latency_ms": 200.0})
    seen = []
    for block_ms, load in ((20.0, 0.05), (60.0, 0.3), (100.0, 0.6), (40.0, 0.1)):
        rig.engine.compute = lambda frames, rate, load=load: load * frames / rate
        rig.order(settings={"block_ms": block_ms})
        for _ in range(5):
            rig.run(0.5)
            seen.append(delay_ms(rig)[0] + 10.0)
        assert rig.status.block_ms == block_ms
    assert max(abs(np.array(seen) - 200.0)) < 5.0
    assert rig.status.xruns == 0


@pytest.mark.parametrize("duplex", [True, False])
def test_block_changes_are_continuous(duplex: bool) -> None:
    rig = Rig(mic={"signal": tone(300.0, 48000), "ppm": 0.0 if duplex else 80.0}).start()
    rig.run(3.0)
    started = rig.clock()
    for block_ms in (20.0, 60.0, 250.0, 40.0, 10.0):
        rig.order(settings={"block_ms": block_ms})
        rig.run(1.5)
        assert rig.status.block_ms == block_ms
    sound = rig.played_since(started)
    assert rig.status.xruns == rig.status.late_frames == 0
    # Where the delay moves two phases of the tone are mixed: it may dip, but never jump.
    assert np.max(np.abs(np.diff(sound))) < 1.3 * 0.5 * 2 * np.pi * 300 / 48000
    assert rig.engine.opened == 1


@pytest.mark.parametrize("ppm", [-300.0, -100.0, 40.0, 300.0])
def test_drift_is_tracked_within_two_ms_and_two_cents(ppm: float) -> None:
    rig = Rig(mic={**NOISE, "ppm": ppm}, out={"ppm": -ppm / 3}).start(voice=voice(12.0))
    rig.run(15.0)
    errors = []
    for _ in range(30):
        rig.run(1.0)
        errors.append(delay_ms(rig)[0] - declared_ms(rig))
    assert max(map(abs, errors)) < 2.0
    assert rig.status.drift_ppm == pytest.approx(-4 / 3 * ppm, abs=15.0)
    assert rig.status.xruns == rig.status.late_frames == rig.status.dropped_frames == 0
    rig.mic.signal = tone(997.0, 48000)
    rig.run(3.0)
    hz = frequency_hz(rig.played(1.0), 997.0, 48000)
    true = 997.0 * (1 + 1e-6 * ppm) / (1 - 1e-6 * ppm / 3)
    assert abs(1200 * np.log2(hz / true)) < 2.0


def test_drift_with_steps_and_jitter() -> None:
    rig = Rig(mic={**NOISE, "ppm": 200.0, "jitter_ms": 6.0}, out={"jitter_ms": 3.0, "partial": (480, 240, 720)})
    rig.start(settings={"prefill_ms": 20.0})
    for step in (200.0, -150.0, 300.0, 0.0):
        rig.mic.ppm = step
        rig.run(20.0)
        for _ in range(5):
            rig.run(1.0)
            assert abs(delay_ms(rig)[0] - declared_ms(rig)) < 2.0
    assert rig.status.dropped_frames == 0
    assert rig.status.xruns == 0


def test_moving_the_delay_is_heard_as_no_step() -> None:
    rig = Rig(mic={"signal": tone(440.0, 48000)}).start()
    rig.run(1.0)
    at = rig.clock()
    for target in (120.0, 60.0, 300.0, "off"):
        rig.order(settings={"target_latency_ms": target})
        rig.run(1.0)
    assert np.max(np.abs(np.diff(rig.played_since(at)))) < 1.3 * 0.5 * 2 * np.pi * 440 / 48000
    assert rig.status.xruns == 0


@pytest.mark.parametrize("rate_in", [16000, 22050, 32000, 44100, 48000, 96000])
@pytest.mark.parametrize("rate_out", [16000, 22050, 32000, 44100, 48000, 96000])
def test_a_tone_through_any_pair_of_rates(rate_in: int, rate_out: int) -> None:
    rig = Rig(
        mic={"rate_hz": rate_in, "signal": tone(997.0, rate_in, 0.5), "ppm": 50.0},
        out={"rate_hz": rate_out},
        engine=Behaviour(compute=lambda frames, rate: 0.001),
    ).start()
    rig.run(7.0)
    sound = rig.played(2.0).astype(np.float64)
    hz = frequency_hz(sound, 997.0, rate_out)
    assert abs(hz / 997.0 - 1) < 1e-3
    level = level_db(sound, hz, rate_out)
    assert level == pytest.approx(20 * np.log10(0.5), abs=0.2)
    for line in (
        50.0,
        100.0,
        hz - 50.0,
        hz + 50.0,
        hz - 100.0,
        hz + 100.0,
    ):  # blocks of 20 ms, and what they would modulate
        assert level_db(sound, line, rate_out) < level - 80.0, line
    assert rig.status.xruns == rig.status.late_frames == 0


def test_a_block_costs_one_pass_of_the_voice_and_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(mic=NOISE).start(settings={"gate_db": -60.0, "rms_mix": 0.5, "denoise_in": "spectral"})
    rig.run(0.5)
    calls, blocks = rig.engine.processed, rig.status.blocks

    def touched(*arguments: object, **_: object) -> None:
        raise AssertionError(f"a file in the audio path: {arguments}")

    monkeypatch.setattr("builtins.open", touched)
    monkeypatch.setattr("io.open", touched)
    monkeypatch.setattr("os.open", touched)
    rig.run(1.0)
    monkeypatch.undo()
    assert rig.engine.processed - calls == rig.status.blocks - blocks == 50
